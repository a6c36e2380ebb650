"""EAGLE-3 drafters: what they read of the target, what they keep, which tokens they draft."""
from mistake import Break

TOPICS = {
    "d2t": "the drafter's tokens are the target's",
    "taps": "the target's layers that a drafter reads",
    "paths of layers": "a layer's rows are those that its path runs",
    "passes": "a drafter's entries equal a recomputation",
    "3.1": "the norms of version 3.1",
    "work space": "the largest passes of a drafter find their memory",
    "llama": "drafters with Llama's attention",
}

TRAINED = "Models/GoldenGreedyTest.EqualsTheGoldens/tiny_v3_mtp3_eagle3"
GOLDEN = "Drafters/Eagle3GoldenTest.*"
ENTRIES = "Drafters/DrafterEntriesTest.EqualThoseFromScratch/Eagle3*"

BREAKS = (
    Break("d2t", "d2t is ignored", "networks/eagle3_weights.cc",
          "tokens.push_back(static_cast<int32_t>(token));",
          "tokens.push_back(static_cast<int32_t>(i));", "engine_test", TRAINED),
    Break("d2t", "drafts are drawn without the map", "networks/eagle3_draft_model.cc",
          ".ids = weights_.tokens,", ".ids = {},", "engine_test",
          "Drafters/Eagle3DraftsTest.*"),
    Break("taps", "the last tap is of the layer before", "networks/eagle3_draft_model.cc",
          "taps_(std::move(taps)),",
          "taps_([&] {\n        --taps.back();\n        return std::move(taps);\n      }()),",
          "engine_test", TRAINED),
    Break("taps", "ids in the config are those of layers that streams leave", "checkpoint/eagle3_config.cc",
          "static_cast<int32_t>(left ? id : id - 1)", "static_cast<int32_t>(left ? id : id)",
          "engine_test", "Eagle3.*"),
    Break("paths of layers", "a plan of several paths has no list of all rows", "attention/attention_plan.cc",
          "if (paths_.ForAll()) one_path_", "if (paths_.ForAll() && !paths_.ByRole()) one_path_", "ops_test",
          "Isas/OpsTableTest.LayersOfSeveralPaths*"),
    Break("paths of layers", "a network takes the paths of its first layer", "attention/row_path.cc",
          "for (const LayerSpec& layer : config.layers) add(layer);", "add(config.first_cached_layer());",
          "attention_test", "RowPath.OfANetwork*"),
    Break("work space", "the warm-up leaves the last rows of prompts out", "engine/warm_up.cc",
          "if (draft.attention().paths().ByRole()) {", "if (false) {", "engine_test", "WarmUp.*"),
    Break("passes", "the first new entry stays as it was drafted", "draft/repeated_drafter.cc",
          "first_rows_.Add({&r, FinalEnd(r.slot, 0), entries_end, r.prompt_length},",
          "first_rows_.Add({&r, std::min(FinalEnd(r.slot, 0) + 1, entries_end), entries_end, "
          "r.prompt_length},", "engine_test", ENTRIES),
    Break("passes", "a later pass does not read the one before", "draft/repeated_drafter.cc",
          "model().CopyRows(previous, rows, copies_);", "", "engine_test",
          "Drafters/Eagle3DraftsTest.*"),
    Break("llama", "angles are not stretched", "checkpoint/eagle3_config.cc",
          "if (type == \"llama3\") rotary.llama3 = ReadLlama3(rope);", "ReadLlama3(rope);",
          "networks_test", GOLDEN),
    Break("llama", "neighbours are rotated as pairs", "checkpoint/eagle3_config.cc",
          "{.dims = head_dim, .interleaved = false}", "{.dims = head_dim, .interleaved = true}",
          "networks_test", GOLDEN),
    Break("llama", "queries and keys are normalised without weights", "ops/cpu/per_head_ops.cc",
          "if (norm != nullptr) NormHeads(", "NormHeads(", "networks_test", GOLDEN),
    Break("llama", "a plan has the paths of the target alone", "networks/eagle3_draft_model.cc",
          "return target.Of(RowPathsOf(layer, target.paths().latent_form()));",
          "return target.Of(target.paths().latent_form());", "networks_test", GOLDEN),
    Break("3.1", "the target's rows are not normalised before fc", "networks/eagle3_draft_model.cc",
          "if (!weights_.tap_norms.empty()) {", "if (weights_.tap_norms.size() > 99) {",
          "networks_test", GOLDEN),
    Break("3.1", "the next pass reads the output before its norm", "networks/eagle3_draft_model.cc",
          "if (spec_.norms_output) {\n    ops.Norm(context, x, weights_.final_norm, weights_.layer.norm_eps, out);",
          "if (spec_.norms_output) {\n    ops.Copy(context, x, out);", "networks_test", GOLDEN),
)
