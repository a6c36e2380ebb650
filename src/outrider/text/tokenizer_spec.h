// A tokenizer as plain data, whatever file it came from: what the readers of files give to the
// encoder.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "outrider/text/added_tokens.h"
#include "outrider/text/byte_pair_encoder.h"
#include "outrider/text/splitter.h"
#include "outrider/text/text_cutter.h"

namespace outrider {

/// Hash of strings that lets a map be searched with a string_view.
struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

using TokenMap = std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>>;

/// A byte-level BPE tokenizer. Every id named anywhere is in [0, vocab_size) and belongs to one
/// token.
struct TokenizerSpec {
  TokenMap ids;                       // spelling in the file -> id: vocabulary and added tokens
  int32_t vocab_size = 0;             // largest id + 1
  std::array<int32_t, 256> byte_ids;  // the token of each byte
  std::vector<Merge> merges;          // in rank order
  bool ignore_merges = false;  // a word of the vocabulary is its token, whatever the merges say
  std::vector<bool> in_vocabulary;  // by id: false for those that only added_tokens has, and gaps
  std::vector<AddedToken> added_tokens;
  bool added_tokens_are_bytes = false;  // they decode to their content; else as if spelled by it
  bool normal_form_c = false;     // text between added tokens is normalized before it is split
  std::vector<SplitSpec> splits;  // applied one after the other, each to every piece of the last
  std::vector<int32_t> prefix;    // what add_special_tokens puts before the text, and after it
  std::vector<int32_t> suffix;
  CutLimits cuts;  // what is longer is cut before anything else looks at it
};

}  // namespace outrider
