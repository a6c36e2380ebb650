#include "outrider/telemetry/request_reporter.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "outrider/base/logging.h"
#include "outrider/telemetry/trace_json.h"

namespace outrider {

RequestReporter::RequestReporter(bool log, const std::string& traces_endpoint) : log_(log) {
  if (traces_endpoint.empty()) return;
  exporter_ = std::make_unique<TraceExporter>(
      ParseTracesEndpoint("--otlp-traces-endpoint", traces_endpoint));
}

void RequestReporter::Report(const RequestRecord& record) {
  if (log_) {
    const LogRequestId scope(record.request_id);
    const std::string first_token =
        record.first_token_seconds
            ? fmt::format(", first token after {:.3f} s", *record.first_token_seconds)
            : "";
    SPDLOG_INFO("request {}{}{}: {}, {} prompt tokens, {} completion tokens{}, {:.3f} s",
                record.request_id, record.answer_id.empty() ? "" : " ", record.answer_id,
                record.outcome, record.prompt_tokens, record.completion_tokens, first_token,
                record.total_seconds);
  }
  if (exporter_ && record.trace.sampled) exporter_->Add(SpanJson(record));
}

}  // namespace outrider
