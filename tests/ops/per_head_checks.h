// What holds of grouped-query attention on every device: entries, finished queries and gated
// attention of a window beside float64.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/kv_cache.h"
#include "outrider/ops/ops.h"
#include "outrider/ops/per_head.h"
#include "tests/ops/exact_rows.h"
#include "tests/ops/test_step.h"

namespace outrider::per_head_test {

struct PerHeadSizes {
  DType type = DType::kBF16;  // of the cache
  int32_t heads = 8;
  int32_t kv_heads = 2;
  int32_t dim = 128;
  int32_t rope = 64;
  int32_t window = 9;      // 0: all
  int32_t block = 16;      // tokens
  int32_t positions = 40;  // of the request
  int32_t queries = 6;     // the last rows
  float scale = 0.25F;
  /// The page in the place of blocks before the windows of these queries; kOwn: the block's own.
  int32_t left = -1;

  static constexpr int32_t kOwn = -2;
};

/// How far numbers may be from float64: those of entries and queries, and results of attention.
/// Parts are of the number.
struct PerHeadBounds {
  double rows = 0;
  double rows_part = 0;
  double attention = 0;
  double attention_part = 0;
};

/// Checks a request's positions, then its last rows as generated ones and as a prompt's.
inline void ExpectGroupedQueries(const Ops& ops, const PerHeadSizes& sizes,
                                 const PerHeadBounds& bounds) {
  constexpr float kEps = 1e-5F;
  const int64_t keys = int64_t{sizes.kv_heads} * sizes.dim;
  const int64_t queries = int64_t{sizes.heads} * sizes.dim;
  const PerHeadShape shape = {.heads = sizes.heads,
                              .kv_heads = sizes.kv_heads,
                              .nope = sizes.dim,
                              .value = sizes.dim,
                              .window = sizes.window,
                              .softmax_scale = sizes.scale};
  std::mt19937 random(20240607);
  const TestMatrix kv = RandomBf16(sizes.positions, 2 * keys, random);
  const TestMatrix q = RandomBf16(sizes.positions, queries, random);
  const TestMatrix gates = RandomBf16(sizes.positions, sizes.heads, random);
  const TestMatrix q_norm = RandomNorm(sizes.dim, random);
  const TestMatrix k_norm = RandomNorm(sizes.dim, random);

  ThreadPool pool(2);
  const std::unique_ptr<Arena> arena = ops.MakeArena();
  const Context c({ops, &pool}, *arena, DType::kF32);
  const int32_t blocks = (sizes.positions + sizes.block - 1) / sizes.block;
  const auto make_cache = [&](const Ops& of) {
    return KvCache({of}, {.groups = {{.tokens_per_block = sizes.block}}, .num_pages = blocks},
                   {{.width = static_cast<int32_t>(2 * keys), .use = CacheUse::kPlain}},
                   sizes.type);
  };
  KvCache cache = make_cache(ops);
  std::vector<int32_t> table;
  for (int32_t b = blocks - 1; b >= 0; --b) table.push_back(b);

  const auto put = [&](const TestMatrix& m, int32_t first, Tensor to) {
    const Tensor rows = c.Rows(to.rows, m.view_cols);
    const auto cols = static_cast<size_t>(m.view_cols);
    ops.CopyFromHost(std::as_bytes(std::span(m.values).subspan(
                         static_cast<size_t>(first) * cols, static_cast<size_t>(to.rows) * cols)),
                     static_cast<std::byte*>(rows.data));
    ops.Copy(c, rows, to);
    return to;
  };
  const auto get = [&](Tensor x) {
    TestMatrix m(x.rows, x.cols);
    ops.ToHost(c, x, m.values);
    return m;
  };
  /// The rows from `first` on: writes their entries, finishes their queries, and attends. Returns
  /// queries and results.
  const auto run = [&](int32_t first, Phase phase, const std::vector<int32_t>& of_blocks) {
    const Scratch::Frame frame(*arena);
    const int32_t rows = sizes.positions - first;
    const TestStep step(c, cache.config().groups,
                        {{.phase = phase,
                          .context = first,
                          .tokens = std::vector<int32_t>(static_cast<size_t>(rows), 1),
                          .tables = {of_blocks}}},
                        {.form = KvCacheForm::kHeads});
    const Tensor q_rows = put(q, first, c.Activations(rows, queries));
    const Tensor kv_rows = put(kv, first, c.Activations(rows, 2 * keys));
    const auto vector = [&](const TestMatrix& m) {
      return static_cast<const float*>(put(m, 0, c.Rows(1, m.view_cols)).data);
    };
    ops.per_head()->WriteHeadEntries(
        c, shape, step.inputs(),
        {.q = q_rows,
         .k = kv_rows.Columns(0, keys),
         .v = kv_rows.Columns(keys, keys),
         .q_norm = vector(q_norm),
         .k_norm = vector(k_norm),
         .norm_eps = kEps,
         .rotary =
             ops.MakeRotary(c, FrequenciesOf(sizes.rope), kAngleMagnitude, false, step.inputs()),
         .cache = cache.layer(0)});
    const Tensor out = c.Activations(rows, queries);
    ops.per_head()->PerHeadAttention(
        c, shape, step.inputs(),
        {.q = q_rows,
         .out = out,
         .cache = cache.layer(0),
         .gates = put(gates, first, c.Activations(rows, sizes.heads))});
    return std::pair(get(q_rows), get(out));
  };
  /// Heads of a row, normalised and rotated.
  const auto finished = [&](const float* row, int64_t cols, const TestMatrix& norm, int32_t at) {
    Doubles x(row, row + cols);
    const auto dim = static_cast<size_t>(sizes.dim);
    for (size_t h = 0; h < x.size(); h += dim) {
      const auto head = std::span(x).subspan(h, dim);
      NormExactly(head, norm.values.data(), kEps);
      Turn(head.first(static_cast<size_t>(sizes.rope)), at, false);
    }
    return x;
  };
  const auto expect_near = [&](const float* got, const Doubles& want, const char* what,
                               int32_t at) {
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], bounds.rows + bounds.rows_part * std::abs(want[i]))
          << what << " of position " << at << ", number " << i;
    }
  };
  const auto expect = [&](int32_t first, const std::pair<TestMatrix, TestMatrix>& got) {
    KvCache host = make_cache(cpu::GetCpuOps(Isa::kReference));
    ops.CopyToHost(cache.page(0).data(),
                   {host.page(0).data(), static_cast<size_t>(blocks * cache.page_bytes())});
    std::vector<std::vector<float>> entries;
    for (int32_t p = 0; p < sizes.positions; ++p) {
      entries.push_back(NumbersOf(host.layer(0), cpu::EntrySlot(host.layer(0), table.data(), p)));
      Doubles want = finished(kv.view().row(p), keys, k_norm, p);
      want.insert(want.end(), kv.view().row(p) + keys, kv.view().row(p) + 2 * keys);
      expect_near(entries.back().data(), want, "the entry", p);
    }
    for (int32_t p = first; p < sizes.positions; ++p) {
      const float* const q_row = got.first.view().row(p - first);
      expect_near(q_row, finished(q.view().row(p), queries, q_norm, p), "queries", p);
      for (int32_t h = 0; h < sizes.heads; ++h) {
        const auto dim = static_cast<size_t>(sizes.dim);
        const size_t at = static_cast<size_t>(h / (sizes.heads / sizes.kv_heads)) * dim;
        std::vector<KeyAndValue> seen;
        const int32_t begin = sizes.window == 0 ? 0 : std::max(0, p - sizes.window + 1);
        for (int32_t t = begin; t <= p; ++t) {
          const std::span<const float> entry = entries[static_cast<size_t>(t)];
          seen.push_back(
              {entry.subspan(at, dim), entry.subspan(static_cast<size_t>(keys) + at, dim)});
        }
        const int64_t column = int64_t{h} * sizes.dim;
        const ExactHead head(seen, q_row + column, double{sizes.scale});
        const double gate = 1 / (1 + std::exp(-double{gates.view().row(p)[h]}));
        for (size_t i = 0; i < dim; ++i) {
          const double want = gate * head.out[i];
          ASSERT_NEAR(got.second.view().row(p - first)[column + static_cast<int64_t>(i)], want,
                      bounds.attention + bounds.attention_part * std::abs(want))
              << "position " << p << ", head " << h << ", column " << i;
        }
      }
    }
  };
  expect(0, run(0, Phase::kPromptChunk, table));
  const int32_t first = sizes.positions - sizes.queries;
  std::vector<int32_t> late = table;
  if (sizes.left != PerHeadSizes::kOwn) {
    ASSERT_GE(first - sizes.window + 1, sizes.block) << "no block is left";
    for (int32_t b = 0; b < (first - sizes.window + 1) / sizes.block; ++b) {
      late[static_cast<size_t>(b)] = sizes.left;
    }
  }
  for (const Phase phase : {Phase::kDecode, Phase::kPromptChunk}) {
    SCOPED_TRACE(phase == Phase::kDecode ? "generated" : "prompt");
    expect(first, run(first, phase, late));
  }
}

}  // namespace outrider::per_head_test
