// Text to token ids and back: byte-level BPE from a Hugging Face tokenizer.json or from Kimi's
// tiktoken.model, equal to the libraries `tokenizers` and `tiktoken` token for token. Loading
// checks the files; a loaded tokenizer is immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {

/// What a text's special tokens ("<｜User｜>") are when it is encoded.
enum class SpecialTokens {
  kParse,   // control tokens
  kText,    // plain text, so that a user's text cannot become control tokens
  kRefuse,  // an error
};

class Tokenizer {
 public:
  /// Reads a tokenizer.json. Throws Error with one line: kNotFound, kTooLarge (over 256 MiB), or
  /// kInvalidArgument naming what is malformed or not supported.
  static Tokenizer FromFile(const std::filesystem::path& path);

  /// Reads the tokenizer.json of a model directory; where there is none, its tiktoken.model with
  /// tokenizer_config.json (tiktoken_model.h). Where the post-processor of a tokenizer.json adds no
  /// tokens, tokenizer_config.json may say that BOS and EOS are added (see TokenizerConfig).
  static Tokenizer FromModelDirectory(const std::filesystem::path& directory);

  /// Whether a directory has a file that FromModelDirectory would read.
  static bool IsIn(const std::filesystem::path& directory);

  /// Reads the text of a tokenizer.json; `where` names it in messages.
  static Tokenizer FromJson(std::string_view json, std::string_view where);

  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  /// The tokens of `text`. `add_special_tokens` puts the post-processor's tokens (BOS, EOS) around
  /// them. `special_tokens` says what special tokens in the text are. Invalid UTF-8 is read as
  /// U+FFFD, one for each maximal invalid part. Safe from any number of threads. Throws Error:
  /// kTooLarge for text over 1 GiB, or with a run of characters so long (millions) that the
  /// pre-tokenizer's expression fails on it; kInvalidArgument for a special token that is refused.
  std::vector<int32_t> Encode(std::string_view text, bool add_special_tokens,
                              SpecialTokens special_tokens = SpecialTokens::kParse) const;

  /// The text of `ids`. Bytes that are not valid UTF-8 become U+FFFD. Ids that belong to no token
  /// give no text.
  std::string Decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  /// Largest id + 1. A checkpoint's vocab_size may be larger: its matrices are often padded.
  int32_t vocab_size() const;

  /// The bytes that `id` decodes to, perhaps part of a UTF-8 character; empty for an id without a
  /// token. Valid as long as the tokenizer.
  std::string_view TokenBytes(int32_t id) const;

  /// No token stands for more bytes of a text; nothing where an added token takes white space of
  /// any length along, or where text is normalized.
  std::optional<size_t> LongestTokenBytes() const { return longest_token_bytes_; }

  /// The id of a token by its spelling in the file: "<think>", or "Ġthe" for " the".
  std::optional<int32_t> TokenId(std::string_view content) const;

  /// Whether `id` is a special (control) token.
  bool IsSpecial(int32_t id) const;

  /// Whether `id` is one of the tokens added to the vocabulary: the special ones, and the marks of
  /// chat templates.
  bool IsAdded(int32_t id) const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
  std::optional<size_t> longest_token_bytes_;
};

}  // namespace outrider
