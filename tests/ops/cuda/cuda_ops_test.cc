// The GPU's operations: near the reference table's with operands rounded alike, and each row alone
// against all rows together, in bits. Needs a GPU of compute capability 9.0, and cuDNN. Longer than
// most files: one case per operation.
#include "outrider/ops/cuda/cuda_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "outrider/kernels/cuda/rows/tensor_rows.h"
#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/cuda/cuda_step_inputs.h"
#include "outrider/ops/cuda/cuda_weight_loader.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/ops/attention_cases.h"
#include "tests/ops/layers_of_several_paths.h"
#include "tests/ops/ops_cases.h"

namespace outrider::cuda {
namespace {

constexpr int64_t kHidden = 256;
constexpr int64_t kVocab = 1000;
constexpr int32_t kBlock = 16;  // tokens per block
constexpr int32_t kLayers = 3;  // that share the pages of a cache
const OpsSizes kSizes = {.hidden = kHidden,
                         .width = 64,
                         .shared_width = 128,
                         .vocab = kVocab,
                         .matrix = 120,
                         .mla = {.heads = 4,
                                 .latent = 512,
                                 .nope = 64,
                                 .rope = 64,
                                 .value = 64,
                                 .softmax_scale = 0.09F,
                                 .norm_eps = 1e-6F}};
const MlaShape& kMla = kSizes.mla;

/// Rounds to bfloat16, so that both tables read the same numbers.
TestMatrix Rounded(TestMatrix x) {
  for (float& value : x.values) value = RoundToBFloat16(value);
  return x;
}

/// One request that is alone in a step, with its pages in the order of `blocks`.
std::unique_ptr<TestStep> OneRequest(const Context& c, int32_t rows, int32_t context, Phase phase,
                                     const std::vector<int32_t>& blocks) {
  return std::make_unique<TestStep>(
      c, FullHistoryCache(1, kBlock).groups,
      std::vector<StepPart>{{.phase = phase,
                             .context = context,
                             .tokens = std::vector<int32_t>(static_cast<size_t>(rows)),
                             .tables = {blocks}}},
      StepAttention{.threshold = 32});
}

class CudaOpsTest : public HopperTest<> {
 protected:
  void SetUp() override {
    HopperTest<>::SetUp();
    if (IsSkipped()) return;
    ops_ = std::make_unique<CudaOps>();
    gpu_ = std::make_unique<OpsSide>(*ops_, pool_, kSizes, DType::kBF16);
    cpu_ = std::make_unique<OpsSide>(cpu::GetCpuOps(Isa::kReference), pool_, kSizes, DType::kBF16);
  }

  /// Rows at the positions from 0 on.
  OpsRows MakeRows(int32_t rows) {
    OpsRows in{.tokens = {},
               .positions = std::vector<int32_t>(static_cast<size_t>(rows)),
               .x = Rounded(TestMatrix::Random(rows, kHidden, random_))};
    std::iota(in.positions.begin(), in.positions.end(), 0);
    for (int32_t r = 0; r < rows; ++r) {
      in.tokens.push_back(std::uniform_int_distribution<int32_t>(0, kVocab - 1)(random_));
    }
    return in;
  }

  /// Copies between the device and the host, either way.
  void Copy(void* to, const void* from, size_t bytes) {
    CheckCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, ops_->stream()),
              "copy of a test");
    ops_->Synchronize();
  }

  ThreadPool pool_{4};
  std::mt19937 random_{20240607};
  std::unique_ptr<CudaOps> ops_;
  std::unique_ptr<OpsSide> gpu_;
  std::unique_ptr<OpsSide> cpu_;
};

TEST_F(CudaOpsTest, EveryRowAloneAndTheReference) {
  constexpr int32_t kRows = 67;
  for (const OpsCase& test : OpsCases(kSizes)) {
    const OpsRows in = MakeRows(kRows);
    const TestMatrix all = RunTogetherAndAlone(test, *gpu_, in);
    const TestMatrix want = RunOpsCase(test, *cpu_, in);
    for (int32_t r = 0; r < kRows; ++r) {
      for (int64_t i = 0; i < test.cols; ++i) {
        const float expected = want.view().row(r)[i];
        ASSERT_NEAR(all.view().row(r)[i], expected, test.tolerance * (1 + std::fabs(expected)))
            << test.name << " row " << r << " column " << i;
      }
    }
  }
}

TEST_F(CudaOpsTest, AttentionInPiecesAndTheReference) {
  for (const AttentionCase& test : AttentionCases(kMla)) {
    CheckAttentionCase(test, *gpu_, cpu_.get(), random_);
  }
  for (const AttentionCase& test : AttentionCasesOfEightBits(kMla)) {
    CheckAttentionCase(test, *gpu_, cpu_.get(), random_);
  }
  for (const AttentionCase& test : AttentionCasesOfFewEntries()) {
    CheckAttentionCase(test, *gpu_, nullptr, random_);
  }
}

TEST_F(CudaOpsTest, LayersOfSeveralPathsGiveWhatEachGivesAlone) {
  CheckLayersOfSeveralPaths(*gpu_, kMla, random_);
}

TEST_F(CudaOpsTest, TokensOnTheDeviceAreEmbedded) {
  constexpr int32_t kRows = 40;
  const OpsRows in = MakeRows(kRows);
  const Context c = gpu_->context();
  const TokenTable& table = gpu_->weights().table;
  const auto embedded = [&](TokenRefs tokens) {
    const Scratch::Frame frame(gpu_->arena());
    const auto step = OneRequest(c, kRows, 0, Phase::kDecode, {0, 1, 2});
    const auto inputs = ops_->MakeStepInputs();
    step->AssignTo(*inputs);
    std::vector<int32_t> sources(kRows);
    for (int32_t r = 0; r < kRows; ++r) sources[static_cast<size_t>(r)] = -1 - r;
    inputs->ShiftTokens(sources, tokens);
    const Tensor out = c.Rows(kRows, kHidden);
    ops_->Embed(c, table, *inputs, false, out);
    return gpu_->Get(out).values;
  };
  const std::vector<float> want = embedded(in.tokens);
  ops_->KeepTokens(kRows);
  Copy(ops_->results().tokens(), in.tokens.data(), kRows * sizeof(int32_t));
  std::vector<TokenRef> tokens(in.tokens.begin(), in.tokens.end());
  for (int32_t r = 0; r < kRows; r += 3) tokens[static_cast<size_t>(r)] = TokenRef::At(r);
  EXPECT_EQ(embedded(tokens), want);
}

// Requests go back by what the device keeps to where a layout that knows it has them.
TEST_F(CudaOpsTest, RowsMoveToWhereTheDeviceKnows) {
  for (const int32_t length : {1, 5}) {
    constexpr int32_t kCount = 150;
    const auto num_rows = static_cast<size_t>(kCount * length);
    const LayerCache cache = {.block_size = kBlock,
                              .width = 576,
                              .block_stride = int64_t{kLayers} * kBlock * 576,
                              .num_blocks = 8 * kCount};
    std::vector<int32_t> kept(2 * kCount);
    std::vector<std::vector<int32_t>> blocks(kCount);
    std::vector<RequestWork> late;
    std::vector<RequestWork> known;
    std::vector<int32_t> places;
    const std::vector<int32_t> tokens(static_cast<size_t>(length), 3);
    for (int32_t r = 0; r < kCount; ++r) {
      const int32_t context = 20 + (r * 37) % 90;
      const int32_t back = r % 3 == 0 ? 0 : r % 6;
      places.insert(places.end(), static_cast<size_t>(length),
                    r % 3 == 0 ? -1 : 2 * kCount - 1 - r);
      if (places.back() >= 0) kept[static_cast<size_t>(places.back())] = back;
      for (int32_t b = 0; b < 8; ++b) {
        blocks[static_cast<size_t>(r)].push_back((r * 8 + b * 5) % 977);
      }
      late.push_back({.slot = r,
                      .context_length = context,
                      .tokens = tokens,
                      .draft_tokens = {},
                      .samples = false,
                      .block_tables = {&blocks[static_cast<size_t>(r)], 1}});
      known.push_back(late.back());
      known.back().context_length -= back;
    }
    ops_->KeepTokens(2 * kCount);
    Copy(ops_->results().tokens(), kept.data(), kept.size() * sizeof(int32_t));
    struct Rows {
      std::vector<int32_t> positions;
      std::vector<int32_t> seq_lens = std::vector<int32_t>(kCount);
      std::vector<int32_t> listed_seq_lens = std::vector<int32_t>(kCount);
      std::vector<int64_t> slots;
      bool operator==(const Rows&) const = default;
    };
    BatchLayout layout(kBlock);
    const auto assign = [&](StepInputs& inputs, RowPaths paths,
                            const std::vector<RequestWork>& work, bool moved) {
      AttentionPlan plan(AttentionBackend::kRagged, length, paths);
      layout.Assign(work);
      plan.Assign(layout);
      inputs.Assign(layout, plan, RowCount::kRounded,
                    moved ? std::span<const int32_t>(places) : std::span<const int32_t>());
      Rows rows;
      rows.positions.resize(num_rows);
      rows.slots.resize(num_rows);
      const CacheInputs& of_cache = Cast(inputs).Of(cache);
      Copy(rows.positions.data(), Cast(inputs).positions(), num_rows * sizeof(int32_t));
      const auto read = [&](const DecodeRequests& requests, RowPath path, int32_t* seq_lens) {
        EXPECT_EQ(requests.count > 0, paths.Has(path));
        if (requests.count > 0) Copy(seq_lens, requests.seq_lens, kCount * sizeof(int32_t));
      };
      read(of_cache.decode, RowPath::kAbsorbed, rows.seq_lens.data());
      read(of_cache.all, RowPath::kListed, rows.listed_seq_lens.data());
      Copy(rows.slots.data(), of_cache.slots, num_rows * sizeof(int64_t));
      return rows;
    };
    const auto inputs = ops_->MakeStepInputs();
    const RowPaths latent = KvCacheForm::kLatent;
    const RowPaths listed(RowPath::kListed);
    for (const RowPaths& paths : {latent, latent | listed, listed}) {
      const Rows want = assign(*ops_->MakeStepInputs(), paths, known, false);
      EXPECT_EQ(assign(*inputs, paths, late, true), want);
      EXPECT_NE(assign(*inputs, paths, late, false), want);
    }
  }
}

// Few rows go with the launch, more through memory.
TEST_F(CudaOpsTest, CopiesFewAndManyRows) {
  for (const int32_t count : {1, kMostListedRows, kMostListedRows + 1, 700}) {
    const Scratch::Frame frame(gpu_->arena());
    const OpsRows in = MakeRows(count);
    const Tensor from = gpu_->Put(in.x);
    const Tensor to = gpu_->context().Rows(count + 2, kHidden);
    RowCopies copies;
    // The device keeps the number of every fourth.
    std::vector<int32_t> numbers(static_cast<size_t>(count));
    std::iota(numbers.begin(), numbers.end(), 0);
    ops_->KeepTokens(700);
    Copy(ops_->results().tokens(), numbers.data(), numbers.size() * sizeof(int32_t));
    for (int32_t r = 0; r < count; ++r) {
      if (r % 4 == 3) {
        copies.AddFromPlace(r, count + 1 - r);
      } else {
        copies.Add(r, count + 1 - r);
      }
    }
    ops_->SetZero(gpu_->context(), to);
    ops_->CopyRows(gpu_->context(), from, to, copies);
    const TestMatrix got = gpu_->Get(to);
    for (int32_t r = 0; r < count; ++r) {
      ASSERT_TRUE(SameBits(got.view().row(count + 1 - r), in.x.view().row(r), kHidden)) << r;
    }
    EXPECT_TRUE(std::all_of(got.view().row(0), got.view().row(2), [](float v) { return v == 0; }));
  }
  const CopyRowsParams params = {.num_rows = 1, .cols = 4, .from_size = 3, .to_size = 3};
  for (const auto& [from, to] : {std::pair(-1, 0), {-2, 0}, {3, 0}, {0, -1}, {0, 3}}) {
    EXPECT_THROW(static_cast<void>(CopyListedRows(params, {&from, 1}, {&to, 1}, nullptr)), Error);
  }
  const std::vector<int32_t> many(kMostListedRows + 1);
  EXPECT_THROW(
      static_cast<void>(CopyListedRows({.num_rows = kMostListedRows + 1}, many, many, nullptr)),
      Error);
}

/// One call of each in a few rows: what the tools of compute-sanitizer look at.
TEST_F(CudaOpsTest, SmallForTheSanitizers) {
  constexpr int32_t kRows = 5;
  for (const OpsCase& test : OpsCases(kSizes)) {
    const TestMatrix rows = RunOpsCase(test, *gpu_, MakeRows(kRows));
    EXPECT_TRUE(std::ranges::all_of(rows.values, [](float v) { return std::isfinite(v); }))
        << test.name;
  }
}

TEST_F(CudaOpsTest, ProductsSideBySideHaveTheBitsOfEachAlone) {
  OpsRows in = MakeRows(9);
  const Scratch::Frame frame(gpu_->arena());
  const Context c = gpu_->context();
  const Tensor x = gpu_->Put(in.x);
  const Tensor both = c.Activations(9, 232);
  const Tensor left = c.Activations(9, 192);
  const Tensor right = c.Activations(9, 40);
  const Weight& a = gpu_->weights().left;
  const Weight& b = gpu_->weights().right;
  c.ops.Multiply(c, std::array{Product{.x = x, .w = &a, .y = both.Columns(0, 192)},
                               Product{.x = x, .w = &b, .y = both.Columns(192, 40)}});
  c.ops.Multiply(c, std::array{Product{.x = x, .w = &a, .y = left}});
  c.ops.Multiply(c, std::array{Product{.x = x, .w = &b, .y = right}});
  const TestMatrix together = gpu_->Get(both);
  const TestMatrix first = gpu_->Get(left);
  const TestMatrix second = gpu_->Get(right);
  for (int32_t r = 0; r < 9; ++r) {
    EXPECT_TRUE(SameBits(together.view().row(r), first.view().row(r), 192)) << r;
    EXPECT_TRUE(SameBits(together.view().row(r) + 192, second.view().row(r), 40)) << r;
  }
}

TEST_F(CudaOpsTest, TheLargestIsTheLowestOfEqualsAndFinite) {
  constexpr int64_t kCols = 1000;
  TestMatrix rows(6, kCols);
  for (int64_t i = 0; i < kCols; ++i) {
    rows.view().row(0)[i] = i == 300 || i == 301 || i == 999 ? 2.0F : -1.0F;
    rows.view().row(1)[i] = kNaN;
    rows.view().row(2)[i] = i == 7 ? INFINITY : 1.0F;
    rows.view().row(3)[i] = -INFINITY;
    rows.view().row(4)[i] = i == 640 ? -5.0F : -INFINITY;
    rows.view().row(5)[i] = i == 640 ? kNaN : 1.0F;
  }
  const Scratch::Frame frame(gpu_->arena());
  const Tensor on_device = gpu_->Put(rows);
  auto* const places = gpu_->arena().Take<int32_t>(6);
  CheckCuda(FindLargest(static_cast<const float*>(on_device.data), 6, kCols, kCols, places,
                        ops_->stream()),
            "largest");
  std::array<int32_t, 6> got = {};
  Copy(got.data(), places, sizeof(got));
  EXPECT_EQ(got, (std::array<int32_t, 6>{300, -1, -1, -1, 640, -1}));
}

// Each shape of a step's layers has a plan and a work space, which serve all layers of the shape.
TEST_F(CudaOpsTest, LayersOfTwoShapesRunInOneStep) {
  constexpr int32_t kRows = 20;
  constexpr int32_t kWidth = 576;
  const std::vector<int32_t> blocks = {2, 0, 1};
  const Scratch::Frame frame(gpu_->arena());
  const Context c = gpu_->context();
  const Tensor entries = c.Activations(3 * kBlock, kWidth);
  c.ops.Copy(c, gpu_->Put(TestMatrix::Random(3 * kBlock, kWidth, random_)), entries);
  const LayerCache cache = {.data = static_cast<std::byte*>(entries.data),
                            .dtype = DType::kBF16,
                            .block_size = kBlock,
                            .width = kWidth,
                            .block_stride = int64_t{kBlock} * kWidth,
                            .num_blocks = 3};
  struct Shape {
    MlaShape mla;
    Tensor q;
    TestMatrix alone;
  };
  std::vector<Shape> shapes;
  const auto run = [&](const StepInputs& inputs, const Shape& shape) {
    const Tensor out = c.Activations(kRows, shape.mla.heads * int64_t{shape.mla.latent});
    c.ops.mla()->DecodeAttention(c, shape.mla, inputs, {.q = shape.q, .out = out, .cache = cache});
    return gpu_->Get(out);
  };
  const auto step = [&] { return OneRequest(c, kRows, 21, Phase::kDecode, blocks); };
  for (const int32_t heads : {4, 16}) {
    MlaShape mla = kMla;
    mla.heads = heads;
    const Tensor q = c.Activations(kRows, int64_t{heads} * kWidth);
    c.ops.Copy(c, gpu_->Put(TestMatrix::Random(kRows, heads * kWidth, random_)), q);
    shapes.push_back({mla, q, TestMatrix(0, 0)});
    shapes.back().alone = run(step()->inputs(), shapes.back());
  }
  const int64_t memory = ArenaOf(c).memory_version();
  const auto together = step();
  for (int layer = 0; layer < 4; ++layer) {
    const Shape& shape = shapes[static_cast<size_t>(layer) % 2];
    EXPECT_EQ(run(together->inputs(), shape).values, shape.alone.values) << layer;
  }
  EXPECT_EQ(ArenaOf(c).memory_version(), memory) << "a work space was made again";
}

TEST_F(CudaOpsTest, WhatFailsWhilePromptsArePreparedIsThrownWherePromptsWait) {
  MlaShape wide = kMla;
  wide.nope = 224;  // with the rotated part more than cuDNN takes
  wide.q_lora = 64;
  ops_->mla()->PreparePrompts(wide);
  ops_->mla()->PreparePrompts(wide);
  const Scratch::Frame frame(gpu_->arena());
  const Context c = gpu_->context();
  const auto step = OneRequest(c, 3, 0, Phase::kPromptChunk, {0});
  const int32_t width = kMla.latent + kMla.rope;
  Buffer memory = ops_->Allocate(size_t{kBlock} * width * sizeof(BFloat16));
  const LayerCache cache = {.data = memory.data(),
                            .dtype = DType::kBF16,
                            .block_size = kBlock,
                            .width = width,
                            .block_stride = int64_t{kBlock} * width,
                            .num_blocks = 1};
  const AttentionArgs args = {.q = c.Activations(3, wide.query_stride()),
                              .out = c.Activations(3, kMla.heads * kMla.value),
                              .cache = cache};
  for (int call = 0; call < 2; ++call) {
    EXPECT_THROW(ops_->mla()->PromptAttention(c, wide, gpu_->weights().kv_up, step->inputs(), args),
                 Error);
  }
}

TEST(CudaWeights, FormsThatTheKernelsDoNotReadAreRefused) {
  const auto source = MakeDummyWeights(ModelConfig{}, 5);
  const auto refused = [&](const WeightForm& form, const std::string& part) {
    try {
      const CudaWeightLoader loader(*source, form, nullptr);
      ADD_FAILURE() << "not refused: " << part;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  refused({.compute_dtype = DType::kF32}, "--dtype bfloat16");
  refused({.quantization = WeightQuantization::kInt8}, "--quantization int8");
}

}  // namespace
}  // namespace outrider::cuda
