#include "outrider/openai/steps_json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <span>
#include <vector>

#include "outrider/base/json_text.h"
#include "outrider/text/utf8.h"

namespace outrider::openai {
namespace {

std::string TokenJson(int32_t id, const PromptEncoder& encoder) {
  const std::string bytes = encoder.TokenBytes(id);
  std::string out = fmt::format(R"({{"id":{},"text":{})", id, JsonString(bytes));
  if (ValidUtf8Prefix(bytes) != bytes.size()) {
    const std::vector<uint8_t> values(bytes.begin(), bytes.end());
    out += fmt::format(R"(,"bytes":[{}])", fmt::join(values, ","));
  }
  return out + "}";
}

std::string TokensJson(std::span<const int32_t> ids, const PromptEncoder& encoder) {
  std::string out = "[";
  for (const int32_t id : ids) {
    if (out.size() > 1) out += ',';
    out += TokenJson(id, encoder);
  }
  return out + "]";
}

}  // namespace

std::string StepsJson(const OutputDelta& delta, const PromptEncoder& encoder) {
  std::span<const int32_t> tokens = delta.token_ids;
  std::string out = "[";
  for (const StepTrace& step : delta.steps) {
    if (out.size() > 1) out += ',';
    const auto count = static_cast<size_t>(step.num_tokens);
    out += fmt::format(R"({{"drafts":{},"num_accepted":{},"tokens":{})",
                       TokensJson(step.drafts, encoder), step.num_accepted,
                       TokensJson(tokens.first(count), encoder));
    if (step.draft_limit != DraftLimit::kNone) {
      out += fmt::format(R"(,"draft_limit":"{}")", DraftLimitName(step.draft_limit));
    }
    out += '}';
    tokens = tokens.subspan(count);
  }
  return out + "]";
}

}  // namespace outrider::openai
