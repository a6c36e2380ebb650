// What tests of ranks on GPUs share, on one GPU and on several.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/kernels/cuda/hopper_test.h"

namespace outrider::cuda {

/// Steps of ranks wait for each other on the GPU, so each rank's stream needs a queue of its own
/// there. Before anything asks for the GPU.
inline const int kManyQueues = setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);

inline int NumGpus() {
  int count = 0;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  return count;
}

/// Base of the fixtures whose ranks have a GPU each. The parameter is their number: tests skip
/// where there are fewer GPUs.
class SeveralGpusTest : public HopperTest<::testing::TestWithParam<int>> {
 protected:
  void SetUp() override {
    HopperTest<::testing::TestWithParam<int>>::SetUp();
    if (IsSkipped()) return;
    const int count = NumGpus();
    if (count < GetParam()) GTEST_SKIP() << "needs " << GetParam() << " GPUs, there are " << count;
  }
};

}  // namespace outrider::cuda
