#include "outrider/networks/network_loader.h"

#include <utility>

#include "outrider/base/error.h"
#include "outrider/checkpoint/rank_config.h"
#include "outrider/networks/deepseek_network.h"
#include "outrider/networks/deepseek_v4_network.h"
#include "outrider/networks/hybrid_weights.h"
#include "outrider/networks/step3p5_network.h"

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
WeightSizes Measure(WeightLoader& loader, const ModelConfig& config, int num_modules,
                    std::vector<WeightGroup>& groups) {
  Weights weights;
  DeclareAll(loader, config, num_modules, weights);
  groups = loader.Groups();
  return loader.PackedSizes();
}

template <typename Weights>
Weights Load(WeightLoader& loader, const ModelConfig& config, int num_modules, const Device& device,
             const WeightLoader::Progress& progress) {
  Weights weights;
  DeclareAll(loader, config, num_modules, weights);
  weights.memory = loader.Load(device, progress);
  return weights;
}

}  // namespace

NetworkWeightSizes MeasureWeights(const Ops& ops, const ModelConfig& config, int num_modules,
                                  const WeightSource& source, const WeightForm& form) {
  std::vector<WeightGroup> groups;  // of what was measured last
  const auto measure = [&](int modules) {
    const std::unique_ptr<WeightLoader> loader = ops.MakeWeightLoader(source, form);
    switch (config.family) {
      case ModelFamily::kDeepSeekV2:
      case ModelFamily::kDeepSeekV3:
      case ModelFamily::kGlm4MoeLite:
        return Measure<DeepSeekWeights>(*loader, config, modules, groups);
      case ModelFamily::kDeepSeekV4:
        return Measure<DeepSeekV4Weights>(*loader, config, modules, groups);
      case ModelFamily::kStep3p5:
        return Measure<Step3p5Weights>(*loader, config, modules, groups);
      case ModelFamily::kKimiLinear:
      case ModelFamily::kBailingHybrid:
        return Measure<HybridWeights>(*loader, config, modules, groups);
      case ModelFamily::kEagle3:
        break;  // no network, but a draft model
    }
    OUTRIDER_CHECK(false);
  };
  NetworkWeightSizes sizes;
  sizes.modules = measure(num_modules);
  sizes.groups = std::move(groups);
  sizes.target = measure(0);
  for (const auto& [dtype, bytes] : sizes.target) sizes.modules[dtype] -= bytes;
  std::erase_if(sizes.modules, [](const auto& entry) { return entry.second == 0; });
  return sizes;
}

std::unique_ptr<Network> LoadNetwork(const ModelConfig& config, int num_modules,
                                     const WeightSource& source, const WeightForm& form,
                                     const NetworkOptions& options,
                                     const WeightLoader::Progress& progress) {
  const Device& device = options.device;
  WeightForm own_form = form;
  own_form.place = device.place();
  const std::unique_ptr<WeightLoader> loader = device.ops.MakeWeightLoader(source, own_form);
  const ModelConfig own = OfOneRank(config, own_form.head_ranks());
  switch (config.family) {
    case ModelFamily::kDeepSeekV2:
    case ModelFamily::kDeepSeekV3:
    case ModelFamily::kGlm4MoeLite:
      return std::make_unique<DeepSeekNetwork>(
          own, Load<DeepSeekWeights>(*loader, config, num_modules, device, progress), options);
    case ModelFamily::kDeepSeekV4:
      return std::make_unique<DeepSeekV4Network>(
          own, Load<DeepSeekV4Weights>(*loader, config, num_modules, device, progress), options);
    case ModelFamily::kStep3p5:
      return std::make_unique<Step3p5Network>(
          own, Load<Step3p5Weights>(*loader, config, num_modules, device, progress), options);
    case ModelFamily::kKimiLinear:
    case ModelFamily::kBailingHybrid:
      return std::make_unique<DeepSeekNetwork>(
          own, Load<HybridWeights>(*loader, config, num_modules, device, progress), options);
    case ModelFamily::kEagle3:
      break;
  }
  OUTRIDER_CHECK(false);
}

}  // namespace outrider
