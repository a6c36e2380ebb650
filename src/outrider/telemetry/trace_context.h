// Which trace a request belongs to: the W3C headers traceparent and tracestate.
#pragma once

#include <cstddef>
#include <string>

#include "outrider/http/http_message.h"

namespace outrider {

struct TraceContext {
  std::string trace_id;        // 32 hexadecimal digits
  std::string parent_span_id;  // 16 of them; "": the request began the trace
  std::string trace_state;
  bool sampled = true;  // false: who began the trace does not want it recorded
};

/// That of the request's headers; a new trace where there are none or they are malformed.
TraceContext ReadTraceContext(const HttpRequest& request);

/// Hexadecimal digits, not all 0, of random bytes.
std::string RandomHex(size_t num_bytes);

}  // namespace outrider
