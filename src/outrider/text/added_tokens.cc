#include "outrider/text/added_tokens.h"

#include <algorithm>
#include <utility>

#include "outrider/text/utf8.h"

namespace outrider {
namespace {

size_t SpaceAtStart(std::string_view text) {
  size_t size = 0;
  while (size < text.size()) {
    const size_t next = ReadUtf8(text.substr(size)).size;
    if (!IsWhiteSpace(text.substr(size, next))) break;
    size += next;
  }
  return size;
}

size_t SpaceAtEnd(std::string_view text) {
  size_t start = text.size();
  while (start > 0) {
    size_t character = start - 1;
    while (character > 0 && (static_cast<uint8_t>(text[character]) & 0xC0) == 0x80) --character;
    if (!IsWhiteSpace(text.substr(character, start - character))) break;
    start = character;
  }
  return text.size() - start;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)), nodes_(1), first_(256, -1) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    int32_t node = 0;
    for (const char c : tokens_[i].content) {
      const auto byte = static_cast<uint8_t>(c);
      int32_t child = Child(node, byte);
      if (child < 0) {
        child = static_cast<int32_t>(nodes_.size());
        nodes_.emplace_back();
        auto& children = nodes_[node].children;
        children.insert(std::lower_bound(children.begin(), children.end(), std::pair{byte, 0}),
                        {byte, child});
      }
      node = child;
    }
    nodes_[node].token = static_cast<int32_t>(i);
  }
  for (const auto& [byte, child] : nodes_[0].children) first_[byte] = child;
}

int32_t AddedTokenMatcher::Child(int32_t node, uint8_t byte) const {
  const auto& children = nodes_[node].children;
  const auto child = std::lower_bound(children.begin(), children.end(), std::pair{byte, 0});
  return child != children.end() && child->first == byte ? child->second : -1;
}

// Index of the longest token that begins at `position`, or -1.
int32_t AddedTokenMatcher::LongestAt(std::string_view text, size_t position) const {
  int32_t node = first_[static_cast<uint8_t>(text[position])];
  int32_t longest = -1;
  while (node >= 0) {
    if (nodes_[node].token >= 0) longest = nodes_[node].token;
    if (++position == text.size()) break;
    node = Child(node, static_cast<uint8_t>(text[position]));
  }
  return longest;
}

void AddedTokenMatcher::Match(std::string_view text, bool parse_special,
                              FunctionRef<void(std::string_view, int32_t)> emit) const {
  size_t done = 0;         // everything before it was emitted
  size_t space_begin = 1;  // the white space that was looked through last: each is read once
  size_t space_end = 0;
  size_t position = tokens_.empty() ? text.size() : 0;
  while (position < text.size()) {
    const int32_t index = LongestAt(text, position);
    if (index < 0) {
      ++position;
      continue;
    }
    const AddedToken& token = tokens_[index];
    size_t start = position;
    position += token.content.size();
    if (token.control && !parse_special) continue;
    size_t end = position;
    // A token that is white space may lie within what the token before took along: it counts, and
    // text goes on behind it. What it takes along itself does not reach into the token before.
    if (token.lstrip) {
      start = start > done ? start - SpaceAtEnd(text.substr(done, start - done)) : done;
    }
    if (token.rstrip) {
      if (end < space_begin || end > space_end) {
        space_begin = end;
        space_end = end + SpaceAtStart(text.substr(end));
      }
      end = space_end;
    }
    if (start >= end) continue;
    if (start > done) emit(text.substr(done, start - done), -1);
    emit(text.substr(start, end - start), token.id);
    done = end;
  }
  if (done < text.size()) emit(text.substr(done), -1);
}

}  // namespace outrider
