// Tells logs and traces about requests that have ended.
#pragma once

#include <memory>
#include <string>

#include "outrider/telemetry/request_record.h"
#include "outrider/telemetry/trace_exporter.h"

namespace outrider {

class RequestReporter {
 public:
  /// `log`: a line for each request; `traces_endpoint`: where spans go, "" for none. Throws Error
  /// (kInvalidArgument) for an address that is none.
  RequestReporter(bool log, const std::string& traces_endpoint);

  /// Never waits for a collector. Any thread.
  void Report(const RequestRecord& record);

 private:
  const bool log_;
  std::unique_ptr<TraceExporter> exporter_;  // null: no traces
};

}  // namespace outrider
