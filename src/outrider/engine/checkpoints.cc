#include "outrider/engine/checkpoints.h"

#include <utility>

#include "outrider/base/error.h"
#include "outrider/networks/eagle3_draft_model.h"

namespace outrider {

namespace {

std::unique_ptr<WeightSource> OpenWeights(const EngineOptions& options,
                                          const std::string& directory, const ModelConfig& config,
                                          uint64_t seed) {
  return options.load_format == LoadFormat::kDummy ? MakeDummyWeights(config, seed)
                                                   : OpenCheckpoint(directory, config);
}

void OpenModel(const EngineOptions& options, Checkpoints& opened) {
  ModelConfig& config = opened.facts.config = ReadModelConfig(options.model);
  if (config.family == ModelFamily::kEagle3) {
    throw InvalidArgument(
        "{}: is a drafter: give the model that it was trained for, and --speculative-config "
        "'{{\"method\": \"eagle3\", \"model\": \"{}\"}}'",
        options.model, options.model);
  }
  opened.model = OpenWeights(options, options.model, config, options.seed);
  opened.facts.modules = CountMtpLayers(*opened.model, config);
}

void OpenDrafter(const EngineOptions& options, Checkpoints& opened) {
  const std::string& directory = options.speculation.model;
  DrafterFacts& facts = opened.facts.drafter.emplace(ReadModelConfig(directory));
  const std::string& architecture = facts.config.architecture;
  if (facts.config.family != ModelFamily::kEagle3) {
    throw InvalidArgument(
        "{}: is no EAGLE-3 drafter with latent attention: its architecture is {}, not "
        "Eagle3DeepseekV2ForCausalLM or Eagle3DeepseekV3ForCausalLM",
        directory, architecture.empty() ? "not given" : architecture);
  }
  opened.drafter = OpenWeights(options, directory, facts.config, options.seed + 1);
  facts.own_embedding = HasOwnEmbedding(*opened.drafter);
}

}  // namespace

Checkpoints OpenCheckpoints(const EngineOptions& options) {
  Checkpoints opened;
  OpenModel(options, opened);
  const SpeculationOptions& o = options.speculation;
  const bool drafts = o.num_speculative_tokens != 0;
  if (o.method == DraftMethod::kEagle3 && drafts) OpenDrafter(options, opened);
  return opened;
}

MeasuredWeights MeasureWeights(const Ops& ops, const Checkpoints& checkpoints,
                               const EnginePlan& plan, WeightForm form) {
  const ModelFacts& facts = checkpoints.facts;
  MeasuredWeights measured;
  measured.ranks.resize(static_cast<size_t>(plan.ranks));
  // The first rank comes last: its sizes stay.
  for (int32_t rank = plan.ranks - 1; rank >= 0; --rank) {
    form.place = {rank, plan.ranks};
    measured.model =
        MeasureWeights(ops, facts.config, plan.drafts.modules, *checkpoints.model, form);
    if (facts.drafter) {
      measured.drafter = MeasureEagle3(ops, facts.drafter->config, *checkpoints.drafter, form);
    }
    measured.ranks[static_cast<size_t>(rank)] = SumOf(measured.model.target) +
                                                SumOf(measured.model.modules) +
                                                SumOf(measured.drafter.modules);
  }
  return measured;
}

}  // namespace outrider
