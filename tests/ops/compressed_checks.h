// What holds of the operations of DeepSeek-V4's attention on every device: a layer's queries,
// caches and attention beside float64, step by step.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "outrider/ops/compressed.h"
#include "outrider/ops/ops.h"
#include "outrider/ops/sparse.h"
#include "tests/ops/compressed_machine.h"
#include "tests/ops/exact_rows.h"

namespace outrider::compressed_test {

/// How far a device's numbers may be from float64.
struct Bound {
  double rest = 0;
  double part = 0;  // of the number

  double of(double expected) const { return rest + part * std::abs(expected); }
};
struct CompressedBounds {
  Bound rows;     // queries and their latents
  Bound entries;  // what is cached
  Bound states;   // rows that entries are pooled from
  Bound attention;
};

/// got: from row `first` on. exact(r): of row r.
inline void ExpectRows(const TestMatrix& got, int32_t first, const Bound& bound,
                       const std::function<Doubles(int32_t)>& exact, const char* what) {
  for (int32_t r = 0; r < got.view_rows; ++r) {
    const Doubles want = exact(first + r);
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(got.view().row(r)[i], want[i], bound.of(want[i]))
          << what << ", row " << first + r << ", number " << i;
    }
  }
}

/// Every head of a row, with its last numbers rotated; normalised where it has a norm.
inline Doubles FinishedHeads(const CompressedSizes& sizes, const TestMatrix& q, int32_t row,
                             bool normed) {
  Doubles heads(q.view().row(row), q.view().row(row) + q.view_cols);
  const size_t width = heads.size() / static_cast<size_t>(sizes.heads);
  for (size_t first = 0; first < heads.size(); first += width) {
    const auto head = std::span(heads).subspan(first, width);
    if (normed) NormExactly(head, nullptr, kNormEps);
    Turn(head.last(static_cast<size_t>(sizes.rope)), row, true);
  }
  return heads;
}

/// What a token leaves to be pooled: values, then gates.
inline Doubles StateOf(const CompressedMachine& m, size_t compressor, int32_t token) {
  const TestMatrix& rows = m.numbers().states[compressor];
  return {rows.view().row(token), rows.view().row(token) + rows.view_cols};
}

/// Entry j, pooled from its tokens and, where entries overlap, from those before.
inline Doubles PooledEntry(const CompressedMachine& m, size_t compressor, int32_t j) {
  const CompressorShape shape = m.sizes().Compressor(compressor);
  const int32_t own = j * shape.ratio;
  Doubles entry(static_cast<size_t>(shape.width));
  Doubles totals(entry.size());
  for (int32_t t = shape.overlaps ? std::max(0, own - shape.ratio) : own; t < own + shape.ratio;
       ++t) {
    const Doubles state = StateOf(m, compressor, t);
    const float* const bias = m.numbers().biases[compressor].view().row(t % shape.ratio);
    const int32_t first = shape.overlaps && t >= own ? shape.width : 0;
    for (size_t i = 0; i < entry.size(); ++i) {
      const size_t channel = static_cast<size_t>(first) + i;
      const double weight =
          std::exp(state[static_cast<size_t>(shape.channels()) + channel] + bias[channel]);
      entry[i] += weight * state[channel];
      totals[i] += weight;
    }
  }
  for (size_t i = 0; i < entry.size(); ++i) entry[i] /= totals[i];
  NormExactly(entry, m.numbers().norm.values.data(), shape.norm_eps);
  Turn(std::span(entry).last(static_cast<size_t>(shape.rope)), own, true);
  return entry;
}

/// The whole cache after the rows before `end`; what they did not write is 0.
inline void ExpectCache(CompressedMachine& m, int32_t end, const CompressedBounds& bounds) {
  m.ReadCache();
  const auto expect = [&](int32_t layer, int32_t count, const Bound& bound,
                          const std::function<Doubles(int32_t)>& exact, const char* what) {
    for (int32_t place = 0; place < m.PlacesOf(layer); ++place) {
      const std::vector<float> got = m.CachedRow(layer, place);
      const Doubles want = place < count ? exact(place) : Doubles(got.size());
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_NEAR(got[i], want[i], place < count ? bound.of(want[i]) : 0)
            << what << " in place " << place << " after " << end << " rows, number " << i;
      }
    }
  };
  expect(
      0, end, bounds.entries,
      [&](int32_t row) {
        Doubles exact(m.numbers().kv.view().row(row),
                      m.numbers().kv.view().row(row) + m.numbers().kv.view_cols);
        NormExactly(exact, m.numbers().norm.values.data(), kNormEps);
        Turn(std::span(exact).last(static_cast<size_t>(m.sizes().rope)), row, true);
        return exact;
      },
      "row of the window");
  for (size_t i = 0; i < 2; ++i) {
    const auto layer = static_cast<int32_t>(1 + 2 * i);
    expect(
        layer, end / m.sizes().ratio, bounds.entries,
        [&](int32_t j) { return PooledEntry(m, i, j); }, i == 0 ? "entry" : "index key");
    expect(
        layer + 1, end, bounds.states, [&](int32_t t) { return StateOf(m, i, t); },
        i == 0 ? "row of tokens" : "row of keys' tokens");
  }
}

/// Lists of entries on the host.
using ChosenEntries = std::vector<std::vector<int32_t>>;

/// got: of the rows from `first` on, over what is cached. ratio 0: the window alone. chosen: by
/// row; null: all entries.
inline void ExpectAttention(CompressedMachine& m, const TestMatrix& got, int32_t first,
                            int32_t ratio, const ChosenEntries* chosen, const Bound& bound,
                            const char* what) {
  const CompressedSizes& sizes = m.sizes();
  std::vector<std::vector<float>> window;
  std::vector<std::vector<float>> entries;
  const auto end = static_cast<int32_t>(first + got.view_rows);
  for (int32_t p = 0; p < end; ++p) window.push_back(m.CachedRow(0, p));
  for (int32_t j = 0; j < end / sizes.ratio; ++j) entries.push_back(m.CachedRow(1, j));
  ExpectRows(
      got, first, bound,
      [&](int32_t row) {
        std::vector<KeyAndValue> read;
        const auto add = [&](const std::vector<float>& entry) { read.push_back({entry, entry}); };
        for (int32_t p = std::max(0, row - sizes.window + 1); p <= row; ++p) {
          add(window[static_cast<size_t>(p)]);
        }
        for (int32_t j = 0; ratio > 0 && chosen == nullptr && j < (row + 1) / ratio; ++j) {
          add(entries[static_cast<size_t>(j)]);
        }
        if (chosen != nullptr) {
          for (const int32_t j : (*chosen)[static_cast<size_t>(row - first)]) {
            add(entries.at(static_cast<size_t>(j)));
          }
        }
        Doubles all;
        for (int32_t h = 0; h < sizes.heads; ++h) {
          ExactHead head(read, m.numbers().q.view().row(row) + int64_t{h} * sizes.dim,
                         double{sizes.scale}, &m.numbers().sinks.values[static_cast<size_t>(h)]);
          Turn(std::span(head.out).last(static_cast<size_t>(sizes.rope)), row, true);
          all.insert(all.end(), head.out.begin(), head.out.end());
        }
        return all;
      },
      what);
}

/// All of a layer, step by step.
inline void ExpectALayer(CompressedMachine& m, const CompressedBounds& bounds) {
  const CompressedSizes& sizes = m.sizes();
  const Context c = m.context();
  const CompressedOps& ops = *c.ops.compressed();
  const std::vector<float> frequencies = FrequenciesOf(sizes.rope);
  const int64_t q_cols = m.numbers().q.view_cols;
  int32_t first = 0;
  for (const int32_t end : sizes.ends) {
    const Scratch::Frame frame(c.arena);
    const int32_t rows = end - first;
    const auto step = m.MakeStep(first, end);
    const StepInputs& inputs = step->inputs();
    const Rotary rotary = c.ops.MakeRotary(c, frequencies, kAngleMagnitude, true, inputs);
    const Tensor q_out = c.Activations(rows, sizes.latents);
    ops.WriteWindowRows(c, inputs,
                        {.kv = m.Put(m.numbers().kv, first, end),
                         .norm = m.PutVector(m.numbers().norm),
                         .norm_eps = kNormEps,
                         .rotary = rotary,
                         .cache = m.window(),
                         .q = m.Put(m.numbers().latents, first, end),
                         .q_norm = m.PutVector(m.numbers().q_norm),
                         .q_out = q_out});
    ExpectRows(
        m.Get(q_out), first, bounds.rows,
        [&](int32_t row) {
          Doubles exact(m.numbers().latents.view().row(row),
                        m.numbers().latents.view().row(row) + sizes.latents);
          NormExactly(exact, m.numbers().q_norm.values.data(), kNormEps);
          return exact;
        },
        "latents of queries");
    const Tensor q = c.Activations(rows, q_cols);
    const Tensor index_q = c.Activations(rows, m.numbers().index_q.view_cols);
    const Tensor products = c.Activations(rows, q_cols + index_q.cols);
    c.ops.Copy(c, m.Put(m.numbers().q, first, end), products.Columns(0, q_cols));
    c.ops.Copy(c, m.Put(m.numbers().index_q, first, end), products.Columns(q_cols, index_q.cols));
    ops.FinishQueries(c, {.products = products,
                          .q = q,
                          .heads = sizes.heads,
                          .norm_eps = kNormEps,
                          .rotary = rotary,
                          .index_q = index_q,
                          .index_heads = sizes.heads});
    ExpectRows(
        m.Get(q), first, bounds.rows,
        [&](int32_t row) { return FinishedHeads(sizes, m.numbers().q, row, true); }, "heads");
    ExpectRows(
        m.Get(index_q), first, bounds.rows,
        [&](int32_t row) { return FinishedHeads(sizes, m.numbers().index_q, row, false); },
        "heads of an indexer");
    std::array<TokenRowArgs, 2> token_rows;
    std::array<CompressArgs, 2> compressors;
    for (size_t i = 0; i < 2; ++i) {
      token_rows[i] = m.weights().Of(i, m.tokens(i));
      compressors[i] = {.shape = sizes.Compressor(i),
                        .bias = m.PutVector(m.numbers().biases[i]),
                        .tokens = m.tokens(i),
                        .norm = m.PutVector(m.numbers().norm),
                        .frequencies = frequencies,
                        .magnitude = kAngleMagnitude,
                        .entries = m.entries(i)};
    }
    const Tensor x = m.Put(m.numbers().x, first, end);
    const Tensor of_heads = c.Rows(rows, sizes.heads);
    const Product beside = {.x = x, .w = &m.weights().of_heads, .y = of_heads, .float32 = true};
    ops.WriteTokenRows(c, inputs, x, token_rows, &beside);
    ops.Compress(c, inputs, compressors);
    const TestMatrix want = TokenRowWeights::HeadRows(m.numbers().x, sizes.heads);
    ExpectRows(
        m.Get(of_heads), first, bounds.states,
        [&](int32_t row) {
          return Doubles(want.view().row(row), want.view().row(row) + sizes.heads);
        },
        "weights of an indexer's heads");
    ExpectCache(m, end, bounds);
    if (testing::Test::HasFatalFailure()) return;

    c.ops.Copy(c, m.Put(m.numbers().q, first, end), q);
    const Tensor out = c.Activations(rows, q_cols);
    CompressedAttentionArgs args = {.heads = sizes.heads,
                                    .window = sizes.window,
                                    .ratio = 0,
                                    .softmax_scale = sizes.scale,
                                    .q = q,
                                    .out = out,
                                    .sinks = m.PutVector(m.numbers().sinks),
                                    .back = &rotary,
                                    .window_rows = m.window(),
                                    .entries = {}};
    const auto attend = [&](const ChosenEntries* chosen, const char* what) {
      c.ops.SetZero(c, out);
      ops.CompressedAttention(c, inputs, args);
      ExpectAttention(m, m.Get(out), first, args.ratio, chosen, bounds.attention, what);
    };
    attend(nullptr, "attention to the window");
    args.ratio = sizes.ratio;
    args.entries = m.entries(0);
    attend(nullptr, "attention to all entries");
    if (sizes.top_k > 0) {
      const SelectedEntries selected =
          c.ops.sparse()->SelectEntries(c, inputs,
                                        {.heads = sizes.heads,
                                         .ratio = sizes.ratio,
                                         .top_k = sizes.top_k,
                                         .q = index_q,
                                         .weights = m.Put(m.numbers().index_weights, first, end),
                                         .keys = m.entries(1)});
      std::vector<int32_t> counts(static_cast<size_t>(rows));
      std::vector<int32_t> lists(static_cast<size_t>(rows * selected.stride));
      for (const auto& [from, to] :
           {std::pair(selected.counts, &counts), std::pair(selected.entries, &lists)}) {
        c.ops.CopyToHost(reinterpret_cast<const std::byte*>(from),
                         std::as_writable_bytes(std::span(*to)));
      }
      ChosenEntries chosen;
      for (size_t r = 0; r < counts.size(); ++r) {
        EXPECT_EQ(counts[r],
                  std::min(sizes.top_k, (first + static_cast<int32_t>(r) + 1) / sizes.ratio));
        const auto list = lists.begin() + static_cast<int64_t>(r) * selected.stride;
        chosen.emplace_back(list, list + std::clamp<int64_t>(counts[r], 0, selected.stride));
      }
      args.selected = &selected;
      attend(&chosen, "attention to chosen entries");
    }
    if (testing::Test::HasFatalFailure()) return;
    first = end;
  }
}

}  // namespace outrider::compressed_test
