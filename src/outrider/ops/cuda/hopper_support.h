// What a Hopper GPU's operations (cuda_ops.h) can run. Part of every build, with or without CUDA,
// as docs/gpu.md is compared with it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "outrider/checkpoint/model_config.h"
#include "outrider/ops/support.h"

namespace outrider::cuda {

// Sizes that kernels are made for.
inline constexpr int kHopperLatent = 512;
inline constexpr int kHopperRotary = 64;
inline constexpr int kHopperHeadDim = 128;    // of grouped-query attention, of linear attention
inline constexpr int kHopperConv = 4;         // rows of linear attention's short convolution
inline constexpr int kHopperQueryHeads = 64;  // that share a key head, at most
inline constexpr int kHopperIndexDim = 128;   // of an indexer's heads and keys
inline constexpr int kHopperChosen = 4096;    // entries that an indexer chooses for a row, at most
inline constexpr std::array<int64_t, 4> kHopperPageTokens = {16, 32, 64, 256};  // latent ones
inline constexpr int kMostRows = 16384;     // of a step: what the router's kernel takes
inline constexpr int kMostRequests = 4096;  // of a step: what attention's kernels take

/// Layers that run together.
struct AskedNetwork {
  const ModelConfig& config;
  int num_mtp_modules = 0;               // that are used
  const ModelConfig* drafter = nullptr;  // of a drafter with a checkpoint of its own
};

/// Rules about every layer: of the target, its modules and a drafter.
std::span<const Rule<LayerSpec>> HopperLayerRules();
/// Rules about every checkpoint.
std::span<const Rule<ModelConfig>> HopperModelRules();
/// Rules about target, modules and drafter together.
std::span<const Rule<AskedNetwork>> HopperNetworkRules();

/// The first thing that a network asks for and the GPU lacks; nothing: it runs.
std::optional<Lack> LackOnHopper(const AskedNetwork& network);

/// What a network asks for and the GPU computes in a way of its own, each once.
std::vector<std::string> OwnWaysOfHopper(const AskedNetwork& network);

/// Throws Error for a network that does not run, with what would.
void CheckRunsOnHopper(const AskedNetwork& network);

}  // namespace outrider::cuda
