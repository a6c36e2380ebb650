// Attention of prompts through cuDNN against the reference table of CPU kernels, and the equality
// of a row's bits however a prompt is cut. Needs a GPU of compute capability 9.0 and cuDNN.
#include "outrider/kernels/cuda/prompt/prompt_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>

#include "outrider/base/error.h"
#include "tests/kernels/cuda/cpu_reference.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/device_runs.h"
#include "tests/kernels/cuda/hopper_test.h"

namespace outrider::cuda {
namespace {

struct Shape {
  int heads;
  int nope;
  int value;
};

class PromptAttentionTest : public HopperTest<::testing::TestWithParam<Shape>> {
 protected:
  static constexpr int kRope = 64;
  static constexpr int kKeys = 700;

  struct Piece {
    int begin;
    int end;
  };

  void SetUp() override {
    HopperTest::SetUp();
    if (IsSkipped()) return;
    const auto [heads, nope, value] = GetParam();
    width_ = nope + kRope;
    scale_ = 1.0F / std::sqrt(static_cast<float>(width_));
    // With 16 heads queries have something beside them, as where one product gives more.
    q_stride_ = int64_t{heads} * width_ + (heads == 16 ? 576 : 0);
    try {
      attention_ = std::make_unique<PromptAttention>(
          PromptAttentionShape{.heads = heads,
                               .key_width = width_,
                               .value_width = value,
                               .q_row_stride = q_stride_,
                               .v_row_stride = static_cast<int64_t>(heads) * (nope + value),
                               .v_head_stride = nope + value,
                               .scale = scale_});
    } catch (const Error& error) {
      if (std::string(error.what()).find("was not found") != std::string::npos) {
        GTEST_SKIP() << error.what();
      }
      throw;
    }
    // Keys: every head's own part, then the rotated part that all share.
    const std::vector<uint16_t> own = NormalBf16(random_, size_t{kKeys} * heads * nope);
    rope_ = NormalBf16(random_, size_t{kKeys} * kRope);
    for (int row = 0; row < kKeys; ++row) {
      for (int head = 0; head < heads; ++head) {
        const auto at = own.begin() + (static_cast<int64_t>(row) * heads + head) * nope;
        k_.insert(k_.end(), at, at + nope);
        k_.insert(k_.end(), rope_.begin() + row * kRope, rope_.begin() + (row + 1) * kRope);
      }
    }
    q_ = NormalBf16(random_, size_t{kKeys} * heads * width_);
    // Values lie beside the keys' own parts, as a product leaves them.
    kv_.resize(size_t{kKeys} * heads * (nope + value));
    const std::vector<uint16_t> v = NormalBf16(random_, size_t{kKeys} * heads * value);
    for (size_t i = 0; i < size_t{kKeys} * heads; ++i) {
      std::copy_n(own.begin() + i * nope, nope, kv_.begin() + i * (nope + value));
      std::copy_n(v.begin() + i * value, value, kv_.begin() + i * (nope + value) + nope);
    }
  }

  /// Rows of pieces of the prompt, which are prompts of one call each, in their order.
  std::vector<uint16_t> Run(const std::vector<Piece>& pieces, int replays = 0) {
    const auto [heads, nope, value] = GetParam();
    const size_t q_row = size_t{1} * heads * width_, kv_row = size_t{1} * heads * (nope + value);
    std::vector<uint16_t> q, k, kv;
    std::vector<int32_t> queries = {0}, keys = {0};
    PromptAttentionParams params;
    for (const auto& [begin, end] : pieces) {
      for (int row = begin; row < end; ++row) {
        q.insert(q.end(), q_.begin() + row * q_row, q_.begin() + (row + 1) * q_row);
        q.resize(q.size() + q_stride_ - q_row, 0x7FFF);
      }
      k.insert(k.end(), k_.begin(), k_.begin() + end * q_row);
      kv.insert(kv.end(), kv_.begin(), kv_.begin() + end * kv_row);
      queries.push_back(queries.back() + end - begin);
      keys.push_back(keys.back() + end);
      params.max_queries = std::max(params.max_queries, end - begin);
      params.max_keys = std::max(params.max_keys, end);
    }
    // What is past the end is no number in q, and finite and not small in k and v.
    q.resize(q.size() + kPromptSlackRows * q_stride_, 0x7FFF);
    k.resize(k.size() + kPromptSlackRows * q_row, 0x4180);
    kv.resize(kv.size() + kPromptSlackRows * kv_row, 0x4180);
    const DeviceArray<uint16_t> d_q(q), d_k(k), d_kv(kv);
    const DeviceArray<int32_t> d_queries(queries), d_keys(keys);
    const size_t out_row = size_t{1} * heads * value;
    const size_t size = queries.back() * out_row;
    const DeviceArray<uint16_t> out(size + kPromptSlackRows * out_row);
    params.num_prompts = static_cast<int>(pieces.size());
    params.query_start_loc = d_queries.data();
    params.key_start_loc = d_keys.data();
    params.q = d_q.data();
    params.k = d_k.data();
    params.v = d_kv.data() + nope;
    params.out = out.data();
    if (replays > 0) {
      RunOnDevice([&](cudaStream_t stream) { attention_->Run(params, stream); }, replays);
    } else {
      // The second call of a batch takes what the first has made.
      params.batch = ++batches_;
      attention_->Run(params, nullptr);
      CudaOk(cudaMemset(out.data(), 0xFF, size * sizeof(uint16_t)), "clear");
      attention_->Run(params, nullptr);
      CudaOk(cudaDeviceSynchronize(), "run");
    }
    std::vector<uint16_t> rows = out.Download();
    EXPECT_TRUE(std::all_of(rows.begin() + size, rows.end(), [](uint16_t x) {
      return x == 0xFFFF;
    })) << "rows past the last prompt were written";
    rows.resize(size);
    return rows;
  }

  std::mt19937 random_{61};
  int width_ = 0;
  float scale_ = 0;
  int64_t q_stride_ = 0;
  uint64_t batches_ = 0;
  std::unique_ptr<PromptAttention> attention_;
  std::vector<uint16_t> q_, k_, kv_, rope_;
};

TEST_P(PromptAttentionTest, MatchesTheCpuReference) {
  const auto [heads, nope, value] = GetParam();
  const std::vector<uint16_t> got = Run({{0, kKeys}});
  const std::vector<float> q = ToFloats(q_), kv = ToFloats(kv_), rope = ToFloats(rope_);
  std::vector<ExpandedBlock> blocks;
  for (int key = 0; key < kKeys; key += kExpandedBlock) {
    blocks.push_back({.request = {.query_length = kKeys},
                      .first_key = key,
                      .num_keys = std::min(kExpandedBlock, kKeys - key),
                      .kv_row = key});
  }
  std::vector<float> out(size_t{kKeys} * heads * value), maximum(size_t{kKeys} * heads),
      sum(maximum.size());
  ThreadPool pool(4);
  CpuReference().expanded_attention(pool, {.q = {q.data(), kKeys, heads * width_},
                                           .heads = heads,
                                           .nope = nope,
                                           .rope = kRope,
                                           .value = value,
                                           .scale = scale_,
                                           .kv = {kv.data(), kKeys, heads * (nope + value)},
                                           .k_rope = {rope.data(), kKeys, kRope},
                                           .blocks = blocks,
                                           .out = {out.data(), kKeys, heads * value},
                                           .running_max = {maximum.data(), kKeys, heads},
                                           .running_sum = {sum.data(), kKeys, heads}});
  for (size_t i = 0; i < sum.size(); ++i) {
    double difference = 0, norm = 0;
    for (int d = 0; d < value; ++d) {
      const double wanted = out[i * value + d] / sum[i];
      const double delta = Bf16ToFloat(got[i * value + d]) - wanted;
      difference += delta * delta;
      norm += wanted * wanted;
    }
    ASSERT_LT(std::sqrt(difference / norm), 8e-3) << "row " << i / heads << " head " << i % heads;
  }
}

TEST_P(PromptAttentionTest, BitsDoNotDependOnHowAPromptIsCut) {
  const auto [heads, nope, value] = GetParam();
  const std::vector<uint16_t> whole = Run({{0, kKeys}});
  const auto row = static_cast<int64_t>(heads) * value;
  auto compare = [&](int begin, int end) {
    const std::vector<uint16_t> piece = Run({{begin, end}});
    EXPECT_TRUE(std::equal(piece.begin(), piece.end(), whole.begin() + begin * row))
        << "rows " << begin << " to " << end;
  };
  for (const int cut : {1, 2, 63, 64, 127, 128, 129, 200, 256, 300, 512, 513, 640, 699}) {
    compare(0, cut);
    compare(cut, kKeys);
    compare(cut - 1, cut);
  }
  EXPECT_EQ(Run({{0, kKeys}}, /*replays=*/3), whole);
}

TEST_P(PromptAttentionTest, BitsDoNotDependOnTheOtherPrompts) {
  const auto [heads, nope, value] = GetParam();
  const std::vector<uint16_t> whole = Run({{0, kKeys}});
  const auto row = static_cast<int64_t>(heads) * value;
  for (const int count : {1, 2, 3, 4, 5, 17, 64, 65, kMostPrompts}) {
    std::vector<Piece> pieces;
    for (int i = 0; i < count; ++i) {
      // Many short ones; of few prompts, long ones too.
      const int longest = count > 20 ? 40 : kKeys;
      const int begin = std::uniform_int_distribution(0, longest - 1)(random_);
      pieces.push_back({begin, std::uniform_int_distribution(begin + 1, longest)(random_)});
    }
    const std::vector<uint16_t> got = Run(pieces);
    auto at = got.begin();
    for (const auto& [begin, end] : pieces) {
      const auto next = at + (end - begin) * row;
      ASSERT_TRUE(std::equal(at, next, whole.begin() + begin * row))
          << "rows " << begin << " to " << end << " in a batch of " << count;
      at = next;
    }
  }
}

TEST_P(PromptAttentionTest, RefusesWhatItCannotDo) {
  const auto refuses = [&](int prompts, int queries, int keys) {
    EXPECT_THROW(attention_->Run({.num_prompts = prompts, .max_queries = queries, .max_keys = keys},
                                 nullptr),
                 Error);
  };
  refuses(0, 1, 1);
  refuses(kMostPrompts + 1, 1, 1);
  refuses(1, 10, 9);
  refuses(1, kMostPromptQueries + 1, kMostPromptKeys);
  refuses(1, 1, kMostPromptKeys + 1);
  const auto [heads, nope, value] = GetParam();
  EXPECT_THROW(PromptAttention({.heads = heads, .key_width = 12, .value_width = value}), Error);
  EXPECT_THROW(PromptAttention({.heads = heads,
                                .key_width = width_,
                                .value_width = value,
                                .v_row_stride = 7,
                                .v_head_stride = 8}),
               Error);
  for (const int64_t stride : {int64_t{heads} * width_ - 8, int64_t{heads} * width_ + 4}) {
    EXPECT_THROW(
        PromptAttention(
            {.heads = heads, .key_width = width_, .value_width = value, .q_row_stride = stride}),
        Error);
  }
}

/// As ranks share them: the start compares bits, and throws where they differ.
TEST_P(PromptAttentionTest, HeadsOfARankHaveTheBitsThatTheyHaveAmongAll) {
  const auto [heads, nope, value] = GetParam();
  for (const int ranks : {2, 4}) {
    const int own = heads / ranks;
    EXPECT_NO_THROW(PromptAttention({.heads = own,
                                     .model_heads = heads,
                                     .key_width = width_,
                                     .value_width = value,
                                     .v_row_stride = int64_t{own} * (nope + value),
                                     .v_head_stride = nope + value,
                                     .scale = scale_}));
  }
}

INSTANTIATE_TEST_SUITE_P(Hopper, PromptAttentionTest,
                         ::testing::Values(Shape{16, 128, 128}, Shape{20, 192, 256},
                                           Shape{8, 64, 64}),
                         [](const ::testing::TestParamInfo<Shape>& shape) {
                           return "heads" + std::to_string(shape.param.heads) + "width" +
                                  std::to_string(shape.param.nope + 64) + "value" +
                                  std::to_string(shape.param.value);
                         });

}  // namespace
}  // namespace outrider::cuda
