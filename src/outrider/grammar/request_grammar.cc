#include "outrider/grammar/request_grammar.h"

#include <algorithm>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/sampling/token_mask.h"

namespace outrider {

namespace {

constexpr uint32_t kAll = ~uint32_t{0};

/// How much of `pattern` a text ends with after `token`, when it ended with `matched` tokens of it
/// before; `borders` are those of the pattern's beginnings.
int32_t Match(std::span<const int32_t> pattern, std::span<const int32_t> borders, int32_t matched,
              int32_t token) {
  while (matched > 0 && pattern[static_cast<size_t>(matched)] != token) {
    matched = borders[static_cast<size_t>(matched) - 1];
  }
  return pattern[static_cast<size_t>(matched)] == token ? matched + 1 : 0;
}

/// For each beginning of `pattern`, the length of the longest shorter beginning that it ends with
/// (Knuth, Morris, Pratt).
std::vector<int32_t> Borders(std::span<const int32_t> pattern) {
  std::vector<int32_t> borders;
  borders.reserve(pattern.size());
  for (size_t i = 0; i < pattern.size(); ++i) {
    borders.push_back(i == 0 ? 0 : Match(pattern, borders, borders.back(), pattern[i]));
  }
  return borders;
}

bool Contains(std::span<const int32_t> tokens, int32_t token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

}  // namespace

RequestGrammar::RequestGrammar(const GrammarConstraint& constraint,
                               std::span<const int32_t> eos_token_ids, bool ignore_eos,
                               std::span<const int32_t> stop_token_ids)
    : forced_tokens_(constraint.forced_tokens),
      start_after_(constraint.start_after),
      borders_(Borders(start_after_)),
      eos_token_ids_(eos_token_ids.begin(), eos_token_ids.end()),
      end_token_ids_(stop_token_ids.begin(), stop_token_ids.end()) {
  if (!ignore_eos) {
    end_token_ids_.insert(end_token_ids_.end(), eos_token_ids.begin(), eos_token_ids.end());
  }
  if (constraint.grammar != nullptr) matcher_.emplace(constraint.grammar);
  OUTRIDER_CHECK(matcher_.has_value() == forced_tokens_.empty());
  place_.started = start_after_.empty();
  not_before_ = constraint.not_before;
  for (const std::vector<int32_t>& ends : {eos_token_ids_, end_token_ids_}) {
    for (const int32_t token : ends) {
      // What the thinking ends with has to come, even if it ends the request.
      if (!Contains(start_after_, token)) not_before_.push_back(token);
    }
  }
}

bool RequestGrammar::Ends(int32_t token) const { return Contains(end_token_ids_, token); }

bool RequestGrammar::IsWhole() const {
  if (matcher_) return matcher_->complete();
  return std::cmp_equal(place_.num_accepted, forced_tokens_.size());
}

// Goes one token on in the grammar's text.
bool RequestGrammar::Accept(int32_t token) {
  if (matcher_) return matcher_->Accept(token);
  return !IsWhole() && forced_tokens_[static_cast<size_t>(place_.num_accepted)] == token;
}

// Goes one token on; false, and nothing changes, when it is not allowed.
bool RequestGrammar::Step(int32_t token) {
  if (!place_.started) {
    if (Contains(not_before_, token)) return false;
    place_.num_matched = Match(start_after_, borders_, place_.num_matched, token);
    place_.started = place_.num_matched == static_cast<int32_t>(start_after_.size());
  } else if (!(Ends(token) && IsWhole())) {
    if (!Accept(token)) return false;
    ++place_.num_accepted;
  }
  place_.ended = Ends(token);
  return true;
}

void RequestGrammar::ReturnTo(const Place& place) {
  if (matcher_ && place_.num_accepted > place.num_accepted) {
    matcher_->Rollback(place_.num_accepted - place.num_accepted);
  }
  place_ = place;
}

bool RequestGrammar::Advance(std::span<const int32_t> tokens) {
  return std::all_of(tokens.begin(), tokens.end(), [this](int32_t token) { return Step(token); });
}

size_t RequestGrammar::CountAllowed(std::span<const int32_t> drafts) {
  const Place before = place_;
  size_t count = 0;
  while (count < drafts.size() && !place_.ended && Step(drafts[count])) ++count;
  ReturnTo(before);
  return count;
}

void RequestGrammar::FillMasks(std::span<const int32_t> drafts, MatrixView<uint32_t> masks) {
  OUTRIDER_CHECK(masks.rows == static_cast<int64_t>(drafts.size()) + 1);
  const Place before = place_;
  bool possible = true;
  for (int64_t j = 0; j < masks.rows; ++j) {
    const std::span<uint32_t> mask(masks.row(j), static_cast<size_t>(masks.cols));
    possible = possible && (j == 0 || Step(drafts[static_cast<size_t>(j) - 1])) && !place_.ended;
    if (possible) {
      FillMask(mask);
    } else {
      std::fill(mask.begin(), mask.end(), kAll);
    }
  }
  ReturnTo(before);
}

void RequestGrammar::FillMask(std::span<uint32_t> mask) {
  if (!place_.started) {
    std::fill(mask.begin(), mask.end(), kAll);
    for (const int32_t token : not_before_) SetAllowed(mask, token, false);
    return;
  }
  if (!matcher_) {
    // The row after the last token is not drawn from.
    std::fill(mask.begin(), mask.end(), IsWhole() ? kAll : 0);
    if (!IsWhole()) {
      SetAllowed(mask, forced_tokens_[static_cast<size_t>(place_.num_accepted)], true);
    }
    return;
  }
  matcher_->FillMask(mask);
  for (const int32_t token : eos_token_ids_) SetAllowed(mask, token, false);
  if (!IsWhole()) return;
  for (const int32_t token : end_token_ids_) SetAllowed(mask, token, true);
}

}  // namespace outrider
