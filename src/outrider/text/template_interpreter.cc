#include "outrider/text/template_interpreter.h"

#include <utility>

#include "outrider/base/error.h"

namespace outrider {

std::string RenderTemplate(const TemplateJob& job) {
  if (job.input_bytes() > job.limits.input_bytes) {
    throw InvalidArgument(
        "the conversation with its tools has {} bytes; a chat template takes at "
        "most {}",
        job.input_bytes(), job.limits.input_bytes);
  }
  TemplateOutcome outcome = ProcessTemplateInterpreter().Run(job);
  if (outcome.kind == "ok") return std::move(outcome.text);
  if (outcome.kind == "request") throw Error(ErrorCode::kInvalidArgument, outcome.text);
  if (outcome.kind == "time") {
    throw InvalidArgument("{}: the chat template ran longer than {} ms (of processor time)",
                          job.name, job.limits.time.count());
  }
  if (outcome.kind == "memory") {
    throw InvalidArgument("{}: the chat template needs more than {} MiB of memory", job.name,
                          job.limits.memory_bytes >> 20);
  }
  throw InvalidArgument("{}: {}", job.name, outcome.text);
}

}  // namespace outrider
