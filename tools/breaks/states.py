"""Running states of linear attention: mistakes by which drafts, chunks or prefix hits leave another
state than the tokens alone do.
"""
from mistake import Break

TOPICS = {"states": "running states, after rejections, chunks and prefix hits",
          "ling": "what Ling-3.0's config, files and answers say"}

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
    Break("states", "a state is found behind entries that were given up", "kv/cache_coordinator.cc",
          "const int32_t shorter = ResumableIn(g, keys, tokens, host);",
          "const int32_t shorter = HoldsState(keys, tokens, host)"
          " ? tokens : ResumableIn(g, keys, tokens, host);",
          "kv_test", "RunningStateTest.WithoutItsEntriesAStateIsPassedBy"),
    Break("ling", "YaRN leaves the softmax scale as it is", "checkpoint/bailing_hybrid_config.cc",
          "mla.softmax_scale *= magnitude * magnitude;", "static_cast<void>(magnitude);",
          "checkpoint_test", "HybridConfigTest.LingsYarn"),
    Break("ling", "the module's limits are those of no layer", "checkpoint/bailing_hybrid_config.cc",
          ".mlp = experts(linear.size())};", ".mlp = moe};", "checkpoint_test",
          "HybridConfigTest.LingsModule"),
    Break("ling", "a checkpoint has no tensors of its module", "checkpoint/hybrid_names.cc",
          "*index >= trunk + config.num_nextn_predict_layers", "*index >= trunk", "checkpoint_test",
          "HybridConfigTest.TensorNames"),
    Break("ling", "the module's own tensors are any layer's", "checkpoint/hybrid_names.cc",
          "if (*index >= trunk && IsOneOf(name, kOfModules))", "if (IsOneOf(name, kOfModules))",
          "checkpoint_test", "HybridConfigTest.TensorNames"),
    Break("ling", "experts in MXFP4 are bytes", "checkpoint/quantized_tensors.cc",
          "? of_powers || type == DType::kU8", "? of_powers", "checkpoint_test",
          "QuantizedTensorsTest.Mxfp4"),
    Break("ling", "experts are stored as the rest is", "checkpoint/quantization_config.cc",
          "out_.experts_format = StoredFormat::kMxfp4;", "", "checkpoint_test",
          "HybridConfigTest.LingsExpertsMayBeMxfp4"),
    Break("ling", "heads of latent attention are not gated", "layers/mla_attention.cc",
          "context.ops.delta()->GateHeads(context, gates, out);", "static_cast<void>(gates);",
          "trained_hybrid_test.py", ""),
    Break("ling", "values are convolved as keys are", "networks/hybrid_weights.cc",
          'prefix + "v_conv1d.weight"', 'prefix + "k_conv1d.weight"', "trained_hybrid_test.py", ""),
    Break("ling", "a line end of two characters belongs to the name", "output/key_value_call_reader.cc",
          'if (name.ends_with("\\\\n")) name', 'if (false) name', "output_test",
          "BrokenCallsTest.Ling3sCalls"),
    Break("ling", "its calls are not known", "output/output_format.cc",
          'if (model_type == "bailing_hybrid") return Find("ling3");', "", "output_test",
          "Families/FamilyTemplateTest.IsRecognisedAndItsCallsAreRead/ling3"),
)
