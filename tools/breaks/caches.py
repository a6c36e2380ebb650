"""The caches of DeepSeek-V4 and of its drafters: what lies in the window, in compressed entries, among the
indexer's keys, in the rows that entries are pooled from, and behind the frontier.
"""
from mistake import Break

TOPICS = {
    "window": "rows of the last tokens",
    "entries": "entries of 4 and of 128 tokens",
    "index keys": "keys that an indexer chooses entries by",
    "state": "rows that entries are pooled from, by position",
    "rounded": "codes in the place of numbers",
    "blocks": "a block of drafts and what its drafter keeps of the target",
}

GOLDEN = "DeepSeekV4Golden.*"
ENTRIES = "Drafters/DrafterEntriesTest.EqualThoseFromScratch/V4*"
OPS = "Isas/CompressedOpsTest.*"

BREAKS = (
    Break("window", "a row does not see the first token of its window", "ops/cpu/compressed_ops.cc",
          "std::max(0, own - args.window + 1)", "std::max(0, own - args.window + 2)",
          "networks_test", GOLDEN),
    Break("entries", "an entry of 4 tokens leaves out the ones before", "ops/cpu/compressed_ops.cc",
          "if (shape.overlaps && first > 0) {", "if (shape.overlaps && first > position) {",
          "networks_test", GOLDEN),
    Break("entries", "an entry is rotated by its last position", "ops/cpu/compressed_ops.cc",
          "FillAngles(first, args.frequencies", "FillAngles(position, args.frequencies",
          "networks_test", GOLDEN),
    Break("entries", "the row that closes an entry of 128 tokens does not see it",
          "ops/cpu/compressed_ops.cc",
          "for (int32_t i = 0; i < (position + 1) / args.ratio; ++i) {",
          "for (int32_t i = 0; i < position / args.ratio; ++i) {", "ops_test", OPS),
    Break("entries", "entries are written where token slots are", "ops/cpu/compressed_ops.cc",
          "slots[row] / shape.ratio", "slots[row] % args.entries.block_size", "networks_test", GOLDEN),
    Break("index keys", "an indexer reads the keys one entry late", "ops/cpu/sparse_ops.cc",
          "EntrySlot(args.keys, span.block_table, j);",
          "EntrySlot(args.keys, span.block_table, std::max<int64_t>(0, j - 1));", "networks_test",
          GOLDEN),
    Break("entries", "heads of queries are not normalised", "ops/cpu/compressed_ops.cc",
          "  NormHeads(context, args.q, args.heads, nullptr, args.norm_eps);\n", "", "ops_test", OPS),
    Break("state", "rows to be pooled are freed before the overlapping entry is closed",
          "networks/network.cc", "kinds.push_back({.window = a.ratio * overlap,",
          "kinds.push_back({.window = a.ratio,", "engine_test", ENTRIES),
    Break("state", "a row's biases are those of the next position", "ops/cpu/compressed_ops.cc",
          "int64_t{position % shape.ratio}", "int64_t{(position + 1) % shape.ratio}", "networks_test",
          GOLDEN),
    Break("rounded", "scales are the least power of two above the largest value",
          "ops/cpu/entry_codec.cc", "== 0.5F) --exponent;", "== 0.5F) ++exponent;", "ops_test",
          "EntryCodec.*"),
    Break("rounded", "keys of indexers are not transformed", "ops/cpu/entry_codec.cc",
          "Hadamard(transformed.data(), cache.width);", "", "ops_test", "EntryCodec.*"),
    Break("rounded", "scales of keys lie where the next entries' codes do", "kv/layer_cache.h",
          "int64_t{block_size} * width +", "int64_t{block_size - 1} * width +", "ops_test",
          "EntryCodec.*"),
    Break("rounded", "latents without scales are not normalised", "ops/cpu/mla_ops.cc",
          "kernels_.rms_norm(*context.pool, latent, args.norm, s.norm_eps, latent);\n    Rotate",
          "Rotate", "ops_test", "*SparseOpsTest.EntriesAndKeys/*"),
    Break("blocks", "a block sees no row behind its own", "ops/cpu/compressed_ops.cc",
          "args.in_blocks ? span.context_length + span.query_length - 1 : position",
          "position", "draft_test", "Caches/DSparkGoldenOfCaches.*"),
    Break("blocks", "the drafter leaves out the last row of a step", "draft/block_drafter.cc",
          "entry_windows_.push_back({&r, r.first_position, end, r.prompt_length});",
          "entry_windows_.push_back({&r, r.first_position, std::max(r.first_position + 1, end - 1), "
          "r.prompt_length});", "engine_test", ENTRIES),
    Break("blocks", "every step's drafts follow the tokens before the first step's",
          "ops/cpu/block_sampler.cc", "const int32_t draw = rows.first + i;", "const int32_t draw = i;",
          "ops_test", "*CpuBlockSamplerTest*"),
    Break("blocks", "drafts do not depend on the token before them", "networks/dspark_draft_model.cc",
          "sampler_->EmbedBefore(context, weights_.markov, step, of_step);",
          "ops.SetZero(context, of_step);", "draft_test", "Caches/DSparkGoldenOfCaches.*"),
)
