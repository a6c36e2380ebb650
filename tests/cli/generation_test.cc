// RunGeneration and what generate prints, with a scripted service.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <string>

#include "outrider/cli/generation_report.h"
#include "outrider/cli/generation_run.h"
#include "outrider/text/token_id_encoder.h"
#include "tests/cli/stub_service.h"

namespace outrider::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

const std::atomic<bool> kNotInterrupted{false};

// A generator over a scripted service.
class Generation : public testing::Test {
 protected:
  StubService service_{HelloScript()};
  TokenIdEncoder encoder_{100};
  Generator generator_{service_, encoder_, nullptr, OutputFormat(), 64};
};

OutputDelta RunScript(std::vector<OutputDelta> script) {
  StubService service(std::move(script));
  const TokenIdEncoder encoder(100);
  Generator generator(service, encoder, nullptr, OutputFormat(), 64);
  return RunGeneration(
      generator, SmallRequest(), [&] { service.Step(); }, [](std::string_view) {}, kNotInterrupted);
}

std::string TokenName(int32_t id) { return "t" + std::to_string(id); }

TEST_F(Generation, CollectsDeltasAndStreamsText) {
  std::vector<std::string> pieces;
  const OutputDelta result = RunGeneration(
      generator_, SmallRequest(), [&] { service_.Step(); },
      [&](std::string_view text) { pieces.emplace_back(text); }, kNotInterrupted);
  EXPECT_THAT(pieces, ElementsAre("Hel", "lo", " wor"));
  EXPECT_EQ(result.text, "Hello wor");
  EXPECT_THAT(result.token_ids, ElementsAre(5, 6, 7, 8, 9));
  EXPECT_EQ(result.finish_reason, FinishReason::kStop);
  EXPECT_EQ(std::get<int32_t>(result.stop_reason), 9);
  EXPECT_EQ(service_.Counters().num_steps, 3);
}

TEST_F(Generation, AnInterruptAborts) {
  std::atomic<bool> interrupted{false};
  const OutputDelta result = RunGeneration(
      generator_, SmallRequest(),
      [&] {
        service_.Step();
        interrupted = true;
      },
      [](std::string_view) {}, interrupted);
  EXPECT_EQ(result.finish_reason, FinishReason::kAbort);
  EXPECT_EQ(result.text, "Hel");
  EXPECT_THAT(service_.aborted(), ElementsAre(1));
}

TEST_F(Generation, ARefusedRequestThrows) {
  openai::TokenRequest empty = SmallRequest();
  empty.prompts = {std::vector<int32_t>()};
  EXPECT_THROW(
      RunGeneration(
          generator_, empty, [&] { service_.Step(); }, [](std::string_view) {}, kNotInterrupted),
      Error);
}

TEST(GenerationReport, TheFiguresLine) {
  const OutputDelta result = RunScript(HelloScript());
  EXPECT_EQ(FiguresLine(result),
            "4 prompt tokens; 5 tokens in 2.50 s, 2.0 tokens/s; first token after 500 ms; "
            "acceptance length 2.00");
  OutputDelta plain = result;
  plain.stats.speculation = SpeculationCounts();
  EXPECT_THAT(FiguresLine(plain), Not(HasSubstr("acceptance")));
  plain.stats.completion_tokens = 1;
  EXPECT_EQ(DecodeTokensPerSecond(plain.stats), 0);
}

TEST(GenerationReport, TheJsonObject) {
  const Json object = Json::parse(GenerationJson(RunScript(HelloScript()), {}, TokenName));
  EXPECT_EQ(object, Json::parse(R"({
    "text": "Hello wor", "token_ids": [5, 6, 7, 8, 9], "finish_reason": "stop", "stop_reason": 9,
    "usage": {"prompt_tokens": 4, "completion_tokens": 5, "cached_tokens": 0},
    "timings": {"queue_seconds": 0.25, "first_token_seconds": 0.5, "total_seconds": 2.5,
                "decode_tokens_per_second": 2.0},
    "speculation": {"num_drafts": 2, "num_draft_tokens": 6, "num_accepted_tokens": 2,
                    "accepted_per_position": [2, 0, 0], "mean_acceptance_length": 2.0}})"));
}

TEST(GenerationReport, LogprobsStopStringsAndBrokenUtf8) {
  std::vector<OutputDelta> script = HelloScript();
  script[0].logprobs = {{{5, -0.5F}, {{5, -0.5F}, {6, -1.5F}}}};
  script[0].prompt_logprobs = {{{4, -2.5F}, {}}};
  script[0].text = "\xff";
  script[2].stop_reason = std::string("END");
  const Json object =
      Json::parse(GenerationJson(RunScript(script), {.tokens = true, .prompt = true}, TokenName));
  EXPECT_EQ(object["logprobs"], Json::parse(R"([{
    "token_id": 5, "token": "t5", "logprob": -0.5,
    "top": [{"token_id": 5, "token": "t5", "logprob": -0.5},
            {"token_id": 6, "token": "t6", "logprob": -1.5}]}])"));
  EXPECT_EQ(object["prompt_logprobs"], Json::parse(R"([{
    "token_id": 4, "token": "t4", "logprob": -2.5, "top": []}])"));
  EXPECT_EQ(object["stop_reason"], "END");
  EXPECT_EQ(object["text"], "\xEF\xBF\xBDlo wor");
}

}  // namespace
}  // namespace outrider::cli
