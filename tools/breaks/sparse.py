"""Latent attention over tokens that an indexer chooses: DeepSeek-V3.2 and GLM-5."""
from mistake import Break

TOPICS = {
    "choice of tokens": "which tokens a row reads",
    "near-ties": "a choice is that of the highest scores, but for near-ties",
    "keys of tokens": "what an indexer keeps of a token",
}

GOLDEN = "Sparse/FamilyGoldenTest.LogitsInBothFormsAndInChunks/*"
CHOICE = "SparseChoiceTest.OfRoundedNumbers*"
GOLDEN_TEXTS = "Models/SparseGoldenTest.*"
ENTRIES = "Drafters/DrafterEntriesTest.EqualThoseFromScratch/Sparse*"

BREAKS = (
    Break("choice of tokens", "a row reads one token less", "layers/sparse_attention.cc",
          ".top_k = static_cast<int32_t>(indexer.top_k),",
          ".top_k = static_cast<int32_t>(indexer.top_k) - 1,", "networks_test", GOLDEN),
    Break("choice of tokens", "a row reads the first token in the place of its first choice", "ops/cpu/sparse_ops.cc",
          "  std::sort(chosen, chosen + top_k);",
          "  std::sort(chosen, chosen + top_k);\n  chosen[0] = 0;", "sparse_choice_test", GOLDEN_TEXTS),
    Break("choice of tokens", "queries of the indexer are not rotated", "layers/sparse_attention.cc",
          "context.ops.Rotate(context, q, heads, 0, IndexRotary(indexer, rotary));", "",
          "networks_test", GOLDEN),
    Break("choice of tokens", "both families rotate pairs", "layers/sparse_attention.cc",
          "return {rotary.cos, rotary.sin, indexer.interleaved};",
          "return {rotary.cos, rotary.sin, indexer.dim > 0};", "networks_test", GOLDEN),
    Break("choice of tokens", "later rows of a step read the lists of the first",
          "ops/cpu/sparse_ops.cc", "args.selected->entries + (args.first_row + row) * args",
          "args.selected->entries + row * args", "ops_test",
          "*SparseOpsTest.RowsHaveTheirBitsInAnyStep/*"),
    Break("near-ties", "the last of the chosen is any", "ops/cpu/sparse_ops.cc",
          "std::nth_element(order.begin(), order.begin() + top_k - 1, order.end(),",
          "std::nth_element(order.begin(), order.begin() + top_k / 2, order.end(),",
          "sparse_choice_test", CHOICE),
    Break("near-ties", "products below zero count", "ops/cpu/sparse_ops.cc",
          "score += std::max(0.0F, dot) * weights.row(row)[h];", "score += dot * weights.row(row)[h];",
          "sparse_choice_test", CHOICE),
    Break("near-ties", "the first head has no weight", "ops/cpu/sparse_ops.cc",
          "for (int32_t h = 0; h < args.heads; ++h) {\n        const float dot",
          "for (int32_t h = 1; h < args.heads; ++h) {\n        const float dot",
          "sparse_choice_test", CHOICE),
    Break("near-ties", "of equal scores the higher entry is chosen", "ops/cpu/sparse_ops.cc",
          "return of_a != of_b ? of_a > of_b : a < b;", "return of_a != of_b ? of_a > of_b : a > b;",
          "ops_test", "*SparseOpsTest.OfEqualScoresTheLowerIsChosen/*"),
    Break("near-ties", "NaN equals every score", "ops/cpu/sparse_ops.cc",
          "return of_a != of_b ? of_a > of_b : a < b;",
          "const float x = scores[static_cast<size_t>(a)];\n"
          "                     const float y = scores[static_cast<size_t>(b)];\n"
          "                     return x != y ? x > y : a < b;",
          "ops_test", "*SparseOpsTest.ScoresThatAreNoNumbersAreTheLowest/*"),
    Break("near-ties", "queries stay unrounded over keys in 8 bits", "ops/cpu/sparse_ops.cc",
          "RoundIndexQuery(args.keys, scratch.values.data() + int64_t{h} * dim);", "",
          "sparse_choice_test", "SparseChoiceTest.OfKeysInEightBits*"),
    Break("choice of tokens", "scores of all rows have their place", "ops/cpu/sparse_ops.cc",
          "keys[s] = context.arena.Matrix(visible, dim);",
          "keys[s] = context.arena.Matrix(visible, dim);\n    context.arena.Matrix(q.rows, visible);",
          "ops_test", "SparseWorkSpaceTest.*"),
    Break("keys of tokens", "the mean is not taken off before the norm", "ops/cpu/sparse_ops.cc",
          "row[i] -= mean;", "row[i] -= 0 * mean;",
          "networks_test", GOLDEN),
    Break("keys of tokens", "rows whose output nobody reads leave no index keys",
          "layers/sparse_attention.cc",
          "WriteIndexKeys(context, *spec.indexer, w.indexer, inputs, rotary, caches.index_keys, x);",
          "if (x.rows > 1000) {\n    WriteIndexKeys(context, *spec.indexer, w.indexer, inputs, rotary, "
          "caches.index_keys, x);\n  }", "engine_test", ENTRIES),
)
