#include "outrider/server/page_facts.h"

#include <fmt/format.h>

#include "outrider/base/json_text.h"

namespace outrider {

namespace {

std::string DecisionJson(const std::string& value, const std::string& reason) {
  if (value.empty()) return "null";
  return fmt::format(R"({{"value":{},"reason":{}}})", JsonString(value), JsonString(reason));
}

}  // namespace

std::string PageFactsJson(const PageFacts& facts, int32_t num_speculative_tokens,
                          int32_t max_model_len) {
  std::string questions;
  for (const std::string& question : facts.example_questions) {
    if (!questions.empty()) questions += ',';
    questions += JsonString(question);
  }
  return fmt::format(
      R"({{"num_speculative_tokens":{},"max_model_len":{},"drafter":{},"draft_length":{},)"
      R"("example_questions":[{}]}})",
      num_speculative_tokens, max_model_len, DecisionJson(facts.drafter, facts.drafter_reason),
      DecisionJson(facts.draft_length, facts.draft_length_reason), questions);
}

}  // namespace outrider
