"""Cache groups with windows under a chain of MTP modules: mistakes that leave an entry other than
the one that a computation from scratch makes.
"""
from mistake import Break

TOPICS = {"windows": "cache entries behind windows, after rejections and prefix hits"}

TEST = "Drafters/DrafterEntriesTest.EqualThoseFromScratch/*"

BREAKS = (
    Break("windows", "windows of rows that run again are freed", "kv/cache_coordinator.h",
          "return std::max(0, first - config_.rerun_tokens);", "return first;",
          "engine_test", TEST),
    Break("windows", "rows that read a draft count as final", "draft/module_drafter.cc",
          "std::min(right - m, end)", "std::min(right, end)", "engine_test", TEST),
    Break("windows", "blocks are published before later modules have read what follows",
          "draft/chain_drafter.h", ".tokens_ahead = k}", ".tokens_ahead = 1}", "engine_test", TEST),
)
