// Log-probabilities of a network on the device beside those of the CPU in float32.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "tests/networks/cuda/device_run.h"

namespace outrider::cuda {

/// How far the device's log-probabilities of some rows are from float32's.
struct LogprobErrors {
  double worst = 0;   // of a row's likeliest token and of the text's next one
  int near_ties = 0;  // rows whose likeliest token is another one

  /// Judges rows of `vocab` logits each; next[i]: the token behind row i. Every error must be below
  /// 2e-2, and so the two candidates of a near-tie less than twice that apart. Near-ties are
  /// printed.
  void Judge(std::span<const float> device, std::span<const float> exact, size_t vocab,
             std::span<const int32_t> next, const std::string& what) {
    constexpr double kMost = 2e-2;
    ASSERT_EQ(device.size(), exact.size());
    for (size_t r = 0; r < exact.size() / vocab; ++r) {
      const std::vector<double> a = LogSoftmax(device.subspan(r * vocab, vocab));
      const std::vector<double> b = LogSoftmax(exact.subspan(r * vocab, vocab));
      const auto likeliest = static_cast<size_t>(std::max_element(b.begin(), b.end()) - b.begin());
      const auto ours = static_cast<size_t>(std::max_element(a.begin(), a.end()) - a.begin());
      std::vector<size_t> tokens = {likeliest, ours};
      if (r < next.size()) tokens.push_back(static_cast<size_t>(next[r]));
      for (const size_t token : tokens) {
        const double error = std::abs(a[token] - b[token]);
        EXPECT_LT(error, kMost) << what << ", row " << r << ", token " << token << ": " << b[token];
        worst = std::max(worst, std::isnan(error) ? INFINITY : error);
      }
      if (ours == likeliest) continue;
      ++near_ties;
      std::printf("near-tie: %s, row %zu: token %zu instead of %zu, which is likelier by %.4f\n",
                  what.c_str(), r, ours, likeliest, b[likeliest] - b[ours]);
    }
  }
};

}  // namespace outrider::cuda
