// Drafts of blocks that the GPU draws: tokens that stay on the device, and distributions that the
// host draws from. Needs a GPU of compute capability 9.0.
#include "outrider/ops/cuda/cuda_block_sampler.h"

#include <gtest/gtest.h>

#include "tests/kernels/cuda/hopper_test.h"
#include "tests/ops/block_draft_checks.h"

namespace outrider::cuda {
namespace {

class BlockSamplerTest : public HopperTest<> {};

TEST_F(BlockSamplerTest, TokensStayOnTheDevice) {
  const CudaOps gpu;
  block_draft_test::BlockDraftMachine draws(gpu, /*on_device=*/true);
  for (int round = 0; round < 20; ++round) draws.Check(/*distributions=*/false);
}

// A block that was launched before the host knew where it begins.
TEST_F(BlockSamplerTest, PositionsMoveBackByNumbersOnTheDevice) {
  const CudaOps gpu;
  block_draft_test::BlockDraftMachine draws(gpu, /*on_device=*/true, [&](int32_t place, int32_t n) {
    ASSERT_EQ(cudaMemcpyAsync(gpu.results().tokens() + place, &n, sizeof(n), cudaMemcpyHostToDevice,
                              gpu.stream()),
              cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(gpu.stream()), cudaSuccess);
  });
  for (int round = 0; round < 20; ++round) draws.Check(/*distributions=*/false);
}

TEST_F(BlockSamplerTest, TheHostDrawsWhereDistributionsAreWanted) {
  const CudaOps gpu;
  block_draft_test::BlockDraftMachine draws(gpu, /*on_device=*/true);
  for (int round = 0; round < 5; ++round) draws.Check(/*distributions=*/true);
}

}  // namespace
}  // namespace outrider::cuda
