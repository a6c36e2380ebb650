#include "outrider/text/bad_words.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "outrider/base/error.h"

namespace outrider {

std::vector<std::vector<int32_t>> EncodeBadWords(std::span<const std::string> words,
                                                 const PromptEncoder& encoder) {
  std::vector<std::vector<int32_t>> sequences;
  for (const std::string& word : words) {
    const size_t start = std::min(word.find_first_not_of(" \t\n\r\f\v"), word.size());
    const std::string_view spelling = std::string_view(word).substr(start);
    std::vector<int32_t> first = encoder.EncodeText(spelling, /*add_special_tokens=*/false);
    if (first.empty()) {
      throw InvalidArgument("bad_words holds \"{}\", which has no tokens: give a word with text",
                            word);
    }
    std::vector<int32_t> inside = encoder.EncodeText(std::string(" ").append(spelling), false);
    const bool other = inside.size() == first.size() && inside[0] != first[0];
    sequences.push_back(std::move(first));
    if (other) sequences.push_back(std::move(inside));
  }
  return sequences;
}

}  // namespace outrider
