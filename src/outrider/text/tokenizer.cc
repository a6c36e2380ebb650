#include "outrider/text/tokenizer.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <mutex>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/base/file.h"
#include "outrider/text/added_tokens.h"
#include "outrider/text/byte_level.h"
#include "outrider/text/byte_pair_encoder.h"
#include "outrider/text/normal_form.h"
#include "outrider/text/splitter.h"
#include "outrider/text/text_cutter.h"
#include "outrider/text/tiktoken_model.h"
#include "outrider/text/tokenizer_config.h"
#include "outrider/text/tokenizer_json.h"
#include "outrider/text/utf8.h"

namespace outrider {
namespace {

constexpr const char* kTokenizerJson = "tokenizer.json";
constexpr const char* kTiktokenModel = "tiktoken.model";
constexpr size_t kMaxTokenizerBytes = 256UL << 20;
constexpr size_t kMaxTiktokenFileBytes = 64UL << 20;
constexpr size_t kMaxTextBytes = 1UL << 30;

// Remembers the tokens of short words: each word has one possible place, the last to come keeps it.
class WordCache {
 public:
  struct Entry {
    static constexpr size_t kMaxBytes = 26;
    static constexpr size_t kMaxTokens = 8;
    uint8_t bytes = 0;  // of the word; 0: empty
    uint8_t tokens = 0;
    char word[kMaxBytes] = {};
    int32_t ids[kMaxTokens] = {};
  };

  // The entry where `word` lives, whatever it holds now; null for a word too long to remember.
  Entry* Find(std::string_view word) {
    if (word.size() > Entry::kMaxBytes) return nullptr;
    return &entries_[std::hash<std::string_view>()(word) % entries_.size()];
  }
  static bool Holds(const Entry& entry, std::string_view word) {
    return entry.bytes == word.size() && std::memcmp(entry.word, word.data(), word.size()) == 0;
  }
  static void Store(std::string_view word, std::span<const int32_t> ids, Entry* entry) {
    if (ids.size() > Entry::kMaxTokens) return;
    entry->bytes = static_cast<uint8_t>(word.size());
    entry->tokens = static_cast<uint8_t>(ids.size());
    std::memcpy(entry->word, word.data(), word.size());
    std::copy(ids.begin(), ids.end(), entry->ids);
  }

 private:
  std::vector<Entry> entries_ = std::vector<Entry>(size_t{1} << 15);  // 2 MiB
};

// What one call of Encode needs for itself.
struct Workspace {
  SplitWorkspace split;
  BytePairEncoder::Workspace merge;
  WordCache cache;
};

// Workspaces wait here between calls: as many as there have been calls at the same time.
class WorkspacePool {
 public:
  class Lease {
   public:
    explicit Lease(WorkspacePool* pool) : pool_(pool), workspace_(pool->Take()) {}
    ~Lease() { pool_->Return(std::move(workspace_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Workspace* operator->() const { return workspace_.get(); }

   private:
    WorkspacePool* pool_;
    std::unique_ptr<Workspace> workspace_;
  };

 private:
  std::unique_ptr<Workspace> Take() {
    {
      const std::scoped_lock lock(mutex_);
      if (!idle_.empty()) {
        std::unique_ptr<Workspace> workspace = std::move(idle_.back());
        idle_.pop_back();
        return workspace;
      }
    }
    return std::make_unique<Workspace>();
  }
  void Return(std::unique_ptr<Workspace> workspace) {
    const std::scoped_lock lock(mutex_);
    idle_.push_back(std::move(workspace));
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> idle_;
};

AddedTokenMatcher MatcherOf(const TokenizerSpec& spec, bool normalized) {
  std::vector<AddedToken> chosen;
  std::copy_if(spec.added_tokens.begin(), spec.added_tokens.end(), std::back_inserter(chosen),
               [&](const AddedToken& token) { return token.normalized == normalized; });
  if (normalized && spec.normal_form_c) {
    for (AddedToken& token : chosen) token.content = NormalFormC(token.content);
  }
  return AddedTokenMatcher(std::move(chosen));
}

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(TokenizerSpec spec)
      : vocab_size(spec.vocab_size),
        raw_tokens(MatcherOf(spec, false)),
        normalized_tokens(MatcherOf(spec, true)),
        merges(spec.byte_ids, spec.merges),
        ignore_merges(spec.ignore_merges),
        in_vocabulary(std::move(spec.in_vocabulary)),
        normal_form_c(spec.normal_form_c),
        cuts(spec.cuts),
        prefix(std::move(spec.prefix)),
        suffix(std::move(spec.suffix)),
        special(spec.vocab_size, false),
        added(spec.vocab_size, false),
        control(spec.vocab_size, false),
        ids(std::move(spec.ids)) {
    for (const SplitSpec& split : spec.splits) splitters.emplace_back(split);
    for (const AddedToken& token : spec.added_tokens) {
      takes_space = takes_space || token.lstrip || token.rstrip;
      added[token.id] = true;
      if (token.special) special[token.id] = true;
      if (token.control) control[token.id] = true;
    }
    std::vector<const std::string*> spelled(vocab_size, nullptr);
    for (const auto& [token, id] : ids) spelled[id] = &token;
    // Where text is normalized, tokens that are found in it are spelled so.
    std::deque<std::string> normal_forms;
    for (const AddedToken& token : spec.added_tokens) {
      if (!normal_form_c || !token.normalized) continue;
      spelled[token.id] = &normal_forms.emplace_back(NormalFormC(token.content));
    }
    offsets.push_back(0);
    for (int32_t id = 0; id < vocab_size; ++id) {
      const std::string* const token = spelled[id];
      if (token != nullptr && added[id] && spec.added_tokens_are_bytes) {
        bytes += *token;
      } else if (token != nullptr) {
        bytes += ReadByteLevel(*token).value_or(*token);
      }
      longest_token = std::max(longest_token, bytes.size() - offsets.back());
      offsets.push_back(static_cast<uint32_t>(bytes.size()));
    }
    bytes.shrink_to_fit();
  }

  // Passes `piece` through the splits from `level` on and encodes the words that come out.
  void EncodePiece(std::string_view piece, size_t level, Workspace* work,
                   std::vector<int32_t>* out) const {
    if (level == splitters.size()) {
      EncodeWord(piece, work, out);
      return;
    }
    splitters[level].Split(piece, &work->split, [&](std::string_view inner) {
      EncodePiece(inner, level + 1, work, out);
    });
  }

  void EncodeWord(std::string_view word, Workspace* work, std::vector<int32_t>* out) const {
    WordCache::Entry* entry = work->cache.Find(word);
    if (entry != nullptr && WordCache::Holds(*entry, word)) {
      out->insert(out->end(), entry->ids, entry->ids + entry->tokens);
      return;
    }
    const size_t first = out->size();
    const auto whole = ignore_merges ? ids.find(SpellByteLevel(word)) : ids.end();
    if (whole != ids.end() && in_vocabulary[whole->second]) {
      out->push_back(whole->second);
    } else {
      merges.Encode(word, &work->merge, out);
    }
    if (entry != nullptr) WordCache::Store(word, std::span(*out).subspan(first), entry);
  }

  int32_t vocab_size;
  AddedTokenMatcher raw_tokens;         // searched first
  AddedTokenMatcher normalized_tokens;  // searched in what is left
  std::vector<Splitter> splitters;
  BytePairEncoder merges;
  bool ignore_merges;
  std::vector<bool> in_vocabulary;  // by id
  bool normal_form_c;
  CutLimits cuts;
  std::vector<int32_t> prefix;
  std::vector<int32_t> suffix;
  std::vector<bool> special;      // by id
  std::vector<bool> added;        // by id
  std::vector<bool> control;      // by id
  TokenMap ids;                   // by spelling
  std::string bytes;              // of all tokens, one after the other
  std::vector<uint32_t> offsets;  // token id has bytes[offsets[id] .. offsets[id + 1])
  size_t longest_token = 0;       // in bytes
  bool takes_space = false;       // some added token does
  mutable WorkspacePool workspaces;
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {
  // What is normalized may have been longer.
  if (!impl_->takes_space && !impl_->normal_form_c) longest_token_bytes_ = impl_->longest_token;
}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::FromJson(std::string_view json, std::string_view where) {
  return Tokenizer(std::make_unique<Impl>(ParseTokenizerJson(json, where)));
}

Tokenizer Tokenizer::FromFile(const std::filesystem::path& path) {
  return FromJson(ReadTextFile(path, kMaxTokenizerBytes), path.string());
}

bool Tokenizer::IsIn(const std::filesystem::path& directory) {
  return std::filesystem::exists(directory / kTokenizerJson) ||
         std::filesystem::exists(directory / kTiktokenModel);
}

Tokenizer Tokenizer::FromModelDirectory(const std::filesystem::path& directory) {
  if (!std::filesystem::exists(directory / kTokenizerJson)) {
    const std::filesystem::path model = directory / kTiktokenModel;
    if (!std::filesystem::exists(model)) {
      throw NotFound("{}: has neither {} nor {}", directory.string(), kTokenizerJson,
                     kTiktokenModel);
    }
    return Tokenizer(std::make_unique<Impl>(ParseTiktokenModel(
        ReadTextFile(model, kMaxTiktokenFileBytes), model.string(), ReadTiktokenNames(directory))));
  }
  Tokenizer tokenizer = FromFile(directory / kTokenizerJson);
  const TokenizerConfig config = ReadTokenizerConfig(directory);
  if (!tokenizer.impl_->prefix.empty() || !tokenizer.impl_->suffix.empty()) return tokenizer;
  const auto added = [&](bool flag, const char* name) -> std::vector<int32_t> {
    if (!flag) return {};
    const auto token = config.special_tokens.find(name);
    const auto id =
        token == config.special_tokens.end() ? std::nullopt : tokenizer.TokenId(token->second);
    if (!id) {
      throw InvalidArgument(
          "{}: tokenizer_config.json adds {} to every text, but names no known token",
          directory.string(), name);
    }
    return {*id};
  };
  tokenizer.impl_->prefix = added(config.add_bos_token, "bos_token");
  tokenizer.impl_->suffix = added(config.add_eos_token, "eos_token");
  return tokenizer;
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text, bool add_special_tokens,
                                       SpecialTokens special_tokens) const {
  if (text.size() > kMaxTextBytes) {
    throw Error(ErrorCode::kTooLarge, fmt::format("text of {} bytes is over the limit of {}",
                                                  text.size(), kMaxTextBytes));
  }
  std::string repaired;
  if (ValidUtf8Prefix(text) != text.size()) {
    repaired = ReplaceInvalidUtf8(text);
    text = repaired;
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 8);
  if (add_special_tokens) ids.insert(ids.end(), impl_->prefix.begin(), impl_->prefix.end());
  const WorkspacePool::Lease work(&impl_->workspaces);
  const bool parse_special = special_tokens != SpecialTokens::kText;
  const auto add_token = [&](const char* at, int32_t token) {
    if (special_tokens == SpecialTokens::kRefuse && impl_->control[token]) {
      throw InvalidArgument("the text has the special token \"{}\" at byte {}; leave it out",
                            TokenBytes(token), at - text.data());
    }
    ids.push_back(token);
  };
  const char* rest = nullptr;  // of the text, where it was normalized
  const auto encode_rest = [&](std::string_view piece, int32_t token) {
    if (token >= 0) {
      add_token(rest != nullptr ? rest : piece.data(), token);
    } else {
      impl_->EncodePiece(piece, 0, work.operator->(), &ids);
    }
  };
  CutText(text, impl_->cuts, [&](std::string_view part) {
    impl_->raw_tokens.Match(part, parse_special, [&](std::string_view piece, int32_t token) {
      if (token >= 0) {
        add_token(piece.data(), token);
      } else if (impl_->normal_form_c) {
        rest = piece.data();
        impl_->normalized_tokens.Match(NormalFormC(piece), parse_special, encode_rest);
      } else {
        impl_->normalized_tokens.Match(piece, parse_special, encode_rest);
      }
    });
  });
  if (add_special_tokens) ids.insert(ids.end(), impl_->suffix.begin(), impl_->suffix.end());
  return ids;
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (!skip_special_tokens || !IsSpecial(id)) bytes += TokenBytes(id);
  }
  return ValidUtf8Prefix(bytes) == bytes.size() ? bytes : ReplaceInvalidUtf8(bytes);
}

int32_t Tokenizer::vocab_size() const { return impl_->vocab_size; }

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  if (id < 0 || id >= impl_->vocab_size) return {};
  const uint32_t start = impl_->offsets[id];
  return std::string_view(impl_->bytes).substr(start, impl_->offsets[id + 1] - start);
}

std::optional<int32_t> Tokenizer::TokenId(std::string_view content) const {
  const auto found = impl_->ids.find(content);
  if (found == impl_->ids.end()) return std::nullopt;
  return found->second;
}

bool Tokenizer::IsSpecial(int32_t id) const {
  return id >= 0 && id < impl_->vocab_size && impl_->special[id];
}

bool Tokenizer::IsAdded(int32_t id) const {
  return id >= 0 && id < impl_->vocab_size && impl_->added[id];
}

}  // namespace outrider
