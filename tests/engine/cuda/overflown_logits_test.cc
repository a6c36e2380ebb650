// Numbers of the model that are NaN end the requests that see them, with the documented reason, and
// no other: those that share their steps keep their bits. Needs a GPU of compute capability 9.0,
// and cuDNN.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "outrider/checkpoint/safetensors.h"
#include "outrider/ops/cuda/cuda_ops.h"
#include "tests/engine/random_requests.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/networks/loaded_model.h"
#include "tests/temporary_directory.h"

namespace outrider::cuda {
namespace {

/// Neither in the prompts of RandomRequests nor likely in answers.
constexpr int32_t kSpoiltToken = 1700;

/// The bundled model with NaN in some rows of one matrix.
class SpoiltModel {
 public:
  SpoiltModel(const std::string& matrix, const std::vector<int32_t>& rows) {
    std::filesystem::copy(TinyModelDirectory(), directory());
    for (const auto& entry : std::filesystem::directory_iterator(directory())) {
      if (entry.path().extension() != ".safetensors") continue;
      for (const TensorInfo& tensor : ReadSafetensorsHeader(entry.path())) {
        if (tensor.name == matrix) Spoil(entry.path(), tensor, rows);
      }
    }
  }

  const std::filesystem::path& directory() const { return directory_.path(); }

 private:
  static void Spoil(const std::filesystem::path& path, const TensorInfo& tensor,
                    const std::vector<int32_t>& rows) {
    OUTRIDER_CHECK(tensor.dtype == DType::kBF16);
    std::string bytes;
    for (int64_t i = 0; i < tensor.shape[1]; ++i) bytes += "\xC0\x7F";  // NaN
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    for (const int32_t row : rows) {
      file.seekp(static_cast<std::streamoff>(tensor.begin) +
                 row * static_cast<std::streamoff>(bytes.size()));
      file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    }
    OUTRIDER_CHECK(file.good());
  }

  TemporaryDirectory directory_;
};

/// What a request gave, and why it ended.
struct Answer {
  Generated generated;
  std::string reason;
};

void Submit(Engine& engine, const GenerationRequest& request, Answer* answer) {
  engine.Submit(request, [answer](RequestId, OutputDelta&& delta) {
    if (const auto* text = std::get_if<std::string>(&delta.stop_reason)) answer->reason = *text;
    answer->generated.Take(std::move(delta));
  });
}

std::vector<Answer> AnswersOf(Engine& engine, const std::vector<GenerationRequest>& requests) {
  std::vector<Answer> answers(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) Submit(engine, requests[i], &answers[i]);
  RunUntilIdle(engine);
  return answers;
}

/// Ended by the model's numbers; none of them reached the client.
void ExpectTold(const Answer& answer) {
  EXPECT_EQ(answer.generated.finish_reason, FinishReason::kError);
  EXPECT_EQ(answer.reason, kLogitsOverflown);
  for (const PositionLogprobs& row : answer.generated.logprobs) {
    EXPECT_TRUE(std::isfinite(row.chosen.logprob));
  }
}

class OverflownLogitsTest : public HopperTest<::testing::TestWithParam<DrafterKind>> {
 protected:
  TestEngineOptions Options(const SpoiltModel& model) const {
    static const CudaOps* const shared = new CudaOps;
    TestEngineOptions options;
    options.ops = shared;
    options.checkpoint = model.directory();
    options.drafter = GetParam();
    options.drafter_checkpoint = TinyEagle3Directory();
    options.num_blocks = 100;  // pages of requests that have ended are used again
    options.max_num_batched_tokens = 64;
    options.threads = 4;
    options.queued = true;
    return options;
  }
};

/// Three that see the spoilt token: in a prompt, in a prompt of several steps, after an answer's
/// first token.
std::vector<GenerationRequest> SpoiltRequests() {
  std::vector<GenerationRequest> requests(3);
  requests[0].prompt_token_ids = {0, 5, kSpoiltToken, 77, 301};
  requests[0].sampling.logprobs = 2;
  requests[1].prompt_token_ids.assign(200, 17);
  requests[1].prompt_token_ids[150] = kSpoiltToken;
  requests[1].sampling.prompt_logprobs = 1;
  requests[2].prompt_token_ids = {0, 12, 9, 1024};
  requests[2].sampling.logit_bias = {{kSpoiltToken, 100.0F}};
  requests[2].sampling.logprobs = 0;
  for (GenerationRequest& request : requests) {
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 30;
    request.sampling.ignore_eos = true;
  }
  return requests;
}

TEST_P(OverflownLogitsTest, EndTheirRequestAndNoOther) {
  const SpoiltModel model("model.embed_tokens.weight", {kSpoiltToken});
  const std::vector<GenerationRequest> sound = RandomRequests(11, 20);
  std::vector<Answer> alone;
  {
    const auto engine = MakeTestEngine(Options(model));
    for (const GenerationRequest& request : sound)
      alone.push_back(AnswersOf(*engine, {request})[0]);
  }
  const auto engine = MakeTestEngine(Options(model));
  const std::vector<GenerationRequest> spoilt = SpoiltRequests();
  for (int round = 0; round < 2; ++round) {
    SCOPED_TRACE(::testing::Message() << "round " << round);
    std::vector<Answer> of_sound(sound.size());
    std::vector<Answer> of_spoilt(spoilt.size());
    for (size_t i = 0; i < sound.size(); ++i) {
      Submit(*engine, sound[i], &of_sound[i]);
      if (i < spoilt.size()) Submit(*engine, spoilt[i], &of_spoilt[i]);
    }
    RunUntilIdle(*engine);
    for (size_t i = 0; i < sound.size(); ++i) {
      EXPECT_EQ(Difference(of_sound[i].generated, alone[i].generated), "") << i;
      EXPECT_NE(of_sound[i].generated.finish_reason, FinishReason::kError) << i;
    }
    for (const Answer& answer : of_spoilt) ExpectTold(answer);
    EXPECT_TRUE(of_spoilt[0].generated.tokens.empty());
    EXPECT_TRUE(of_spoilt[1].generated.tokens.empty());
    // It draws the token, whose row is sound, and ends at the row behind it.
    EXPECT_EQ(of_spoilt[2].generated.tokens, std::vector<int32_t>{kSpoiltToken});
    EXPECT_EQ(engine->Counters().finished_error, 3 * (round + 1));
    EXPECT_EQ(engine->Counters().kv_cache_usage, 0);
  }
}

/// Eight of a row's 2048 logits.
TEST_P(OverflownLogitsTest, OfAFewTokensEndEveryRequest) {
  const SpoiltModel model("lm_head.weight", {3, 64, 65, 511, 1023, 1024, 1600, 2047});
  const auto engine = MakeTestEngine(Options(model));
  std::vector<GenerationRequest> requests = RandomRequests(12, 16);
  for (size_t i = 0; i < requests.size(); ++i) {
    if (i % 2 == 0) requests[i].sampling.logprobs = 5;
  }
  for (const Answer& answer : AnswersOf(*engine, requests)) {
    ExpectTold(answer);
    EXPECT_TRUE(answer.generated.tokens.empty());
  }
}

INSTANTIATE_TEST_SUITE_P(Drafters, OverflownLogitsTest,
                         ::testing::Values(DrafterKind::kNone, DrafterKind::kChain,
                                           DrafterKind::kEagle3),
                         [](const auto& test) -> std::string {
                           if (test.param == DrafterKind::kNone) return "None";
                           return test.param == DrafterKind::kChain ? "Chain" : "Eagle3";
                         });

}  // namespace
}  // namespace outrider::cuda
