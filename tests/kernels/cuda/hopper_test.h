// Base of the fixtures that need a GPU of compute capability 9.0: their tests skip without one.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

namespace outrider::cuda {

/// `Base` is ::testing::Test or a fixture with parameters.
template <typename Base = ::testing::Test>
class HopperTest : public Base {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no GPU";
    cudaDeviceProp properties;
    ASSERT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
    if (properties.major != 9) GTEST_SKIP() << "not a Hopper GPU: " << properties.name;
  }
};

}  // namespace outrider::cuda
