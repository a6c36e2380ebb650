// Kimi's tiktoken.model: a line with a token in base64 and its rank for each token of the
// vocabulary. The rank is the id, and the rank of the merges that make the token. What the file
// does not say is what Kimi's code says: the pattern that splits text, where long text is cut, and
// 258 ids behind the vocabulary for special tokens. The file is hostile input.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "outrider/text/tokenizer_config.h"
#include "outrider/text/tokenizer_spec.h"

namespace outrider {

/// `named` gives special tokens their names: those with ids behind the vocabulary; others do not
/// count. Ids without a name become "<|reserved_token_ID|>". Throws Error (kInvalidArgument) with
/// one line that begins with `where`, a name for the file, and has the line's number.
TokenizerSpec ParseTiktokenModel(std::string_view model, std::string_view where,
                                 const std::map<int32_t, NamedToken>& named);

/// The names that the tokenizer_config.json of a directory with a tiktoken.model gives. Throws
/// Error when there is no such file, or it is not for Kimi's tokenizer, or is malformed.
std::map<int32_t, NamedToken> ReadTiktokenNames(const std::filesystem::path& directory);

}  // namespace outrider
