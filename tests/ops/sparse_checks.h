// What holds of the operations of sparse attention on every device: entries, keys, choice and
// attention beside float64, and the bits of a row alone, in windows and in any step.
#pragma once

#include <cstdio>
#include <iterator>

#include "tests/ops/choice_checks.h"
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

}  // namespace outrider::sparse_test
