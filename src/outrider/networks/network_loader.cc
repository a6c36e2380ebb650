#include "outrider/networks/network_loader.h"

#include <utility>

#include "outrider/base/error.h"
#include "outrider/networks/deepseek_network.h"

namespace outrider {

namespace {

/// `Weights` is a family's; what is declared is checked against what the loader reads from.
template <typename Weights>
void DeclareAll(WeightLoader& loader, const ModelConfig& config, int num_modules,
                Weights& weights) {
  weights.Declare(loader, config, num_modules);
  loader.Check(config);
}

template <typename Weights>
WeightSizes Measure(const ModelConfig& config, int num_modules, const WeightSource& source,
                    WeightForm form) {
  Weights weights;
  WeightLoader loader(source, form);
  DeclareAll(loader, config, num_modules, weights);
  return loader.PackedSizes();
}

template <typename Weights>
NetworkWeightSizes MeasureParts(const ModelConfig& config, int num_modules,
                                const WeightSource& source, WeightForm form) {
  NetworkWeightSizes sizes;
  sizes.modules = Measure<Weights>(config, num_modules, source, form);
  sizes.target = Measure<Weights>(config, 0, source, form);
  for (const auto& [dtype, bytes] : sizes.target) sizes.modules[dtype] -= bytes;
  std::erase_if(sizes.modules, [](const auto& entry) { return entry.second == 0; });
  return sizes;
}

template <typename Weights>
Weights Load(const ModelConfig& config, int num_modules, const WeightSource& source,
             WeightForm form, ThreadPool& pool, const WeightLoader::Progress& progress) {
  Weights weights;
  WeightLoader loader(source, form);
  DeclareAll(loader, config, num_modules, weights);
  weights.memory = loader.Load(pool, progress);
  return weights;
}

}  // namespace

NetworkWeightSizes MeasureWeights(const ModelConfig& config, int num_modules,
                                  const WeightSource& source, WeightForm form) {
  switch (config.family) {
    case ModelFamily::kDeepSeekV2:
    case ModelFamily::kDeepSeekV3:
    case ModelFamily::kGlm4MoeLite:
      return MeasureParts<DeepSeekWeights>(config, num_modules, source, form);
  }
  OUTRIDER_CHECK(false);
}

std::unique_ptr<Network> LoadNetwork(const ModelConfig& config, int num_modules,
                                     const WeightSource& source, WeightForm form,
                                     const NetworkOptions& options,
                                     const WeightLoader::Progress& progress) {
  switch (config.family) {
    case ModelFamily::kDeepSeekV2:
    case ModelFamily::kDeepSeekV3:
    case ModelFamily::kGlm4MoeLite:
      return std::make_unique<DeepSeekNetwork>(
          config, Load<DeepSeekWeights>(config, num_modules, source, form, options.pool, progress),
          options);
  }
  OUTRIDER_CHECK(false);
}

}  // namespace outrider
