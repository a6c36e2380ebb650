// A layer's attention with random weights over random mixed batches: every backend against the
// ragged one, equal bits where exactness is promised, close elsewhere; and the form of per-head
// entries against the latent one, and against itself in other roles and chunks.
#include "outrider/layers/mla_attention.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>

#include "outrider/base/buffer.h"
#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/cpu/packed_weights.h"
#include "tests/attention/test_layout.h"
#include "tests/kernels/kernel_fixture.h"
#include "tests/sanitized.h"

namespace outrider {
namespace {

constexpr int32_t kBlockSize = 8;
constexpr int32_t kSplitThreshold = 4;

constexpr int32_t kHidden = 40;

/// Small, with sizes that differ from one another.
MlaShape Shape(int32_t q_lora) {
  return {.heads = 3,
          .q_lora = q_lora,
          .latent = 24,
          .nope = 12,
          .rope = 8,
          .value = 10,
          .softmax_scale = 0.3F,
          .norm_eps = 1e-6F};
}

class Layer {
 public:
  Layer(const Layer&) = delete;  // handles point into it
  Layer& operator=(const Layer&) = delete;
  Layer(const MlaShape& layer_shape, std::mt19937& random) : shape(layer_shape), random_(random) {
    const MlaShape& s = shape;
    const int32_t query = s.heads * (s.nope + s.rope);
    weights.q_a = PackWeight(Draw(s.q_lora > 0 ? s.q_lora : query, kHidden));
    if (s.q_lora > 0) {
      weights.q_a_norm = Ones(s.q_lora);
      weights.q_b = PackWeight(Draw(query, s.q_lora));
    }
    weights.kv_a = PackWeight(Draw(s.latent + s.rope, kHidden));
    weights.kv_a_norm = Ones(s.latent);
    weights.o = PackWeight(Draw(kHidden, s.heads * s.value));
    for (int32_t h = 0; h < s.heads; ++h) {
      const TestMatrix key_up = Draw(s.nope, s.latent);
      TestMatrix transposed(s.latent, s.nope);
      for (int64_t r = 0; r < s.nope; ++r) {
        for (int64_t c = 0; c < s.latent; ++c) {
          transposed.view().row(c)[r] = key_up.view().row(r)[c];
        }
      }
      kv_up_.key_up.push_back(Pack(key_up));
      kv_up_.key_up_t.push_back(Pack(transposed));
      kv_up_.value_up.push_back(Pack(Draw(s.value, s.latent)));
    }
    weights.kv_up.packed = &kv_up_;
  }

  MlaShape shape;
  MlaWeights weights;

 private:
  TestMatrix Draw(int64_t rows, int64_t cols) {
    TestMatrix m = TestMatrix::Random(rows, cols, random_);
    for (float& v : m.values) v /= std::sqrt(static_cast<float>(cols));
    return m;
  }

  Weight PackWeight(const TestMatrix& m) {
    const PackedMatrix& packed = matrices_.emplace_back(Pack(m));
    return {packed.rows, packed.cols, &packed};
  }

  PackedMatrix Pack(const TestMatrix& m) {
    Buffer& buffer = *buffers_.emplace_back(
        std::make_unique<Buffer>(PackedBytes({.dtype = DType::kF32}, m.view_rows, m.view_cols)));
    const auto panel = static_cast<int64_t>(PanelBytes(DType::kF32, m.view_cols));
    for (int64_t p = 0; p * kPanelRows < m.view_rows; ++p) {
      PackPanel(DType::kF32, m.view().row(p * kPanelRows),
                std::min(kPanelRows, m.view_rows - p * kPanelRows), m.view_cols,
                buffer.data() + p * panel);
    }
    return {{.dtype = DType::kF32}, m.view_rows, m.view_cols, buffer.data()};
  }

  const float* Ones(int32_t n) {
    return ones_.emplace_back(std::make_unique<std::vector<float>>(static_cast<size_t>(n), 1.0F))
        ->data();
  }

  std::mt19937& random_;
  cpu::PackedKvUp kv_up_;
  std::deque<PackedMatrix> matrices_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<std::unique_ptr<std::vector<float>>> ones_;
};

class MlaBackendTest : public KernelTest {
 protected:
  struct Result {
    TestMatrix residual;
    std::vector<float> cache;
  };

  /// One step over `batch`: context entries are given, those of the new rows are written.
  Result Run(const Layer& layer, const TestLayout& batch, AttentionBackend backend,
             const TestMatrix& x, std::vector<float> cache,
             KvCacheForm form = KvCacheForm::kLatent) {
    const BatchLayout& layout = batch.layout();
    const int32_t pairs = layer.shape.rope / 2;
    TestMatrix cos(layout.num_rows(), pairs);
    TestMatrix sin(layout.num_rows(), pairs);
    for (int64_t r = 0; r < layout.num_rows(); ++r) {
      for (int32_t i = 0; i < pairs; ++i) {
        const float angle = static_cast<float>(layout.positions()[static_cast<size_t>(r)]) /
                            static_cast<float>(1 + 7 * i);
        cos.view().row(r)[i] = std::cos(angle);
        sin.view().row(r)[i] = std::sin(angle);
      }
    }
    AttentionPlan plan(backend, kSplitThreshold, form);
    plan.Assign(layout);
    Result result{TestMatrix(layout.num_rows(), kHidden), std::move(cache)};
    Arena scratch;
    const cpu::CpuOps ops(kernels);
    const outrider::Context context({ops, &pool}, scratch, DType::kF32);
    const auto inputs = ops.MakeStepInputs();
    inputs->Assign(layout, plan, RowCount::kExact);
    MlaForward(context, layer.shape, layer.weights, *inputs,
               {.cos = cos.view(), .sin = sin.view(), .interleaved = true},
               {.data = reinterpret_cast<std::byte*>(result.cache.data()),
                .dtype = DType::kF32,
                .block_size = kBlockSize,
                .width = Width(layer.shape, form),
                .block_stride = kBlockSize * Width(layer.shape, form)},
               x.view(), result.residual.view());
    return result;
  }

  static int32_t Width(const MlaShape& s, KvCacheForm form) {
    return static_cast<int32_t>(CacheWidth(
        form,
        {.heads = s.heads, .latent = s.latent, .nope = s.nope, .rope = s.rope, .value = s.value}));
  }

  /// The whole of some requests computed from nothing, `chunk` rows of each per step.
  Result RunInChunks(const Layer& layer, const std::vector<TestRequest>& whole, int32_t chunk,
                     Phase phase, KvCacheForm form, const TestMatrix& x) {
    const TestLayout all(whole, kBlockSize);
    Result result{TestMatrix(x.view_rows, x.view_cols),
                  std::vector<float>(static_cast<size_t>(int64_t{all.num_blocks()} * kBlockSize *
                                                         Width(layer.shape, form)),
                                     kNaN)};
    int32_t longest = 0;
    for (const TestRequest& r : whole) longest = std::max(longest, r.rows);
    for (int32_t first = 0; first < longest; first += chunk) {
      std::vector<TestRequest> parts;
      for (const TestRequest& r : whole) {
        // Requests that are done stay in the layout, so that blocks are those of every step.
        const int32_t begin = std::min(first, r.rows);
        parts.push_back({phase, std::min(chunk, r.rows - begin), begin, r.rows});
      }
      const TestLayout step(parts, kBlockSize);
      TestMatrix rows(step.layout().num_rows(), x.view_cols);
      const auto row_of = [&](const RequestRows& part, int32_t j) {
        int32_t row = part.context_length + j;
        for (int32_t i = 0; i < part.slot; ++i) row += whole[static_cast<size_t>(i)].rows;
        return row;
      };
      for (const RequestRows& part : step.layout().requests()) {
        for (int32_t j = 0; j < part.query_length; ++j) {
          std::copy_n(x.view().row(row_of(part, j)), x.view_cols,
                      rows.view().row(part.first_row + j));
        }
      }
      Result got = Run(layer, step, AttentionBackend::kRagged, rows, std::move(result.cache), form);
      result.cache = std::move(got.cache);
      for (const RequestRows& part : step.layout().requests()) {
        for (int32_t j = 0; j < part.query_length; ++j) {
          std::copy_n(got.residual.view().row(part.first_row + j), x.view_cols,
                      result.residual.view().row(row_of(part, j)));
        }
      }
    }
    return result;
  }

  /// A cache whose entries of cached positions are random, all others NaN.
  std::vector<float> Context(const TestLayout& batch, const MlaShape& shape) {
    const int32_t width = shape.latent + shape.rope;
    std::vector<float> cache(static_cast<size_t>(int64_t{batch.num_blocks()} * kBlockSize * width),
                             kNaN);
    std::normal_distribution<float> normal;
    for (const RequestRows& r : batch.layout().requests()) {
      for (int32_t p = 0; p < r.context_length; ++p) {
        const int32_t slot = r.block_table(0)[p / kBlockSize] * kBlockSize + p % kBlockSize;
        for (int32_t i = 0; i < width; ++i) {
          cache[static_cast<size_t>(slot * width + i)] = normal(random);
        }
      }
    }
    return cache;
  }

  void ExpectBackendsAgree(const Layer& layer, const TestLayout& batch) {
    const TestMatrix x = TestMatrix::Random(batch.layout().num_rows(), kHidden, random);
    const std::vector<float> context = Context(batch, layer.shape);
    const Result want = Run(layer, batch, AttentionBackend::kRagged, x, context);
    for (const AttentionBackend backend : kAllAttentionBackends) {
      const Result got = Run(layer, batch, backend, x, context);
      ASSERT_TRUE(
          SameBits(got.cache.data(), want.cache.data(), static_cast<int64_t>(want.cache.size())))
          << AttentionBackendName(backend);
      for (const RequestRows& r : batch.layout().requests()) {
        const bool exact = KeepsExactness(backend) || r.phase != Phase::kDecode;
        for (int32_t row = r.first_row; row < r.first_row + r.query_length; ++row) {
          const float* a = got.residual.view().row(row);
          const float* b = want.residual.view().row(row);
          if (exact) {
            ASSERT_TRUE(SameBits(a, b, kHidden)) << AttentionBackendName(backend) << " row " << row;
          }
          for (int32_t i = 0; i < kHidden; ++i) {
            ASSERT_NEAR(a[i], b[i], 2e-5)
                << AttentionBackendName(backend) << " row " << row << " of " << r.query_length
                << " at context " << r.context_length;
          }
        }
      }
    }
  }
};

TEST_P(MlaBackendTest, BackendsAgreeOnRandomBatches) {
  for (int trial = 0; trial < 12; ++trial) {
    const Layer layer(Shape(trial % 2 == 0 ? 20 : 0), random);
    std::vector<TestRequest> requests(static_cast<size_t>(Pick(1, 8)));
    for (TestRequest& r : requests) {
      r.phase = Pick(0, 3) == 0 ? Phase::kPromptEnd : Phase::kDecode;
      r.rows = Pick(0, 5) == 0 ? Pick(5, 40) : Pick(1, 4);
      r.context = Pick(0, 3) == 0 ? Pick(250, 530) : Pick(0, 20);
    }
    ExpectBackendsAgree(layer, TestLayout(requests, kBlockSize));
    if (HasFatalFailure()) return;
  }
}

TEST_P(MlaBackendTest, LeftOversAtTheEdgesOfContext) {
  const Layer layer(Shape(20), random);
  // No context (the context part is empty), one key, and around a block of the expanded form.
  for (const int32_t context : {0, 1, 255, 256, 257, 512}) {
    for (const int32_t rows : {2, 4, 5, 300}) {
      if (kSanitized && rows == 300 && context % 256 != 0) continue;
      ExpectBackendsAgree(layer, TestLayout({{Phase::kDecode, 1, 3},
                                             {Phase::kDecode, rows, context},
                                             {Phase::kPromptEnd, 4, 0}},
                                            kBlockSize));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(MlaBackendTest, MoreExpandedKeysThanOneRoundHolds) {
  // 17,000 keys in all; a round of this shape holds fewer than 12,000.
  MlaShape shape = Shape(0);
  shape.heads = 16;
  const Layer layer(shape, random);
  ExpectBackendsAgree(layer, TestLayout({{Phase::kPromptEnd, 5, 9000},
                                         {Phase::kDecode, 1, 3},
                                         {Phase::kDecode, 3, 4500},
                                         {Phase::kDecode, 4, 3500}},
                                        kBlockSize));
}

TEST_P(MlaBackendTest, PerHeadEntriesGiveTheSameFunctionAndTheSameBitsInEveryRoleAndChunk) {
  const std::vector<TestRequest> whole = {{Phase::kPromptEnd, 37, 0},
                                          {Phase::kPromptEnd, 1, 0},
                                          {Phase::kPromptEnd, 270, 0},
                                          {Phase::kPromptEnd, 12, 0}};
  const Layer layer(Shape(20), random);
  const TestMatrix x = TestMatrix::Random(320, kHidden, random);
  const Result latent = RunInChunks(layer, whole, 1000, Phase::kPromptEnd, KvCacheForm::kLatent, x);
  const Result want = RunInChunks(layer, whole, 1000, Phase::kPromptEnd, KvCacheForm::kHeads, x);
  for (size_t i = 0; i < want.residual.values.size(); ++i) {
    ASSERT_NEAR(want.residual.values[i], latent.residual.values[i], 2e-5) << i;
  }
  for (const Phase phase : {Phase::kPromptEnd, Phase::kDecode}) {
    for (const int32_t chunk : {4, 1, 100}) {
      if (chunk == 1 && GetParam() == Isa::kReference) continue;
      const Result got = RunInChunks(layer, whole, chunk, phase, KvCacheForm::kHeads, x);
      ASSERT_TRUE(
          SameBits(got.cache.data(), want.cache.data(), static_cast<int64_t>(want.cache.size())));
      ASSERT_TRUE(SameBits(got.residual.values.data(), want.residual.values.data(),
                           static_cast<int64_t>(want.residual.values.size())))
          << "chunk " << chunk << " phase " << static_cast<int>(phase);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, MlaBackendTest, testing::ValuesIn(TestedIsas()), IsaTestName);

}  // namespace
}  // namespace outrider
