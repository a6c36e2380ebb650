// Added tokens: strings such as "<｜User｜>" that are found in the text before anything else splits
// it, and become one token each.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/base/function_ref.h"

namespace outrider {

struct AddedToken {
  int32_t id;
  std::string content;  // not empty
  bool special;         // skipped by a decoder that skips special tokens
  bool control;         // plain text where special tokens are not parsed
  bool lstrip;          // takes the white space before it along
  bool rstrip;          // takes the white space after it along
  bool normalized;      // is searched after all the tokens that are not, in normalized text
};

/// Finds a set of added tokens: leftmost first, the longest of those that begin at one place.
class AddedTokenMatcher {
 public:
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  /// Calls `emit(piece, id)` for the parts of `text` in order: id -1 for text between tokens (never
  /// empty), else an added token. With `parse_special` false, control tokens are text.
  void Match(std::string_view text, bool parse_special,
             FunctionRef<void(std::string_view, int32_t)> emit) const;

 private:
  struct Node {
    std::vector<std::pair<uint8_t, int32_t>> children;  // sorted by byte
    int32_t token = -1;                                 // index into tokens_
  };

  int32_t Child(int32_t node, uint8_t byte) const;
  int32_t LongestAt(std::string_view text, size_t position) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  std::vector<int32_t> first_;  // by first byte: node of depth 1, or -1
};

}  // namespace outrider
