#include "outrider/cli/load_progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include "outrider/base/byte_size.h"

namespace outrider::cli {

ProgressStyle StandardErrorStyle(LogFormat format, ProgressStyle otherwise) {
  const bool is_terminal = format == LogFormat::kText && isatty(STDERR_FILENO) == 1;
  return is_terminal ? ProgressStyle::kRewrite : otherwise;
}

void LoadProgressPrinter::Update(int64_t done_bytes, int64_t total_bytes) {
  if (style_ == ProgressStyle::kNone || ended_ || total_bytes <= 0) return;
  const int percent =
      static_cast<int>(100.0 * static_cast<double>(done_bytes) / static_cast<double>(total_bytes));
  const auto now = std::chrono::steady_clock::now();
  const bool last = done_bytes >= total_bytes;
  const bool due =
      style_ == ProgressStyle::kRewrite
          ? percent > last_percent_
          : percent / 25 > last_percent_ / 25 ||
                (percent > last_percent_ && now - last_print_ > std::chrono::seconds(5));
  if (!due && !last) return;
  last_percent_ = percent;
  last_print_ = now;
  std::string line = fmt::format("Loading safetensors checkpoint shards: {}% | {} of {}", percent,
                                 ByteSizeText(done_bytes), ByteSizeText(total_bytes));
  if (last) {
    line += fmt::format(" in {:.1f} s", std::chrono::duration<double>(now - start_).count());
    ended_ = true;
  }
  print_(style_ == ProgressStyle::kRewrite ? fmt::format("\r{}\x1b[K{}", line, last ? "\n" : "")
                                           : line);
}

}  // namespace outrider::cli
