// Drafts of blocks that the GPU draws, beside the CPU's from the same logits: tokens that stay on
// the device, the rows of the tokens before them, and distributions that the host draws from. Needs
// a GPU of compute capability 9.0.
#include "outrider/ops/cuda/cuda_block_sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "outrider/ops/cpu/block_sampler.h"
#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/cuda/device_rows.h"
#include "tests/ops/cuda/cuda_sampler_fixture.h"

namespace outrider::cuda {
namespace {

constexpr int64_t kRank = 24;
constexpr std::array<int32_t, 3> kSteps = {11, 11, 4};

class BlockSamplerTest : public CudaSamplerTest {
 protected:
  void SetUp() override {
    CudaSamplerTest::SetUp();
    if (IsSkipped()) return;
    const WeightForm form = {.compute_dtype = DType::kBF16};
    const auto source = MakeDummyWeights(ModelConfig{}, 6);
    const auto on_device = ops_->MakeWeightLoader(*source, form);
    on_device->Table(&table_, "markov", kVocab, kRank);
    table_memory_ = on_device->Load({*ops_, &pool_}, nullptr);
    const auto on_host = cpu_.MakeWeightLoader(*source, form);
    on_host->Table(&host_table_, "markov", kVocab, kRank);
    host_memory_ = on_host->Load({cpu_, &pool_}, nullptr);
    for (const int32_t count : kSteps) num_draws_ += static_cast<size_t>(count);
    ops_->KeepTokens(static_cast<int32_t>(num_draws_) + 5);
  }

  /// Draws of kSteps from random logits; with `distributions` all that are sampled give theirs.
  void Check(bool distributions) {
    std::vector<int32_t> rows;
    std::vector<TokenBefore> before;
    std::vector<SamplingParams> params(num_draws_);
    std::vector<std::vector<float>> got_probs(num_draws_);
    std::vector<std::vector<float>> want_probs(num_draws_);
    std::vector<DrawRequest> on_device;
    for (size_t i = 0; i < num_draws_; ++i) {
      rows.push_back(static_cast<int32_t>(random_() % 9));
      const auto draw = static_cast<int32_t>(i);
      before.push_back({.token = static_cast<int32_t>(random_() % kVocab),
                        .draw = std::max(draw - kSteps[0], -1)});
      DrawRequest request;
      request.place = static_cast<int32_t>(num_draws_ - i) + 2;
      if (random_() % 3 != 0) {
        params[i] = RandomParams(random_);
        params[i].temperature = std::max(params[i].temperature, 0.3F);
        request.sampling = &params[i];
        request.draw = {.seed = random_(), .position = static_cast<int64_t>(random_() % 5000)};
      }
      on_device.push_back(request);
    }
    std::vector<DrawRequest> on_host = on_device;
    for (size_t i = 0; i < num_draws_ && distributions; ++i) {
      if (on_device[i].sampling == nullptr) continue;
      got_probs[i].resize(kVocab);
      want_probs[i].resize(kVocab);
      on_device[i].draw.probs = got_probs[i];
      on_host[i].draw.probs = want_probs[i];
    }
    CudaBlockSampler got(*ops_, pool_.size());
    cpu::CpuBlockSampler want(pool_.size());
    got.Assign({rows, before, on_device, kSteps});
    want.Assign({rows, before, on_host, kSteps});
    EXPECT_EQ(got.launches_only(), !distributions);
    const Context context = MakeContext();
    Arena host_arena;
    const Context host = {{cpu_, &pool_}, host_arena, DType::kF32};
    const Scratch::Frame frame(context.arena);

    const TestMatrix hidden = TestMatrix::Random(9, kSamplerHidden, random_);
    const Tensor hidden_rows = context.Rows(9, kSamplerHidden);
    Copy(hidden_rows.data, hidden.values.data(), hidden.values.size() * sizeof(float));
    const Tensor x = context.Rows(got.num_rows(), kSamplerHidden);
    got.ReadRows(context, hidden_rows, x);
    for (size_t step = 0, draw = 0; step < kSteps.size(); ++step) {
      const RowRange room = got.rows_of(step);
      const int32_t count = kSteps[step];
      ASSERT_GE(room.count, count);
      const Tensor embedded = TakeRows(context, DType::kF32, room.count, kRank);
      got.EmbedBefore(context, table_, step, embedded);
      TestMatrix expected(count, kRank);
      want.EmbedBefore(host, host_table_, step, expected.view());
      TestMatrix logits = TestMatrix::Random(count, kVocab, random_);
      const Tensor device_logits = TakeRows(context, DType::kF32, room.count, kVocab);
      std::vector<float> row(static_cast<size_t>(std::max(kRank, kSamplerHidden)));
      for (int32_t i = 0; i < count; ++i, ++draw) {
        Copy(row.data(), static_cast<float*>(embedded.data) + i * embedded.stride,
             kRank * sizeof(float));
        EXPECT_TRUE(std::equal(row.begin(), row.begin() + kRank, expected.view().row(i)))
            << "token before draw " << draw;
        Copy(row.data(), static_cast<float*>(x.data) + (room.first + i) * x.stride,
             kSamplerHidden * sizeof(float));
        EXPECT_TRUE(std::equal(row.begin(), row.begin() + kSamplerHidden,
                               hidden.values.begin() + rows[draw] * kSamplerHidden))
            << "row of draw " << draw;
        Copy(static_cast<float*>(device_logits.data) + i * device_logits.stride,
             logits.values.data() + i * kVocab, kVocab * sizeof(float));
      }
      got.Draw(context, step, device_logits);
      want.Draw(host, step, logits.view());
    }
    std::vector<TokenRef> got_tokens(num_draws_);
    std::vector<TokenRef> want_tokens(num_draws_);
    got.TakeTokens(got_tokens);
    want.TakeTokens(want_tokens);
    ops_->ReadTokens();
    for (TokenRef& token : got_tokens) {
      EXPECT_EQ(token.on_device(), !distributions);
      token = ops_->ReadToken(token);
    }
    EXPECT_EQ(got_tokens, want_tokens);
    EXPECT_EQ(got_probs, want_probs);
  }

  const cpu::CpuOps& cpu_ = cpu::GetCpuOps(SelectIsa());
  TokenTable table_;
  TokenTable host_table_;
  std::unique_ptr<WeightMemory> table_memory_;
  std::unique_ptr<WeightMemory> host_memory_;
  size_t num_draws_ = 0;
};

TEST_F(BlockSamplerTest, TokensStayOnTheDevice) {
  for (int round = 0; round < 20; ++round) Check(/*distributions=*/false);
}

TEST_F(BlockSamplerTest, TheHostDrawsWhereDistributionsAreWanted) {
  for (int round = 0; round < 5; ++round) Check(/*distributions=*/true);
}

}  // namespace
}  // namespace outrider::cuda
