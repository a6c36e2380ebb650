#include "outrider/engine/plan/draft_plan.h"

#include <fmt/ranges.h>

#include <utility>

#include "outrider/base/error.h"
#include "outrider/checkpoint/hybrid_names.h"
#include "outrider/draft/block_drafter.h"
#include "outrider/draft/chain_drafter.h"
#include "outrider/draft/repeated_drafter.h"

namespace outrider {

namespace {

/// Drafts when neither the user nor a chain of modules says.
constexpr int32_t kDefaultDrafts = 3;

DraftPlan NoDrafts(Decisions& decisions, std::string why) {
  decisions.push_back({"drafter", "none", std::move(why)});
  return {};
}

DraftPlan PlanNgram(const SpeculationOptions& o, Decisions& decisions) {
  const int32_t k = o.num_speculative_tokens.value_or(kDefaultDrafts);
  decisions.push_back({"drafter", fmt::format("NgramDrafter, k = {}", k), "prompt lookup"});
  return {.type = DrafterType::kNgram, .k = k};
}

DraftPlan PlanEagle3(const EngineOptions& options, const ModelFacts& model, Decisions& decisions) {
  const SpeculationOptions& o = options.speculation;
  const ModelConfig& target = model.config;
  const ModelConfig& c = model.drafter->config;
  const auto check = [&](std::string_view key, int64_t value, int64_t needed) {
    if (value == needed) return;
    throw InvalidArgument("{}: \"{}\" is {}: a drafter for {} needs {}", o.model, key, value,
                          options.model, needed);
  };
  check("vocab_size", c.vocab_size, target.vocab_size);
  check("target_hidden_size", c.eagle3->target_hidden_size, target.hidden_size);
  if (!model.drafter->own_embedding) check("hidden_size", c.hidden_size, target.hidden_size);
  if (std::holds_alternative<GqaSpec>(c.layers.front().attention) &&
      options.attention_backend != AttentionBackend::kRagged) {
    throw InvalidArgument(
        "--attention-backend {} needs latent attention, which the drafter {} does not have: use "
        "ragged",
        AttentionBackendName(options.attention_backend), o.model);
  }
  DraftPlan plan = {.type = DrafterType::kRepeated,
                    .k = o.num_speculative_tokens.value_or(kDefaultDrafts),
                    .own_checkpoint = true,
                    .taps = Eagle3Taps(*c.eagle3, target.num_hidden_layers(),
                                       o.eagle_aux_hidden_state_layer_ids, o.model)};
  plan.reach = RepeatedDrafter::ReachOf(plan.k);
  decisions.push_back(
      {"drafter", fmt::format("RepeatedDrafter, k = {}", plan.k),
       fmt::format("one EAGLE-3 layer of {}, applied k times: it reads the outputs of layers {}",
                   o.model, fmt::join(plan.taps, ", "))});
  decisions.push_back(
      {"draft vocabulary",
       fmt::format("{} of {} tokens", c.eagle3->draft_vocab_size, target.vocab_size),
       "the drafter's own head"});
  if (c.max_position_embeddings < target.max_position_embeddings) {
    decisions.push_back(
        {"drafter's context", fmt::format("{} tokens", c.max_position_embeddings),
         "its max_position_embeddings: behind it drafts may be accepted less often; "
         "what is generated does not change"});
  }
  return plan;
}

DraftPlan PlanWithoutModules(const EngineOptions& options, const ModelConfig& config,
                             Decisions& decisions) {
  if (const auto wanted = options.speculation.num_speculative_tokens) {
    throw InvalidArgument(
        "num_speculative_tokens is {}, but {} holds no MTP layer: use 0, or the method ngram",
        *wanted, options.model);
  }
  DraftPlan plan = NoDrafts(decisions, "the checkpoint has no MTP layer");
  const int64_t declared = config.dspark ? config.dspark->stages : config.num_nextn_predict_layers;
  if (declared > 0) {
    plan.warning = fmt::format(
        "{}: config.json names {} {}, but the files hold none: nothing is drafted", options.model,
        declared, config.dspark ? "stages of a DSpark drafter" : "MTP modules");
  }
  return plan;
}

DraftPlan PlanDSpark(const EngineOptions& options, const ModelFacts& model, Decisions& decisions) {
  const SpeculationOptions& o = options.speculation;
  const DSparkSpec& dspark = *model.config.dspark;
  const auto block = static_cast<int32_t>(dspark.block_size);
  const int32_t k = o.num_speculative_tokens.value_or(block);
  if (k > block) {
    throw InvalidArgument(
        "num_speculative_tokens is {}, but the DSpark drafter of {} drafts blocks of {}: use 0 to "
        "{}",
        k, options.model, block, block);
  }
  if (o.draft_vocab_size) {
    throw InvalidArgument(
        "draft_vocab_size needs MTP modules, but {} has a DSpark drafter: leave it out",
        options.model);
  }
  decisions.push_back(
      {"drafter", fmt::format("BlockDrafter, k = {}", k),
       fmt::format("a DSpark drafter of {} stages for blocks of {}: it reads the outputs of "
                   "layers {}",
                   dspark.stages, block, fmt::join(dspark.taps, ", "))});
  return {.type = DrafterType::kBlocks,
          .k = k,
          .modules = model.modules,
          .reach = BlockDrafter::ReachOf(block)};
}

DraftPlan PlanModules(const EngineOptions& options, const ModelFacts& model, Decisions& decisions) {
  const auto wanted = options.speculation.num_speculative_tokens;
  if (model.modules == 1) {
    const int32_t k = wanted.value_or(kDefaultDrafts);
    decisions.push_back(
        {"drafter", fmt::format("RepeatedDrafter, k = {}", k), "one MTP module, applied k times"});
    return {
        .type = DrafterType::kRepeated, .k = k, .modules = 1, .reach = RepeatedDrafter::ReachOf(k)};
  }
  const int32_t k = wanted.value_or(model.modules);
  if (k > model.modules) {
    throw InvalidArgument(
        "num_speculative_tokens is {}, but {} has {} chained MTP modules: use 0 to {}", k,
        options.model, model.modules, model.modules);
  }
  decisions.push_back({"drafter", fmt::format("ChainDrafter, k = {}", k),
                       fmt::format("{} MTP modules, each reads the one before", model.modules)});
  return {.type = DrafterType::kChain,
          .k = k,
          .modules = k,
          .reach = ChainDrafter::ReachOf(k, options.speculation.draft_form)};
}

DraftPlan PlanDrafter(const EngineOptions& options, const ModelFacts& model, Decisions& decisions) {
  const SpeculationOptions& o = options.speculation;
  if (o.method == DraftMethod::kEagle3 && IsHybrid(model.config.family)) {
    throw InvalidArgument(
        "the method eagle3 is not supported yet for networks with linear attention, as {} is: use "
        "the method ngram",
        options.model);
  }
  if (o.num_speculative_tokens == 0) return NoDrafts(decisions, "num_speculative_tokens is 0");
  if (o.method == DraftMethod::kNgram) return PlanNgram(o, decisions);
  if (o.method == DraftMethod::kEagle3) return PlanEagle3(options, model, decisions);
  if (model.modules == 0) return PlanWithoutModules(options, model.config, decisions);
  if (model.config.dspark) return PlanDSpark(options, model, decisions);
  return PlanModules(options, model, decisions);
}

void PlanDraftVocabulary(const SpeculationOptions& o, int64_t vocab_size, const DraftPlan& plan,
                         Decisions& decisions) {
  if (!o.draft_vocab_size) return;
  const int64_t size = *o.draft_vocab_size;
  if (size < 1 || size > vocab_size) {
    throw InvalidArgument("draft_vocab_size is {}: it must be 1 to {}, the vocabulary's size", size,
                          vocab_size);
  }
  if (plan.k == 0) return;
  decisions.push_back(
      {"draft vocabulary", fmt::format("the first {} of {} tokens", size, vocab_size),
       "draft_vocab_size: drafters read so many rows of the head, other tokens are not drafted"});
}

AcceptanceOptions PlanAcceptance(const SpeculationOptions& o, int32_t k, Decisions& decisions) {
  AcceptanceOptions acceptance = {.method = o.rejection_sample_method, .rates = {}};
  if (k == 0) return acceptance;
  if (o.rejection_sample_method == RejectionMethod::kSynthetic) {
    acceptance.rates = o.synthetic_acceptance_length
                           ? RatesOfLength(*o.synthetic_acceptance_length, k)
                           : o.synthetic_acceptance_rates;
    CheckRates(acceptance.rates, k);
    decisions.push_back(
        {"verification", "synthetic", "drafts are accepted at given rates: for benchmarks only"});
  } else if (o.rejection_sample_method == RejectionMethod::kStandard) {
    decisions.push_back({"verification", "standard",
                         "rejection sampling: what is sampled depends on drafts and batches"});
  } else {
    decisions.push_back(
        {"verification", "match", "a draft counts when the target draws the same token"});
  }
  return acceptance;
}

void PlanDraftLength(const EngineOptions& options, const DraftPlan& plan, Decisions& decisions) {
  const SpeculationOptions& o = options.speculation;
  if (plan.k == 0) {
    if (o.adaptive.value_or(false) && o.num_speculative_tokens != 0) {
      throw InvalidArgument("adaptive is true, but {} holds no MTP layer: use the method ngram",
                            options.model);
    }
    return;
  }
  if (o.IsAdaptive()) {
    decisions.push_back({"draft length", fmt::format("adaptive, 0 to {}", plan.k),
                         "chosen every step by acceptance and by the batch size; step times are "
                         "measured at start"});
    if (plan.type == DrafterType::kBlocks) {
      decisions.push_back(
          {"draft confidences", o.enable_adaptive_verification ? "used" : "not used",
           o.enable_adaptive_verification
               ? "drafts that do not pay by them and by the step times are not verified"
               : "enable_adaptive_verification is false"});
    }
  } else if (!o.num_speculative_tokens_per_batch_size.empty()) {
    decisions.push_back({"draft length", "by batch size", "num_speculative_tokens_per_batch_size"});
  } else {
    decisions.push_back({"draft length", fmt::format("always {}", plan.k),
                         o.num_speculative_tokens ? "num_speculative_tokens"
                         : o.adaptive
                             ? "adaptive is false"
                             : "adaptive is the default with mtp or eagle3 and match only"});
  }
}

}  // namespace

DraftPlan PlanDrafts(const EngineOptions& options, const ModelFacts& model, Decisions& decisions) {
  const SpeculationOptions& o = options.speculation;
  DraftPlan plan = PlanDrafter(options, model, decisions);
  PlanDraftVocabulary(o, model.config.vocab_size, plan, decisions);
  plan.acceptance = PlanAcceptance(o, plan.k, decisions);
  PlanDraftLength(options, plan, decisions);
  return plan;
}

}  // namespace outrider
