// The running requests by the ids that clients know them by, so that they can be aborted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace outrider {

class GenerationResponse;

/// Thread-safe.
class RequestRegistry {
 public:
  /// Ids need not be unique: clients choose some of them.
  void Add(const std::string& id, std::weak_ptr<GenerationResponse> response);

  /// Ends the requests with this id as if they had been finished, if they are the caller's
  /// (KeyAdmission); how many there were.
  size_t Abort(std::string_view id, int32_t caller);

 private:
  std::mutex mutex_;
  std::multimap<std::string, std::weak_ptr<GenerationResponse>, std::less<>> responses_;
  size_t next_sweep_ = 64;  // at this size, responses that have ended are removed
};

}  // namespace outrider
