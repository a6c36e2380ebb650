// Who may ask, and how many requests each may have at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "outrider/http/http_message.h"

namespace outrider {

/// A request that may be served.
struct KeyAdmission {
  /// The number of the key that it brought, from 1; 0 where none is needed. Requests of one caller
  /// may end each other.
  int32_t caller = 0;
  std::shared_ptr<void> counted;  // against the key's limit while it lives; not null
};

class ApiKeys {
 public:
  /// No keys: everybody may ask. Throws Error (kInvalidArgument) for a limit without keys.
  ApiKeys(std::vector<std::string> keys, std::optional<int32_t> max_requests_per_key);

  /// Whether a request brings a valid key, or needs none.
  bool IsAuthorized(const HttpRequest& head) const {
    return keys_.empty() || Find(head) != nullptr;
  }

  /// Counts an authorized request against its key's limit. Nothing when the key has as many
  /// requests as it may.
  std::optional<KeyAdmission> Admit(const HttpRequest& head) const;

  /// KeyAdmission::caller of an authorized request.
  int32_t CallerOf(const HttpRequest& head) const;

  std::optional<int32_t> max_requests_per_key() const { return max_requests_; }

 private:
  struct Key {
    int32_t number;  // from 1
    std::string text;
    std::shared_ptr<std::atomic<int32_t>> num_requests;
  };

  const Key* Find(const HttpRequest& head) const;

  std::vector<Key> keys_;
  std::optional<int32_t> max_requests_;
};

}  // namespace outrider
