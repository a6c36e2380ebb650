#include "outrider/text/tokenizer_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "outrider/base/error.h"
#include "outrider/text/byte_level.h"

namespace outrider {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxVocabulary = int64_t{1} << 21;
constexpr size_t kMaxTokenBytes = 1024;  // of an added token
constexpr size_t kMaxSteps = 32;         // of a pre-tokenizer or post-processor
constexpr int kMaxDepth = 8;             // of Sequences within Sequences

// The words that GPT-2 splits; what a ByteLevel pre-tokenizer with use_regex stands for.
constexpr std::string_view kGpt2Words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

class Parser {
 public:
  explicit Parser(std::string_view where) : where_(where) {}

  TokenizerSpec Run(std::string_view text) {
    Json root;
    try {
      root = Json::parse(text);
    } catch (const Json::exception& error) {
      throw InvalidArgument("{}: not valid JSON: {}", where_, error.what());
    }
    if (!root.is_object()) Fail("the file", "must hold a JSON object");
    RequireNull(root, "truncation");
    RequireNull(root, "padding");
    ReadModel(Member(root, "model", ""));
    ReadAddedTokens(Optional(root, "added_tokens"));
    CheckIds();
    spec_.in_vocabulary.resize(spec_.vocab_size, false);
    ReadNormalizer(Optional(root, "normalizer"), "normalizer", 0);
    ReadPreTokenizer(Optional(root, "pre_tokenizer"), "pre_tokenizer", 0);
    if (!byte_level_) {
      Fail("pre_tokenizer", "has no ByteLevel step; only byte-level BPE is supported");
    }
    ReadPostProcessor(Optional(root, "post_processor"), "post_processor", 0);
    ReadDecoder(Optional(root, "decoder"));
    return std::move(spec_);
  }

 private:
  template <typename... Args>
  [[noreturn]] void Fail(std::string_view place, fmt::format_string<Args...> format,
                         Args&&... args) const {
    throw InvalidArgument("{}: {} {}", where_, place,
                          fmt::format(format, std::forward<Args>(args)...));
  }

  // A string from the file, made fit for a message.
  static std::string Quote(std::string_view text) {
    constexpr size_t kLongest = 60;
    std::string quoted = Json(std::string(text.substr(0, kLongest)))
                             .dump(-1, ' ', false, Json::error_handler_t::replace);
    if (text.size() > kLongest) quoted += "...";
    return quoted;
  }

  // --- reading members ---

  static const Json& Optional(const Json& object, const char* key) {
    static const Json kNull;
    const auto member = object.find(key);
    return member == object.end() ? kNull : *member;
  }

  const Json& Member(const Json& object, const char* key, std::string_view place) const {
    const auto member = object.find(key);
    if (member == object.end()) Fail(place.empty() ? "the file" : place, "has no \"{}\"", key);
    return *member;
  }

  bool Bool(const Json& object, const char* key, bool fallback, std::string_view place) const {
    const Json& value = Optional(object, key);
    if (value.is_null()) return fallback;
    if (!value.is_boolean()) Fail(place, "has \"{}\", which must be true or false", key);
    return value.get<bool>();
  }

  const std::string& String(const Json& object, const char* key, std::string_view place) const {
    const Json& value = Member(object, key, place);
    if (!value.is_string()) Fail(place, "has \"{}\", which must be a string", key);
    return value.get_ref<const std::string&>();
  }

  const std::string& Type(const Json& object, std::string_view place) const {
    if (!object.is_object()) Fail(place, "must be an object");
    return String(object, "type", place);
  }

  void RequireNull(const Json& object, const char* key) const {
    if (!Optional(object, key).is_null()) Fail(key, "is set; only null is supported");
  }

  int32_t Id(const Json& value, std::string_view place) const {
    if (!value.is_number_integer() || value.get<int64_t>() < 0 ||
        (value.is_number_unsigned() && value.get<uint64_t>() >= kMaxVocabulary) ||
        value.get<int64_t>() >= kMaxVocabulary) {
      Fail(place, "has the id {}; ids are integers from 0 to {}", Quote(value.dump()),
           kMaxVocabulary - 1);
    }
    return value.get<int32_t>();
  }

  const Json& Steps(const Json& object, const char* key, std::string_view place, int depth) const {
    const Json& steps = Member(object, key, place);
    if (!steps.is_array()) Fail(place, "has \"{}\", which must be an array", key);
    if (steps.size() > kMaxSteps) Fail(place, "has {} steps, over {}", steps.size(), kMaxSteps);
    if (depth >= kMaxDepth) Fail(place, "is a Sequence nested more than {} deep", kMaxDepth);
    return steps;
  }

  // --- the model ---

  void ReadModel(const Json& model) {
    if (const std::string& type = Type(model, "model"); type != "BPE") {
      Fail("model", "has the type {}; only BPE is supported", Quote(type));
    }
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json& value = Optional(model, key);
      if (!value.is_null() && value != Json("")) Fail("model", "sets {}, not supported", key);
    }
    if (const Json& dropout = Optional(model, "dropout");
        !dropout.is_null() && dropout != Json(0.0)) {
      Fail("model", "sets dropout, not supported");
    }
    spec_.ignore_merges = Bool(model, "ignore_merges", false, "model");

    const Json& vocab = Member(model, "vocab", "model");
    if (!vocab.is_object()) Fail("model.vocab", "must be an object of token: id");
    for (const auto& [token, value] : vocab.items()) {
      AddId(token, Id(value, fmt::format("model.vocab: {}", Quote(token))), "model.vocab");
    }
    spec_.in_vocabulary.assign(spec_.vocab_size, false);
    for (const auto& [token, id] : spec_.ids) spec_.in_vocabulary[id] = true;
    for (int byte = 0; byte < 256; ++byte) {
      const std::string_view spelled = ByteLevelCharacter(static_cast<uint8_t>(byte));
      const auto found = spec_.ids.find(spelled);
      if (found == spec_.ids.end()) {
        Fail("model.vocab", "has no token for byte 0x{:02x}, spelled {}", byte, Quote(spelled));
      }
      spec_.byte_ids.at(byte) = found->second;
    }
    const Json& merges = Member(model, "merges", "model");
    if (!merges.is_array()) Fail("model.merges", "must be an array");
    spec_.merges.reserve(merges.size());
    for (const Json& merge : merges) ReadMerge(merge);
  }

  void ReadMerge(const Json& merge) {
    const size_t index = spec_.merges.size();
    std::string_view left;
    std::string_view right;
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get_ref<const std::string&>();
      right = merge[1].get_ref<const std::string&>();
    } else if (merge.is_string()) {
      const std::string_view text = merge.get_ref<const std::string&>();
      const size_t space = text.find(' ');
      if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
        Fail("model.merges", "[{}] is {}; it must be two tokens with one space between them", index,
             Quote(text));
      }
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else {
      Fail("model.merges", "[{}] must be [\"a\", \"b\"] or \"a b\"", index);
    }
    const auto id_of = [&](std::string_view token) {
      const auto found = spec_.ids.find(token);
      if (found == spec_.ids.end()) {
        Fail("model.merges", "[{}] needs the token {}, which is not in the vocabulary", index,
             Quote(token));
      }
      return found->second;
    };
    const int32_t left_id = id_of(left);
    const int32_t right_id = id_of(right);
    spec_.merges.push_back({left_id, right_id, id_of(std::string(left).append(right))});
  }

  void AddId(const std::string& token, int32_t id, std::string_view place) {
    const auto [entry, added] = spec_.ids.try_emplace(token, id);
    if (!added && entry->second != id) {
      Fail(place, "gives {} the id {}, but it has the id {}", Quote(token), id, entry->second);
    }
    spec_.vocab_size = std::max(spec_.vocab_size, id + 1);
  }

  void CheckIds() {
    std::vector<const std::string*> by_id(spec_.vocab_size, nullptr);
    for (const auto& [token, id] : spec_.ids) {
      if (by_id[id] != nullptr) {
        const auto& [first, second] = std::minmax(*by_id[id], token);
        Fail("the vocabulary", "has the id {} twice: {} and {}", id, Quote(first), Quote(second));
      }
      by_id[id] = &token;
    }
    for (const std::string* token : by_id) known_.push_back(token != nullptr);
  }

  void ReadAddedTokens(const Json& tokens) {
    if (tokens.is_null()) return;
    if (!tokens.is_array()) Fail("added_tokens", "must be an array");
    for (size_t i = 0; i < tokens.size(); ++i) {
      const std::string place = fmt::format("added_tokens[{}]", i);
      const Json& token = tokens[i];
      if (!token.is_object()) Fail(place, "must be an object");
      const std::string& content = String(token, "content", place);
      if (content.empty() || content.size() > kMaxTokenBytes) {
        Fail(place, "has {} bytes of content; it must have 1 to {}", content.size(),
             kMaxTokenBytes);
      }
      if (Bool(token, "single_word", false, place)) {
        Fail(place, "({}) sets single_word, not supported", Quote(content));
      }
      const int32_t id = Id(Member(token, "id", place), place);
      AddId(content, id, place);
      const bool special = Bool(token, "special", false, place);
      spec_.added_tokens.push_back({.id = id,
                                    .content = content,
                                    .special = special,
                                    .control = special,
                                    .lstrip = Bool(token, "lstrip", false, place),
                                    .rstrip = Bool(token, "rstrip", false, place),
                                    .normalized = Bool(token, "normalized", true, place)});
    }
  }

  // --- the stages around it ---

  void ReadNormalizer(const Json& normalizer, const std::string& place, int depth) {
    if (normalizer.is_null()) return;
    const std::string& type = Type(normalizer, place);
    if (type == "NFC") {
      spec_.normal_form_c = true;
      return;
    }
    if (type != "Sequence") {
      Fail(place, "has the type {}; supported are NFC and Sequence", Quote(type));
    }
    for (const Json& step : Steps(normalizer, "normalizers", place, depth)) {
      ReadNormalizer(step, place, depth + 1);
    }
  }

  void ReadPreTokenizer(const Json& step, const std::string& place, int depth) {
    if (step.is_null()) return;
    const std::string& type = Type(step, place);
    if (byte_level_) {
      Fail(place, "is a {} after ByteLevel, which must be the last step", Quote(type));
    }
    if (type == "Sequence") {
      size_t index = 0;
      for (const Json& inner : Steps(step, "pretokenizers", place, depth)) {
        ReadPreTokenizer(inner, fmt::format("{}[{}]", place, index++), depth + 1);
      }
    } else if (type == "Split") {
      ReadSplit(step, place);
    } else if (type == "Digits") {
      AddSplit(Bool(step, "individual_digits", false, place) ? R"(\p{N})" : R"(\p{N}+)", place);
    } else if (type == "ByteLevel") {
      if (Bool(step, "add_prefix_space", true, place)) {
        Fail(place, "(ByteLevel) sets add_prefix_space, not supported");
      }
      if (Bool(step, "use_regex", true, place)) AddSplit(kGpt2Words, place);
      byte_level_ = true;
    } else {
      Fail(place, "has the type {}; supported are Sequence, Split, Digits and ByteLevel",
           Quote(type));
    }
  }

  void AddSplit(std::string_view pattern, const std::string& place) {
    spec_.splits.push_back(
        {.pattern = std::string(pattern), .where = fmt::format("{}: {}", where_, place)});
    if (spec_.splits.size() > kMaxSteps) Fail(place, "is one of more than {} splits", kMaxSteps);
  }

  void ReadSplit(const Json& step, const std::string& place) {
    const Json& pattern = Member(step, "pattern", place);
    const bool literal = pattern.is_object() && pattern.contains("String");
    if (!pattern.is_object() || pattern.size() != 1 || (!literal && !pattern.contains("Regex"))) {
      Fail(place, "has a pattern that is neither {{\"Regex\": ...}} nor {{\"String\": ...}}");
    }
    const std::string& text = String(pattern, literal ? "String" : "Regex", place);
    if (text.empty()) Fail(place, "has an empty pattern");
    const std::string& behavior = String(step, "behavior", place);
    const bool invert = Bool(step, "invert", false, place);
    if (behavior != "Isolated" && behavior != "Removed") {
      Fail(place, "has the behavior {}; supported are Isolated and Removed", Quote(behavior));
    }
    AddSplit(text, place);
    spec_.splits.back().literal = literal;
    if (behavior == "Removed") {
      spec_.splits.back().keep_matches = invert;
      spec_.splits.back().keep_between = !invert;
    }
  }

  void ReadPostProcessor(const Json& step, const std::string& place, int depth) {
    if (step.is_null()) return;
    const std::string& type = Type(step, place);
    if (type == "Sequence") {
      size_t index = 0;
      for (const Json& inner : Steps(step, "processors", place, depth)) {
        ReadPostProcessor(inner, fmt::format("{}[{}]", place, index++), depth + 1);
      }
    } else if (type == "TemplateProcessing") {
      ReadTemplate(step, place);
    } else if (type != "ByteLevel") {  // ByteLevel here moves offsets only
      Fail(place, "has the type {}; supported are Sequence, TemplateProcessing and ByteLevel",
           Quote(type));
    }
  }

  // "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}, ...]
  void ReadTemplate(const Json& step, const std::string& place) {
    const Json& single = Steps(step, "single", place, 0);
    const Json& specials = Member(step, "special_tokens", place);
    if (!specials.is_object()) Fail(place, "has \"special_tokens\", which must be an object");
    std::vector<int32_t> before;
    std::vector<int32_t> after;
    bool text_seen = false;
    for (const Json& piece : single) {
      if (!piece.is_object() || piece.size() != 1) {
        Fail(place, "has a piece that is not one object");
      }
      const auto entry = piece.begin();
      const Json& body = *entry;
      if (entry.key() == "Sequence" && body.is_object()) {
        if (text_seen || String(body, "id", place) != "A") {
          Fail(place, "must name the sequence \"A\" exactly once in \"single\"");
        }
        text_seen = true;
      } else if (entry.key() == "SpecialToken" && body.is_object()) {
        ReadTemplateToken(specials, String(body, "id", place), place, text_seen ? &after : &before);
      } else {
        Fail(place, "has a piece that is neither a Sequence nor a SpecialToken");
      }
    }
    if (!text_seen) Fail(place, "does not name the sequence \"A\" in \"single\"");
    spec_.prefix.insert(spec_.prefix.begin(), before.begin(), before.end());
    spec_.suffix.insert(spec_.suffix.end(), after.begin(), after.end());
  }

  void ReadTemplateToken(const Json& specials, const std::string& name, const std::string& place,
                         std::vector<int32_t>* ids) const {
    const auto token = specials.find(name);
    if (token == specials.end() || !token->is_object() || !Optional(*token, "ids").is_array()) {
      Fail(place, "uses {}, which has no \"ids\" in its \"special_tokens\"", Quote(name));
    }
    for (const Json& value : Optional(*token, "ids")) {
      const int32_t id = Id(value, place);
      if (id >= spec_.vocab_size || !known_[id]) {
        Fail(place, "gives {} the id {}, which is no token", Quote(name), id);
      }
      if (ids->size() >= kMaxSteps) Fail(place, "adds more than {} tokens", kMaxSteps);
      ids->push_back(id);
    }
  }

  void ReadDecoder(const Json& decoder) const {
    const std::string& type = Type(decoder, "decoder");
    if (type == "ByteLevel") return;
    if (type == "Sequence") {
      const Json& steps = Steps(decoder, "decoders", "decoder", 0);
      if (steps.size() == 1 && Type(steps[0], "decoder[0]") == "ByteLevel") return;
    }
    Fail("decoder", "has the type {}; only ByteLevel is supported", Quote(type));
  }

  std::string_view where_;
  TokenizerSpec spec_;
  std::vector<bool> known_;  // by id: whether it belongs to a token
  bool byte_level_ = false;
};

}  // namespace

TokenizerSpec ParseTokenizerJson(std::string_view json, std::string_view where) {
  return Parser(where).Run(json);
}

}  // namespace outrider
