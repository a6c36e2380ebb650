// Reads a Hugging Face tokenizer.json into plain data. The file is hostile input: everything that
// the encoder relies on is checked here, and what the encoder cannot do is refused by name.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "outrider/text/added_tokens.h"
#include "outrider/text/byte_pair_encoder.h"
#include "outrider/text/splitter.h"

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
  bool ignore_merges = false;  // a word that is a token is that token, whatever the merges say
  std::vector<AddedToken> added_tokens;
  std::vector<SplitSpec> splits;  // applied one after the other, each to every piece of the last
  std::vector<int32_t> prefix;    // what add_special_tokens puts before the text, and after it
  std::vector<int32_t> suffix;
};

/// Throws Error (kInvalidArgument) with one line that begins with `where`, a name for the file.
TokenizerSpec ParseTokenizerJson(std::string_view json, std::string_view where);

}  // namespace outrider
