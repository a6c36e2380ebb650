"""Pages that leave the KV cache's pool, are kept on the host, and come back: wrong bytes, wrong
pages, what a drafter keeps with a page, stores that fail.
"""
from mistake import Break

TOPICS = {
    "copies": "which bytes are copied, and when",
    "tiers": "prefixes that lie in both tiers, and what is given up",
    "stores": "files that fail or give other bytes",
    "dropping": "what must not come back",
}

HOST = "kv/host_cache.cc"
FILE = "kv/file_page_store.cc"
COORDINATOR = "kv/cache_coordinator.cc"
RETURNING = "*ReturningConversations*"
ENTRIES = "Drafters/DrafterEntriesTest.EqualThoseFromScratch/*"
PROPERTY = "PrefixCachingProperty.*"

BREAKS = (
    Break("copies", "a page is copied once it belongs to somebody else", "kv/block_pool.cc",
          "leaves_(PageNumber(block, place_), key);",
          "leaves_(PageNumber((block + 1) % num_blocks(), place_), key);",
          "schedule_test", PROPERTY),
    Break("copies", "pages come back to the page beside", HOST,
          "access_.WritePage(page, from);", "access_.WritePage(std::max(0, page - 1), from);", "kv_test",
          "HostCacheTest.*"),
    Break("copies", "how many modules have finished a page is left behind", "draft/target_hidden_rows.cc",
          "  std::memcpy(&blocks_[static_cast<size_t>(page)], from.data(), sizeof(Block));\n", "",
          "engine_test", ENTRIES),
    Break("copies", "kept rows of the target are left behind", "draft/target_hidden_rows.cc",
          "if (KeepsRowsOf(page)) ops.CopyFromHost(", "if (!KeepsRowsOf(page)) ops.CopyFromHost(",
          "engine_test", ENTRIES),
    Break("copies", "the drafter's part of a page is left behind", "execute/rank.cc",
          "if (parts_.drafter) parts_.drafter->WritePage(", "if (!parts_.drafter) parts_.drafter->WritePage(",
          "engine_test", ENTRIES),
    Break("copies", "all ranks get the first rank's pages", "execute/step_runner.cc",
          "rank.WritePage(page, from.subspan(static_cast<size_t>(rank.index()) * bytes, bytes));",
          "rank.WritePage(page, from.first(bytes));", "engine_test", RETURNING + "OfRanks*"),
    Break("copies", "a page is copied without waiting for the steps before", "execute/queued_executor.cc",
          "CallAndWait([&] { inner_->ReadPage(page, to); });", "(void)page, (void)to;",
          "engine_test", RETURNING + "FromAFile*"),
    Break("tiers", "what came back is not there before the step", COORDINATOR,
          "if (!host_->Restore(r.key, page)) return false;",
          "if (!host_->Holds(r.key)) return false;", "schedule_test", PROPERTY),
    Break("tiers", "the page that left longest ago stays", HOST,
          "  if (Holds(key)) return Touch(key);\n", "  if (Holds(key)) return;\n", "kv_test",
          "HostCacheTest.WithoutRoom*"),
    Break("tiers", "windows that resumed requests read are not kept", COORDINATOR,
          "FirstRow((end + resume - 1) / resume * resume))", "FirstRow(end + resume))", "engine_test",
          RETURNING + "OfWindows*:WindowGroupsTest.*"),
    Break("tiers", "pages that are to come back are not counted", COORDINATOR,
          "  missing += std::ssize(tables.returns_);\n", "", "kv_test", "HostCacheTest.WhatIsNotTaken*"),
    Break("tiers", "nobody is told of blocks that came back", "engine/engine_core.cc",
          "if (kv_events_ && host_cache_) TellReturned(plan);", "", "engine_test", "*KvEventsTest*"),
    Break("copies", "places of a piece lie on each other", "kv/memory_page_store.cc",
          "piece.data() + place % places_of_piece_ * page_bytes_", "piece.data()", "kv_test",
          "MemoryPageStoreTest.TakesPieces*"),
    Break("stores", "memory that there is not ends the engine", "kv/memory_page_store.cc",
          "throw PageStoreError(error.what());", "throw;", "kv_test", "MemoryPageStoreTest.APieceThat*"),
    Break("stores", "bytes are not compared with those that were written", FILE,
          "if (PageChecksum(place, page_) != checksums_.at(static_cast<size_t>(place))) {",
          "if (place < 0) {", "kv_test", "FilePageStoreTest.OtherBytes*"),
    Break("stores", "a full disk goes unnoticed", FILE,
          "if (count <= 0) throw FailedTo(\"writing\"", "if (false) throw FailedTo(\"writing\"", "kv_test",
          "FilePageStoreTest.AFullDisk*"),
    Break("stores", "the file stays", FILE, "  unlink(path.c_str());\n", "", "kv_test",
          "FilePageStoreTest.LeavesNothing*"),
    Break("stores", "a page that could not be read counts as returned", HOST,
          "  return !counts_.failed;\n", "  return true;\n", "engine_test", RETURNING + "GoOn*"),
    Break("stores", "an admission goes on after a store has failed", "schedule/scheduler.cc",
          "if (reserved && CacheOf(entry).Return(entry.tables)) return shared;",
          "if (reserved && (CacheOf(entry).Return(entry.tables) || true)) return shared;", "engine_test",
          RETURNING + "GoOn*"),
    Break("dropping", "forgetting prefixes leaves those on the host", COORDINATOR,
          "  if (host_ != nullptr) host_->Forget();\n", "", "engine_test",
          RETURNING + "PrefixesAreForgotten:WeightUpdateTest.PagesThatLeft*"),
)
