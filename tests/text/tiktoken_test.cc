// Kimi's tiktoken.model: the library's tokens, bad files, long text. tiktoken_test.py compares with
// the library on many more texts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/text/stream_detokenizer.h"
#include "outrider/text/tiktoken_model.h"
#include "outrider/text/tokenizer.h"
#include "tests/sanitized.h"
#include "tests/source_directory.h"
#include "tests/temporary_directory.h"

namespace outrider {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;
using testing::HasSubstr;

const std::filesystem::path kKimi = SourceDirectory() / "tests/text/golden/kimi_tiktoken";

std::string ReadAll(const std::filesystem::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

const Tokenizer& Kimi() {
  static const Tokenizer* const kTokenizer = new Tokenizer(Tokenizer::FromModelDirectory(kKimi));
  return *kTokenizer;
}

std::string MessageOf(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(Tiktoken, EncodesAndDecodesLikeTheLibrary) {
  const Json cases = Json::parse(ReadAll(kKimi / "cases.json"));
  ASSERT_GT(cases.size(), 50U);
  for (const Json& entry : cases) {
    const auto text = entry.at("text").get<std::string>();
    const Ids ids = entry.at("ids");
    EXPECT_EQ(Kimi().Encode(text, false), ids) << text;
    EXPECT_EQ(Kimi().Encode(text, true), ids) << text;  // nothing is added
    const Ids as_text = entry.at("ids_as_text");
    EXPECT_EQ(Kimi().Encode(text, false, SpecialTokens::kText), as_text) << text;
    EXPECT_EQ(Kimi().Decode(ids, false), text);
    EXPECT_EQ(Kimi().Decode(as_text, true), text);
    StreamDetokenizer stream(Kimi(), false);
    std::string streamed;
    for (const int32_t id : ids) streamed += stream.Push(id);
    EXPECT_EQ(streamed + stream.Flush(), text);
  }
}

TEST(Tiktoken, HasKimisSpecialTokens) {
  const int32_t base = Kimi().vocab_size() - 258;
  EXPECT_EQ(Kimi().TokenId("[BOS]"), base);
  EXPECT_EQ(Kimi().TokenId("<|im_end|>"), base + 2);
  EXPECT_EQ(Kimi().TokenId("<|tool_call_begin|>"), base + 13);
  EXPECT_EQ(Kimi().TokenId("<|reserved_token_" + std::to_string(base + 5) + "|>"), base + 5);
  EXPECT_EQ(Kimi().TokenId("<|reserved_token_" + std::to_string(base + 257) + "|>"), base + 257);
  EXPECT_EQ(Kimi().TokenBytes(base + 2), "<|im_end|>");
  for (int32_t id = base; id < base + 258; ++id) EXPECT_TRUE(Kimi().IsAdded(id)) << id;
  EXPECT_FALSE(Kimi().IsAdded(base - 1));
  EXPECT_TRUE(Kimi().IsSpecial(base + 2));
  // Marks of calls stay in the text, but a user cannot write them.
  EXPECT_FALSE(Kimi().IsSpecial(base + 13));
  EXPECT_EQ(Kimi().Decode(Ids{base + 2, base + 13}, true), "<|tool_call_begin|>");
  EXPECT_GT(Kimi().Encode("<|tool_call_begin|>", false, SpecialTokens::kText).size(), 3U);
}

TEST(Tiktoken, RefusesSpecialTokensWhenTold) {
  EXPECT_EQ(Kimi().Encode("plain <|im_end", false, SpecialTokens::kRefuse),
            Kimi().Encode("plain <|im_end", false));
  EXPECT_THAT(
      MessageOf([] { (void)Kimi().Encode("今 <|im_end|>", false, SpecialTokens::kRefuse); }),
      HasSubstr("special token \"<|im_end|>\" at byte 4"));
  EXPECT_THAT(
      MessageOf([] { (void)Kimi().Encode("<|tool_call_end|>", false, SpecialTokens::kRefuse); }),
      HasSubstr("special token \"<|tool_call_end|>\" at byte 0"));
}

// Every byte, and `lines` behind them.
std::string Model(const std::string& lines = "") {
  const std::string alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string model;
  for (int byte = 0; byte < 256; ++byte) {
    model += std::string{alphabet[byte >> 2], alphabet[(byte & 3) << 4]} +
             "== " + std::to_string(byte) + '\n';
  }
  return model + lines;
}

TokenizerSpec Parse(const std::string& model, const std::map<int32_t, NamedToken>& named = {}) {
  return ParseTiktokenModel(model, "k/tiktoken.model", named);
}

TEST(TiktokenModel, ReadsLines) {
  EXPECT_EQ(Parse(Model()).vocab_size, 256 + 258);
  EXPECT_EQ(Parse(Model("YWI= 256\n\r\nYWJj 257\r\n")).vocab_size, 258 + 258);  // "ab", "abc"
  EXPECT_EQ(Parse(Model("YWJj 257\nYWI= 256")).ids.at("ab"), 256);              // in any order
}

TEST(TiktokenModel, NamesFileAndLineOfWhatIsWrong) {
  const auto message = [](const std::string& lines) {
    return MessageOf([&] { (void)Parse(Model(lines)); });
  };
  EXPECT_THAT(message("YWI=\n"), HasSubstr("k/tiktoken.model: line 257 is \"YWI=\"; it must be"));
  EXPECT_THAT(message("YWI= 256\n 3\n"), HasSubstr("line 258 is \" 3\""));
  for (const char* bad : {"YWI", "YW=I", "Y===", "YWI*", "YWJ=", "YR==", "====", "YWI=YWI="}) {
    EXPECT_THAT(message(std::string(bad) + " 256\n"),
                HasSubstr("line 257 has \"" + std::string(bad) + "\", which is not base64"));
  }
  for (const char* bad :
       {"", "-1", "2x", " 256", "256 ", "2097000", "99999999999999999999", "0x1"}) {
    EXPECT_THAT(message("YWI= " + std::string(bad) + "\n"),
                HasSubstr("line 257 has the rank \"" + std::string(bad) + "\"; ranks are"));
  }
  EXPECT_THAT(message("YWI= 258\n"),
              HasSubstr("no line has the rank 256; the ranks of 257 tokens"));
  EXPECT_THAT(message("YWI= 7\n"), HasSubstr("line 257 has the rank 7 of line 8 again"));
  EXPECT_THAT(message("YQ== 256\n"), HasSubstr("line 257 has the token of line 98 again"));
  EXPECT_THAT(message(std::string(1368, 'Y') + " 256\n"),
              HasSubstr("line 257 has a token of 1026 bytes; at most 1024"));
  EXPECT_THAT(message(std::string(100, '\x01') + "\xFF\n"), HasSubstr("line 257 is \"????"));
  EXPECT_THAT(MessageOf([] { (void)Parse("YQ== 0\n"); }),
              HasSubstr("no line has the token of byte 0x00 alone"));
  EXPECT_THAT(MessageOf([] { (void)Parse(""); }), HasSubstr("byte 0x00"));
}

TEST(TiktokenModel, RefusesASpecialTokenThatIsAnotherToken) {
  EXPECT_THAT(MessageOf([] { (void)Parse(Model(), {{256, {"a", true}}}); }),
              HasSubstr("the special token \"a\" of id 256 is also the token of id 97"));
  EXPECT_THAT(MessageOf([] { (void)Parse(Model(), {{256, {"[x]", true}}, {260, {"[x]", true}}}); }),
              HasSubstr("the special token \"[x]\" of id 260 is also the token of id 256"));
  // Names of ids in the vocabulary, or behind the last special one, do not count.
  EXPECT_EQ(Parse(Model(), {{5, {"[x]", true}}, {9999, {"[y]", true}}}).ids.count("[x]"), 0U);
}

// A directory with Kimi's files, changed.
class KimiDirectory {
 public:
  explicit KimiDirectory(const std::function<void(Json*)>& change) {
    std::filesystem::copy(kKimi / "tiktoken.model", directory_.path());
    Json config = Json::parse(ReadAll(kKimi / "tokenizer_config.json"));
    change(&config);
    std::ofstream(directory_.path() / "tokenizer_config.json") << config.dump();
  }
  const std::filesystem::path& path() const { return directory_.path(); }

 private:
  TemporaryDirectory directory_;
};

TEST(TiktokenModel, NeedsAConfigOfKimis) {
  const auto message = [](const std::function<void(Json*)>& change) {
    const KimiDirectory directory(change);
    return MessageOf([&] { (void)Tokenizer::FromModelDirectory(directory.path()); });
  };
  EXPECT_THAT(message([](Json* c) { (*c)["tokenizer_class"] = "QWenTokenizer"; }),
              HasSubstr("tokenizer_class is \"QWenTokenizer\"; beside a tiktoken.model only"));
  EXPECT_THAT(message([](Json* c) { c->erase("tokenizer_class"); }), HasSubstr("is \"\""));
  EXPECT_THAT(message([](Json* c) { c->erase("added_tokens_decoder"); }),
              HasSubstr("tokenizer_config.json: has no object added_tokens_decoder"));
  EXPECT_THAT(message([](Json* c) { (*c)["added_tokens_decoder"]["x"] = {{"content", "y"}}; }),
              HasSubstr("added_tokens_decoder[\"x\"]: is no id"));
  EXPECT_THAT(message([](Json* c) { (*c)["added_tokens_decoder"]["9"] = {{"content", 1}}; }),
              HasSubstr("added_tokens_decoder[\"9\"]: must be an object with a string"));
  EXPECT_THAT(message([](Json* c) { (*c)["added_tokens_decoder"]["9"] = {{"content", ""}}; }),
              HasSubstr("added_tokens_decoder[\"9\"]: has 0 bytes of content"));
  EXPECT_THAT(message([](Json* c) {
                (*c)["added_tokens_decoder"]["9"] = {{"content", "a"}};
                (*c)["added_tokens_decoder"]["09"] = {{"content", "b"}};
              }),
              HasSubstr("the id 9 is there twice"));
}

TEST(Tiktoken, IsReadWhereThereIsNoTokenizerJson) {
  EXPECT_TRUE(Tokenizer::IsIn(kKimi));
  const TemporaryDirectory empty;
  EXPECT_FALSE(Tokenizer::IsIn(empty.path()));
  try {
    (void)Tokenizer::FromModelDirectory(empty.path());
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_THAT(error.what(), HasSubstr("has neither tokenizer.json nor tiktoken.model"));
  }
  const KimiDirectory both([](Json*) {});
  std::filesystem::copy(SourceDirectory() / "models/tiny-v3-mtp3/tokenizer.json", both.path());
  EXPECT_EQ(Tokenizer::FromModelDirectory(both.path()).TokenId("[BOS]"), std::nullopt);
}

TEST(Tiktoken, ContentOfSpecialTokensIsText) {
  const KimiDirectory directory([](Json* config) {
    (*config)["added_tokens_decoder"][std::to_string(Kimi().vocab_size() - 258 + 8)] = {
        {"content", "<¡é Ġ>"}};
  });
  const Tokenizer tokenizer = Tokenizer::FromModelDirectory(directory.path());
  const Ids ids = tokenizer.Encode("<¡é Ġ>", false);
  EXPECT_EQ(ids, Ids{Kimi().vocab_size() - 258 + 8});
  EXPECT_EQ(tokenizer.Decode(ids, false), "<¡é Ġ>");
}

// A quadratic merge of 25,000 letters would take minutes over these 16 million.
TEST(Tiktoken, TimeGrowsWithTheText) {
  const size_t size = kSanitized ? size_t{100} << 10 : size_t{4} << 20;
  for (const std::string unit : {"a", "ab", " ", "\n", "今", "!", "aA", "é "}) {
    std::string text;
    while (text.size() < size) text += unit;
    const auto start = std::chrono::steady_clock::now();
    const Ids ids = Kimi().Encode(text, false);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    EXPECT_LT(seconds.count(), 60) << unit;
    EXPECT_EQ(Kimi().Decode(ids, false), text) << unit;
  }
}

}  // namespace
}  // namespace outrider
