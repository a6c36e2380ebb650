// The GPU's operations of DeepSeek-V4's attention, one by one beside the CPU's over the same cache:
// window rows, compressors, attention of every kind, and how often attention is planned. Needs a
// GPU of compute capability 9.0.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

#include "outrider/ops/compressed.h"
#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/cuda/cuda_ops.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/kernels/kernel_fixture.h"
#include "tests/ops/test_step.h"

namespace outrider::cuda {
namespace {

constexpr int32_t kDim = 512;
constexpr int32_t kIndexDim = 128;
constexpr int32_t kHeads = 8;
constexpr int32_t kWindow = 128;
constexpr int32_t kTokens = 256;  // of a block of any group
constexpr int32_t kRows = 300;    // of the one request, all in one step
constexpr int32_t kLatents = 192;

/// Groups: a window's rows, entries of ratio 4 and 128 and index keys, rows of tokens.
std::vector<CacheGroupSpec> Groups() {
  return {{.tokens_per_block = kTokens},
          {.tokens_per_block = kTokens, .unit_tokens = 128},
          {.tokens_per_block = kTokens}};
}

/// One layer's cache on a device: pages 0 and 1 of its own memory.
class OneCache {
 public:
  OneCache(const Ops& ops, int32_t group, DType dtype, int32_t width, int32_t ratio)
      : memory_(ops.Allocate(size_t{2} * kTokens / static_cast<size_t>(ratio) *
                             static_cast<size_t>(width) * DTypeSize(dtype))) {
    cache = {.data = memory_.data(),
             .dtype = dtype,
             .block_size = kTokens / ratio,
             .width = width,
             .block_stride = int64_t{kTokens} / ratio * width,
             .group = group,
             .num_blocks = 2};
  }
  LayerCache cache;
  size_t bytes() const { return memory_.size(); }

 private:
  Buffer memory_;
};

/// The caches of a layer.
struct LayerCaches {
  LayerCaches(const Ops& ops, int32_t ratio)
      : window(ops, 0, DType::kBF16, kDim, 1),
        entries(ops, 1, DType::kBF16, kDim, ratio),
        keys(ops, 1, DType::kBF16, kIndexDim, ratio),
        tokens(ops, 2, DType::kF32, ratio == 4 ? 4 * kDim : 2 * kDim, 1),
        key_tokens(ops, 2, DType::kF32, ratio == 4 ? 4 * kIndexDim : 2 * kIndexDim, 1) {}
  OneCache window, entries, keys, tokens, key_tokens;
};

class CompressedCudaOpsTest : public HopperTest<testing::TestWithParam<int32_t>> {
 protected:
  void SetUp() override {
    HopperTest::SetUp();
    if (IsSkipped()) return;
    gpu_ = std::make_unique<CudaOps>();
    gpu_arena_ = gpu_->MakeArena();
    for (size_t i = 0; i < frequencies_.size(); ++i) {
      frequencies_[i] = std::pow(10000.0F, -static_cast<float>(i) / 32.0F);
    }
  }

  Context GpuContext() { return {{*gpu_, &pool_}, *gpu_arena_, DType::kBF16}; }
  Context CpuContext() { return {{cpu_, &pool_}, cpu_arena_, DType::kBF16}; }

  std::unique_ptr<TestStep> MakeStep(const Context& c) {
    return std::make_unique<TestStep>(
        c, Groups(),
        std::vector<StepPart>{{.phase = Phase::kPromptChunk,
                               .tokens = std::vector<int32_t>(kRows, 1),
                               .tables = {{1, 0}, {0, 1}, {1, 0}}}},
        StepAttention{.listed = true});
  }

  void Transfer(void* to, const void* from, size_t bytes) const {
    CheckCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, gpu_->stream()), "test copy");
    gpu_->Synchronize();
  }
  /// A copy in the context's arena, of float32.
  Tensor Put(const Context& c, const TestMatrix& m) const {
    const Tensor rows = c.Rows(m.view_rows, m.view_cols);
    Transfer(rows.data, m.values.data(), m.values.size() * sizeof(float));
    return rows;
  }
  const float* PutVector(const Context& c, const TestMatrix& m) const {
    return static_cast<const float*>(Put(c, m).data);
  }
  TestMatrix Get(const Context& c, const Tensor& x) const {
    TestMatrix m(x.rows, x.cols);
    c.ops.ToHost(c, x, m.values);
    return m;
  }

  static TestMatrix RandomBf16(int64_t rows, int64_t cols, std::mt19937& random) {
    TestMatrix m = TestMatrix::Random(rows, cols, random);
    for (float& v : m.values) v = RoundToBFloat16(v);
    return m;
  }

  template <typename T>
  void ExpectCache(const OneCache& got, const OneCache& wanted, double bound, const char* what) {
    std::vector<T> numbers(got.bytes() / sizeof(T));
    Transfer(numbers.data(), got.cache.data, got.bytes());
    const auto* want = reinterpret_cast<const T*>(wanted.cache.data);
    const auto value = [](T number) -> double {
      if constexpr (std::is_same_v<T, BFloat16>) {
        return ToFloat(number);
      } else {
        return number;
      }
    };
    for (size_t i = 0; i < numbers.size(); ++i) {
      ASSERT_NEAR(value(numbers[i]), value(want[i]), bound * (0.1 + std::abs(value(want[i]))))
          << what << ", number " << i;
    }
  }

  static void ExpectNear(const TestMatrix& got, const TestMatrix& want, double bound,
                         const char* what) {
    for (size_t i = 0; i < want.values.size(); ++i) {
      ASSERT_NEAR(got.values[i], want.values[i], bound * (0.5 + std::abs(want.values[i])))
          << what << ", number " << i;
    }
  }

  std::mt19937 random_{5};
  ThreadPool pool_{4};
  const cpu::CpuOps& cpu_ = cpu::GetCpuOps(SelectIsa());
  std::unique_ptr<CudaOps> gpu_;
  std::unique_ptr<Arena> gpu_arena_;
  Arena cpu_arena_;
  std::array<float, 32> frequencies_ = {};
};

// All of a layer's attention, step by step; the GPU's caches are the CPU's for attention.
TEST_P(CompressedCudaOpsTest, AttentionBesideTheCpus) {
  const int32_t ratio = GetParam();
  const TestMatrix kv = TestMatrix::Random(kRows, kDim, random_);
  const TestMatrix latents = TestMatrix::Random(kRows, kLatents, random_);
  const TestMatrix norm = TestMatrix::Random(1, kDim, random_);
  const TestMatrix q_norm = TestMatrix::Random(1, kLatents, random_);
  const TestMatrix q = RandomBf16(kRows, int64_t{kHeads} * kDim, random_);
  const TestMatrix index_q = RandomBf16(kRows, int64_t{kHeads} * kIndexDim, random_);
  const TestMatrix sinks = TestMatrix::Random(1, kHeads, random_);
  const int32_t channels = ratio == 4 ? 2 * kDim : kDim;
  const int32_t key_channels = channels / 4;
  const TestMatrix states = TestMatrix::Random(kRows, 2 * channels, random_);
  const TestMatrix key_states = TestMatrix::Random(kRows, 2 * key_channels, random_);
  const TestMatrix bias = TestMatrix::Random(ratio, channels, random_);
  const TestMatrix key_bias = TestMatrix::Random(ratio, key_channels, random_);

  LayerCaches of_gpu(*gpu_, ratio);
  LayerCaches of_cpu(cpu_, ratio);
  TestMatrix out[2] = {TestMatrix(1, 1), TestMatrix(1, 1)};
  TestMatrix heads[2] = {TestMatrix(1, 1), TestMatrix(1, 1)};
  TestMatrix index_heads[2] = {TestMatrix(1, 1), TestMatrix(1, 1)};
  TestMatrix normed[2] = {TestMatrix(1, 1), TestMatrix(1, 1)};
  const Context contexts[2] = {GpuContext(), CpuContext()};
  for (int device = 0; device < 2; ++device) {
    const Context& c = contexts[device];
    LayerCaches& caches = device == 0 ? of_gpu : of_cpu;
    const Scratch::Frame frame(c.arena);
    const auto step = MakeStep(c);
    const StepInputs& inputs = step->inputs();
    const Rotary rotary = c.ops.MakeRotary(c, frequencies_, 1.25F, true, inputs);
    const CompressedOps& ops = *c.ops.compressed();
    const Tensor q_out = c.Activations(kRows, kLatents);
    ops.WriteWindowRows(c, inputs,
                        {.kv = Put(c, kv),
                         .norm = PutVector(c, norm),
                         .norm_eps = 1e-6F,
                         .rotary = rotary,
                         .cache = caches.window.cache,
                         .q = Put(c, latents),
                         .q_norm = PutVector(c, q_norm),
                         .q_out = q_out});
    normed[device] = Get(c, q_out);
    const Tensor rows = c.Activations(kRows, q.view_cols);
    const Tensor index_rows = c.Activations(kRows, index_q.view_cols);
    const Tensor products = c.Activations(kRows, q.view_cols + index_q.view_cols);
    c.ops.Copy(c, Put(c, q), products.Columns(0, q.view_cols));
    c.ops.Copy(c, Put(c, index_q), products.Columns(q.view_cols, index_q.view_cols));
    ops.FinishQueries(c, {.products = products,
                          .q = rows,
                          .heads = kHeads,
                          .norm_eps = 1e-6F,
                          .rotary = rotary,
                          .index_q = index_rows,
                          .index_heads = kHeads});
    heads[device] = Get(c, rows);
    index_heads[device] = Get(c, index_rows);
    std::array<CompressArgs, 2> compressors;
    for (size_t i = 0; i < 2; ++i) {
      const bool of_keys = i == 1;
      compressors[i] = {.shape = {.ratio = ratio,
                                  .overlaps = ratio == 4,
                                  .width = of_keys ? kIndexDim : kDim,
                                  .rope = 64,
                                  .norm_eps = 1e-6F},
                        .rows = Put(c, of_keys ? key_states : states),
                        .bias = PutVector(c, of_keys ? key_bias : bias),
                        .tokens = of_keys ? caches.key_tokens.cache : caches.tokens.cache,
                        .norm = PutVector(c, norm),
                        .frequencies = frequencies_,
                        .magnitude = 1.25F,
                        .entries = of_keys ? caches.keys.cache : caches.entries.cache};
    }
    ops.Compress(c, inputs, compressors);
    if (device == 1) {
      ExpectCache<BFloat16>(of_gpu.window, of_cpu.window, 0.01, "rows of the window");
      ExpectCache<float>(of_gpu.tokens, of_cpu.tokens, 1e-6, "rows of tokens");
      ExpectCache<float>(of_gpu.key_tokens, of_cpu.key_tokens, 1e-6, "rows of keys' tokens");
      ExpectCache<BFloat16>(of_gpu.entries, of_cpu.entries, 0.01, "entries");
      ExpectCache<BFloat16>(of_gpu.keys, of_cpu.keys, 0.01, "index keys");
      for (const auto& [from, to] : {std::pair(&of_gpu.window, &of_cpu.window),
                                     std::pair(&of_gpu.entries, &of_cpu.entries)}) {
        Transfer(to->cache.data, from->cache.data, from->bytes());
      }
    }
    const Tensor attended = c.Activations(kRows, q.view_cols);
    c.ops.Copy(c, Put(c, q), rows);
    const CompressedAttentionArgs args = {.heads = kHeads,
                                          .window = kWindow,
                                          .ratio = ratio,
                                          .softmax_scale = 0.05F,
                                          .q = rows,
                                          .out = attended,
                                          .sinks = PutVector(c, sinks),
                                          .back = &rotary,
                                          .window_rows = caches.window.cache,
                                          .entries = caches.entries.cache};
    const int64_t plans = device == 0 ? ArenaOf(c).compressed_plans : 0;
    for (int layer = 0; layer < 3; ++layer) ops.CompressedAttention(c, inputs, args);
    if (device == 0) {
      EXPECT_EQ(ArenaOf(c).compressed_plans - plans, 2) << "once for all layers of a kind";
    }
    out[device] = Get(c, attended);
  }
  ExpectNear(normed[0], normed[1], 0.01, "latents");
  ExpectNear(heads[0], heads[1], 0.01, "heads");
  ExpectNear(index_heads[0], index_heads[1], 0.01, "heads of an indexer");
  ExpectNear(out[0], out[1], 0.02, "attention");
}

INSTANTIATE_TEST_SUITE_P(Ratios, CompressedCudaOpsTest, testing::Values(4, 128),
                         [](const auto& test) { return "ratio" + std::to_string(test.param); });

}  // namespace
}  // namespace outrider::cuda
