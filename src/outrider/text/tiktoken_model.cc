#include "outrider/text/tiktoken_model.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/text/byte_level.h"
#include "outrider/text/utf8.h"

namespace outrider {
namespace {

constexpr int32_t kTiktokenSpecialIds = 258;
constexpr int32_t kMaxTiktokenTokens = (1 << 21) - kTiktokenSpecialIds;
constexpr size_t kMaxTiktokenBytes = 1024;
constexpr size_t kMaxTiktokenMerges = size_t{1} << 24;  // Kimi's 163,584 tokens have some 10^6
constexpr CutLimits kKimiCuts = {.text = 400'000, .run = 25'000};

// Words in scripts but Han, with one character before them and an English ending.
constexpr std::string_view kWordStart = R"([^\r\n\p{L}\p{N}]?)";
constexpr std::string_view kUpper = R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]])";
constexpr std::string_view kLower = R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]])";
constexpr std::string_view kEnding = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)";

std::string SplitPattern() {
  const auto word = [](const char* upper_times, const char* lower_times) {
    return fmt::format("{}{}{}{}{}{}", kWordStart, kUpper, upper_times, kLower, lower_times,
                       kEnding);
  };
  return fmt::format(R"([\p{{Han}}]+|{}|{}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|)"
                     R"(\s*[\r\n]+|\s+(?!\S)|\s+)",
                     word("*", "+"), word("+", "*"));
}

// The value of a character of base64, or -1.
int Base64Value(char character) {
  if (character >= 'A' && character <= 'Z') return character - 'A';
  if (character >= 'a' && character <= 'z') return character - 'a' + 26;
  if (character >= '0' && character <= '9') return character - '0' + 52;
  if (character == '+') return 62;
  return character == '/' ? 63 : -1;
}

// Standard base64 with its padding; nothing if `text` is not that.
std::optional<std::string> DecodeBase64(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  for (size_t at = 0; at < text.size(); at += 4) {
    const size_t given = at + 4 == text.size() ? 4 - padding : 4;
    uint32_t group = 0;
    for (size_t i = 0; i < 4; ++i) {
      const int value = i < given ? Base64Value(text[at + i]) : 0;
      if (value < 0) return std::nullopt;
      group = group << 6 | static_cast<uint32_t>(value);
    }
    // Bits that belong to no byte are zero in what an encoder writes.
    if ((given == 3 && (group & 0xFF) != 0) || (given == 2 && (group & 0xFFFF) != 0)) {
      return std::nullopt;
    }
    for (size_t i = 0; i + 1 < given; ++i) {
      bytes.push_back(static_cast<char>(group >> (16 - 8 * i) & 0xFF));
    }
  }
  return bytes;
}

class TiktokenReader {
 public:
  explicit TiktokenReader(std::string_view where) : where_(where) {}

  TokenizerSpec Run(std::string_view model, const std::map<int32_t, NamedToken>& named) {
    for (size_t start = 0; start < model.size(); ++line_) {
      const size_t end = std::min(model.find('\n', start), model.size());
      std::string_view line = model.substr(start, end - start);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (!line.empty()) ReadLine(line);
      start = end + 1;
    }
    OrderByRank();
    spec_.ignore_merges = true;
    spec_.cuts = kKimiCuts;
    spec_.splits.push_back(
        {.pattern = SplitPattern(), .where = fmt::format("{}: Kimi's pattern", where_)});
    AddBytes();
    AddMerges();
    AddSpecialTokens(named);
    return std::move(spec_);
  }

 private:
  struct Token {
    std::string bytes;
    int32_t rank;
    int line;
  };

  template <typename... Args>
  [[noreturn]] void Fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw InvalidArgument("{}: {}", where_, fmt::format(format, std::forward<Args>(args)...));
  }

  // Part of a line, made fit for a message.
  static std::string Quote(std::string_view text) {
    constexpr size_t kLongest = 60;
    std::string shown = ReplaceInvalidUtf8(text.substr(0, kLongest));
    for (char& character : shown) {
      if (static_cast<unsigned char>(character) < ' ') character = '?';
    }
    return fmt::format("\"{}{}\"", shown, text.size() > kLongest ? "..." : "");
  }

  void ReadLine(std::string_view line) {
    const size_t space = line.find(' ');
    if (space == 0 || space == std::string_view::npos) {
      Fail("line {} is {}; it must be a token in base64, a space and the token's rank", line_,
           Quote(line));
    }
    std::optional<std::string> bytes = DecodeBase64(line.substr(0, space));
    if (!bytes) Fail("line {} has {}, which is not base64", line_, Quote(line.substr(0, space)));
    if (bytes->size() > kMaxTiktokenBytes) {
      Fail("line {} has a token of {} bytes; at most {} are supported", line_, bytes->size(),
           kMaxTiktokenBytes);
    }
    const std::string_view number = line.substr(space + 1);
    int32_t rank = -1;
    const auto [rest, error] = std::from_chars(number.data(), number.data() + number.size(), rank);
    if (error != std::errc() || rest != number.data() + number.size() || rank < 0 ||
        rank >= kMaxTiktokenTokens) {
      Fail("line {} has the rank {}; ranks are integers from 0 to {}", line_, Quote(number),
           kMaxTiktokenTokens - 1);
    }
    tokens_.push_back({std::move(*bytes), rank, line_});
  }

  // Sorts tokens_ so that the index is the rank.
  void OrderByRank() {
    std::sort(tokens_.begin(), tokens_.end(), [](const Token& a, const Token& b) {
      return std::tie(a.rank, a.line) < std::tie(b.rank, b.line);
    });
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const Token& token = tokens_[i];
      if (i > 0 && token.rank == tokens_[i - 1].rank) {
        Fail("line {} has the rank {} of line {} again", token.line, token.rank,
             tokens_[i - 1].line);
      }
      if (static_cast<size_t>(token.rank) != i) {
        Fail("no line has the rank {}; the ranks of {} tokens must be 0 to {}", i, tokens_.size(),
             tokens_.size() - 1);
      }
    }
    for (const Token& token : tokens_) {
      const auto [entry, added] = ranks_.try_emplace(token.bytes, token.rank);
      if (!added) {
        const auto& [first, second] = std::minmax(tokens_[entry->second].line, token.line);
        Fail("line {} has the token of line {} again", second, first);
      }
    }
  }

  void AddBytes() {
    for (int byte = 0; byte < 256; ++byte) {
      const char character = static_cast<char>(byte);
      const auto found = ranks_.find(std::string_view(&character, 1));
      if (found == ranks_.end()) Fail("no line has the token of byte 0x{:02x} alone", byte);
      spec_.byte_ids.at(byte) = found->second;
    }
    spec_.vocab_size = static_cast<int32_t>(tokens_.size()) + kTiktokenSpecialIds;
    spec_.in_vocabulary.assign(spec_.vocab_size, false);
    for (const Token& token : tokens_) {
      spec_.ids.emplace(SpellByteLevel(token.bytes), token.rank);
      spec_.in_vocabulary[token.rank] = true;
    }
  }

  // Any two tokens side by side that make a token may merge, at the rank of what they make. Which
  // of the pairs that make one token comes first does not matter: what merges before within its
  // bytes is the same wherever they stand, so that only one of the pairs ever comes up.
  void AddMerges() {
    for (const Token& token : tokens_) {
      const std::string_view bytes = token.bytes;
      for (size_t at = 1; at < bytes.size(); ++at) {
        const auto left = ranks_.find(bytes.substr(0, at));
        if (left == ranks_.end()) continue;
        const auto right = ranks_.find(bytes.substr(at));
        if (right == ranks_.end()) continue;
        if (spec_.merges.size() == kMaxTiktokenMerges) {
          Fail("its tokens are joined from two tokens in more than {} ways", kMaxTiktokenMerges);
        }
        spec_.merges.push_back({left->second, right->second, token.rank});
      }
    }
  }

  void AddSpecialTokens(const std::map<int32_t, NamedToken>& named) {
    spec_.added_tokens_are_bytes = true;
    for (auto id = static_cast<int32_t>(tokens_.size()); id < spec_.vocab_size; ++id) {
      const auto name = named.find(id);
      AddedToken token = {.id = id,
                          .content = fmt::format("<|reserved_token_{}|>", id),
                          .special = false,
                          .control = true,
                          .lstrip = false,
                          .rstrip = false,
                          .normalized = false};
      if (name != named.end()) {
        token.content = name->second.content;
        token.special = name->second.special;
      }
      const auto [entry, added] = spec_.ids.try_emplace(token.content, id);
      if (!added) {
        Fail("the special token {} of id {} is also the token of id {}", Quote(token.content), id,
             entry->second);
      }
      spec_.added_tokens.push_back(std::move(token));
    }
  }

  std::string_view where_;
  int line_ = 1;
  std::vector<Token> tokens_;
  std::unordered_map<std::string_view, int32_t> ranks_;  // of tokens_, by their bytes
  TokenizerSpec spec_;
};

}  // namespace

TokenizerSpec ParseTiktokenModel(std::string_view model, std::string_view where,
                                 const std::map<int32_t, NamedToken>& named) {
  return TiktokenReader(where).Run(model, named);
}

std::map<int32_t, NamedToken> ReadTiktokenNames(const std::filesystem::path& directory) {
  const std::string where = (directory / "tokenizer_config.json").string();
  const TokenizerConfig config = ReadTokenizerConfig(directory);
  if (config.tokenizer_class != kKimiTokenizer) {
    throw InvalidArgument(
        "{}: tokenizer_class is \"{}\"; beside a tiktoken.model only \"{}\", Kimi's, is known",
        where, config.tokenizer_class, kKimiTokenizer);
  }
  return ReadAddedTokensDecoder(directory);
}

}  // namespace outrider
