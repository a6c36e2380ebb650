// Spans in the JSON form of OTLP, OpenTelemetry's protocol.
#pragma once

#include <span>
#include <string>

#include "outrider/telemetry/request_record.h"

namespace outrider {

/// The span of a request that has ended, with the attribute names that vLLM has.
std::string SpanJson(const RequestRecord& record);

/// The body of a request to a collector with these spans.
std::string TracesJson(std::span<const std::string> spans);

}  // namespace outrider
