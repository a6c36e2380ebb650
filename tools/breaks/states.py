"""Running states of linear attention: mistakes by which drafts, chunks or prefix hits leave another
state than the tokens alone do.
"""
from mistake import Break

TOPICS = {"states": "running states, after rejections, chunks and prefix hits"}

ROWS = "Isas/DeltaTest.BitsDoNotDependOnStepsOrDrafts/*"
CHECKPOINTS = "Isas/DeltaTest.ARequestGoesOnFromACheckpoint/*"
HITS = "Families/RunningStateTest.APrefixHitGoesOnFromAState/*"

BREAKS = (
    Break("states", "drafts write the state", "ops/cpu/delta_ops.cc",
          "state_end_(StateTokens(end_ - request.num_drafts))", "state_end_(StateTokens(end_))",
          "ops_test", ROWS),
    Break("states", "a step forgets the rows of its block that ran before", "ops/cpu/delta_ops.cc",
          "for (int32_t position = work.tokens; position < first_; ++position) {",
          "for (int32_t position = first_; position < first_; ++position) {", "ops_test", ROWS),
    Break("states", "kept rows are too few for the drafts of a step", "kv/running_state.h",
          "kKeptStateRows = 32;", "kKeptStateRows = 24;", "ops_test", ROWS),
    Break("states", "a checkpoint has the rows before the step's end", "ops/cpu/delta_ops.cc",
          "Before(part, tokens + i)", "Before(part, end_ + i)", "ops_test", CHECKPOINTS),
    Break("states", "the rows before a checkpoint are not restored", "ops/cpu/delta_ops.cc",
          "std::copy_n(before, 3 * dim_, KeptRow(first_ + i));", "static_cast<void>(before);",
          "ops_test", CHECKPOINTS),
    Break("states", "a request goes on in the shared state", "ops/cpu/delta_ops.cc",
          "  float* own = args_.state.State(tables_.state, piece_);",
          "  float* own = args_.state.State(work.restores ? tables_.restored : tables_.state, piece_);",
          "ops_test", CHECKPOINTS),
    Break("states", "a hit starts from an empty state", "execute/request_slot.cc",
          "restores_state = admission.cached_tokens > 0;", "restores_state = false;",
          "running_state_test", HITS),
    Break("states", "a state is found under an earlier block's key", "kv/cache_coordinator.cc",
          "keys[static_cast<size_t>(tokens / config_.TokensPerKey() - 1)];",
          "keys[static_cast<size_t>(tokens / config_.TokensPerResume() / 2)];",
          "running_state_test", HITS),
)
