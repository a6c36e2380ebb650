// An answer that another thread makes.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>

#include "outrider/http/http_message.h"
#include "outrider/openai/api_error.h"

namespace outrider {

class DeferredResponse : public HttpProducer {
 public:
  /// `form`: of an error that ends it.
  DeferredResponse(HttpWaker waker, openai::ErrorForm form)
      : waker_(std::move(waker)), form_(form) {}

  /// The answer; the first one counts. Any thread.
  void Complete(HttpResponse response);
  /// Nobody waits for the answer any more. Any thread.
  bool abandoned() const { return abandoned_; }

  // I/O thread.
  void Produce(HttpOutput* output) override;
  void Abandon() override { abandoned_ = true; }
  void Cancel() override;

 private:
  const HttpWaker waker_;
  const openai::ErrorForm form_;
  std::atomic<bool> abandoned_{false};
  std::mutex mutex_;
  std::optional<HttpResponse> response_;  // guarded by mutex_
  bool produced_ = false;                 // I/O thread
};

}  // namespace outrider
