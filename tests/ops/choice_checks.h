// What holds of an indexer's choice on every device, of keys that a test made up: the largest
// scores, the lower of equals, and the work space that choosing takes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/kv_cache.h"
#include "outrider/ops/ops.h"
#include "outrider/ops/sparse.h"
#include "tests/kernels/highest_of.h"
#include "tests/ops/exact_rows.h"
#include "tests/ops/test_step.h"

namespace outrider::sparse_test {

/// An indexer's scores of the entries that a row sees, and how large the terms of each are.
struct IndexScores {
  Doubles scores;
  Doubles sizes;

  /// keys: of the entries; queries [heads][width].
  IndexScores(const std::vector<std::vector<float>>& keys, int32_t visible,
              const std::vector<std::vector<float>>& queries, const float* weights)
      : scores(static_cast<size_t>(visible)), sizes(scores.size()) {
    for (size_t j = 0; j < scores.size(); ++j) {
      for (size_t h = 0; h < queries.size(); ++h) {
        const std::vector<float>& q = queries[h];
        const double dot = std::inner_product(q.begin(), q.end(), keys[j].begin(), 0.0);
        const double term = double{weights[h]} * std::max(dot, 0.0);
        scores[j] += term;
        sizes[j] += std::abs(term);
      }
    }
  }

  std::vector<int32_t> Choice(int32_t top_k) const { return HighestOf(scores, top_k); }
};

/// An indexer's sizes.
struct IndexSizes {
  int32_t heads;
  int32_t width;  // of a key
  DType type;     // of the cache
};

/// Rows of one request that choose of keys which a test made up.
class ChoiceMachine {
 public:
  /// keys: of tokens with ratio 1, else of entries.
  ChoiceMachine(const Ops& ops, const IndexSizes& sizes, int32_t ratio, const TestMatrix& keys)
      : ops_(ops),
        sizes_(sizes),
        ratio_(ratio),
        blocks_(static_cast<int32_t>((keys.view_rows + kEntries - 1) / kEntries)),
        arena_(ops.MakeArena()),
        cache_(MakeCache(ops)) {
    KvCache on_host = MakeCache(cpu::GetCpuOps(Isa::kReference));
    for (int32_t j = 0; j < keys.view_rows; ++j) {
      // Blocks lie the other way round.
      const int64_t slot = int64_t{blocks_ - 1 - j / kEntries} * kEntries + j % kEntries;
      cpu::StoreEntry(on_host.layer(0), slot, keys.view().row(j));
    }
    ops.CopyFromHost({on_host.page(0).data(), static_cast<size_t>(blocks_ * cache_.page_bytes())},
                     cache_.page(0).data());
  }

  /// What rows at the positions from `first` on choose. q [rows, heads * width].
  std::vector<std::vector<int32_t>> Choose(int32_t first, int32_t top_k, const TestMatrix& q,
                                           const TestMatrix& weights) {
    const Scratch::Frame frame(*arena_);
    const Context c({ops_, &pool_}, *arena_, DType::kBF16);
    std::vector<int32_t> table;
    for (int32_t b = blocks_ - 1; b >= 0; --b) table.push_back(b);
    const TestStep step(c, cache_.config().groups,
                        {{.phase = Phase::kPromptChunk,
                          .context = first,
                          .tokens = std::vector<int32_t>(static_cast<size_t>(q.view_rows), 1),
                          .tables = {table}}},
                        {.listed = true});
    const auto put = [&](const TestMatrix& m, Tensor to) {
      const Tensor rows = c.Rows(m.view_rows, m.view_cols);
      ops_.CopyFromHost(std::as_bytes(std::span(m.values)), static_cast<std::byte*>(rows.data));
      ops_.Copy(c, rows, to);
      return to;
    };
    const SelectedEntries selected = ops_.sparse()->SelectEntries(
        c, step.inputs(),
        {.heads = sizes_.heads,
         .ratio = ratio_,
         .top_k = top_k,
         .q = put(q, c.Activations(q.view_rows, q.view_cols)),
         .weights = put(weights, c.Rows(weights.view_rows, weights.view_cols)),
         .keys = cache_.layer(0)});
    EXPECT_EQ(selected.stride % 4, 0) << "rows of whole 16 bytes";
    std::vector<int32_t> counts(static_cast<size_t>(q.view_rows));
    std::vector<int32_t> entries(counts.size() * static_cast<size_t>(selected.stride));
    for (const auto& [from, to] :
         {std::pair(selected.counts, &counts), std::pair(selected.entries, &entries)}) {
      ops_.CopyToHost(reinterpret_cast<const std::byte*>(from),
                      std::as_writable_bytes(std::span(*to)));
    }
    std::vector<std::vector<int32_t>> chosen;
    for (size_t r = 0; r < counts.size(); ++r) {
      const auto list = entries.begin() + static_cast<int64_t>(r) * selected.stride;
      chosen.emplace_back(list, list + std::clamp<int64_t>(counts[r], 0, selected.stride));
    }
    return chosen;
  }

  /// Bytes of the arena that were taken at a time.
  int64_t WorkBytes() {
    arena_->Fit();
    return static_cast<int64_t>(arena_->capacity());
  }

 private:
  static constexpr int32_t kEntries = 16;  // of a block

  KvCache MakeCache(const Ops& ops) const {
    return {{ops},
            {.groups = {{.tokens_per_block = kEntries * ratio_, .unit_tokens = ratio_}},
             .num_pages = blocks_},
            {{.width = sizes_.width,
              .ratio = ratio_,
              .use = ratio_ == 1 ? CacheUse::kTokenKeys : CacheUse::kIndexKeys}},
            sizes_.type};
  }

  const Ops& ops_;
  const IndexSizes sizes_;
  const int32_t ratio_;
  const int32_t blocks_;
  ThreadPool pool_{2};
  std::unique_ptr<Arena> arena_;
  KvCache cache_;
};

/// Bytes of work space in which the last `rows` rows of a request of `tokens` tokens choose. All
/// keys are 0, so that the first ones have to be chosen.
inline int64_t WorkBytesOfAChoice(const Ops& ops, const IndexSizes& sizes, int32_t rows,
                                  int32_t tokens) {
  constexpr int32_t kTop = 64;
  std::mt19937 random(20240607);
  ChoiceMachine machine(ops, sizes, /*ratio=*/1, TestMatrix(tokens, sizes.width));
  const std::vector<std::vector<int32_t>> got = machine.Choose(
      tokens - rows, kTop, RandomBf16(rows, int64_t{sizes.heads} * sizes.width, random),
      TestMatrix::Random(rows, sizes.heads, random));
  std::vector<int32_t> first(kTop);
  std::iota(first.begin(), first.end(), 0);
  for (const std::vector<int32_t>& list : got) EXPECT_EQ(list, first);
  return machine.WorkBytes();
}

/// Of entries that stand for four tokens the largest scores, and the lower of equals.
inline void ExpectTheLowerOfEquals(const Ops& ops, const IndexSizes& sizes) {
  constexpr int32_t kEntries = 30;
  constexpr int32_t kRows = 4 * kEntries;
  constexpr int32_t kTop = 6;
  std::mt19937 random(20240607);
  TestMatrix keys = RandomBf16(kEntries, sizes.width, random);
  // Equal keys: entries 3, 11 and 19.
  for (const int64_t copy : {11, 19}) {
    std::copy_n(keys.view().row(3), sizes.width, keys.view().row(copy));
  }
  TestMatrix q = RandomBf16(kRows, int64_t{sizes.heads} * sizes.width, random);
  TestMatrix weights = TestMatrix::Random(kRows, sizes.heads, random);
  // The last row likes the equal ones best.
  std::fill_n(weights.view().row(kRows - 1), sizes.heads, 100.0F);
  for (int32_t h = 0; h < sizes.heads; ++h) {
    std::copy_n(keys.view().row(3), sizes.width,
                q.view().row(kRows - 1) + int64_t{h} * sizes.width);
  }
  std::vector<std::vector<float>> all_keys;
  for (int64_t j = 0; j < kEntries; ++j) {
    all_keys.emplace_back(keys.view().row(j), keys.view().row(j) + sizes.width);
  }
  ChoiceMachine machine(ops, sizes, /*ratio=*/4, keys);
  for (const int32_t top_k : {kTop, 2}) {
    const std::vector<std::vector<int32_t>> got = machine.Choose(0, top_k, q, weights);
    for (int32_t r = 0; r < kRows; ++r) {
      std::vector<std::vector<float>> queries;
      for (int32_t h = 0; h < sizes.heads; ++h) {
        const float* const of_head = q.view().row(r) + int64_t{h} * sizes.width;
        queries.emplace_back(of_head, of_head + sizes.width);
      }
      const IndexScores scores(all_keys, (r + 1) / 4, queries, weights.view().row(r));
      EXPECT_EQ(got[static_cast<size_t>(r)], scores.Choice(top_k)) << "row " << r;
    }
  }
}

/// A product that is NaN is not above 0, and counts as 0; a score that is NaN is below all others.
/// So a checkpoint with such numbers leaves the choice of every device the same.
inline void ExpectScoresThatAreNoNumbersToBeTheLowest(const Ops& ops, const IndexSizes& sizes) {
  constexpr int32_t kTokens = 400;
  const float huge = RoundToBFloat16(3e38F);
  TestMatrix keys(kTokens, sizes.width);
  const auto number_of = [](int32_t t) { return static_cast<float>(1 + t * 37 % 101); };
  const auto is_nan = [](int32_t t) { return t % 5 == 1; };     // its first product
  const auto overflows = [](int32_t t) { return t % 3 == 2; };  // both heads' products
  for (int32_t t = 0; t < kTokens; ++t) {
    keys.view().row(t)[0] = number_of(t);
    if (is_nan(t)) keys.view().row(t)[1] = std::nanf("");
    if (overflows(t)) keys.view().row(t)[2] = huge;
  }
  // The second head's product is 0, or infinite, and is taken off. Further heads have no weight.
  TestMatrix q(1, int64_t{sizes.heads} * sizes.width);
  q.view().row(0)[0] = q.view().row(0)[1] = 1;
  q.view().row(0)[2] = q.view().row(0)[sizes.width + 2] = huge;
  TestMatrix weights(1, sizes.heads);
  weights.view().row(0)[0] = 1;
  weights.view().row(0)[1] = -1;
  // Where both overflow the score is NaN. A key with a NaN has NaN for all heads' products.
  const auto score = [&](int32_t t) {
    if (is_nan(t)) return 0.0F;
    return overflows(t) ? -1.0F : number_of(t);
  };
  std::vector<float> scores;
  for (int32_t t = 0; t < kTokens; ++t) scores.push_back(score(t));
  ChoiceMachine machine(ops, sizes, /*ratio=*/1, keys);
  for (const int32_t top_k : {1, 20, 100, 200, 350}) {
    EXPECT_EQ(machine.Choose(kTokens - 1, top_k, q, weights),
              std::vector<std::vector<int32_t>>{HighestOf(scores, top_k)})
        << "top " << top_k;
  }
}

}  // namespace outrider::sparse_test
