// Why a step verifies fewer drafts of a request than the engine's k.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace outrider {

/// What left a request the fewest drafts for its next step.
enum class DraftLimit : uint8_t {
  kNone,      // nothing: there are k, or the engine has no drafter
  kPrompt,    // the step ends the prompt; drafts follow a token that a step has drawn
  kSchedule,  // the draft schedule: adaptive, or by batch size
  kRequest,   // the request asked for fewer
  kLength,    // the request may get no more tokens than that
  kDrafter,   // the drafter: prompt lookup found nothing, or confidences do not pay
  kGrammar,   // the grammar refuses what was drafted
};

/// Drafts that are left after each limit, in the order in which they hold.
struct DraftCounts {
  int32_t most = 0;  // k
  int32_t scheduled = 0;
  int32_t requested = 0;
  int32_t useful = 0;
  int32_t proposed = 0;
  int32_t allowed = 0;
};

/// The last limit that left fewer drafts than those before it.
constexpr DraftLimit LimitOf(const DraftCounts& counts) {
  const std::array<int32_t, 5> left = {counts.scheduled, counts.requested, counts.useful,
                                       counts.proposed, counts.allowed};
  constexpr std::array<DraftLimit, 5> kLimits = {DraftLimit::kSchedule, DraftLimit::kRequest,
                                                 DraftLimit::kLength, DraftLimit::kDrafter,
                                                 DraftLimit::kGrammar};
  DraftLimit limit = DraftLimit::kNone;
  int32_t fewest = counts.most;
  for (size_t i = 0; i < left.size(); ++i) {
    if (left[i] >= fewest) continue;
    fewest = left[i];
    limit = kLimits[i];
  }
  return limit;
}

/// "prompt", "schedule", "request", "length", "drafter", "grammar"; "" for kNone.
constexpr std::string_view DraftLimitName(DraftLimit limit) {
  constexpr std::array<std::string_view, 7> kNames = {"",       "prompt",  "schedule", "request",
                                                      "length", "drafter", "grammar"};
  return kNames[static_cast<size_t>(limit)];
}

}  // namespace outrider
