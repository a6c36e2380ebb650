// Attention over entries that the rows of a step write themselves, facet by facet, as one table of
// cases. Each is run on the positions of a request in one step and in several, which gives equal
// bits, and compared with the reference table: by ops_table_test.cc for every table of the CPU, by
// cuda/cuda_ops_test.cc for a GPU. Sizes are those that the GPU's kernels take.
// Longer than most files: it is one list.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "outrider/ops/compressed.h"
#include "outrider/ops/kv_cache.h"
#include "outrider/ops/mla.h"
#include "outrider/ops/per_head.h"
#include "outrider/ops/sparse.h"
#include "tests/ops/ops_cases.h"

namespace outrider {

/// The rows of a step, and what they read and write.
struct AttentionCall {
  OpsSide& side;
  const StepInputs& inputs;
  KvCache& cache;
  Tensor x;                 // float32
  Tensor out;               // float32
  int32_t first_layer = 0;  // of the cache
  Context c = side.context();

  LayerCache layer(int32_t i) const { return cache.layer(first_layer + i); }
  /// Copies of some columns of x, in rows that may be written: float32, or as products give them.
  Tensor Floats(int64_t first, int64_t cols) const { return CopyTo(c.Rows(x.rows, cols), first); }
  Tensor Activations(int64_t first, int64_t cols) const {
    return CopyTo(c.Activations(x.rows, cols), first);
  }
  /// Random numbers, the same for all calls.
  const float* Vector(int64_t count, uint32_t seed) const {
    std::mt19937 random(seed);
    return static_cast<const float*>(side.Put(TestMatrix::Random(1, count, random)).data);
  }
  Rotary Angles(bool interleaved) const {
    return c.ops.MakeRotary(c, Frequencies(), 1.25F, interleaved, inputs);
  }
  static const std::array<float, 32>& Frequencies() {
    static const std::array<float, 32> frequencies = [] {
      std::array<float, 32> f = {};
      for (size_t i = 0; i < f.size(); ++i) f[i] = std::pow(10000.0F, -static_cast<float>(i) / 32);
      return f;
    }();
    return frequencies;
  }

 private:
  Tensor CopyTo(Tensor to, int64_t first) const {
    c.ops.Copy(c, x.Columns(first, to.cols), to);
    return to;
  }
};

struct AttentionCase {
  std::string name;
  std::vector<CacheGroupSpec> groups;
  std::vector<CacheLayerSpec> layers;
  StepAttention attention;
  int64_t in;    // columns of x
  int64_t cols;  // of what comes out
  std::function<void(const AttentionCall&)> run;
  std::optional<Phase> role = {};  // of all rows; else a step of more than 8 is a prompt's
  DType cache_dtype = DType::kBF16;
  float tolerance = 0.03F;  // beside 0.5 + |the reference's value|, over a cache of bfloat16
};

/// Grouped-query attention: 8 query heads of 128 for 2 key heads, with norms, gates and a window.
inline AttentionCase CaseOfGroupedQueries(int32_t window) {
  constexpr int32_t kHeads = 8;
  constexpr int32_t kKeyHeads = 2;
  constexpr int32_t kDim = 128;
  constexpr int64_t kKeys = int64_t{kKeyHeads} * kDim;
  constexpr int64_t kQueries = int64_t{kHeads} * kDim;
  return {"GroupedQueriesWithWindow" + std::to_string(window),
          FullHistoryCache(1, 64).groups,
          {{.width = 2 * kKeys, .use = CacheUse::kPlain}},
          {.form = KvCacheForm::kHeads},
          kQueries + 2 * kKeys + kHeads,
          kQueries,
          [window](const AttentionCall& call) {
            const Context& c = call.c;
            const PerHeadShape shape = {.heads = kHeads,
                                        .kv_heads = kKeyHeads,
                                        .nope = kDim,
                                        .value = kDim,
                                        .window = window,
                                        .softmax_scale = 0.09F};
            const Tensor q = call.Activations(0, kQueries);
            const Tensor kv = call.Activations(kQueries, 2 * kKeys);
            const Tensor out = c.Activations(q.rows, kQueries);
            const PerHeadOps& ops = *c.ops.per_head();
            ops.WriteHeadEntries(c, shape, call.inputs,
                                 {.q = q,
                                  .k = kv.Columns(0, kKeys),
                                  .v = kv.Columns(kKeys, kKeys),
                                  .q_norm = call.Vector(kDim, 1),
                                  .k_norm = call.Vector(kDim, 2),
                                  .norm_eps = 1e-6F,
                                  .rotary = call.Angles(false),
                                  .cache = call.layer(0)});
            ops.PerHeadAttention(c, shape, call.inputs,
                                 {.q = q,
                                  .out = out,
                                  .cache = call.layer(0),
                                  .gates = call.Activations(kQueries + 2 * kKeys, kHeads)});
            c.ops.Copy(c, out, call.out);
          }};
}

/// Latent attention without an indexer: generated rows are absorbed, those of prompts expanded.
inline AttentionCase CaseOfLatentRows(const MlaShape& s) {
  const int64_t width = int64_t{s.latent} + s.rope;
  const int64_t head = int64_t{s.nope} + s.rope;
  const int64_t queries = s.heads * head;
  return {"LatentRows",
          FullHistoryCache(1, 64).groups,
          {{.width = static_cast<int32_t>(width), .use = CacheUse::kPlain}},
          {.form = KvCacheForm::kLatent},
          width + queries,
          int64_t{s.heads} * s.value,
          [=](const AttentionCall& call) {
            const Context& c = call.c;
            const MlaOps& ops = *c.ops.mla();
            const KvUpWeight& kv_up = call.side.weights().kv_up;
            const LayerCache cache = call.layer(0);
            const int64_t all = call.x.rows;
            const Rotary rotary = RotaryOf(c, s, call.inputs);
            ops.WriteLatentEntries(c, s, call.inputs,
                                   {.kv = call.Activations(0, width),
                                    .norm = call.Vector(s.latent, 1),
                                    .rotary = rotary,
                                    .cache = cache});
            const Tensor q = call.Activations(width, queries);
            const Tensor out = c.Activations(all, call.out.cols);
            const auto [first, rows] = call.inputs.decode_rows();
            ASSERT_EQ(first, 0);
            if (rows > 0) {
              const Tensor absorbed = c.Activations(rows, s.heads * width);
              const Tensor latent = c.Activations(rows, int64_t{s.heads} * s.latent);
              ops.Absorb(c, s, kv_up, AnglesOf(rotary, 0, rows), q.Rows(0, rows), absorbed);
              ops.DecodeAttention(c, s, call.inputs,
                                  {.q = absorbed, .out = latent, .cache = cache});
              ops.Unabsorb(c, s, kv_up, latent, out.Rows(0, rows));
            }
            if (call.inputs.has_expanded_rows()) {
              c.ops.Rotate(c, q.Rows(rows, all - rows), s.heads, s.nope,
                           AnglesOf(rotary, rows, all - rows));
              ops.PromptAttention(c, s, kv_up, call.inputs, {.q = q, .out = out, .cache = cache});
            }
            c.ops.Copy(c, out, call.out);
          }};
}

/// Latent attention of rows that have one role, over a cache of 16 tokens a block.
inline AttentionCase CaseOfOneRole(const MlaShape& s, Phase role, DType cache_dtype) {
  AttentionCase test = CaseOfLatentRows(s);
  test.name = fmt::format("{} latents in {}", role == Phase::kDecode ? "Absorbed" : "Expanded",
                          DTypeName(cache_dtype));
  test.groups = FullHistoryCache(1, 16).groups;
  test.role = role;
  test.cache_dtype = cache_dtype;
  // Three bits of mantissa: entries are off by up to a sixteenth.
  if (cache_dtype == DType::kF8E4M3) test.tolerance = 0.4F;
  return test;
}

/// Latent attention to what an indexer chooses: of so many entries as many, or all that there are.
inline AttentionCase CaseOfChosenEntries(int32_t top_k) {
  constexpr int32_t kHeads = 4;
  constexpr int32_t kIndexHeads = 8;
  constexpr int32_t kLatent = 512;
  constexpr int32_t kWidth = 576;
  constexpr int32_t kKey = 128;
  constexpr int64_t kIndexQueries = int64_t{kIndexHeads} * kKey;
  constexpr int64_t kIndexAt = kWidth + kKey;
  constexpr int64_t kQueriesAt = kIndexAt + kIndexQueries + kIndexHeads;
  return {
      "ChosenEntries" + std::to_string(top_k),
      FullHistoryCache(1, 64).groups,
      {{.width = kWidth, .use = CacheUse::kPlain}, {.width = kKey, .use = CacheUse::kTokenKeys}},
      {.listed = true},
      kQueriesAt + int64_t{kHeads} * kWidth,
      int64_t{kHeads} * kLatent,
      [top_k](const AttentionCall& call) {
        const Context& c = call.c;
        const SparseOps& ops = *c.ops.sparse();
        const LayerCache entries = call.layer(0);
        const LayerCache keys = call.layer(1);
        c.ops.mla()->WriteLatentEntries(
            c, {.heads = kHeads, .latent = kLatent, .rope = kWidth - kLatent, .norm_eps = 1e-6F},
            call.inputs,
            {.kv = call.Activations(0, kWidth),
             .norm = call.Vector(kLatent, 1),
             .rotary = call.Angles(true),
             .cache = entries});
        ops.WriteIndexKeys(c, call.inputs,
                           {.keys = call.Floats(kWidth, kKey),
                            .norm = call.Vector(kKey, 2),
                            .bias = call.Vector(kKey, 3),
                            .norm_eps = 1e-6F,
                            .rotary = call.Angles(false),
                            .cache = keys});
        const SelectedEntries selected =
            ops.SelectEntries(c, call.inputs,
                              {.heads = kIndexHeads,
                               .ratio = 1,
                               .top_k = top_k,
                               .q = call.Activations(kIndexAt, kIndexQueries),
                               .weights = call.Floats(kIndexAt + kIndexQueries, kIndexHeads),
                               .keys = keys});
        const Tensor out = c.Activations(call.out.rows, call.out.cols);
        ops.SelectedAttention(c, call.inputs,
                              {.heads = kHeads,
                               .softmax_scale = 0.06F,
                               .q = call.Activations(kQueriesAt, int64_t{kHeads} * kWidth),
                               .out = out,
                               .entries = entries,
                               .selected = &selected});
        c.ops.Copy(c, out, call.out);
      }};
}

inline constexpr int64_t kCompressorInput = 96;  // columns

/// Writes what the rows x leave in the caches of two compressors, of entries in layers 1 and 2 and
/// of keys in 3 and 4. Returns the weights of the indexer's heads.
inline Tensor WriteCompressed(const AttentionCall& call, const CompressorShape& of_entries,
                              const CompressorShape& of_keys, int64_t heads, Tensor x) {
  const Context& c = call.c;
  const TokenRowWeights& weights =
      call.side.TokenRows({of_entries.channels(), of_keys.channels()}, heads, kCompressorInput);
  const Tensor of_heads = c.Rows(x.rows, heads);
  const Product beside = {.x = x, .w = &weights.of_heads, .y = of_heads, .float32 = true};
  c.ops.compressed()->WriteTokenRows(
      c, call.inputs, x, std::array{weights.Of(0, call.layer(2)), weights.Of(1, call.layer(4))},
      &beside);
  const auto compressor = [&](const CompressorShape& shape, int32_t layer) {
    return CompressArgs{.shape = shape,
                        .bias = call.Vector(int64_t{shape.ratio} * shape.channels(), 2),
                        .tokens = call.layer(layer + 1),
                        .norm = call.Vector(shape.width, 3),
                        .frequencies = AttentionCall::Frequencies(),
                        .magnitude = 1.25F,
                        .entries = call.layer(layer)};
  };
  c.ops.compressed()->Compress(c, call.inputs,
                               std::array{compressor(of_entries, 1), compressor(of_keys, 3)});
  return of_heads;
}

/// DeepSeek-V4's attention: a window, and with a ratio the entries that are pooled from tokens. Of
/// ratio 4 an indexer chooses as many as top_k says.
inline AttentionCase CaseOfCompressedEntries(int32_t ratio, int32_t top_k) {
  constexpr int32_t kHeads = 4;
  constexpr int32_t kDim = 512;
  constexpr int32_t kIndexHeads = 8;
  constexpr int32_t kKey = 128;
  constexpr int32_t kTokens = 256;  // of a block
  constexpr int64_t kQueries = int64_t{kHeads} * kDim;
  constexpr int64_t kIndexQueries = int64_t{kIndexHeads} * kKey;
  constexpr int64_t kIndexAt = kDim + kQueries;
  constexpr int64_t kInputAt = kIndexAt + kIndexQueries;
  const bool overlaps = ratio == 4;
  const CompressorShape of_entries = {
      .ratio = ratio, .overlaps = overlaps, .width = kDim, .rope = 64, .norm_eps = 1e-6F};
  CompressorShape of_keys = of_entries;
  of_keys.width = kKey;
  std::vector<CacheLayerSpec> layers = {{.group = 0, .width = kDim}};
  if (ratio > 0) {
    for (const CompressorShape& shape : {of_entries, of_keys}) {
      const bool keys = shape.width == kKey;
      layers.push_back({.group = 1,
                        .width = shape.width,
                        .ratio = ratio,
                        .use = keys ? CacheUse::kIndexKeys : CacheUse::kEntries});
      layers.push_back({.group = 2, .width = 2 * shape.channels(), .use = CacheUse::kState});
    }
  }
  return {"CompressedEntriesOfRatio" + std::to_string(ratio) +
              (top_k > 0 ? "Chosen" + std::to_string(top_k) : ""),
          {{.tokens_per_block = kTokens},
           {.tokens_per_block = kTokens, .unit_tokens = 128},
           {.tokens_per_block = kTokens}},
          std::move(layers),
          {.listed = true},
          kInputAt + kCompressorInput,
          kQueries,
          [=](const AttentionCall& call) {
            const Context& c = call.c;
            const CompressedOps& ops = *c.ops.compressed();
            const Rotary rotary = call.Angles(true);
            const int64_t rows = call.x.rows;
            ops.WriteWindowRows(c, call.inputs,
                                {.kv = call.Floats(0, kDim),
                                 .norm = call.Vector(kDim, 1),
                                 .norm_eps = 1e-6F,
                                 .rotary = rotary,
                                 .cache = call.layer(0)});
            const Tensor q = c.Activations(rows, kQueries);
            const Tensor index_q = c.Activations(rows, kIndexQueries);
            ops.FinishQueries(c, {.products = call.Activations(kDim, kQueries + kIndexQueries),
                                  .q = q,
                                  .heads = kHeads,
                                  .norm_eps = 1e-6F,
                                  .rotary = rotary,
                                  .index_q = index_q,
                                  .index_heads = kIndexHeads});
            Tensor index_weights;
            if (ratio > 0) {
              index_weights = WriteCompressed(call, of_entries, of_keys, kIndexHeads,
                                              call.Floats(kInputAt, kCompressorInput));
            }
            SelectedEntries selected;
            if (top_k > 0) {
              selected = c.ops.sparse()->SelectEntries(c, call.inputs,
                                                       {.heads = kIndexHeads,
                                                        .ratio = ratio,
                                                        .top_k = top_k,
                                                        .q = index_q,
                                                        .weights = index_weights,
                                                        .keys = call.layer(3)});
            }
            const Tensor out = c.Activations(rows, kQueries);
            ops.CompressedAttention(c, call.inputs,
                                    {.heads = kHeads,
                                     .window = 128,
                                     .ratio = ratio,
                                     .softmax_scale = 0.05F,
                                     .q = q,
                                     .out = out,
                                     .sinks = call.Vector(kHeads, 4),
                                     .back = &rotary,
                                     .window_rows = call.layer(0),
                                     .entries = ratio > 0 ? call.layer(1) : LayerCache(),
                                     .selected = top_k > 0 ? &selected : nullptr});
            c.ops.Copy(c, out, call.out);
          }};
}

/// All that there is to choose is chosen: which entries are best in close scores is no matter of
/// nearness. Of few see their bits only.
inline std::vector<AttentionCase> AttentionCases(const MlaShape& mla) {
  return {CaseOfOneRole(mla, Phase::kDecode, DType::kBF16),
          CaseOfOneRole(mla, Phase::kPromptChunk, DType::kBF16),
          CaseOfGroupedQueries(0),
          CaseOfGroupedQueries(40),
          CaseOfChosenEntries(2048),
          CaseOfCompressedEntries(0, 0),
          CaseOfCompressedEntries(4, 0),
          CaseOfCompressedEntries(4, 512),
          CaseOfCompressedEntries(128, 0)};
}
/// A processor reads these entries through lists only.
inline std::vector<AttentionCase> AttentionCasesOfEightBits(const MlaShape& mla) {
  return {CaseOfOneRole(mla, Phase::kDecode, DType::kF8E4M3),
          CaseOfOneRole(mla, Phase::kPromptChunk, DType::kF8E4M3)};
}
inline std::vector<AttentionCase> AttentionCasesOfFewEntries() {
  return {CaseOfChosenEntries(20), CaseOfCompressedEntries(4, 8)};
}

/// The output of a case for all positions of a request, in steps that end at `ends`.
inline TestMatrix RunAttentionCase(const AttentionCase& test, OpsSide& side, const TestMatrix& x,
                                   const std::vector<int32_t>& ends) {
  const Scratch::Frame frame(side.arena());
  const auto groups = static_cast<int32_t>(test.groups.size());
  const int32_t pages =
      (ends.back() + test.groups[0].tokens_per_block - 1) / test.groups[0].tokens_per_block;
  KvCache cache({side.ops()}, {.groups = test.groups, .num_pages = groups * pages}, test.layers,
                test.cache_dtype);
  std::vector<std::vector<int32_t>> tables(test.groups.size());
  for (int32_t page = groups * pages - 1; page >= 0; --page) {
    tables[static_cast<size_t>(page % groups)].push_back(page);
  }
  TestMatrix all(ends.back(), test.cols);
  int32_t first = 0;
  for (const int32_t end : ends) {
    const Scratch::Frame of_step(side.arena());
    const int32_t rows = end - first;
    TestMatrix part(rows, x.view_cols);
    std::copy_n(x.view().row(first), part.values.size(), part.values.begin());
    const Phase of_rows = rows > 8 ? Phase::kPromptChunk : Phase::kDecode;
    const TestStep step(side.context(), cache.config().groups,
                        {{.phase = test.role.value_or(of_rows),
                          .context = first,
                          .tokens = std::vector<int32_t>(static_cast<size_t>(rows), 1),
                          .tables = tables}},
                        test.attention);
    const Tensor out = side.context().Rows(rows, test.cols);
    test.run({side, step.inputs(), cache, side.Put(part), out});
    const TestMatrix got = side.Get(out);
    std::ranges::copy(got.values, all.values.begin() + int64_t{first} * test.cols);
    first = end;
  }
  return all;
}

/// Runs a case on a table, in one step and in several, and beside the reference table where that
/// is wanted. Operands are bfloat16.
inline void CheckAttentionCase(const AttentionCase& test, OpsSide& side, OpsSide* reference,
                               std::mt19937& random) {
  constexpr int32_t kRows = 300;
  TestMatrix x = TestMatrix::Random(kRows, test.in, random);
  for (float& value : x.values) value = RoundToBFloat16(value);
  const TestMatrix all = RunAttentionCase(test, side, x, {kRows});
  const TestMatrix pieces =
      RunAttentionCase(test, side, x, {1, 3, 40, 41, 128, 130, 255, 260, 261, kRows});
  for (int32_t r = 0; r < kRows; ++r) {
    ASSERT_TRUE(SameBits(pieces.view().row(r), all.view().row(r), test.cols))
        << test.name << " row " << r;
  }
  if (reference == nullptr) return;
  AttentionCase rounded = test;
  rounded.cache_dtype = DType::kBF16;
  const TestMatrix want = RunAttentionCase(rounded, *reference, x, {kRows});
  for (int32_t r = 0; r < kRows; ++r) {
    for (int64_t i = 0; i < test.cols; ++i) {
      const float expected = want.view().row(r)[i];
      ASSERT_NEAR(all.view().row(r)[i], expected, test.tolerance * (0.5F + std::fabs(expected)))
          << test.name << " row " << r << " column " << i;
    }
  }
}

}  // namespace outrider
