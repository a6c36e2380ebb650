// Every operation of every table: against the reference table, in bits where the kernels' order of
// sums is defined and close elsewhere; and each row alone against all rows together, in bits. Long
// because all operations are cases of these two comparisons.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "outrider/ops/compressed.h"
#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/mla.h"
#include "outrider/ops/moe.h"
#include "outrider/ops/per_head.h"
#include "tests/kernels/kernel_fixture.h"
#include "tests/ops/test_step.h"

namespace outrider {
namespace {

constexpr int64_t kHidden = 48;
constexpr int64_t kWidth = 32;  // of an MLP
constexpr int64_t kVocab = 200;
constexpr int32_t kSlots = 16;  // tokens per block
const MlaShape kMla = {.heads = 3,
                       .latent = 32,
                       .nope = 12,
                       .rope = 8,
                       .value = 16,
                       .softmax_scale = 0.25F,
                       .norm_eps = 1e-6F};

/// Random weights, packed by a table.
struct OpsWeights {
  OpsWeights(const Ops& ops, ThreadPool& pool, DType dtype) {
    const auto source = MakeDummyWeights(ModelConfig{}, 5);
    const auto loader = ops.MakeWeightLoader(*source, {.compute_dtype = dtype});
    loader->Table(&table, "embed_tokens.weight", kVocab, kHidden);
    loader->Vector(&norm, "norm", kHidden);
    loader->Vector(&latent_norm, "latent_norm", kMla.latent);
    loader->Matrix(&matrix, "matrix", 40, kHidden);
    loader->Matrix(&square, "square", kHidden, kHidden);
    loader->Mlp(&gate_up, &down, {"gate", "up", "down"}, kWidth, kHidden);
    loader->Matrix(&head, "head", kVocab, kHidden);
    loader->UnquantizedMatrix(&router, "router", 8, kHidden);
    WeightLoader::Experts e = {
        .width = kWidth, .shared = {"sg", "su", "sd"}, .shared_width = 16, .hidden = kHidden};
    for (const char* name : {"0", "1", "2", "3", "4", "5", "6", "7"}) {
      e.routed.push_back(
          {std::string("g") + name, std::string("u") + name, std::string("d") + name});
    }
    loader->MoeExperts(&experts, e);
    e.shared_width = 0;
    loader->MoeExperts(&unshared_experts, e);
    loader->SplitKvUp(&kv_up, "kv_b", {kMla.heads, kMla.nope, kMla.value, kMla.latent});
    memory = loader->Load({ops, &pool}, nullptr);
  }

  TokenTable table;
  const float* norm = nullptr;
  const float* latent_norm = nullptr;
  Weight matrix, square, gate_up, down, head, router;
  ExpertWeights experts, unshared_experts;
  KvUpWeight kv_up;
  std::unique_ptr<WeightMemory> memory;
};

/// The rows of a step.
struct OpsInput {
  std::vector<int32_t> tokens;
  std::vector<int32_t> positions;
  TestMatrix x;
};

/// An operation, or a few that belong together, from input rows to output rows.
struct OpsCase {
  std::string name;
  int64_t cols;  // of its output
  bool exact;    // all tables give the reference's bits with float32 operands
  std::function<void(const Context&, const OpsWeights&, OpsInput&, Tensor out)> run;
};

/// One request per row, which keeps their order.
std::unique_ptr<TestStep> StepOf(const Context& c, const OpsInput& in) {
  std::vector<StepPart> parts;
  for (size_t r = 0; r < in.tokens.size(); ++r) {
    const auto blocks = static_cast<size_t>(in.positions[r] / kSlots + 1);
    parts.push_back({.context = in.positions[r],
                     .tokens = {in.tokens[r]},
                     .tables = {std::vector<int32_t>(blocks)}});
  }
  return std::make_unique<TestStep>(c, FullHistoryCache(1, kSlots).groups, std::move(parts));
}

Rotary RotaryOf(const Context& c, const StepInputs& inputs) {
  static constexpr std::array kFrequencies = {1.0F, 0.3F, 0.1F, 0.01F};
  return c.ops.MakeRotary(c, kFrequencies, 1.5F, true, inputs);
}

/// Angles that turn nothing, of as many rows.
Rotary NoRotary(const Context& c, const StepInputs& inputs) {
  static constexpr std::array<float, 4> kZeros = {};
  return c.ops.MakeRotary(c, kZeros, 1.0F, true, inputs);
}

/// x + experts(x), or with `normed` the norm of it.
void RunExperts(const Context& c, const OpsWeights& w, const ExpertWeights& experts,
                const RouterSpec& spec, OpsInput& in, Tensor out, const ExpertLimits& limits = {},
                bool normed = false) {
  const Tensor logits = c.Rows(out.rows, 8);
  c.ops.Multiply(
      c, std::array{Product{.x = in.x.view(), .w = &w.router, .y = logits, .float32 = true}});
  const auto step = StepOf(c, in);
  const Routing& routing = c.ops.moe()->Route(c, spec, step->inputs(), 0, experts, logits, nullptr);
  const ExpertRows inner = c.ops.moe()->ExpertGateUp(c, experts, limits, routing, in.x.view());
  const ExpertRows outputs = c.ops.moe()->ExpertDown(c, experts, routing, inner);
  const Tensor sum = normed ? c.Rows(out.rows, out.cols) : out;
  c.ops.Copy(c, in.x.view(), sum);
  c.ops.moe()->CombineExperts(c, experts, routing, outputs, sum,
                              normed ? NormOut{w.norm, 1e-6F, out} : NormOut{});
}

std::vector<OpsCase> Cases() {
  const RouterSpec greedy = {.experts = 8,
                             .top_k = 2,
                             .scoring = RouterScoring::kSoftmax,
                             .method = RouterMethod::kGreedy};
  const RouterSpec grouped = {
      .experts = 8, .top_k = 3, .groups = 4, .top_groups = 2, .scaling_factor = 2.5};
  return {
      {"Embed", kHidden, true,
       [](const Context& c, const OpsWeights& w, OpsInput& in, Tensor out) {
         c.ops.Embed(c, w.table, StepOf(c, in)->inputs(), false, out);
       }},
      {"EmbedZeroAtPosition0", kHidden, true,
       [](const Context& c, const OpsWeights& w, OpsInput& in, Tensor out) {
         c.ops.Embed(c, w.table, StepOf(c, in)->inputs(), true, out);
         for (int64_t r = 0; r < out.rows; ++r) {
           const float* row = out.floats().row(r);
           const bool zero = std::all_of(row, row + kHidden, [](float v) { return v == 0; });
           EXPECT_EQ(zero, in.positions[static_cast<size_t>(r)] == 0);
         }
       }},
      {"Rotary", 8, true,
       [](const Context& c, const OpsWeights&, OpsInput& in, Tensor out) {
         const Rotary rotary = RotaryOf(c, StepOf(c, in)->inputs());
         c.ops.Copy(c, rotary.cos, out.Columns(0, 4));
         c.ops.Copy(c, rotary.sin, out.Columns(4, 4));
       }},
      {"CopyRows", kHidden, true,
       [](const Context& c, const OpsWeights&, OpsInput& in, Tensor out) {
         const auto memory = c.ops.MakeRows(out.rows + 3, kHidden);
         RowCopies reverse;
         RowCopies back;
         for (int64_t r = 0; r < out.rows; ++r) {
           reverse.Add(r, out.rows + 2 - r);
           back.Add(out.rows + 2 - r, r);
         }
         c.ops.CopyRows(c, in.x.view(), memory->rows(), reverse);
         c.ops.CopyRows(c, memory->rows(), out, back);
         c.ops.CopyRows(c, {}, out, {});  // nothing
         for (int64_t r = 0; r < out.rows; ++r) {
           EXPECT_TRUE(SameBits(out.floats().row(r), in.x.view().row(r), kHidden));
         }
       }},
      {"Norm", kHidden, false,
       [](const Context& c, const OpsWeights& w, OpsInput& in, Tensor out) {
         c.ops.Norm(c, in.x.view(), w.norm, 1e-6F, out);
       }},
      {"Multiply", 40, true,
       [](const Context& c, const OpsWeights& w, OpsInput& in, Tensor out) {
         c.ops.Multiply(c, std::array{Product{.x = in.x.view(), .w = &w.matrix, .y = out}});
       }},
      {"MultiplyAccumulate", kHidden, true,
       [](const Context& c, const OpsWeights& w, OpsInput& in, Tensor out) {
         c.ops.Copy(c, in.x.view(), out);
         c.ops.Multiply(c, std::array{Product{
                               .x = in.x.view(), .w = &w.square, .y = out, .accumulate = true}});
       }},
      {"GatedMlp", kHidden, false,
       [](const Context& c, const OpsWeights& w, OpsInput& in, Tensor out) {
         const Tensor inner = c.Rows(out.rows, kWidth);
         c.ops.Multiply(c, std::array{Product{
                               .x = in.x.view(), .w = &w.gate_up, .y = inner, .silu_mul = true}});
         c.ops.Multiply(c, std::array{Product{.x = inner, .w = &w.down, .y = out}});
       }},
      {"Head", kVocab - 7, true,
       [](const Context& c, const OpsWeights& w, OpsInput& in, Tensor out) {
         std::vector<int32_t> rows(static_cast<size_t>(out.rows));
         std::iota(rows.begin(), rows.end(), 0);
         c.ops.Head(c, in.x.view(), rows, w.head, out);
         std::vector<int32_t> tokens(rows.size());
         c.ops.HeadChoice(c, in.x.view(), rows, w.head, kVocab - 7, tokens);
         for (int64_t r = 0; r < out.rows; ++r) {
           const float* row = out.floats().row(r);
           EXPECT_EQ(tokens[static_cast<size_t>(r)], std::max_element(row, row + out.cols) - row);
         }
       }},
      {"Experts", kHidden, false,
       [greedy](const Context& c, const OpsWeights& w, OpsInput& in, Tensor out) {
         RunExperts(c, w, w.unshared_experts, greedy, in, out);
       }},
      {"ExpertsOfGroupsWithAShared", kHidden, false,
       [grouped](const Context& c, const OpsWeights& w, OpsInput& in, Tensor out) {
         RunExperts(c, w, w.experts, grouped, in, out);
       }},
      {"ExpertsWithLimits", kHidden, false,
       [grouped](const Context& c, const OpsWeights& w, OpsInput& in, Tensor out) {
         RunExperts(c, w, w.experts, grouped, in, out, {.routed = 0.1F, .shared = 0.2F});
         TestMatrix free(out.rows, kHidden);
         RunExperts(c, w, w.experts, grouped, in, free.view());
         EXPECT_FALSE(SameBits(out.floats().row(0), free.view().row(0), kHidden));
       }},
      {"GatedMlpWithALimit", kWidth, false,
       [](const Context& c, const OpsWeights& w, OpsInput& in, Tensor out) {
         c.ops.Multiply(
             c,
             std::array{Product{
                 .x = in.x.view(), .w = &w.gate_up, .y = out, .silu_mul = true, .limit = 0.25F}});
         for (int64_t r = 0; r < out.rows; ++r) {
           for (int64_t i = 0; i < kWidth; ++i) {
             EXPECT_LE(std::fabs(out.floats().row(r)[i]), 0.28F * 0.25F);
           }
         }
       }},
      {"NormHeadsInPartOfTheColumns", kHidden, false,
       [](const Context& c, const OpsWeights& w, OpsInput& in, Tensor out) {
         c.ops.Copy(c, in.x.view(), out);
         const auto& ops = dynamic_cast<const cpu::CpuOps&>(c.ops);
         ops.NormHeads(c, out.Columns(8, 32), 4, w.norm, 1e-5F);
         const Tensor whole = c.Rows(out.rows, 32);  // without gaps between rows
         c.ops.Copy(c, Tensor(in.x.view()).Columns(8, 32), whole);
         ops.NormHeads(c, whole, 4, w.norm, 1e-5F);
         for (int64_t r = 0; r < out.rows; ++r) {
           EXPECT_TRUE(SameBits(out.floats().row(r), in.x.view().row(r), 8));
           EXPECT_TRUE(SameBits(out.floats().row(r) + 8, whole.floats().row(r), 32));
         }
       }},
      {"AbsorbAndUnabsorb", kMla.heads * kMla.value, false,
       [](const Context& c, const OpsWeights& w, OpsInput& in, Tensor out) {
         const int32_t width = kMla.latent + kMla.rope;
         const Tensor q = c.Rows(out.rows, kMla.heads * (kMla.nope + kMla.rope));
         const Tensor absorbed = c.Rows(out.rows, int64_t{kMla.heads} * width);
         const Tensor latent = c.Rows(out.rows, int64_t{kMla.heads} * kMla.latent);
         for (int32_t h = 0; h < kMla.heads; ++h) {
           const int64_t head = kMla.nope + kMla.rope;
           c.ops.Copy(c, Tensor(in.x.view()).Columns(h, head), q.Columns(h * head, head));
         }
         c.ops.mla()->Absorb(c, kMla, w.kv_up, RotaryOf(c, StepOf(c, in)->inputs()), q, absorbed);
         // The rotated part is Rotate's.
         c.ops.Rotate(c, q, kMla.heads, kMla.nope, RotaryOf(c, StepOf(c, in)->inputs()));
         for (int32_t h = 0; h < kMla.heads; ++h) {
           for (int64_t r = 0; r < out.rows; ++r) {
             EXPECT_TRUE(SameBits(absorbed.floats().row(r) + h * width + kMla.latent,
                                  q.floats().row(r) + h * (kMla.nope + kMla.rope) + kMla.nope,
                                  kMla.rope));
           }
         }
         for (int32_t h = 0; h < kMla.heads; ++h) {
           c.ops.Copy(c, absorbed.Columns(h * width, kMla.latent),
                      latent.Columns(h * kMla.latent, kMla.latent));
         }
         c.ops.mla()->Unabsorb(c, kMla, w.kv_up, latent, out);
       }},
  };
}

class OpsTableTest : public KernelTest {
 protected:
  OpsInput MakeInput(int32_t rows) {
    OpsInput in{.tokens = {}, .positions = {}, .x = TestMatrix::Random(rows, kHidden, random)};
    for (int32_t r = 0; r < rows; ++r) {
      in.tokens.push_back(Pick(0, kVocab - 1));
      in.positions.push_back(r == rows / 2 ? 0 : Pick(1, 5000));
    }
    return in;
  }

  static OpsInput RowOf(OpsInput& in, int32_t r) {
    OpsInput one{.tokens = {in.tokens[static_cast<size_t>(r)]},
                 .positions = {in.positions[static_cast<size_t>(r)]},
                 .x = TestMatrix(1, kHidden)};
    std::copy_n(in.x.view().row(r), kHidden, one.x.view().row(0));
    return one;
  }

  TestMatrix Run(const OpsCase& test, const Ops& ops, const OpsWeights& w, DType dtype,
                 OpsInput& in) {
    Scratch arena;
    TestMatrix out(in.x.view_rows, test.cols);
    test.run({{ops, &pool}, arena, dtype}, w, in, out.view());
    return out;
  }

  static constexpr int32_t kRows = 21;
};

TEST_P(OpsTableTest, EveryRowAloneAndTheReference) {
  const cpu::CpuOps& ops = cpu::GetCpuOps(GetParam());
  const cpu::CpuOps& reference_ops = cpu::GetCpuOps(Isa::kReference);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const OpsWeights w(ops, pool, dtype);
    const OpsWeights reference_w(reference_ops, pool, dtype);
    for (const OpsCase& test : Cases()) {
      const std::string where = test.name + " " + std::string(DTypeName(dtype));
      OpsInput in = MakeInput(kRows);
      const TestMatrix all = Run(test, ops, w, dtype, in);
      for (int32_t r = 0; r < kRows; ++r) {
        OpsInput one = RowOf(in, r);
        const TestMatrix alone = Run(test, ops, w, dtype, one);
        ASSERT_TRUE(SameBits(alone.view().row(0), all.view().row(r), test.cols))
            << where << " row " << r;
      }
      const TestMatrix want = Run(test, reference_ops, reference_w, dtype, in);
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

/// Entries of a request's positions, and attention to them: the three forms against the reference.
TEST_P(OpsTableTest, EntriesAndAttention) {
  constexpr int32_t kPositions = 37;
  constexpr int32_t kQueries = 5;
  const auto run = [&](const Ops& ops, const OpsWeights& w, bool per_head, bool prompt,
                       std::mt19937 draws) {
    Scratch arena;
    const Context c({ops, &pool}, arena, DType::kF32);
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
                               .rotary = RotaryOf(c, all->inputs()),
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
  const cpu::CpuOps& ops = cpu::GetCpuOps(GetParam());
  const cpu::CpuOps& reference_ops = cpu::GetCpuOps(Isa::kReference);
  const OpsWeights w(ops, pool, DType::kF32);
  const OpsWeights reference_w(reference_ops, pool, DType::kF32);
  const TestMatrix want = run(reference_ops, reference_w, false, false, random);
  for (const bool per_head : {false, true}) {
    for (const bool prompt : {false, true}) {
      const TestMatrix got = run(ops, w, per_head, prompt, random);
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

/// Grouped-query attention with a window: entries are written as they are, and each row sees the
/// last keys only.
TEST_P(OpsTableTest, GroupedQueriesWithAWindow) {
  constexpr int32_t kPositions = 40;
  constexpr int32_t kQueries = 6;
  constexpr PerHeadShape kShape = {
      .heads = 6, .kv_heads = 2, .nope = 16, .value = 16, .window = 9, .softmax_scale = 0.25F};
  constexpr int32_t kEntry = 2 * 2 * 16;
  const TestMatrix entries = TestMatrix::Random(kPositions, kEntry, random);
  const TestMatrix q = TestMatrix::Random(kQueries, 6 * 16, random);
  const TestMatrix gates = TestMatrix::Random(kQueries, 6, random);
  const cpu::CpuOps& ops = cpu::GetCpuOps(GetParam());
  Scratch arena;
  const Context c({ops, &pool}, arena, DType::kF32);
  std::vector<float> memory(static_cast<size_t>(4 * kSlots * kEntry), kNaN);
  const LayerCache cache = {.data = reinterpret_cast<std::byte*>(memory.data()),
                            .dtype = DType::kF32,
                            .block_size = kSlots,
                            .width = kEntry,
                            .block_stride = int64_t{kSlots} * kEntry};
  const std::vector<int32_t> blocks = {-1, 0, 3};  // the first has left the window
  const auto step = [&](int32_t context) {
    return std::make_unique<TestStep>(
        c, FullHistoryCache(4, kSlots).groups,
        std::vector<StepPart>{
            {.context = context,
             .tokens = std::vector<int32_t>(static_cast<size_t>(kPositions - context)),
             .tables = {blocks}}},
        StepAttention{KvCacheForm::kHeads});
  };
  ops.WriteEntries(c, step(kSlots)->inputs(),
                   Tensor(entries.view()).Rows(kSlots, kPositions - kSlots), cache);
  TestMatrix out(kQueries, 6 * 16);
  ops.per_head()->PerHeadAttention(
      c, kShape, step(kPositions - kQueries)->inputs(),
      {.q = q.view(), .out = out.view(), .cache = cache, .gates = gates.view()});
  for (int32_t r = 0; r < kQueries; ++r) {
    const int32_t position = kPositions - kQueries + r;
    for (int32_t h = 0; h < 6; ++h) {
      const int32_t g = h / 3;
      std::vector<double> weights;
      double sum = 0;
      for (int32_t t = position - 8; t <= position; ++t) {
        double score = 0;
        for (int32_t i = 0; i < 16; ++i) {
          score += double{q.view().row(r)[h * 16 + i]} * entries.view().row(t)[g * 16 + i];
        }
        weights.push_back(std::exp(0.25 * score));
        sum += weights.back();
      }
      const double gate = 1 / (1 + std::exp(-double{gates.view().row(r)[h]}));
      for (int32_t i = 0; i < 16; ++i) {
        double want = 0;
        for (size_t k = 0; k < weights.size(); ++k) {
          const auto t = static_cast<int64_t>(k) + position - 8;
          want += gate * weights[k] / sum * entries.view().row(t)[32 + g * 16 + i];
        }
        EXPECT_NEAR(out.view().row(r)[h * 16 + i], want, 1e-5) << "row " << r << " head " << h;
      }
    }
  }
}

}  // namespace
}  // namespace outrider
