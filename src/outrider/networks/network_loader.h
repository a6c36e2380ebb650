// Makes the network that a config describes from a checkpoint's weights.
#pragma once

#include <memory>
#include <vector>

#include "outrider/networks/network.h"
#include "outrider/ops/weight_loader.h"

namespace outrider {

struct NetworkWeightSizes {
  WeightSizes target;
  WeightSizes modules;
  std::vector<WeightGroup> groups;  // of both together
};

/// Sizes in memory of the weights, without reading their values. Throws the same errors as
/// LoadNetwork.
NetworkWeightSizes MeasureWeights(const Ops& ops, const ModelConfig& config, int num_modules,
                                  const WeightSource& source, const WeightForm& form);

/// Reads and packs the weights of the target and of `num_modules` MTP modules. Of several ranks it
/// reads the part of the one that options.device is. Throws Error that lists every tensor that is
/// missing or wrong.
std::unique_ptr<Network> LoadNetwork(const ModelConfig& config, int num_modules,
                                     const WeightSource& source, const WeightForm& form,
                                     const NetworkOptions& options,
                                     const WeightLoader::Progress& progress = nullptr);

}  // namespace outrider
