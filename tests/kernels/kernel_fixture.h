// What the kernel tests share: every implemented table as a test parameter, random matrices, and
// comparison by bits.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "outrider/base/cpu_features.h"
#include "outrider/kernels/kernel_table.h"

namespace outrider {

/// The instruction sets of this machine.
inline std::vector<Isa> TestedIsas() {
  std::vector<Isa> isas;
  for (const Isa isa : kAllIsas) {
    if (isa <= DetectIsa()) isas.push_back(isa);
  }
  return isas;
}

/// A test that runs for every table; `kernels` is the one under test.
class KernelTest : public testing::TestWithParam<Isa> {
 protected:
  const KernelTable& kernels = GetKernels(GetParam());
  const KernelTable& reference = GetKernels(Isa::kReference);
  ThreadPool pool{2};
  ThreadPool single{1};
  std::mt19937 random{20240607};

  int Pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); }
};

inline std::string IsaTestName(const testing::TestParamInfo<Isa>& info) {
  return std::string(IsaName(info.param));
}

/// Owned rows with some distance between them.
struct TestMatrix {
  TestMatrix(int64_t rows, int64_t cols, int64_t gap = 0)
      : view_rows(rows),
        view_cols(cols),
        stride(cols + gap),
        values(static_cast<size_t>(rows * (cols + gap))) {}

  static TestMatrix Random(int64_t rows, int64_t cols, std::mt19937& random, int64_t gap = 0) {
    TestMatrix m(rows, cols, gap);
    std::normal_distribution<float> normal;
    for (float& v : m.values) v = normal(random);
    return m;
  }

  MatrixView<float> view() { return {values.data(), view_rows, view_cols, stride}; }
  MatrixView<const float> view() const { return {values.data(), view_rows, view_cols, stride}; }

  int64_t view_rows, view_cols, stride;
  std::vector<float> values;
};

inline bool SameBits(const float* a, const float* b, int64_t n) {
  return std::memcmp(a, b, static_cast<size_t>(n) * sizeof(float)) == 0;
}

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

}  // namespace outrider
