#include "outrider/text/text_cutter.h"

#include <algorithm>

#include "outrider/text/utf8.h"

namespace outrider {
namespace {

bool IsPythonSpace(std::string_view character) {
  return IsWhiteSpace(character) ||
         (character.size() == 1 && character[0] >= '\x1C' && character[0] <= '\x1F');
}

}  // namespace

void CutText(std::string_view text, const CutLimits& limits,
             FunctionRef<void(std::string_view)> emit) {
  const size_t longest_text = limits.text == 0 ? text.size() : limits.text;
  const size_t longest_run = limits.run == 0 ? text.size() : limits.run;
  if (text.size() <= std::min(longest_text, longest_run)) {  // bytes, at least as many
    if (!text.empty()) emit(text);
    return;
  }
  size_t start = 0;       // of the piece
  size_t characters = 0;  // since the last cut of limits.text
  size_t run = 0;         // characters of one kind up to here, none of them before the cut
  bool run_is_space = false;
  for (size_t at = 0; at < text.size();) {
    const size_t size = ReadUtf8(text.substr(at)).size;
    const bool is_space = IsPythonSpace(text.substr(at, size));
    if (characters == longest_text) {
      characters = 0;
      run = 0;
    } else if (run == longest_run && is_space == run_is_space) {
      run = 0;
    }
    if (run == 0 && at > start) {
      emit(text.substr(start, at - start));
      start = at;
    }
    run = run > 0 && is_space == run_is_space ? run + 1 : 1;
    run_is_space = is_space;
    ++characters;
    at += size;
  }
  emit(text.substr(start));
}

}  // namespace outrider
