"""Cache groups with windows under a chain of MTP modules: mistakes that leave an entry other than
the one that a computation from scratch makes.
"""
from mistake import Break

TOPICS = {
    "windows": "cache entries behind windows, after rejections and prefix hits",
    "grouped queries": "what a head reads, and its gate",
}

TEST = "Drafters/DrafterEntriesTest.EqualThoseFromScratch/*"
GROUPED = "*PerHeadOpsTest*"

BREAKS = (
    Break("windows", "windows of rows that run again are freed", "kv/cache_coordinator.h",
          "return std::max(0, first - config_.rerun_tokens);", "return first;",
          "engine_test", TEST),
    Break("windows", "rows that read a draft count as final", "draft/module_drafter.cc",
          "std::min(right - m, end)", "std::min(right, end)", "engine_test", TEST),
    Break("windows", "blocks are published before later modules have read what follows",
          "draft/chain_drafter.h", ".tokens_ahead = k}", ".tokens_ahead = 1}", "engine_test", TEST),
    Break("grouped queries", "a row sees a key more than its window", "ops/cpu/per_head_ops.cc",
          ".window = s.window,", ".window = s.window + 1,", "ops_test", GROUPED),
    Break("grouped queries", "heads have no gates", "ops/cpu/per_head_ops.cc",
          "    kernels_.gate_heads(*context.pool, args.gates.floats(), args.out.floats());\n", "",
          "ops_test", GROUPED),
)
