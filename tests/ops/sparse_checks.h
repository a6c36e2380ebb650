// What holds of the operations of sparse attention on every device: entries, keys, choice and
// attention beside float64, and the bits of a row alone, in windows and in any step.
#pragma once

#include <cstdio>
#include <iterator>

#include "tests/kernels/highest_of.h"
#include "tests/ops/sparse_machine.h"

namespace outrider::sparse_test {

/// A device's distance from float64.
struct SparseBounds {
  // Of attention: parts of the sizes of what is added up and of the result, and a rest.
  double terms = 0;
  double result = 0;
  double rest = 0;
  /// Whether lists may differ in entries whose scores are as good as equal.
  bool near_ties = false;
};

/// Entries and keys of a step beside float64's, and NaN in all other bytes.
inline void ExpectEntriesAndKeys(SparseMachine& machine) {
  const SparseCase& c = machine.parameters();
  machine.Run(machine.LastRows(Phase::kDecode), {.block = 32});
  SparseCache got = machine.MakeCache(cpu::GetCpuOps(Isa::kReference));
  SparseCache want = machine.MakeCache(cpu::GetCpuOps(Isa::kReference));
  std::ranges::copy(machine.bytes(), got.data());
  std::vector<bool> written(machine.bytes().size());
  int64_t different = 0;
  int64_t codes = 0;
  const auto expect = [&](LayerCache layer, LayerCache wanted, int64_t slot, const Doubles& exact) {
    const std::vector<float> rounded(exact.begin(), exact.end());
    cpu::StoreEntry(wanted, slot, rounded.data());
    const int64_t begin = layer.data - got.data();
    const auto size = static_cast<int64_t>(DTypeSize(layer.dtype));
    std::fill_n(written.begin() + begin + layer.SlotOffset(slot) * size, layer.width * size, true);
    float scale = 1;
    if (layer.has_scales) {
      float scale_of_got = 0;
      std::memcpy(&scale, wanted.data + wanted.ScaleOffset(slot), sizeof(scale));
      std::memcpy(&scale_of_got, layer.data + layer.ScaleOffset(slot), sizeof(scale));
      std::fill_n(written.begin() + begin + layer.ScaleOffset(slot), sizeof(scale), true);
      EXPECT_EQ(scale_of_got, scale) << "scale of slot " << slot;
    }
    const std::vector<float> numbers = NumbersOf(layer, slot);
    const std::vector<float> wanted_numbers = NumbersOf(wanted, slot);
    for (size_t i = 0; i < numbers.size(); ++i) {
      const double expected = layer.dtype == DType::kF32 ? exact[i] : double{wanted_numbers[i]};
      double most = 3e-5;
      if (layer.dtype == DType::kBF16) most = 0.008 * std::abs(expected) + 1e-3;
      // A number near the middle of two codes may become either: one is an eighth more than the
      // other, or 2^-9.
      if (layer.dtype == DType::kF8E4M3) most = 0.126 * std::abs(expected) + 0x1.01p-9 * scale;
      EXPECT_NEAR(numbers[i], expected, most) << (layer.width == c.key ? "index key" : "entry")
                                              << " in slot " << slot << ", number " << i;
      if (layer.dtype != DType::kF8E4M3) continue;
      different += numbers[i] == wanted_numbers[i] ? 0 : 1;
      ++codes;
    }
  };
  for (size_t r = 0; r < c.lengths.size(); ++r) {
    const auto request = static_cast<int32_t>(r);
    for (int32_t p = 0; p < c.lengths[r]; ++p) {
      const int64_t slot = machine.SlotOf(request, p);
      expect(got.entries(kLayer), want.entries(kLayer), slot, machine.EntryOf(request, p));
      expect(got.keys(kLayer), want.keys(kLayer), slot, machine.KeyOf(request, p));
    }
  }
  EXPECT_LE(different, codes / 100) << "not only codes near a middle differ";
  for (size_t i = 0; i < written.size(); ++i) {
    if (written[i]) continue;
    ASSERT_EQ(machine.bytes()[i], std::byte{0xFF})
        << "byte " << i << " of the cache is not the step's to write";
  }
}

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

/// out: of one head, over what the row's list names. values: of all entries; q [entry].
inline void ExpectAttentionOfAHead(const SparseCase& c, const SparseBounds& bounds,
                                   const std::vector<std::vector<float>>& values,
                                   const std::vector<int32_t>& list, const float* q,
                                   const float* out, const std::string& where) {
  std::vector<KeyAndValue> entries;
  for (const int32_t e : list) {
    const std::span<const float> entry = values[static_cast<size_t>(e)];
    entries.push_back({entry, entry.first(static_cast<size_t>(c.latent))});
  }
  const ExactHead want(entries, q, c.scale);
  for (size_t i = 0; i < want.out.size(); ++i) {
    const double most =
        bounds.terms * want.sizes[i] + bounds.result * std::abs(want.out[i]) + bounds.rest;
    ASSERT_NEAR(out[i], want.out[i], most) << where << ", column " << i;
  }
}

/// The choice and attention beside float64's, over the cache that the device wrote, whose numbers
/// and their queries are rounded as it has them.
inline void ExpectChoiceAndAttention(SparseMachine& machine, const SparseBounds& bounds) {
  const SparseCase& c = machine.parameters();
  const SparseRows got = machine.Run(machine.LastRows(Phase::kPromptChunk), {.block = 16});
  SparseCache cache = machine.MakeCache(cpu::GetCpuOps(Isa::kReference));
  std::ranges::copy(machine.bytes(), cache.data());
  const LayerCache key_cache = cache.keys(kLayer);
  int ties = 0;
  int rows = 0;
  int unlike_exact = 0;  // rows that would choose others if nothing were rounded
  for (size_t r = 0; r < c.lengths.size(); ++r) {
    const SparseRequest& request = machine.requests()[r];
    std::vector<std::vector<float>> keys, exact_keys, values;
    for (int32_t p = 0; p < request.length; ++p) {
      const int64_t slot = machine.SlotOf(static_cast<int32_t>(r), p);
      keys.push_back(NumbersOf(key_cache, slot));
      values.push_back(NumbersOf(cache.entries(kLayer), slot));
      const Doubles exact = machine.KeyOf(static_cast<int32_t>(r), p);
      exact_keys.emplace_back(exact.begin(), exact.end());
    }
    for (int32_t p = std::max(0, request.length - kQueryRows); p < request.length; ++p, ++rows) {
      const SparseRow& row = got.at({static_cast<int32_t>(r), p});
      const std::string where = "request " + std::to_string(r) + ", position " + std::to_string(p);
      std::vector<std::vector<float>> queries;
      for (int32_t h = 0; h < c.index_heads; ++h) {
        const float* const q = request.index_q.view().row(p) + int64_t{h} * c.key;
        queries.emplace_back(q, q + c.key);
      }
      const float* const weights = request.weights.view().row(p);
      std::vector<std::vector<float>> rounded = queries;
      for (std::vector<float>& q : rounded) {
        if (key_cache.has_scales) cpu::RoundIndexQuery(key_cache, q.data());
      }
      const IndexScores scores(keys, p + 1, rounded, weights);
      const std::vector<int32_t> want = scores.Choice(c.top_k);
      if (key_cache.has_scales) {
        const IndexScores exact(exact_keys, p + 1, queries, weights);
        unlike_exact += exact.Choice(c.top_k) == want ? 0 : 1;
      }
      ASSERT_EQ(row.list.size(), want.size()) << where;
      ASSERT_TRUE(std::ranges::is_sorted(row.list)) << where;
      ASSERT_TRUE(std::ranges::adjacent_find(row.list) == row.list.end()) << where;
      ASSERT_TRUE(row.list.front() >= 0 && row.list.back() <= p) << where;
      std::vector<int32_t> others;
      std::ranges::set_symmetric_difference(row.list, want, std::back_inserter(others));
      if (!others.empty()) {
        ++ties;
        double least = INFINITY, most = -INFINITY, size = 0;
        for (const int32_t entry : others) {
          const auto e = static_cast<size_t>(entry);
          least = std::min(least, scores.scores[e]);
          most = std::max(most, scores.scores[e]);
          size += scores.sizes[e] / static_cast<double>(others.size());
        }
        // With codes tensor cores keep 13 bits below the largest of the products added at once.
        EXPECT_LT(most - least, (key_cache.has_scales ? 0x1p-8 : 1e-5) * size)
            << where << ": float64 chooses other entries, " << others.front() << " among them";
      }
      for (int32_t h = 0; h < c.heads; ++h) {
        ExpectAttentionOfAHead(c, bounds, values, row.list,
                               request.q.view().row(p) + int64_t{h} * c.entry(),
                               row.out.data() + int64_t{h} * c.latent,
                               "attention of " + where + ", head " + std::to_string(h));
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
  if (key_cache.has_scales && c.top_k < c.lengths[0]) {
    EXPECT_GT(unlike_exact, 0) << "the rounding changes nothing";
  }
  if (!bounds.near_ties) {
    EXPECT_EQ(ties, 0) << "rows whose choice is not float64's";
    return;
  }
  std::printf("%s: %d of %d rows differ from float64's choice by near-ties\n", c.name, ties, rows);
  EXPECT_LE(ties, rows / (key_cache.has_scales ? 4 : 10));
}

/// Rows must have the lists and bits that they have in `all`.
inline void ExpectBits(const SparseRows& some, const SparseRows& all, const std::string& where) {
  ASSERT_FALSE(some.empty()) << where;
  for (const auto& [row, got] : some) {
    const SparseRow& want = all.at(row);
    const std::string of_row = where + ": request " + std::to_string(row.first) + ", position " +
                               std::to_string(row.second);
    ASSERT_EQ(got.list, want.list) << "the list of " << of_row;
    ASSERT_EQ(got.out.size(), want.out.size()) << of_row;
    for (size_t i = 0; i < got.out.size(); ++i) {
      ASSERT_TRUE(SameBits(&got.out[i], &want.out[i], 1))
          << of_row << ", number " << i << ": " << got.out[i] << " for " << want.out[i];
    }
  }
}

inline void ExpectBitsAloneAndInWindows(SparseMachine& machine) {
  const SparseRows all = machine.Run(machine.LastRows(Phase::kPromptChunk));
  for (size_t r = 0; r < machine.requests().size(); ++r) {
    const auto request = static_cast<int32_t>(r);
    const int32_t length = machine.requests()[r].length;
    const int32_t most = std::min(32, length);
    for (int32_t rows = 1; rows <= most; rows += r == 0 ? 1 : 7) {
      ExpectBits(machine.Run({{request, length - rows, length}}, {.block = 32}), all,
                 "a window of " + std::to_string(rows));
    }
    for (int32_t back = 1; back <= most; back += 9) {
      const Phase phase = back % 2 == 0 ? Phase::kPromptChunk : Phase::kDecode;
      ExpectBits(machine.Run({{request, length - back, length - back + 1, phase}}), all,
                 "a row alone");
    }
  }
}

/// Returns the rows of the last positions.
inline SparseRows ExpectBitsInAnyStep(SparseMachine& machine) {
  SparseRows all = machine.Run(machine.LastRows(Phase::kDecode));
  const int32_t length = machine.requests()[0].length;
  ExpectBits(machine.Run({{0, length - 12, length}}, {.attended = 5}), all,
             "a request, attention to 5 rows a call");
  if (testing::Test::HasFatalFailure()) return all;
  ExpectBits(machine.Run(machine.LastRows(Phase::kPromptChunk)), all, "as prompts");
  for (const int32_t rows : {5, 17}) {
    ExpectBits(machine.Run(machine.LastRows(Phase::kDecode), {.attended = rows}), all,
               "attention to " + std::to_string(rows) + " rows a call");
  }
  const auto pick = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(machine.random());
  };
  for (int trial = 0; trial < 24; ++trial) {
    std::vector<Window> windows;
    for (const Window& last : machine.LastRows(Phase::kDecode)) {
      if (pick(0, 3) == 0) continue;
      const int32_t begin = pick(last.begin, last.end - 1);
      windows.push_back({last.request, begin, pick(begin + 1, last.end),
                         pick(0, 1) == 0 ? Phase::kDecode : Phase::kPromptChunk});
    }
    if (windows.empty()) continue;
    std::shuffle(windows.begin(), windows.end(), machine.random());
    const int32_t block = 16 << pick(0, 4);
    ExpectBits(machine.Run(windows, {.block = block}), all,
               "step " + std::to_string(trial) + ", pages of " + std::to_string(block));
  }
  return all;
}

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
