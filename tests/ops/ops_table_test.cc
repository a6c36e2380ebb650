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
  OpsSide reference_side(cpu::GetCpuOps(Isa::kReference), pool, kSizes, DType::kBF16);
  for (const AttentionCase& test : AttentionCases(kMla)) {
    CheckAttentionCase(test, side, &reference_side, random);
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

/// Latent attention over entries of every head.
AttentionCase CaseOfEntriesPerHead(const MlaShape& s) {
  AttentionCase test = CaseOfLatentRows(s);
  test.name = "EntriesPerHead";
  test.layers = {{.width = s.heads * (s.nope + s.value) + s.rope, .use = CacheUse::kPlain}};
  test.attention = {.form = KvCacheForm::kHeads};
  test.run = [s](const AttentionCall& call) {
    const Context& c = call.c;
    const int64_t width = int64_t{s.latent} + s.rope;
    const Rotary rotary = RotaryOf(c, s, call.inputs);
    c.ops.mla_per_head()->WritePerHeadEntries(c, s, call.side.weights().kv_up, call.inputs,
                                              {.kv = call.Floats(0, width),
                                               .norm = call.Vector(s.latent, 1),
                                               .rotary = rotary,
                                               .cache = call.layer(0)});
    const Tensor q = call.Floats(width, call.x.cols - width);
    c.ops.Rotate(c, q, s.heads, s.nope, rotary);
    c.ops.per_head()->PerHeadAttention(c,
                                       {.heads = s.heads,
                                        .kv_heads = s.heads,
                                        .nope = s.nope,
                                        .rope = s.rope,
                                        .value = s.value,
                                        .softmax_scale = s.softmax_scale},
                                       call.inputs,
                                       {.q = q, .out = call.out, .cache = call.layer(0)});
  };
  return test;
}

// Absorbed, expanded and over entries of every head latent attention computes one function.
TEST_P(OpsTableTest, FormsOfLatentAttentionAgree) {
  constexpr int32_t kPositions = 37;
  OpsSide side(cpu::GetCpuOps(GetParam()), pool, kSizes, DType::kF32);
  OpsSide reference_side(cpu::GetCpuOps(Isa::kReference), pool, kSizes, DType::kF32);
  const AttentionCase absorbed = CaseOfOneRole(kMla, Phase::kDecode, DType::kF32);
  const TestMatrix x = TestMatrix::Random(kPositions, absorbed.in, random);
  const TestMatrix want = RunAttentionCase(absorbed, reference_side, x, {kPositions});
  AttentionCase per_head = CaseOfEntriesPerHead(kMla);
  per_head.cache_dtype = DType::kF32;
  for (AttentionCase test : {absorbed, per_head}) {
    for (const Phase role : {Phase::kDecode, Phase::kPromptChunk}) {
      test.role = role;
      const TestMatrix got = RunAttentionCase(test, side, x, {5, kPositions});
      for (int64_t r = 0; r < kPositions; ++r) {
        for (int64_t i = 0; i < test.cols; ++i) {
          ASSERT_NEAR(got.view().row(r)[i], want.view().row(r)[i], 2e-4)
              << test.name << " role " << static_cast<int>(role) << " row " << r;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, OpsTableTest, testing::ValuesIn(TestedIsas()), IsaTestName);

}  // namespace
}  // namespace outrider
