#include "outrider/cli/memory_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "outrider/base/byte_size.h"

namespace outrider::cli {

namespace {

/// "9.0 MiB float8_e4m3, 2.1 MiB bfloat16", the largest first.
std::string Parts(const WeightSizes& sizes) {
  std::vector<std::pair<int64_t, DType>> parts;
  for (const auto& [dtype, bytes] : sizes) parts.emplace_back(bytes, dtype);
  std::sort(parts.rbegin(), parts.rend());
  std::string text;
  for (const auto& [bytes, dtype] : parts) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", ByteSizeText(bytes), DTypeName(dtype));
  }
  return text;
}

/// How many requests of the greatest length the cache holds while they generate, beside the rows of
/// one prompt's step.
double RequestsHeld(const MemoryReport& memory, int64_t max_model_len) {
  if (memory.kv_groups.size() <= 1 && !memory.state) {
    return static_cast<double>(memory.kv_tokens) / static_cast<double>(max_model_len);
  }
  const RequestPages& request = memory.request;
  return static_cast<double>(memory.kv_pages - (request.prompt - request.generating)) /
         static_cast<double>(request.history + request.generating);
}

/// What a cache group keeps, and how many of the shared pages a request takes for it.
std::string GroupLine(const CacheGroupReport& report) {
  const CacheGroupSpec& group = report.group;
  const std::string pages =
      group.kind == CacheGroupKind::kSlidingWindow
          ? fmt::format("{} pages while a request generates, at most {} during its prompt",
                        report.pages_generating, report.pages_per_request)
          : fmt::format("at most {} pages for a request", report.pages_per_request);
  return fmt::format("  {}: {} layers, {} per token, {} tokens a page, {}", group.name,
                     group.layers, ByteSizeText(report.bytes_per_token), group.tokens_per_block,
                     pages);
}

/// A thing that layers of a group keep.
std::string PartLine(const CachePartReport& part) {
  return fmt::format("    {}: {} layers, {} per token", part.what, part.layers,
                     ByteSizeText(std::llround(part.bytes_per_token)));
}

/// What linear attention keeps, and what it takes of the shared pages.
std::string StateLine(const RunningStateReport& state) {
  return fmt::format(
      "  running state: {} in {} pages and kept rows {} in {} pages for a request, {} in {} pages "
      "for a checkpoint",
      ByteSizeText(state.spec.StateBytes()), state.state_pages, ByteSizeText(state.spec.RowBytes()),
      state.row_pages, ByteSizeText(state.spec.StateBytes()), state.state_pages);
}

/// What the caches of all ranks hold, where each has that of its own requests; else "".
std::string CapacityNote(const MemoryReport& memory, int64_t max_model_len) {
  if (memory.cache_ranks == 1) return "";
  std::string note =
      fmt::format("their caches hold {} tokens", memory.cache_ranks * memory.kv_tokens);
  if (memory.kv_groups.size() > 1) {
    note = fmt::format("their caches hold {} pages", memory.cache_ranks * memory.kv_pages);
  }
  if (max_model_len == 0) return note;
  // A request is in one of them.
  return note + fmt::format(", {:.1f} requests of {} tokens",
                            memory.cache_ranks * RequestsHeld(memory, max_model_len),
                            max_model_len);
}

}  // namespace

std::vector<std::string> MemoryLines(const MemoryReport& memory, int64_t max_model_len) {
  const auto line = [](std::string_view what, int64_t bytes, const std::string& note) {
    return fmt::format("{:<12} {:>10}{}{}", what, ByteSizeText(bytes), note.empty() ? "" : "  ",
                       note);
  };
  const bool windows = memory.kv_groups.size() > 1 || memory.state;
  std::string cache_note =
      windows
          ? fmt::format("{} pages of {}, {} per token of history", memory.kv_pages,
                        ByteSizeText(memory.kv_page_bytes), ByteSizeText(memory.kv_bytes_per_token))
          : fmt::format("{} tokens, {} each", memory.kv_tokens,
                        ByteSizeText(memory.kv_bytes_per_token));
  if (max_model_len > 0) {
    cache_note += fmt::format(", {:.1f} requests of {} tokens", RequestsHeld(memory, max_model_len),
                              max_model_len);
  }
  const int64_t sum = SumOf(memory.weights) + SumOf(memory.mtp_weights) +
                      SumOf(memory.drafter_weights) + memory.kv_cache_bytes + memory.kept_row_bytes;
  std::vector<std::string> lines = {
      line("weights", SumOf(memory.weights), Parts(memory.weights)),
      line("MTP modules", SumOf(memory.mtp_weights), Parts(memory.mtp_weights))};
  if (!memory.drafter_weights.empty()) {
    lines.push_back(line("drafter", SumOf(memory.drafter_weights), Parts(memory.drafter_weights)));
  }
  lines.push_back(line("KV cache", memory.kv_cache_bytes, cache_note));
  if (windows) {
    for (const CacheGroupReport& group : memory.kv_groups) {
      lines.push_back(GroupLine(group));
      for (const CachePartReport& part : group.parts) lines.push_back(PartLine(part));
    }
  }
  if (memory.state) lines.push_back(StateLine(*memory.state));
  if (windows) {
    lines.push_back("  beside the history: " +
                    RequestPagesText(memory.request, memory.kv_page_bytes));
  }
  if (memory.kept_row_bytes > 0) {
    lines.push_back(line("kept rows", memory.kept_row_bytes,
                         "at most: hidden rows, so that modules can catch up"));
  }
  if (memory.gpu) {
    const GpuBudget& gpu = *memory.gpu;
    lines.push_back(line("work space", gpu.work_space,
                         gpu.measured ? "between operations, libraries, other processes"
                                      : "an estimate: measured when the engine starts"));
    lines.push_back(
        line("in all", sum + gpu.work_space,
             fmt::format("of {} that may be used, of {} of {} GPU", ByteSizeText(gpu.usable),
                         ByteSizeText(gpu.total), memory.ranks.empty() ? "the" : "each")));
  } else if (memory.ranks.empty()) {
    lines.push_back(line("in all", sum, ""));
  }
  if (memory.ranks.empty()) return lines;
  int64_t all = 0;
  for (size_t rank = 0; rank < memory.ranks.size(); ++rank) {
    const RankMemory& own = memory.ranks[rank];
    all += own.weights + own.cache;
    lines.push_back(
        line(fmt::format("rank {}", rank), own.weights + own.cache,
             fmt::format("weights {}, cache {}{}", ByteSizeText(own.weights),
                         ByteSizeText(own.cache), rank == 0 ? ": the lines above are its" : "")));
  }
  lines.push_back(line("all ranks", all, CapacityNote(memory, max_model_len)));
  return lines;
}

}  // namespace outrider::cli
