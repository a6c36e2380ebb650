#include "outrider/telemetry/trace_context.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <string_view>

namespace outrider {
namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";
constexpr size_t kMaxTraceState = 512;

bool IsId(std::string_view text, size_t digits) {
  return text.size() == digits && text.find_first_not_of(kHexDigits) == std::string_view::npos &&
         text.find_first_not_of('0') != std::string_view::npos;
}

// VERSION-TRACE-PARENT-FLAGS; versions after 00 may have more after that.
std::optional<TraceContext> Parse(std::string_view header) {
  constexpr size_t kSize = 55;
  if (header.size() < kSize || header[2] != '-' || header[35] != '-' || header[52] != '-') {
    return std::nullopt;
  }
  const std::string_view version = header.substr(0, 2);
  const std::string_view flags = header.substr(53, 2);
  const bool longer = header.size() > kSize;
  if (version.find_first_not_of(kHexDigits) != std::string_view::npos || version == "ff" ||
      (longer && (version == "00" || header[kSize] != '-')) ||
      flags.find_first_not_of(kHexDigits) != std::string_view::npos) {
    return std::nullopt;
  }
  TraceContext context;
  context.trace_id = header.substr(3, 32);
  context.parent_span_id = header.substr(36, 16);
  context.sampled = (kHexDigits.find(flags[1]) & 1) != 0;
  if (!IsId(context.trace_id, 32) || !IsId(context.parent_span_id, 16)) return std::nullopt;
  return context;
}

}  // namespace

std::string RandomHex(size_t num_bytes) {
  std::random_device random;
  std::string hex;
  do {
    hex.clear();
    while (hex.size() < 2 * num_bytes) {
      for (uint32_t bits = random(), i = 0; i < 8 && hex.size() < 2 * num_bytes; ++i, bits >>= 4) {
        hex += kHexDigits[bits & 15];
      }
    }
  } while (std::all_of(hex.begin(), hex.end(), [](char c) { return c == '0'; }));
  return hex;
}

TraceContext ReadTraceContext(const HttpRequest& request) {
  std::optional<TraceContext> context = Parse(request.Header("traceparent").value_or(""));
  if (!context) return {.trace_id = RandomHex(16), .parent_span_id = "", .trace_state = ""};
  const std::string_view state = request.Header("tracestate").value_or("");
  if (state.size() <= kMaxTraceState) context->trace_state = state;
  return *context;
}

}  // namespace outrider
