#include "outrider/server/api_keys.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "outrider/base/error.h"

namespace outrider {
namespace {

// Equal in time that does not tell how much of a guess was right.
bool SameSecret(std::string_view guess, std::string_view secret) {
  size_t difference = guess.size() ^ secret.size();
  for (size_t i = 0; i < guess.size(); ++i) {
    difference |= static_cast<uint8_t>(guess[i]) ^ static_cast<uint8_t>(secret[i % secret.size()]);
  }
  return difference == 0;
}

// The key that a request brings: "Authorization: Bearer KEY", or "X-Api-Key: KEY" as Anthropic's
// clients send it.
std::string_view SecretOf(const HttpRequest& head) {
  const std::string_view header = head.Header("Authorization").value_or("");
  const size_t space = std::min(header.find(' '), header.size());
  if (!EqualIgnoringCase(header.substr(0, space), "Bearer")) {
    return head.Header("X-Api-Key").value_or("");
  }
  return header.substr(std::min(header.find_first_not_of(' ', space), header.size()));
}

}  // namespace

ApiKeys::ApiKeys(std::vector<std::string> keys, std::optional<int32_t> max_requests_per_key)
    : max_requests_(max_requests_per_key) {
  if (keys.empty() && max_requests_) {
    throw InvalidArgument("--max-num-reqs-per-key: there are no keys; give --api-key too");
  }
  for (std::string& key : keys) {
    if (key.empty()) throw InvalidArgument("--api-key: must not be empty");
    const auto number = static_cast<int32_t>(keys_.size() + 1);
    keys_.push_back({number, std::move(key), std::make_shared<std::atomic<int32_t>>(0)});
  }
}

const ApiKeys::Key* ApiKeys::Find(const HttpRequest& head) const {
  const std::string_view secret = SecretOf(head);
  const Key* found = nullptr;
  for (const Key& key : keys_) {
    if (SameSecret(secret, key.text)) found = &key;
  }
  return found;
}

std::optional<KeyAdmission> ApiKeys::Admit(const HttpRequest& head) const {
  const Key* key = Find(head);
  if (key == nullptr) return KeyAdmission{.caller = 0, .counted = std::make_shared<char>()};
  if (key->num_requests->fetch_add(1) >= max_requests_.value_or(INT32_MAX)) {
    --*key->num_requests;
    return std::nullopt;
  }
  // The counter lives as long as who counts down: a request may outlive the server.
  return KeyAdmission{
      .caller = key->number,
      .counted = {key->num_requests.get(), [count = key->num_requests](void*) { --*count; }}};
}

int32_t ApiKeys::CallerOf(const HttpRequest& head) const {
  const Key* key = Find(head);
  return key == nullptr ? 0 : key->number;
}

}  // namespace outrider
