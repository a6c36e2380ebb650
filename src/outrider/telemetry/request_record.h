// What one API request was and how it went, for logs and traces.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "outrider/telemetry/trace_context.h"

namespace outrider {

struct RequestRecord {
  std::string request_id;  // X-Request-Id of the answer
  TraceContext trace;
  std::chrono::system_clock::time_point received;

  // Empty and zero for a request that was refused before they were known.
  std::string answer_id;  // "chatcmpl-..."
  std::string model;
  int32_t n = 0;
  int32_t max_tokens = 0;
  float temperature = 0;
  float top_p = 0;
  int64_t prompt_tokens = 0;  // of all prompts, each counted once

  int64_t completion_tokens = 0;              // of all choices
  std::optional<double> queue_seconds;        // until the first choice ran; from submission
  std::optional<double> first_token_seconds;  // until the first token of any choice
  double total_seconds = 0;                   // from `received`
  /// The last choice's finish_reason, an error's code or status, or "disconnected".
  std::string outcome;
  bool failed = false;  // the answer is an error
};

}  // namespace outrider
