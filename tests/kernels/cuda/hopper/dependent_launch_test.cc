// Kernels that may start while the one before them ends: a chain of them, replayed as a graph many
// times, leaves the bits that it leaves when the host waits after every launch. Needs a GPU of
// compute capability 9.0.
#include "outrider/kernels/cuda/hopper/dependent_launch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "outrider/kernels/cuda/mla_decode/head_projection.h"
#include "outrider/kernels/cuda/moe/expert_router.h"
#include "outrider/kernels/cuda/rows/norm_rows.h"
#include "outrider/kernels/cuda/rows/step_rows.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/device_runs.h"
#include "tests/kernels/cuda/hopper_test.h"

namespace outrider::cuda {
namespace {

class DependentLaunchTest : public HopperTest<> {};

// Every kernel reads what the one before it or the one before that has written, and writes what
// others of the layer before have read.
TEST_F(DependentLaunchTest, AChainOfLayersKeepsItsBits) {
  constexpr int kHidden = 2048;
  constexpr int kHeads = 16;
  constexpr int kLayers = 6;
  constexpr int kExperts = 64;
  constexpr int kTopK = 6;
  std::mt19937 random(71);
  for (const int rows : {1, 5, 40, 130}) {
    const auto count = static_cast<size_t>(rows);
    const std::vector<float> start = NormalFloats(random, count * kHidden);
    const DeviceArray<float> x(start), norm(NormalFloats(random, kHidden)),
        latent_norm(NormalFloats(random, 512)), angles(NormalFloats(random, count * 32)),
        weights(count * kTopK);
    const DeviceArray<uint16_t> up(NormalBf16(random, size_t{kHeads} * 512 * 128, 0.1F)),
        down(NormalBf16(random, size_t{kHeads} * 128 * 512, 0.05F));
    const DeviceArray<uint16_t> h(count * kHidden), wide(count * kHeads * 512), y(count * kHidden),
        cache(size_t{kLayers} * rows * 576);
    std::vector<int64_t> slots(count);
    for (int i = 0; i < rows; ++i) slots[i] = rows - 1 - i;
    const DeviceArray<int64_t> d_slots(slots);
    const DeviceArray<int32_t> ids(count * kTopK), pairs(count * kTopK), offsets(kExperts + 1),
        num_tiles(1);
    const DeviceArray<ExpertTile> tiles(MaxExpertTiles(rows, kTopK, kExperts, 8));
    auto launch = [&](cudaStream_t stream, bool wait) {
      auto done = [&](cudaError_t error) {
        CudaOk(error, "launch");
        if (wait) CudaOk(cudaStreamSynchronize(stream), "wait");
      };
      for (int layer = 0; layer < kLayers; ++layer) {
        done(NormRows({.num_rows = rows,
                       .hidden = kHidden,
                       .x = x.data(),
                       .terms = y.data(),
                       .num_terms = layer > 0 ? 1 : 0,
                       .norm_weight = norm.data(),
                       .out = h.data()},
                      stream));
        done(WriteLatentRows({.num_rows = rows,
                              .row_stride = kHidden,
                              .kv = h.data(),
                              .weight = latent_norm.data(),
                              .rotary = {.cos = angles.data(), .sin = angles.data()},
                              .slot_mapping = d_slots.data(),
                              .cache = cache.data() + static_cast<size_t>(layer) * rows * 576},
                             stream));
        done(ProjectHeads({.num_tokens = rows,
                           .heads = kHeads,
                           .k = 128,
                           .n = 512,
                           .x = h.data(),
                           .x_token_stride = kHidden,
                           .x_head_stride = 128,
                           .w = up.data(),
                           .y = wide.data(),
                           .y_token_stride = kHeads * 512,
                           .y_head_stride = 512},
                          stream));
        done(RouteExperts({.num_rows = rows,
                           .experts = kExperts,
                           .top_k = kTopK,
                           .scores = ExpertScores::kSoftmax,
                           .tile_rows = 8,
                           .logits = x.data()},
                          {.expert_ids = ids.data(),
                           .weights = weights.data(),
                           .offsets = offsets.data(),
                           .pairs = pairs.data(),
                           .tiles = tiles.data(),
                           .num_tiles = num_tiles.data()},
                          stream));
        done(ProjectHeads({.num_tokens = rows,
                           .heads = kHeads,
                           .k = 512,
                           .n = 128,
                           .x = wide.data(),
                           .x_token_stride = kHeads * 512,
                           .x_head_stride = 512,
                           .w = down.data(),
                           .y = y.data(),
                           .y_token_stride = kHidden,
                           .y_head_stride = 128},
                          stream));
      }
    };
    auto reset = [&] {
      CudaOk(
          cudaMemcpy(x.data(), start.data(), start.size() * sizeof(float), cudaMemcpyHostToDevice),
          "reset");
      CudaOk(cudaMemset(cache.data(), 0xFF, cache.size() * 2), "reset");
      CudaOk(cudaDeviceSynchronize(), "reset");
    };
    launch(nullptr, /*wait=*/true);
    const std::vector<float> wanted_x = x.Download(), wanted_weights = weights.Download();
    const std::vector<uint16_t> wanted_cache = cache.Download();
    const std::vector<int32_t> wanted_pairs = pairs.Download();
    for (int replay = 0; replay < 20; ++replay) {
      reset();
      RunOnDevice([&](cudaStream_t stream) { launch(stream, /*wait=*/false); }, 1);
      ASSERT_EQ(x.Download(), wanted_x) << rows << " rows, replay " << replay;
      ASSERT_EQ(cache.Download(), wanted_cache) << rows << " rows, replay " << replay;
      ASSERT_EQ(pairs.Download(), wanted_pairs) << rows << " rows, replay " << replay;
      ASSERT_EQ(weights.Download(), wanted_weights) << rows << " rows, replay " << replay;
    }
    for (const float value : wanted_x) ASSERT_TRUE(std::isfinite(value)) << rows << " rows";
  }
}

}  // namespace
}  // namespace outrider::cuda
