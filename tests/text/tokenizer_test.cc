// The tokenizer's own promises: options, hostile files, hostile text, threads.
#include "outrider/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/text/byte_level.h"
#include "tests/sanitized.h"
#include "tests/source_directory.h"
#include "tests/temporary_directory.h"

namespace outrider {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;
using testing::HasSubstr;

const std::filesystem::path kTinyModel = SourceDirectory() / "models/tiny-v3-mtp3";

// The smallest tokenizer: a token per byte (id = byte) and what `merges` make of them.
Json ByteTokenizer(const std::vector<std::pair<std::string, std::string>>& merges = {}) {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) {
    vocab[std::string(ByteLevelCharacter(static_cast<uint8_t>(byte)))] = byte;
  }
  Json list = Json::array();
  for (const auto& [left, right] : merges) {
    vocab[left + right] = vocab.size();
    list.push_back({left, right});
  }
  return {{"version", "1.0"},
          {"added_tokens", Json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", list}}}};
}

Json Added(const std::string& content, int64_t id) {
  return {{"id", id}, {"content", content}, {"special", true}, {"normalized", false}};
}

Json RegexSplit(const std::string& pattern) {
  return {{"type", "Sequence"},
          {"pretokenizers",
           {{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}},
            {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
}

Tokenizer Make(const Json& json) { return Tokenizer::FromJson(json.dump(), "t.json"); }

std::string EncodeFailure(const std::string& text) {
  try {
    (void)Tokenizer::FromJson(text, "t.json");
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::StartsWith("t.json: "));
    EXPECT_THAT(error.what(), testing::Not(HasSubstr("\n")));
    return error.what();
  }
  return "accepted";
}

struct BadFile {
  const char* name;
  std::function<void(Json&)> spoil;
  const char* message;
};

TEST(HostileTokenizer, IsRefusedWithOneClearLine) {
  const BadFile cases[] = {
      {"no model", [](Json& j) { j.erase("model"); }, "the file has no \"model\""},
      {"other model", [](Json& j) { j["model"]["type"] = "Unigram"; }, "the type \"Unigram\""},
      {"vocab is a list", [](Json& j) { j["model"]["vocab"] = Json::array(); }, "model.vocab must"},
      {"id twice", [](Json& j) { j["model"]["vocab"]["ab"] = 97; },
       "the id 97 twice: \"a\" and \"ab\""},
      {"negative id", [](Json& j) { j["model"]["vocab"]["ab"] = -1; }, "\"ab\" has the id \"-1\""},
      {"huge id", [](Json& j) { j["model"]["vocab"]["ab"] = 1LL << 40; }, "integers from 0 to"},
      {"larger id", [](Json& j) { j["model"]["vocab"]["ab"] = ~0ULL; }, "integers from 0 to"},
      {"real id", [](Json& j) { j["model"]["vocab"]["ab"] = 300.5; }, "integers from 0 to"},
      {"byte missing", [](Json& j) { j["model"]["vocab"].erase("a"); }, "no token for byte 0x61"},
      {"merge of unknown",
       [](Json& j) { j["model"]["merges"] = Json::array({Json::array({"a", "zz"})}); },
       "model.merges [0] needs the token"},
      {"merge to unknown", [](Json& j) { j["model"]["merges"] = {"a b"}; },
       "needs the token \"ab\", which is not in the vocabulary"},
      {"merge of three", [](Json& j) { j["model"]["merges"] = {"a b c"}; }, "one space between"},
      {"merge number", [](Json& j) { j["model"]["merges"] = {3}; }, "[0] must be [\"a\", \"b\"]"},
      {"dropout", [](Json& j) { j["model"]["dropout"] = 0.1; }, "sets dropout"},
      {"suffix", [](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, "end_of_word_suffix"},
      {"truncation", [](Json& j) { j["truncation"] = Json::object(); }, "truncation is set"},
      {"normalizer", [](Json& j) { j["normalizer"] = {{"type", "NFKC"}}; }, "the type \"NFKC\""},
      {"pre-tokenizer", [](Json& j) { j["pre_tokenizer"] = {{"type", "Metaspace"}}; },
       "pre_tokenizer has the type \"Metaspace\"; supported are"},
      {"no ByteLevel", [](Json& j) { j["pre_tokenizer"] = nullptr; }, "has no ByteLevel step"},
      {"prefix space", [](Json& j) { j["pre_tokenizer"]["add_prefix_space"] = true; },
       "add_prefix_space"},
      {"bad flag", [](Json& j) { j["pre_tokenizer"]["use_regex"] = 1; }, "must be true or false"},
      {"decoder", [](Json& j) { j["decoder"] = {{"type", "WordPiece"}}; }, "\"WordPiece\""},
      {"no decoder", [](Json& j) { j.erase("decoder"); }, "decoder must be an object"},
      {"post-processor", [](Json& j) { j["post_processor"] = {{"type", "BertProcessing"}}; },
       "\"BertProcessing\""},
      {"added id twice", [](Json& j) { j["added_tokens"] = Json::array({Added("<a>", 97)}); },
       "id 97 twice"},
      {"added known elsewhere", [](Json& j) { j["added_tokens"] = Json::array({Added("b", 300)}); },
       "gives \"b\" the id 300, but it has the id 98"},
      {"added empty", [](Json& j) { j["added_tokens"] = Json::array({Added("", 300)}); },
       "0 bytes of content"},
      {"added without id", [](Json& j) { j["added_tokens"] = Json::array({{{"content", "<a>"}}}); },
       "added_tokens[0] has no \"id\""},
      {"single word",
       [](Json& j) {
         j["added_tokens"] = Json::array({Added("<a>", 256)});
         j["added_tokens"][0]["single_word"] = true;
       },
       "sets single_word, not supported"},
      {"bad regex", [](Json& j) { j["pre_tokenizer"] = RegexSplit("(a"); }, "does not compile"},
      {"empty match", [](Json& j) { j["pre_tokenizer"] = RegexSplit("a*"); }, "empty string"},
      {"hex digits", [](Json& j) { j["pre_tokenizer"] = RegexSplit("\\h+"); },
       "pre_tokenizer[0]: regular expression at byte 2: \\h is not supported"},
      {"possessive", [](Json& j) { j["pre_tokenizer"] = RegexSplit("a{1,3}+"); }, "followed by +"},
      {"nested class", [](Json& j) { j["pre_tokenizer"] = RegexSplit("[a[b]]"); }, "within a"},
      {"intersection", [](Json& j) { j["pre_tokenizer"] = RegexSplit("[a&&b]"); }, "intersection"},
      {"verb", [](Json& j) { j["pre_tokenizer"] = RegexSplit("(*ACCEPT)a"); }, "(*"},
      {"back reference", [](Json& j) { j["pre_tokenizer"] = RegexSplit("(a)\\1"); }, "\\1"},
      {"behavior",
       [](Json& j) {
         j["pre_tokenizer"] = RegexSplit("a");
         j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Contiguous";
       },
       "\"Contiguous\""},
      {"deep sequence",
       [](Json& j) {
         for (int i = 0; i < 100; ++i) {
           j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {j["pre_tokenizer"]}}};
         }
       },
       "nested more than"},
      {"template without text",
       [](Json& j) {
         j["post_processor"] = {{"type", "TemplateProcessing"},
                                {"single", Json::array()},
                                {"special_tokens", Json::object()}};
       },
       "does not name the sequence"},
      {"template of unknown",
       [](Json& j) {
         j["post_processor"] = {{"type", "TemplateProcessing"},
                                {"single", {{{"SpecialToken", {{"id", "<s>"}}}}}},
                                {"special_tokens", {{"<s>", {{"ids", {999}}}}}}};
       },
       "gives \"<s>\" the id 999, which is no token"},
  };
  for (const BadFile& bad : cases) {
    Json json = ByteTokenizer();
    bad.spoil(json);
    EXPECT_THAT(EncodeFailure(json.dump()), HasSubstr(bad.message)) << bad.name;
  }
  EXPECT_THAT(EncodeFailure("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(EncodeFailure(""), HasSubstr("not valid JSON"));
  EXPECT_THAT(EncodeFailure("[]"), HasSubstr("must hold a JSON object"));
  EXPECT_THAT(EncodeFailure("{\"a\": \"\xFF\"}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(EncodeFailure(std::string(1000000, '[')), HasSubstr("not valid JSON"));
  EXPECT_EQ(EncodeFailure(ByteTokenizer().dump()), "accepted");
}

TEST(Tokenizer, SaysWhichFileIsMissing) {
  try {
    (void)Tokenizer::FromFile("/nowhere/tokenizer.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_THAT(error.what(), HasSubstr("/nowhere/tokenizer.json"));
  }
}

TEST(Tokenizer, MergesByRankThenFromTheLeft) {
  const Tokenizer tokenizer =
      Make(ByteTokenizer({{"b", "c"}, {"a", "b"}, {"a", "a"}, {"ab", "c"}}));
  EXPECT_EQ(tokenizer.Encode("abc", false), (Ids{'a', 256}));  // bc outranks ab
  EXPECT_EQ(tokenizer.Encode("aaa", false), (Ids{258, 'a'}));  // leftmost first
  EXPECT_EQ(tokenizer.Encode("aab", false), (Ids{'a', 257}));
  EXPECT_EQ(tokenizer.TokenId("ab"), 257);
  EXPECT_EQ(tokenizer.TokenId("abc"), 259);
  EXPECT_EQ(tokenizer.TokenId("zz"), std::nullopt);
  EXPECT_EQ(tokenizer.vocab_size(), 260);
}

TEST(Tokenizer, IgnoresMergesForWholeWordsWhenTold) {
  Json json = ByteTokenizer({{"b", "c"}, {"ab", "c"}});
  json["model"]["vocab"]["ab"] = 258;
  json["model"]["merges"] = {"b c", Json::array({"ab", "c"})};
  EXPECT_EQ(Make(json).Encode("abc", false), (Ids{'a', 256}));
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(Make(json).Encode("abc", false), (Ids{257}));
}

TEST(Tokenizer, WholeWordsAreNeverSpecialTokens) {
  Json json = ByteTokenizer();
  json["model"]["ignore_merges"] = true;
  json["added_tokens"] = Json::array({Added("abc", 256)});
  EXPECT_EQ(Make(json).Encode("abc", false), (Ids{256}));
  EXPECT_EQ(Make(json).Encode("abc", false, SpecialTokens::kText), (Ids{'a', 'b', 'c'}));
  json["model"]["vocab"]["abc"] = 256;  // a token of the vocabulary too: then it is one
  EXPECT_EQ(Make(json).Encode("abc", false, SpecialTokens::kText), (Ids{256}));
}

TEST(Tokenizer, RefusesSpecialTokensWhenTold) {
  Json json = ByteTokenizer();
  json["added_tokens"] = Json::array({Added("<s>", 256)});
  json["added_tokens"].push_back({{"id", 257}, {"content", "[x]"}, {"special", false}});
  const Tokenizer tokenizer = Make(json);
  EXPECT_EQ(tokenizer.Encode("a[x]", false, SpecialTokens::kRefuse), (Ids{'a', 257}));
  EXPECT_THROW((void)tokenizer.Encode("a[x]<s>", false, SpecialTokens::kRefuse), Error);
}

TEST(Tokenizer, NormalizesTextBetweenAddedTokens) {
  Json json = ByteTokenizer();
  json["added_tokens"] = Json::array({Added("<s>", 256), Added("e\u0301\u0301", 257)});
  json["added_tokens"].push_back({{"id", 258}, {"content", "o\u0308"}, {"special", true}});
  const Tokenizer as_it_is = Make(json);
  EXPECT_EQ(as_it_is.Encode("e\u0301", false), (Ids{'e', 0xCC, 0x81}));
  EXPECT_EQ(as_it_is.Encode("\u00f6", false), (Ids{0xC3, 0xB6}));
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", Json::array({{{"type", "NFC"}}})}};
  const Tokenizer tokenizer = Make(json);
  EXPECT_EQ(tokenizer.Encode("e\u0301", false), (Ids{0xC3, 0xA9}));
  EXPECT_EQ(tokenizer.Encode("e<s>\u0301", false), (Ids{'e', 256, 0xCC, 0x81}));
  EXPECT_EQ(tokenizer.Encode("e\u0301\u0301", false), (Ids{257})) << "found before";
  EXPECT_EQ(tokenizer.Encode("o\u0308\u00f6", false), (Ids{258, 258})) << "found behind";
  EXPECT_EQ(tokenizer.Decode(Ids{257}, false), "e\u0301\u0301");
  EXPECT_EQ(tokenizer.Decode(Ids{258}, false), "\uFFFD") << "spelled by the byte of this number";
  EXPECT_EQ(tokenizer.LongestTokenBytes(), std::nullopt);
  EXPECT_THROW((void)tokenizer.Encode("o\u0308", false, SpecialTokens::kRefuse), Error);
}

TEST(Tokenizer, TreatsSpecialTokensInTextAsTold) {
  Json json = ByteTokenizer();
  json["added_tokens"] = {Added("<s>", 256), Added("<s>>", 257)};
  json["added_tokens"].push_back({{"id", 258}, {"content", "[x]"}, {"special", false}});
  const Tokenizer tokenizer = Make(json);
  EXPECT_EQ(tokenizer.Encode("a<s>[x]<s>>b", false), (Ids{'a', 256, 258, 257, 'b'}));
  EXPECT_EQ(tokenizer.Encode("<s>[x]", false, SpecialTokens::kText), (Ids{'<', 's', '>', 258}));
  EXPECT_TRUE(tokenizer.IsSpecial(256));
  EXPECT_FALSE(tokenizer.IsSpecial(258));
  EXPECT_FALSE(tokenizer.IsSpecial('a'));
  EXPECT_FALSE(tokenizer.IsSpecial(-1));
  EXPECT_FALSE(tokenizer.IsSpecial(1000000));
  EXPECT_EQ(tokenizer.Decode(Ids{'a', 256, 258}, false), "a<s>[x]");
  EXPECT_EQ(tokenizer.Decode(Ids{'a', 256, 258}, true), "a[x]");
}

TEST(Tokenizer, ReplacesInvalidUtf8) {
  const Tokenizer tokenizer = Make(ByteTokenizer());
  EXPECT_EQ(tokenizer.Encode("a\xFF", false), (Ids{'a', 0xEF, 0xBF, 0xBD}));
  EXPECT_EQ(tokenizer.Encode("\xE4\xBB", false), (Ids{0xEF, 0xBF, 0xBD}));
  EXPECT_EQ(tokenizer.Decode(Ids{'a', 0xE4, 0xBB, 'b'}, false), "a\uFFFDb");
  EXPECT_EQ(tokenizer.Decode(Ids{0xE4, 0xBB, 0x80}, false), "什");
}

TEST(Tokenizer, GivesNoTextForIdsWithoutToken) {
  Json json = ByteTokenizer();
  json["added_tokens"] = Json::array({Added("<s>", 300)});
  const Tokenizer tokenizer = Make(json);
  EXPECT_EQ(tokenizer.vocab_size(), 301);
  EXPECT_EQ(tokenizer.TokenBytes(300), "<s>");
  for (const int32_t id : {-1, 256, 299, 301, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(tokenizer.TokenBytes(id), "");
    EXPECT_EQ(tokenizer.Decode(Ids{'a', id, 'b'}, false), "ab");
  }
}

// The post-processor decides. Where it adds nothing, the flags of the Llama classes do, if they are
// there: DeepSeek's own files say it in no other way.
TEST(Tokenizer, ReadsWhetherBosIsAddedFromTheModelDirectory) {
  const TemporaryDirectory temporary;
  const std::filesystem::path& directory = temporary.path();
  Json json = ByteTokenizer();
  json["added_tokens"] = Json::array({Added("<s>", 256), Added("</s>", 257)});
  json["post_processor"] = {{"type", "ByteLevel"}};
  const auto encode = [&](const char* config) {
    std::ofstream(directory / "tokenizer.json") << json;
    std::ofstream(directory / "tokenizer_config.json") << config;
    return Tokenizer::FromModelDirectory(directory).Encode("a", true);
  };
  EXPECT_EQ(encode(R"({"add_bos_token": true, "bos_token": "<s>"})"), (Ids{'a'}));
  EXPECT_EQ(encode(R"({"add_bos_token": true, "bos_token": {"content": "<s>"},
                       "tokenizer_class": "LlamaTokenizerFast"})"),
            (Ids{256, 'a'}));
  EXPECT_EQ(encode(R"({"add_eos_token": true, "eos_token": "</s>", "bos_token": "<s>",
                       "tokenizer_class": "LlamaTokenizer"})"),
            (Ids{'a', 257}));
  EXPECT_EQ(encode(R"({"bos_token": "<s>", "tokenizer_class": "LlamaTokenizerFast"})"), (Ids{'a'}));
  EXPECT_THROW(encode(R"({"add_bos_token": true, "bos_token": "<x>",
                          "tokenizer_class": "LlamaTokenizer"})"),
               Error);

  json["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
      {"special_tokens", {{"<s>", {{"ids", {256}}}}}}};
  EXPECT_EQ(encode("{}"), (Ids{256, 'a'}));
  EXPECT_EQ(encode(R"({"add_bos_token": false, "add_eos_token": true, "bos_token": "<s>",
                       "eos_token": "</s>", "tokenizer_class": "LlamaTokenizerFast"})"),
            (Ids{256, 'a'}));
  EXPECT_EQ(Tokenizer::FromModelDirectory(kTinyModel).Encode("a", true).front(), 0);
}

TEST(HostileText, OfOneLongRunIsEncodedInTime) {
  const Tokenizer tokenizer = Tokenizer::FromModelDirectory(kTinyModel);
  const size_t megabyte = kSanitized ? 100000 : 1000000;
  std::string letters(megabyte, 'a');
  for (size_t i = 0; i < letters.size(); ++i) letters[i] = static_cast<char>('a' + i * i % 26);
  std::string wide;
  while (wide.size() < megabyte) wide += "価";
  for (const std::string& text :
       {std::string(megabyte, 'a'), std::string(megabyte, ' ') + "x", std::string(megabyte, '\n'),
        std::string(megabyte, '!'), std::string(megabyte, '<'), letters, wide}) {
    const auto start = std::chrono::steady_clock::now();
    const Ids ids = tokenizer.Encode(text, false);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10)) << text[0];
    EXPECT_EQ(tokenizer.Decode(ids, false), text) << text[0];
  }
}

// A token of white space that takes white space along: found at every place, which is read once.
TEST(HostileText, OfNothingButWhiteSpaceIsMatchedInTime) {
  const size_t spaces = kSanitized ? 100000 : 1000000;
  for (const char* strip : {"lstrip", "rstrip"}) {
    Json json = ByteTokenizer();
    json["added_tokens"] = Json::array({Added(" ", 256)});
    json["added_tokens"][0][strip] = true;
    const Tokenizer tokenizer = Make(json);
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(tokenizer.Encode(std::string(spaces, ' '), false), Ids(spaces, 256)) << strip;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10)) << strip;
  }
}

TEST(HostileText, ThatAHostilePatternCannotSplitIsAnError) {
  Json json = ByteTokenizer();
  json["pre_tokenizer"] = RegexSplit("(?:a|aa|a+)+(?=b)");
  const Tokenizer tokenizer = Make(json);
  EXPECT_EQ(tokenizer.Encode("aab", false), (Ids{'a', 'a', 'b'}));
  try {
    (void)tokenizer.Encode(std::string(5000, 'a'), false);
    FAIL() << "exponential matching came to an end";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kTooLarge);
    EXPECT_THAT(error.what(), HasSubstr("t.json: pre_tokenizer[0]: 5000 bytes"));
  }
}

TEST(Tokenizer, EncodesFromManyThreads) {
  const Tokenizer tokenizer = Tokenizer::FromModelDirectory(kTinyModel);
  std::vector<std::string> texts;
  std::vector<Ids> expected;
  for (int i = 0; i < 50; ++i) {
    texts.push_back("text " + std::to_string(i * 977) + " <think> naïve 今天 " +
                    std::string(i, 'z'));
    expected.push_back(tokenizer.Encode(texts.back(), true));
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        for (size_t i = 0; i < texts.size(); ++i) {
          EXPECT_EQ(tokenizer.Encode(texts[i], true), expected[i]);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace outrider
