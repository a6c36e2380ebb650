// What drafts, how many tokens, and when a draft counts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "outrider/draft/drafter.h"
#include "outrider/engine/engine_options.h"
#include "outrider/engine/plan/decision.h"
#include "outrider/engine/plan/facts.h"
#include "outrider/sampling/acceptance.h"

namespace outrider {

enum class DrafterType : uint8_t {
  kNone,
  kNgram,     // NgramDrafter
  kChain,     // ChainDrafter: the model's modules
  kRepeated,  // RepeatedDrafter: the model's only module, or a drafter with a checkpoint of its own
  kBlocks,    // BlockDrafter: the model's DSpark stages
};

struct DraftPlan {
  DrafterType type = DrafterType::kNone;
  int32_t k = 0;                   // most drafts of a request in a step; 0: kNone
  int32_t modules = 0;             // of the model's own that are loaded
  bool own_checkpoint = false;     // what drafts has a checkpoint of its own
  std::vector<int32_t> taps = {};  // own_checkpoint: Eagle3Taps
  DrafterReach reach = {};
  AcceptanceOptions acceptance = {};
  std::string warning = {};  // of what the config promises and the files lack; empty: nothing

  /// Whether the drafter has entries in the cache.
  bool HasModules() const { return modules > 0 || own_checkpoint; }
};

/// Throws Error for more drafts than the model's modules give, for a drafter that was made for
/// another model, and for a vocabulary of drafts, acceptance rates or an adaptive length that do
/// not fit the drafter. The options are as CheckOptions wants them.
DraftPlan PlanDrafts(const EngineOptions& options, const ModelFacts& model, Decisions& decisions);

}  // namespace outrider
