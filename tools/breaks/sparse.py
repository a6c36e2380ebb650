"""Latent attention over tokens that an indexer chooses: DeepSeek-V3.2 and GLM-5."""
from mistake import Break

TOPICS = {
    "choice of tokens": "which tokens a row reads",
    "keys of tokens": "what an indexer keeps of a token",
}

GOLDEN = "Sparse/FamilyGoldenTest.LogitsInBothFormsAndInChunks/*"
ENTRIES = "Drafters/DrafterEntriesTest.EqualThoseFromScratch/Sparse*"

BREAKS = (
    Break("choice of tokens", "a row reads one token less", "layers/sparse_attention.cc",
          ".top_k = static_cast<int32_t>(indexer.top_k),",
          ".top_k = static_cast<int32_t>(indexer.top_k) - 1,", "networks_test", GOLDEN),
    Break("choice of tokens", "queries of the indexer are not rotated", "layers/sparse_attention.cc",
          "context.ops.Rotate(context, q, heads, 0, IndexRotary(indexer, rotary));", "",
          "networks_test", GOLDEN),
    Break("choice of tokens", "both families rotate pairs", "layers/sparse_attention.cc",
          "return {rotary.cos, rotary.sin, indexer.interleaved};",
          "return {rotary.cos, rotary.sin, indexer.dim > 0};", "networks_test", GOLDEN),
    Break("choice of tokens", "later rows of a step read the lists of the first",
          "ops/cpu/sparse_ops.cc", "args.selected->entries + (args.first_row + row) * args",
          "args.selected->entries + row * args", "ops_test",
          "*SparseOpsTest.AttentionReadsWhatWasChosen/*"),
    Break("keys of tokens", "the mean is not taken off before the norm", "ops/cpu/sparse_ops.cc",
          "row[i] -= mean;", "row[i] -= 0 * mean;",
          "networks_test", GOLDEN),
    Break("keys of tokens", "rows whose output nobody reads leave no index keys",
          "layers/sparse_attention.cc",
          "WriteIndexKeys(context, *spec.indexer, w.indexer, inputs, rotary, caches.index_keys, x);",
          "if (x.rows > 1000) {\n    WriteIndexKeys(context, *spec.indexer, w.indexer, inputs, rotary, "
          "caches.index_keys, x);\n  }", "engine_test", ENTRIES),
)
