// Every operation of every table of the CPU: against the reference table, in bits where the
// kernels' order of sums is defined and close elsewhere; and each row alone against all rows
// together, in bits.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "outrider/ops/compressed.h"
#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/per_head.h"
#include "tests/ops/attention_cases.h"
#include "tests/ops/layers_of_several_paths.h"
#include "tests/ops/ops_cases.h"

namespace outrider {
namespace {

constexpr int32_t kSlots = 16;  // tokens per block
const OpsSizes kSizes = {.hidden = 48,
                         .width = 32,
                         .shared_width = 16,
                         .vocab = 200,
                         .matrix = 40,
                         .mla = {.heads = 3,
                                 .latent = 32,
                                 .nope = 12,
                                 .rope = 8,
                                 .value = 16,
                                 .softmax_scale = 0.25F,
                                 .norm_eps = 1e-6F}};
const MlaShape& kMla = kSizes.mla;

/// Angles that turn nothing, of as many rows.
Rotary NoRotary(const Context& c, const StepInputs& inputs) {
  static constexpr std::array<float, 4> kZeros = {};
  return c.ops.MakeRotary(c, kZeros, 1.0F, true, inputs);
}

class OpsTableTest : public KernelTest {
 protected:
  OpsRows MakeRows(int32_t rows) {
    OpsRows in{.tokens = {}, .positions = {}, .x = TestMatrix::Random(rows, kSizes.hidden, random)};
    for (int32_t r = 0; r < rows; ++r) {
      in.tokens.push_back(Pick(0, static_cast<int>(kSizes.vocab) - 1));
      in.positions.push_back(r == rows / 2 ? 0 : Pick(1, 5000));
    }
    return in;
  }
};

TEST_P(OpsTableTest, EveryRowAloneAndTheReference) {
  constexpr int32_t kRows = 21;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    OpsSide side(cpu::GetCpuOps(GetParam()), pool, kSizes, dtype);
    OpsSide reference_side(cpu::GetCpuOps(Isa::kReference), pool, kSizes, dtype);
    for (const OpsCase& test : OpsCases(kSizes)) {
      const std::string where = test.name + " " + std::string(DTypeName(dtype));
      const OpsRows in = MakeRows(kRows);
      const TestMatrix all = RunTogetherAndAlone(test, side, in);
      const TestMatrix want = RunOpsCase(test, reference_side, in);
      // With bfloat16 operands an input may round another way.
      const float tolerance = dtype == DType::kF32 ? 2e-5F : 3e-2F;
      for (int32_t r = 0; r < kRows; ++r) {
        if (test.exact && dtype == DType::kF32) {
          ASSERT_TRUE(SameBits(all.view().row(r), want.view().row(r), test.cols)) << where;
        }
        for (int64_t i = 0; i < test.cols; ++i) {
          const float expected = want.view().row(r)[i];
          ASSERT_NEAR(all.view().row(r)[i], expected, tolerance * (1 + std::fabs(expected)))
              << where << " row " << r;
        }
      }
    }
  }
}

TEST_P(OpsTableTest, AttentionInPiecesAndTheReference) {
  OpsSide side(cpu::GetCpuOps(GetParam()), pool, kSizes, DType::kBF16);
  OpsSide reference(cpu::GetCpuOps(Isa::kReference), pool, kSizes, DType::kBF16);
  for (const AttentionCase& test : AttentionCases()) {
    CheckAttentionCase(test, side, &reference, random);
  }
  for (const AttentionCase& test : AttentionCasesOfFewEntries()) {
    CheckAttentionCase(test, side, nullptr, random);
  }
}

TEST_P(OpsTableTest, LayersOfSeveralPathsGiveWhatEachGivesAlone) {
  OpsSide side(cpu::GetCpuOps(GetParam()), pool, kSizes, DType::kBF16);
  CheckLayersOfSeveralPaths(side, kMla, random);
}

TEST_P(OpsTableTest, HeadsInPartOfTheColumnsAreNormed) {
  OpsSide side(cpu::GetCpuOps(GetParam()), pool, kSizes, DType::kF32);
  const Context c = side.context();
  const OpsRows in = MakeRows(7);
  const Tensor x = side.Put(in.x);
  const Tensor whole = c.Rows(7, 32);  // without gaps between rows
  c.ops.Copy(c, x.Columns(8, 32), whole);
  const auto& ops = dynamic_cast<const cpu::CpuOps&>(c.ops);
  ops.NormHeads(c, x.Columns(8, 32), 4, side.weights().norm, 1e-5F);
  ops.NormHeads(c, whole, 4, side.weights().norm, 1e-5F);
  for (int64_t r = 0; r < 7; ++r) {
    EXPECT_TRUE(SameBits(x.floats().row(r), in.x.view().row(r), 8));
    EXPECT_TRUE(SameBits(x.floats().row(r) + 8, whole.floats().row(r), 32));
    EXPECT_TRUE(SameBits(x.floats().row(r) + 40, in.x.view().row(r) + 40, 8));
  }
}

/// The rotated part of what is absorbed is Rotate's.
TEST_P(OpsTableTest, AbsorbedQueriesAreRotated) {
  OpsSide side(cpu::GetCpuOps(GetParam()), pool, kSizes, DType::kF32);
  const Context c = side.context();
  const TestStep step(c, FullHistoryCache(1, kSlots).groups,
                      {{.context = 300, .tokens = {1}, .tables = {std::vector<int32_t>(19)}}});
  const int64_t head = kMla.nope + kMla.rope;
  const int64_t width = kMla.latent + kMla.rope;
  const Tensor q = side.Put(TestMatrix::Random(1, kMla.heads * head, random));
  const Tensor absorbed = c.Rows(1, kMla.heads * width);
  const Rotary rotary = RotaryOf(c, kMla, step.inputs());
  c.ops.mla()->Absorb(c, kMla, side.weights().kv_up, rotary, q, absorbed);
  c.ops.Rotate(c, q, kMla.heads, kMla.nope, rotary);
  for (int32_t h = 0; h < kMla.heads; ++h) {
    EXPECT_TRUE(SameBits(absorbed.floats().row(0) + h * width + kMla.latent,
                         q.floats().row(0) + h * head + kMla.nope, kMla.rope));
  }
}

/// Entries of a request's positions, and attention to them: the three forms against the reference.
TEST_P(OpsTableTest, EntriesAndAttention) {
  constexpr int32_t kPositions = 37;
  constexpr int32_t kQueries = 5;
  const auto run = [&](OpsSide& side, bool per_head, bool prompt, std::mt19937 draws) {
    const Context c = side.context();
    const Ops& ops = side.ops();
    const OpsWeights& w = side.weights();
    const int32_t head = kMla.nope + kMla.rope;
    const int32_t latent_width = kMla.latent + kMla.rope;
    const int32_t width =
        per_head ? kMla.heads * (kMla.nope + kMla.value) + kMla.rope : latent_width;
    std::vector<float> memory(static_cast<size_t>(4 * kSlots * width), kNaN);
    const LayerCache cache = {.data = reinterpret_cast<std::byte*>(memory.data()),
                              .dtype = DType::kF32,
                              .block_size = kSlots,
                              .width = width,
                              .block_stride = int64_t{kSlots} * width};
    const std::vector<int32_t> blocks = {2, 0, 3};
    const StepAttention attention = {per_head ? KvCacheForm::kHeads : KvCacheForm::kLatent};
    const std::vector<CacheGroupSpec> groups = FullHistoryCache(4, kSlots).groups;
    const auto step = [&](int32_t context, int32_t rows) {
      return std::make_unique<TestStep>(
          c, groups,
          std::vector<StepPart>{{.phase = prompt ? Phase::kPromptChunk : Phase::kDecode,
                                 .context = context,
                                 .tokens = std::vector<int32_t>(static_cast<size_t>(rows)),
                                 .tables = {blocks}}},
          attention);
    };
    const auto all = step(0, kPositions);
    const TestMatrix kv = TestMatrix::Random(kPositions, latent_width, draws);
    const EntryArgs entries = {.kv = kv.view(),
                               .norm = w.latent_norm,
                               .rotary = RotaryOf(c, kMla, all->inputs()),
                               .cache = cache};
    if (per_head) {
      ops.mla_per_head()->WritePerHeadEntries(c, kMla, w.kv_up, all->inputs(), entries);
    } else {
      ops.mla()->WriteLatentEntries(c, kMla, all->inputs(), entries);
    }
    const TestMatrix q = TestMatrix::Random(kQueries, kMla.heads * head, draws);
    TestMatrix out(kQueries, kMla.heads * kMla.value);
    const auto last = step(kPositions - kQueries, kQueries);
    const AttentionArgs args = {.q = q.view(), .out = out.view(), .cache = cache};
    if (per_head) {
      ops.per_head()->PerHeadAttention(c,
                                       {.heads = kMla.heads,
                                        .kv_heads = kMla.heads,
                                        .nope = kMla.nope,
                                        .rope = kMla.rope,
                                        .value = kMla.value,
                                        .softmax_scale = kMla.softmax_scale},
                                       last->inputs(), args);
    } else if (prompt) {
      ops.mla()->PromptAttention(c, kMla, w.kv_up, last->inputs(), args);
    } else {
      const Tensor absorbed = c.Rows(kQueries, int64_t{kMla.heads} * latent_width);
      const Tensor latent = c.Rows(kQueries, int64_t{kMla.heads} * kMla.latent);
      ops.mla()->Absorb(c, kMla, w.kv_up, NoRotary(c, last->inputs()), q.view(), absorbed);
      ops.mla()->DecodeAttention(c, kMla, last->inputs(),
                                 {.q = absorbed, .out = latent, .cache = cache});
      ops.mla()->Unabsorb(c, kMla, w.kv_up, latent, out.view());
    }
    return out;
  };
  OpsSide side(cpu::GetCpuOps(GetParam()), pool, kSizes, DType::kF32);
  OpsSide reference_side(cpu::GetCpuOps(Isa::kReference), pool, kSizes, DType::kF32);
  const TestMatrix want = run(reference_side, false, false, random);
  for (const bool per_head : {false, true}) {
    for (const bool prompt : {false, true}) {
      const TestMatrix got = run(side, per_head, prompt, random);
      for (int64_t r = 0; r < kQueries; ++r) {
        for (int64_t i = 0; i < got.view_cols; ++i) {
          // All forms compute the same function.
          ASSERT_NEAR(got.view().row(r)[i], want.view().row(r)[i], 2e-4) << (per_head ? "per head"
                                                                             : prompt ? "expanded"
                                                                                      : "absorbed")
                                                                         << " row " << r;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, OpsTableTest, testing::ValuesIn(TestedIsas()), IsaTestName);

}  // namespace
}  // namespace outrider
