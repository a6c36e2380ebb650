// What the operations of every table read of a mixed step over two cache groups: as the layout
// says; for each request alone as for all together, in bits; and close to the reference.
#include "outrider/ops/step_inputs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "outrider/ops/compressed.h"
#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/mla.h"
#include "outrider/ops/per_head.h"
#include "tests/kernels/kernel_fixture.h"
#include "tests/ops/test_step.h"

namespace outrider {
namespace {

constexpr MlaShape kStepMla = {.heads = 3,
                               .latent = 32,
                               .nope = 12,
                               .rope = 8,
                               .value = 16,
                               .softmax_scale = 0.25F,
                               .norm_eps = 1e-6F};
constexpr int64_t kStepHidden = 24;
constexpr int64_t kStepVocab = 50;
constexpr std::array kStepFrequencies = {1.0F, 0.3F, 0.1F, 0.01F};
constexpr int32_t kStepPages = 20;

/// Group 0 keeps everything in blocks of 8 tokens, group 1 a window in blocks of 4.
std::vector<CacheGroupSpec> StepGroups() {
  return {{.name = "full", .tokens_per_block = 8},
          {.name = "window",
           .kind = CacheGroupKind::kSlidingWindow,
           .tokens_per_block = 4,
           .window = 30}};
}

/// Every role and length; pages in no order, of no two requests the same.
std::vector<StepPart> StepParts() {
  return {{.context = 13, .tokens = {5}, .tables = {{7, 2}, {3, 1, 9, 4}}},
          {.phase = Phase::kPromptChunk,
           .context = 6,
           .tokens = {8, 1, 1, 4, 9},
           .tables = {{11, 4}, {0, 14, 2}}},
          {.context = 9, .tokens = {20, 3, 17, 49}, .tables = {{1, 9}, {8, 19, 5, 16}}},
          {.context = 16, .tokens = {11}, .tables = {{5, 0, 10}, {12, 7, 18, 10, 6}}},
          {.phase = Phase::kPromptEnd, .tokens = {2, 30, 0}, .tables = {{3}, {11}}},
          {.context = 1, .tokens = {6, 7}, .tables = {{12}, {13}}}};
}

/// The weights that the operations of this test need.
struct StepWeights {
  StepWeights(const Ops& ops, ThreadPool& pool) {
    const auto source = MakeDummyWeights(ModelConfig{}, 5);
    const auto loader = ops.MakeWeightLoader(*source, {.compute_dtype = DType::kF32});
    loader->Table(&table, "embed_tokens.weight", kStepVocab, kStepHidden);
    loader->Vector(&latent_norm, "latent_norm", kStepMla.latent);
    loader->SplitKvUp(&kv_up, "kv_b",
                      {kStepMla.heads, kStepMla.nope, kStepMla.value, kStepMla.latent});
    memory = loader->Load({ops, &pool}, nullptr);
  }

  TokenTable table;
  const float* latent_norm = nullptr;
  KvUpWeight kv_up;
  std::unique_ptr<WeightMemory> memory;
};

/// The pages of a layer: of the first group or, with blocks of 4 entries, of the second.
struct StepCache {
  StepCache(int32_t group, int32_t width)
      : memory(static_cast<size_t>(kStepPages * 8 * width), kNaN),
        cache{.data = reinterpret_cast<std::byte*>(memory.data()),
              .dtype = DType::kF32,
              .block_size = group == 0 ? 8 : 4,
              .width = width,
              .block_stride = int64_t{8} * width,
              .group = group} {}

  const float* entry(int32_t page, int32_t offset) const {
    return memory.data() + page * cache.block_stride + offset * cache.width;
  }

  std::vector<float> memory;
  LayerCache cache;
};

class StepInputsTest : public KernelTest {
 protected:
  const cpu::CpuOps& ops = cpu::GetCpuOps(GetParam());
  Arena arena;
  const Context c{{ops, &pool}, arena, DType::kF32};
};

/// Tokens, positions and slots of the rows of a step.
void ExpectRows(const Context& c, const StepWeights& w, const StepInputs& inputs,
                const BatchLayout& layout) {
  const int32_t rows = layout.num_rows();
  ASSERT_EQ(inputs.num_rows(), rows);
  const Tensor embedded = c.Rows(rows, kStepHidden);
  c.ops.Embed(c, w.table, inputs, true, embedded);
  const Rotary rotary = c.ops.MakeRotary(c, kStepFrequencies, 1.5F, true, inputs);
  TestMatrix entries(rows, 6);
  for (int32_t r = 0; r < rows; ++r) {
    std::fill_n(entries.view().row(r), 6, static_cast<float>(1 + r));
  }
  std::array caches = {StepCache(0, 6), StepCache(1, 6)};
  for (const StepCache& cache : caches)
    static_cast<const cpu::CpuOps&>(c.ops).WriteEntries(c, inputs, entries.view(), cache.cache);

  const std::vector<CacheGroupSpec> groups = StepGroups();
  int64_t written = 0;
  for (const RequestRows& request : layout.requests()) {
    for (int32_t j = 0; j < request.query_length; ++j) {
      const auto r = request.first_row + j;
      const int32_t position = request.context_length + j;
      const int32_t token = layout.tokens()[static_cast<size_t>(r)].token();
      std::vector<float> want(kStepHidden);
      // In a step of this row alone, which has no other token to take.
      if (position > 0) {
        const TestStep one(c, groups,
                           {{.context = position,
                             .tokens = {token},
                             .tables = {request.block_tables[0], request.block_tables[1]}}});
        c.ops.Embed(c, w.table, one.inputs(), true, Tensor(want.data(), 1, kStepHidden));
      }
      EXPECT_TRUE(SameBits(embedded.floats().row(r), want.data(), kStepHidden)) << "row " << r;
      for (size_t i = 0; i < kStepFrequencies.size(); ++i) {
        const float angle = static_cast<float>(position) * kStepFrequencies[i];
        EXPECT_EQ(rotary.cos.floats().row(r)[i], std::cos(angle) * 1.5F) << "row " << r;
        EXPECT_EQ(rotary.sin.floats().row(r)[i], std::sin(angle) * 1.5F) << "row " << r;
      }
      for (size_t g = 0; g < groups.size(); ++g) {
        const int32_t block = groups[g].tokens_per_block;
        const int32_t page = request.block_tables[g][static_cast<size_t>(position / block)];
        for (int32_t i = 0; i < 6; ++i) {
          EXPECT_EQ(caches[g].entry(page, position % block)[i], 1 + r) << "row " << r;
        }
        written += 6;
      }
    }
  }
  for (const StepCache& cache : caches) {
    written -= std::ranges::count_if(cache.memory, [](float v) { return !std::isnan(v); });
  }
  EXPECT_EQ(written, 0);  // and nothing else
}

TEST_P(StepInputsTest, TokensPositionsAndSlotsOfAllGroups) {
  const StepWeights w(ops, pool);
  TestStep large(c, StepGroups(), StepParts());
  ExpectRows(c, w, large.inputs(), large.layout());
  // One memory serves a large step, a smaller one, and the large one again.
  TestStep small(c, StepGroups(), {StepParts()[4], StepParts()[0]});
  const auto inputs = ops.MakeStepInputs();
  EXPECT_EQ(inputs->num_rows(), 0);
  for (TestStep* step : {&large, &small, &large}) {
    step->AssignTo(*inputs);
    ExpectRows(c, w, *inputs, step->layout());
  }
}

// The rows of two windows, three times one token further. The second window
// stands in two parts: its last row is the first of the step.
TEST_P(StepInputsTest, TokensOneFurther) {
  const StepWeights w(ops, pool);
  const std::vector<StepPart> parts = {
      {.context = 5, .tokens = {10, 11, 12, 13}, .tables = {{7, 2}, {3, 1, 9}}},
      {.context = 2, .tokens = {20, 21}, .tables = {{5}, {6}}},
      {.context = 4, .tokens = {22}, .tables = {{5}, {6, 8}}}};
  TestStep step(c, StepGroups(), parts);
  // Rows stand by length: 22; 20, 21; 10 .. 13.
  const std::vector<int32_t> sources = {-2, 2, 0, 4, 5, 6, -1};
  const auto inputs = ops.MakeStepInputs();
  step.AssignTo(*inputs);
  const std::vector<std::vector<int32_t>> want = {{22, 20, 21, 10, 11, 12, 13},
                                                  {31, 21, 22, 11, 12, 13, 30},
                                                  {33, 22, 31, 12, 13, 30, 32},
                                                  {35, 31, 33, 13, 30, 32, 34}};
  TestMatrix got(7, kStepHidden);
  TestMatrix expected(7, kStepHidden);
  const auto expect = [&](const std::vector<int32_t>& tokens) {
    c.ops.Embed(c, w.table, *inputs, true, got.view());
    for (size_t r = 0; r < tokens.size(); ++r) {
      const TestStep one(c, StepGroups(),
                         {{.context = 1, .tokens = {tokens[r]}, .tables = {{0}, {0}}}});
      const auto row = static_cast<int64_t>(r);
      c.ops.Embed(c, w.table, one.inputs(), true, Tensor(expected.view()).Rows(row, 1));
      EXPECT_TRUE(SameBits(got.view().row(row), expected.view().row(row), kStepHidden))
          << "row " << r;
    }
  };
  expect(want[0]);
  for (int32_t i = 1; i < 4; ++i) {
    inputs->ShiftTokens(sources, std::array{28 + 2 * i, 29 + 2 * i});
    expect(want[static_cast<size_t>(i)]);
  }
  step.AssignTo(*inputs);  // what was shifted is gone
  expect(want[0]);
}

/// Attention of a step over one layer of a group, whose cache is filled for all positions of all
/// requests: [rows, heads * V].
TestMatrix Attend(const Context& c, const StepWeights& w, const StepInputs& inputs,
                  const StepCache& cache, const TestMatrix& q) {
  const Ops& ops = c.ops;
  TestMatrix out(inputs.num_rows(), kStepMla.heads * kStepMla.value);
  const AttentionArgs args = {.q = q.view(), .out = out.view(), .cache = cache.cache};
  if (inputs.paths().Has(RowPath::kPerHead)) {
    ops.per_head()->PerHeadAttention(c,
                                     {.heads = kStepMla.heads,
                                      .kv_heads = kStepMla.heads,
                                      .nope = kStepMla.nope,
                                      .rope = kStepMla.rope,
                                      .value = kStepMla.value,
                                      .window = cache.cache.group == 1 ? 6 : 0,
                                      .softmax_scale = kStepMla.softmax_scale},
                                     inputs, args);
    return out;
  }
  const auto [first, rows] = inputs.decode_rows();
  if (rows > 0) {
    const Tensor absorbed = c.Rows(rows, kStepMla.heads * (kStepMla.latent + kStepMla.rope));
    const Tensor latent = c.Rows(rows, int64_t{kStepMla.heads} * kStepMla.latent);
    static constexpr std::array<float, kStepFrequencies.size()> kZeros = {};  // turn nothing
    const Rotary still = ops.MakeRotary(c, kZeros, 1, true, inputs);
    ops.mla()->Absorb(c, kStepMla, w.kv_up, AnglesOf(still, first, rows), args.q.Rows(first, rows),
                      absorbed);
    ops.mla()->DecodeAttention(c, kStepMla, inputs,
                               {.q = absorbed, .out = latent, .cache = cache.cache});
    ops.mla()->Unabsorb(c, kStepMla, w.kv_up, latent, args.out.Rows(first, rows));
  }
  if (inputs.has_expanded_rows()) ops.mla()->PromptAttention(c, kStepMla, w.kv_up, inputs, args);
  return out;
}

/// Entries of every position that a request of the step has.
void FillEntries(const Context& c, const StepWeights& w, const std::vector<StepPart>& parts,
                 const StepAttention& attention, const StepCache& cache, std::mt19937 draws) {
  for (StepPart part : parts) {
    part.tokens.resize(static_cast<size_t>(part.context) + part.tokens.size());
    part.context = 0;
    const TestStep whole(c, StepGroups(), {part}, attention);
    const TestMatrix kv =
        TestMatrix::Random(whole.layout().num_rows(), kStepMla.latent + kStepMla.rope, draws);
    const EntryArgs args = {
        .kv = kv.view(),
        .norm = w.latent_norm,
        .rotary = c.ops.MakeRotary(c, kStepFrequencies, 1, true, whole.inputs()),
        .cache = cache.cache};
    if (attention.form == KvCacheForm::kHeads) {
      c.ops.mla_per_head()->WritePerHeadEntries(c, kStepMla, w.kv_up, whole.inputs(), args);
    } else {
      c.ops.mla()->WriteLatentEntries(c, kStepMla, whole.inputs(), args);
    }
  }
}

TEST_P(StepInputsTest, EachRequestAloneAndTheReference) {
  const cpu::CpuOps& reference_ops = cpu::GetCpuOps(Isa::kReference);
  const Context reference_context({reference_ops, &pool}, arena, DType::kF32);
  const StepWeights w(ops, pool);
  const StepWeights reference_w(reference_ops, pool);
  const std::vector<StepPart> parts = StepParts();
  const TestMatrix q =
      TestMatrix::Random(16, kStepMla.heads * (kStepMla.nope + kStepMla.rope), random);
  const auto run = [&](const StepAttention& attention, int32_t group, const std::string& where) {
    const int32_t width = attention.form == KvCacheForm::kHeads
                              ? kStepMla.heads * (kStepMla.nope + kStepMla.value) + kStepMla.rope
                              : kStepMla.latent + kStepMla.rope;
    const StepCache cache(group, width);
    const StepCache reference_cache(group, width);
    FillEntries(c, w, parts, attention, cache, random);
    FillEntries(reference_context, reference_w, parts, attention, reference_cache, random);
    TestStep all(c, StepGroups(), parts, attention);
    ASSERT_EQ(all.layout().num_rows(), q.view_rows);
    const TestMatrix got = Attend(c, w, all.inputs(), cache, q);
    const TestMatrix want = Attend(
        reference_context, reference_w,
        TestStep(reference_context, StepGroups(), parts, attention).inputs(), reference_cache, q);
    for (int64_t r = 0; r < got.view_rows; ++r) {
      for (int64_t i = 0; i < got.view_cols; ++i) {
        ASSERT_NEAR(got.view().row(r)[i], want.view().row(r)[i], 1e-4) << where << " row " << r;
      }
    }
    // Other backends choose a request's form by what else is in the step.
    if (!KeepsExactness(attention.backend)) return;
    const auto inputs = ops.MakeStepInputs();
    all.AssignTo(*inputs);
    for (const RequestRows& request : all.layout().requests()) {
      TestStep one(c, StepGroups(), {parts[static_cast<size_t>(request.slot)]}, attention);
      one.AssignTo(*inputs);
      TestMatrix rows(request.query_length, q.view_cols);
      for (int32_t j = 0; j < request.query_length; ++j) {
        std::copy_n(q.view().row(request.first_row + j), q.view_cols, rows.view().row(j));
      }
      const TestMatrix alone = Attend(c, w, *inputs, cache, rows);
      for (int32_t j = 0; j < request.query_length; ++j) {
        ASSERT_TRUE(
            SameBits(alone.view().row(j), got.view().row(request.first_row + j), alone.view_cols))
            << where << " request " << request.slot << " row " << j;
      }
    }
  };
  for (const int32_t group : {0, 1}) {
    run({KvCacheForm::kHeads}, group, "per head, group " + std::to_string(group));
    for (const AttentionBackend backend : kAllAttentionBackends) {
      run({KvCacheForm::kLatent, backend}, group,
          std::string(AttentionBackendName(backend)) + ", group " + std::to_string(group));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, StepInputsTest, testing::ValuesIn(TestedIsas()), IsaTestName);

}  // namespace
}  // namespace outrider
