#include "outrider/telemetry/trace_json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "outrider/base/json_text.h"
#include "outrider/base/version.h"

namespace outrider {
namespace {

class Attributes {
 public:
  void Add(std::string_view name, const std::string& text) {
    if (!text.empty()) AddValue(name, fmt::format(R"({{"stringValue":{}}})", JsonString(text)));
  }
  // 64-bit integers are texts in OTLP's JSON.
  void Add(std::string_view name, int64_t number) {
    AddValue(name, fmt::format(R"({{"intValue":"{}"}})", number));
  }
  void Add(std::string_view name, double number) {
    AddValue(name, fmt::format(R"({{"doubleValue":{}}})", number));
  }
  void Add(std::string_view name, float number) {  // 0.7, not 0.699999988079071
    AddValue(name, fmt::format(R"({{"doubleValue":{}}})", number));
  }
  void Add(std::string_view name, const std::optional<double>& number) {
    if (number) Add(name, *number);
  }

  std::string Json() const { return fmt::format("[{}]", fmt::join(attributes_, ",")); }

 private:
  void AddValue(std::string_view name, const std::string& value) {
    attributes_.push_back(fmt::format(R"({{"key":"{}","value":{}}})", name, value));
  }

  std::vector<std::string> attributes_;
};

int64_t Nanoseconds(std::chrono::system_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

}  // namespace

std::string SpanJson(const RequestRecord& record) {
  Attributes attributes;
  attributes.Add("gen_ai.request.id",
                 record.answer_id.empty() ? record.request_id : record.answer_id);
  if (!record.answer_id.empty()) {
    attributes.Add("gen_ai.request.max_tokens", int64_t{record.max_tokens});
    attributes.Add("gen_ai.request.temperature", record.temperature);
    attributes.Add("gen_ai.request.top_p", record.top_p);
    attributes.Add("gen_ai.request.n", int64_t{record.n});
    attributes.Add("gen_ai.response.model", record.model);
    attributes.Add("gen_ai.usage.prompt_tokens", record.prompt_tokens);
    attributes.Add("gen_ai.usage.completion_tokens", record.completion_tokens);
  }
  attributes.Add("gen_ai.latency.time_in_queue", record.queue_seconds);
  attributes.Add("gen_ai.latency.time_to_first_token", record.first_token_seconds);
  attributes.Add("gen_ai.latency.e2e", record.total_seconds);

  constexpr int kServerKind = 2;
  constexpr int kErrorStatus = 2;
  const int64_t begin = Nanoseconds(record.received);
  const auto length = static_cast<int64_t>(record.total_seconds * 1e9);
  std::string span =
      fmt::format(R"({{"traceId":"{}","spanId":"{}")", record.trace.trace_id, RandomHex(8));
  if (!record.trace.parent_span_id.empty()) {
    span += fmt::format(R"(,"parentSpanId":"{}")", record.trace.parent_span_id);
  }
  if (!record.trace.trace_state.empty()) {
    span += R"(,"traceState":)" + JsonString(record.trace.trace_state);
  }
  span += fmt::format(
      R"(,"name":"llm_request","kind":{},"startTimeUnixNano":"{}","endTimeUnixNano":"{}",)"
      R"("attributes":{})",
      kServerKind, begin, begin + length, attributes.Json());
  if (record.failed) {
    span += fmt::format(R"(,"status":{{"code":{},"message":{}}})", kErrorStatus,
                        JsonString(record.outcome));
  }
  return span + '}';
}

std::string TracesJson(std::span<const std::string> spans) {
  return fmt::format(
      R"({{"resourceSpans":[{{"resource":{{"attributes":[)"
      R"({{"key":"service.name","value":{{"stringValue":"outrider"}}}},)"
      R"({{"key":"service.version","value":{{"stringValue":"{0}"}}}}]}},)"
      R"("scopeSpans":[{{"scope":{{"name":"outrider","version":"{0}"}},"spans":[{1}]}}]}}]}})",
      kVersion, fmt::join(spans, ","));
}

}  // namespace outrider
