// Whether rows chose the entries of the highest scores: an entry that is in one of two choices only
// has to be a near-tie, by its score and by how far off a device's may be.
//
// s_j = sum over heads h of w_h max(q_h . k_j, 0) is computed in double precision from what a
// device was given (recorded_choices.h). Its own score c_j is off by E_j at most:
//   E_j = sum over h of |w_h| e_hj + (H + 3) 2^-24 sum over h of |w_h| max(q_h . k_j, 0),
// where e_hj bounds the error of the dot product (ReLU makes no error larger), and the sum over H
// heads rounds each term once and each of up to H + 2 additions once. If the device takes e and
// leaves f though s_e <= t <= s_f, t being the k-th highest score, then c_e >= c_f, and so
// |s_e - t| <= E_e + E_f, and |s_f - t| likewise.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <iterator>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "outrider/base/thread_pool.h"
#include "tests/kernels/highest_of.h"
#include "tests/networks/cpu_network.h"
#include "tests/networks/recorded_choices.h"

namespace outrider {

/// By how much a device's dot product of a query's head and a key may be off.
using DotBound = std::function<double(std::span<const float> q, std::span<const float> k)>;

/// float32 sums of n float32 products in any order: each product goes through n roundings at most.
inline double Float32DotBound(std::span<const float> q, std::span<const float> k) {
  double sizes = 0;
  for (size_t i = 0; i < q.size(); ++i) sizes += std::abs(double{q[i]} * k[i]);
  return static_cast<double>(q.size()) * 0x1p-24 * 1.001 * sizes;
}

/// Tensor cores add `terms` exact products to a sum at a time, each of which they cut off at `bits`
/// bits below the largest of them.
inline DotBound TensorDotBound(size_t terms, int bits) {
  return [terms, bits](std::span<const float> q, std::span<const float> k) {
    double sum = 0;
    double bound = 0;
    for (size_t first = 0; first < q.size(); first += terms) {
      double next = sum;
      double largest = std::abs(sum) + bound;
      for (size_t i = first; i < first + terms; ++i) {
        const double product = double{q[i]} * k[i];
        largest = std::max(largest, std::abs(product));
        next += product;
      }
      bound += static_cast<double>(terms + 1) * std::ldexp(largest, -bits);
      sum = next;
    }
    return bound;
  };
}
/// Of Hopper's: bf16 keeps float32's 24 bits, e4m3 13 behind the first.
inline DotBound HopperBf16DotBound() { return TensorDotBound(16, 23); }
inline DotBound HopperE4m3DotBound() { return TensorDotBound(32, 13); }

/// Of the entries that a row sees.
struct RowScores {
  std::vector<double> score;
  std::vector<double> bound;  // of a device's error
  /// sqrt of the sum over heads of (w_h |q_h| |k_j|)^2 / D: what an error of 1 relative to q or k
  /// makes of the score, if it points anywhere.
  std::vector<double> spread;
};

inline RowScores ScoresOf(const IndexedLayer& layer, int32_t position, const DotBound& dot_bound) {
  const IndexedRow& row = layer.rows.at(position);
  const size_t dim = layer.keys.at(0).size();
  RowScores result;
  for (int32_t j = 0; j <= position; ++j) {
    const std::span<const float> key(layer.keys[static_cast<size_t>(j)]);
    double score = 0, error = 0, sizes = 0, squares = 0;
    for (int32_t h = 0; h < layer.heads; ++h) {
      const auto q = std::span(row.q).subspan(static_cast<size_t>(h) * dim, dim);
      const double weight = row.weights[static_cast<size_t>(h)];
      double dot = 0, q2 = 0, k2 = 0;
      for (size_t i = 0; i < dim; ++i) {
        dot += double{q[i]} * key[i];
        q2 += double{q[i]} * q[i];
        k2 += double{key[i]} * key[i];
      }
      score += weight * std::max(dot, 0.0);
      error += std::abs(weight) * dot_bound(q, key);
      sizes += std::abs(weight) * std::max(dot, 0.0);
      squares += weight * weight * q2 * k2 / static_cast<double>(dim);
    }
    result.score.push_back(score);
    result.bound.push_back(error + (layer.heads + 3) * 0x1p-24 * sizes);
    result.spread.push_back(std::sqrt(squares));
  }
  return result;
}

/// Of the rows that see more than they may choose.
struct ChoiceReport {
  int64_t rows = 0;
  int64_t differ = 0;         // in an entry or more
  double furthest_entry = 0;  // of these: |score - k-th score| / what is allowed
  // Of CheckNearChoices.
  int64_t scores = 0;
  int64_t far_scores = 0;     // further from the other device's than ScoreNearness
  double furthest_score = 0;  // in units of that
  std::string problem;        // the first, if there is one

  void Print(const std::string& what) const {
    std::printf(
        "%s: %lld rows choose, %lld of them have near-ties, the furthest at %.3f of its bound",
        what.c_str(), static_cast<long long>(rows), static_cast<long long>(differ), furthest_entry);
    if (scores > 0) {
      std::printf("; %lld of %lld scores are not near, the furthest is at %.2f",
                  static_cast<long long>(far_scores), static_cast<long long>(scores),
                  furthest_score);
    }
    std::printf("\n");
  }
};

/// Entries that only one of both choices has lie about the k-th score, by what `bounds` says of the
/// entry and of the furthest other; else report.problem says which does not.
inline void CheckNearTies(const std::vector<double>& scores, const std::vector<double>& bounds,
                          const std::vector<int32_t>& got, const std::vector<int32_t>& want,
                          const std::string& where, ChoiceReport& report) {
  ++report.rows;
  if (got.size() != want.size() || !std::ranges::is_sorted(got) ||
      std::ranges::adjacent_find(got) != got.end() || got.front() < 0 ||
      got.back() >= static_cast<int32_t>(scores.size())) {
    report.problem = fmt::format("{}: {} entries, not {} that rise and that the row sees", where,
                                 got.size(), want.size());
    return;
  }
  std::vector<int32_t> others;
  std::ranges::set_symmetric_difference(got, want, std::back_inserter(others));
  if (others.empty()) return;
  ++report.differ;
  std::vector<double> sorted = scores;
  const auto at_k = sorted.begin() + static_cast<int64_t>(want.size()) - 1;
  std::nth_element(sorted.begin(), at_k, sorted.end(), std::greater<>());
  double most = 0;
  for (const int32_t e : others) most = std::max(most, bounds[static_cast<size_t>(e)]);
  for (const int32_t e : others) {
    const double score = scores[static_cast<size_t>(e)];
    const double away = std::abs(score - *at_k);
    const double allowed = bounds[static_cast<size_t>(e)] + most;
    // Written so that NaN is a problem.
    if (!(away <= allowed)) {
      report.problem = fmt::format(
          "{}: entry {} is in one choice only, and its score {} is not number {} in order, {}, to "
          "within {}",
          where, e, score, want.size(), *at_k, allowed);
      return;
    }
    if (allowed > 0) report.furthest_entry = std::max(report.furthest_entry, away / allowed);
  }
}

/// check(layer, position, where) of all rows of a run, in any order; the first problem by row.
template <typename Check>
ChoiceReport CheckRows(const ChoiceLog& log, const Check& check) {
  std::vector<std::pair<size_t, int32_t>> rows;
  for (size_t l = 0; l < log.layers().size(); ++l) {
    for (const auto& [position, row] : log.layers()[l].rows) rows.emplace_back(l, position);
  }
  std::vector<ChoiceReport> reports(rows.size());
  ThreadPool pool(TestThreads());
  pool.ParallelFor(static_cast<int64_t>(rows.size()), [&](int64_t i, int /*thread*/) {
    const auto [layer, position] = rows[static_cast<size_t>(i)];
    check(layer, position, fmt::format("layer {}, row {}", layer, position),
          reports[static_cast<size_t>(i)]);
  });
  ChoiceReport all;
  for (const ChoiceReport& report : reports) {
    all.rows += report.rows;
    all.differ += report.differ;
    all.furthest_entry = std::max(all.furthest_entry, report.furthest_entry);
    all.scores += report.scores;
    all.far_scores += report.far_scores;
    all.furthest_score = std::max(all.furthest_score, report.furthest_score);
    if (all.problem.empty()) all.problem = report.problem;
  }
  return all;
}

/// Every row has to have chosen the highest of the scores that what it was given makes, but for
/// near-ties; all entries where it sees no more than it may choose.
inline ChoiceReport CheckHighestChosen(const ChoiceLog& log, const DotBound& dot_bound) {
  return CheckRows(log,
                   [&](size_t l, int32_t position, const std::string& where, ChoiceReport& report) {
                     const IndexedLayer& layer = log.layers()[l];
                     const std::vector<int32_t>& chosen = layer.rows.at(position).chosen;
                     if (position < layer.top_k) {
                       std::vector<int32_t> all(static_cast<size_t>(position) + 1);
                       std::iota(all.begin(), all.end(), 0);
                       if (chosen != all) report.problem = where + ": not all entries";
                       return;
                     }
                     const RowScores scores = ScoresOf(layer, position, dot_bound);
                     CheckNearTies(scores.score, scores.bound, chosen,
                                   HighestOf(scores.score, layer.top_k), where, report);
                   });
}

/// How far a score of a device of bfloat16 numbers is expected to be from that of a CPU in float32
/// which reads the same entries, as a share of its spread. A rounding to bfloat16 moves a vector by
/// 2^-9 of its length at most, and anywhere, so that a score moves by about 2^-9 of its spread. In
/// the first layer there are 8 of them (of x, its norm, the queries' latents, these normalised, the
/// queries, these rotated; of x and of keys), and 8 in each layer before (x, latents, queries,
/// output of attention; x, inner rows, two sums that read what was rounded): independent ones add
/// as squares, and 6 times that is far for a score. A layer may make errors larger, so some are
/// further.
inline double ScoreNearness(size_t layer) {
  return 6 * std::sqrt(8.0 + 8.0 * static_cast<double>(layer)) * 0x1p-9;
}

/// Of both runs over one request, the second of which read what the first chose: entries that one
/// of them alone chose have to be near-ties, by how far the scores of these very entries are apart.
/// The report counts scores that are not near, of which there are few where both have the same
/// numbers but for roundings.
inline ChoiceReport CheckNearChoices(const ChoiceLog& device, const ChoiceLog& exact,
                                     const DotBound& dot_bound) {
  return CheckRows(exact,
                   [&](size_t l, int32_t position, const std::string& where, ChoiceReport& report) {
                     const IndexedLayer& ours = device.layers().at(l);
                     const IndexedLayer& wanted = exact.layers()[l];
                     if (position < wanted.top_k) return;
                     const RowScores a = ScoresOf(ours, position, dot_bound);
                     const RowScores b = ScoresOf(wanted, position, Float32DotBound);
                     std::vector<double> bounds;
                     for (size_t j = 0; j < b.score.size(); ++j) {
                       const double away = std::abs(a.score[j] - b.score[j]);
                       const double nearness = away / (ScoreNearness(l) * b.spread[j]);
                       ++report.scores;
                       report.far_scores += nearness <= 1 ? 0 : 1;
                       report.furthest_score = std::max(report.furthest_score, nearness);
                       bounds.push_back(away + a.bound[j] + b.bound[j]);
                     }
                     CheckNearTies(b.score, bounds, ours.rows.at(position).chosen,
                                   wanted.rows.at(position).chosen, where, report);
                   });
}

}  // namespace outrider
