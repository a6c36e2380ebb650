#include "outrider/cli/memory_table.h"

#include <fmt/format.h>

#include <string_view>

#include "outrider/cli/byte_size.h"

namespace outrider::cli {

std::vector<std::string> MemoryLines(const MemoryReport& memory, int64_t max_model_len) {
  const auto line = [](std::string_view what, int64_t bytes, const std::string& note) {
    return fmt::format("{:<12} {:>10}{}{}", what, ByteSizeText(bytes), note.empty() ? "" : "  ",
                       note);
  };
  std::string cache_note =
      fmt::format("{} tokens, {} each", memory.kv_tokens, ByteSizeText(memory.kv_bytes_per_token));
  if (max_model_len > 0) {
    cache_note += fmt::format(
        ", {:.1f} requests of {} tokens",
        static_cast<double>(memory.kv_tokens) / static_cast<double>(max_model_len), max_model_len);
  }
  const int64_t sum = memory.weight_bytes + memory.mtp_bytes + memory.kv_cache_bytes;
  return {line("weights", memory.weight_bytes, ""), line("MTP modules", memory.mtp_bytes, ""),
          line("KV cache", memory.kv_cache_bytes, cache_note), line("in all", sum, "")};
}

}  // namespace outrider::cli
