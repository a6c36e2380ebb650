#include "outrider/server/deferred_response.h"

#include <utility>

#include "outrider/openai/api_error.h"

namespace outrider {

void DeferredResponse::Complete(HttpResponse response) {
  {
    const std::lock_guard lock(mutex_);
    if (response_) return;
    response_ = std::move(response);
  }
  waker_.Wake();
}

void DeferredResponse::Produce(HttpOutput* output) {
  const std::lock_guard lock(mutex_);
  if (!response_ || std::exchange(produced_, true)) return;
  output->body = std::exchange(response_->body, {});
  output->head = *response_;
  output->end = true;
}

void DeferredResponse::Cancel() {
  Complete(openai::ErrorResponse({.status = 503,
                                  .message = "the server is shutting down",
                                  .param = "",
                                  .code = "shutting_down"},
                                 form_));
}

}  // namespace outrider
