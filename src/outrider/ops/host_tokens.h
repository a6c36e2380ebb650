// The tokens of a step's rows on the host, as StepInputs changes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/batch/token_ref.h"

namespace outrider {

class HostTokens {
 public:
  /// Takes the tokens of a layout, which must stay as it is.
  void Assign(std::span<const TokenRef> tokens) { tokens_ = tokens; }

  /// See StepInputs::ShiftTokens.
  void Shift(std::span<const int32_t> sources, std::span<const TokenRef> tokens) {
    OUTRIDER_CHECK(sources.size() == tokens_.size());
    next_shifted_.clear();
    for (const int32_t source : sources) {
      const std::span<const TokenRef> from = source >= 0 ? tokens_ : tokens;
      const auto i = static_cast<size_t>(source >= 0 ? source : -1 - source);
      OUTRIDER_CHECK(i < from.size());
      next_shifted_.push_back(from[i]);
    }
    shifted_.swap(next_shifted_);
    tokens_ = shifted_;
  }

  std::span<const TokenRef> tokens() const { return tokens_; }  // [rows]

 private:
  std::span<const TokenRef> tokens_;  // of the layout, or shifted_
  std::vector<TokenRef> shifted_;
  std::vector<TokenRef> next_shifted_;
};

}  // namespace outrider
