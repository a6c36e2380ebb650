// How often a request's tokens have occurred, for penalties: kept up to date token by token, so
// that a row costs as much as there are distinct tokens, not as the history is long.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace outrider {

class TokenCounts {
 public:
  struct Entry {
    int32_t token = 0;
    int32_t count = 0;       // occurrences in the output
    bool in_prompt = false;  // never set when constructed without a prompt
  };

  /// `capacity`: distinct tokens that fit without another allocation.
  TokenCounts(std::span<const int32_t> prompt, size_t capacity);

  /// One more, or one fewer, occurrence in the output. Removing what was not added is a bug.
  void Add(int32_t token);
  void Remove(int32_t token);

  /// Every token of the prompt or the output, by id.
  std::span<const Entry> entries() const { return entries_; }

 private:
  std::vector<Entry>::iterator Find(int32_t token);

  std::vector<Entry> entries_;
};

}  // namespace outrider
