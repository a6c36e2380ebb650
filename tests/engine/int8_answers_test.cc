// The bundled model with 8-bit weights still solves its problems, and its modules still guess well.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "outrider/text/tokenizer.h"
#include "tests/engine/test_engine.h"
#include "tests/networks/model_directory.h"

namespace outrider {
namespace {

/// What follows the last "####" of an answer.
std::string AnswerOf(const std::string& text) {
  const size_t at = text.rfind("####");
  return at == std::string::npos ? "" : text.substr(at);
}

TEST(Int8Answers, OfTheGoldenProblemsAreRight) {
  const auto golden = ReadJson(GoldenDirectory() / "tiny-v3-mtp3/golden_greedy.json");
  const Tokenizer tokenizer = Tokenizer::FromModelDirectory(TinyModelDirectory());
  const auto engine =
      MakeTestEngine({.quantization = WeightQuantization::kInt8, .num_blocks = 1024});
  std::vector<Generated> results(golden.size());
  for (size_t i = 0; i < golden.size(); ++i) {
    GenerationRequest request;
    request.prompt_token_ids = golden[i]["prompt_ids"].get<std::vector<int32_t>>();
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 128;
    Submit(*engine, std::move(request), &results[i]);
  }
  RunUntilIdle(*engine);
  int problems = 0;
  int right = 0;
  for (size_t i = 0; i < golden.size(); ++i) {
    const auto want = golden[i]["greedy_ids"].get<std::vector<int32_t>>();
    const std::string answer = AnswerOf(tokenizer.Decode(want, /*skip_special_tokens=*/true));
    if (answer.empty()) continue;  // not a problem
    ++problems;
    right += AnswerOf(tokenizer.Decode(results[i].tokens, true)) == answer ? 1 : 0;
  }
  EXPECT_GE(problems, 30);
  EXPECT_GE(right, problems - 1) << "of " << problems;
  EXPECT_GT(engine->Counters().speculation.MeanAcceptanceLength(), 3.3);
}

}  // namespace
}  // namespace outrider
