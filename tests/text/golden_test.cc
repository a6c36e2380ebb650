// The tokenizer against Hugging Face's: the cases that tools/make_tokenizer_goldens.py wrote.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "outrider/text/stream_detokenizer.h"
#include "outrider/text/tokenizer.h"
#include "tests/source_directory.h"
#include "tests/text/golden_cases.h"

namespace outrider {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

const std::filesystem::path kGolden = SourceDirectory() / "tests/text/golden";
const std::filesystem::path kModelDirectory = SourceDirectory() / "models/tiny-v3-mtp3";

Json Load(const std::filesystem::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  return Json::parse(file);
}

class TokenizerGolden : public testing::TestWithParam<std::string> {
 protected:
  TokenizerGolden()
      : tokenizer_(Tokenizer::FromFile(GetParam() == "bundled"
                                           ? kModelDirectory / "tokenizer.json"
                                           : kGolden / (GetParam() + "_tokenizer.json"))) {}

  static const Json& AllCases() {
    static const Json kCases = Load(GoldenCases() / "tokenizer_cases.json");
    return kCases;
  }
  const Json& Cases() const { return AllCases().at("tokenizers").at(GetParam()); }

  Tokenizer tokenizer_;
};

TEST_P(TokenizerGolden, EncodesLikeTheReference) {
  const Json& texts = AllCases().at("texts");
  const Json& cases = Cases().at("encode");
  ASSERT_EQ(texts.size(), cases.size());
  ASSERT_GT(texts.size(), 500U);
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto text = texts[i].get<std::string>();
    const auto expected = cases[i].front().get<Ids>();
    const auto expected_plain = cases[i].back().get<Ids>();
    EXPECT_EQ(tokenizer_.Encode(text, false), expected) << texts[i];
    EXPECT_EQ(tokenizer_.Encode(text, false, SpecialTokens::kText), expected_plain) << texts[i];
  }
}

TEST_P(TokenizerGolden, AddsSpecialTokensLikeTheReference) {
  EXPECT_EQ(tokenizer_.Encode("Hello 12", true), Cases().at("with_special_tokens").get<Ids>());
}

TEST_P(TokenizerGolden, DecodesLikeTheReference) {
  for (const Json& entry : Cases().at("decode")) {
    const auto ids = entry[0].get<Ids>();
    for (const bool skip : {false, true}) {
      const auto expected = entry[skip ? 2 : 1].get<std::string>();
      EXPECT_EQ(tokenizer_.Decode(ids, skip), expected) << entry[0];
      StreamDetokenizer stream(tokenizer_, skip);
      std::string streamed;
      for (const int32_t id : ids) streamed += stream.Push(id);
      EXPECT_EQ(streamed + stream.Flush(), expected) << entry[0];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Styles, TokenizerGolden,
                         testing::Values("bundled", "deepseek_style", "glm_style", "kimi_style",
                                         "gpt2_style", "words_style", "ling_style"),
                         [](const auto& style) { return style.param; });

TEST(BundledTokenizer, MatchesTheModelsOwnGoldens) {
  const Tokenizer tokenizer = Tokenizer::FromModelDirectory(kModelDirectory);
  const Json cases = Load(kGolden / "golden_tokenizer.json");
  ASSERT_EQ(cases.size(), 12U);
  for (const Json& entry : cases) {
    const auto ids = entry.at("ids").get<Ids>();
    EXPECT_EQ(tokenizer.Encode(entry.at("text").get<std::string>(), false), ids) << entry;
    EXPECT_EQ(tokenizer.Decode(ids, false), entry.at("decoded").get<std::string>());
  }
}

}  // namespace
}  // namespace outrider
