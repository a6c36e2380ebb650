// Numbers that a device keeps by request slot: the last token, the drafts behind it, and the
// results of the last verification. Passes read them on the device. Until the host has read them it
// knows only their places (TokenRef::At, RowCopies::AddFromPlace).
#pragma once

#include <cstdint>

namespace outrider {

/// Where verification leaves its results; negative: nowhere.
struct VerifyPlaces {
  int32_t last_token = -1;  // what was drawn behind the accepted drafts
  int32_t drawn = -1;       // first of a row of places: what was drawn in each verify row
  int32_t rejected = -1;    // how many drafts were not accepted
  int32_t last_row = -1;    // the output row behind which the last token was drawn
};

/// The places of a slot. All slots have one max_drafts.
class SlotPlaces {
 public:
  constexpr SlotPlaces(int32_t slot, int32_t max_drafts)
      : first_(slot * PerSlot(max_drafts)), max_drafts_(max_drafts) {}

  static constexpr int32_t PerSlot(int32_t max_drafts) { return 4 + 2 * max_drafts; }

  constexpr int32_t last_token() const { return first_; }
  constexpr int32_t rejected() const { return first_ + 1; }
  constexpr int32_t last_row() const { return first_ + 2; }
  constexpr int32_t draft(int32_t index) const { return first_ + 3 + index; }
  constexpr int32_t drawn(int32_t row) const { return first_ + 3 + max_drafts_ + row; }

  constexpr VerifyPlaces of_verification() const {
    return {last_token(), drawn(0), rejected(), last_row()};
  }

 private:
  int32_t first_;
  int32_t max_drafts_;
};

}  // namespace outrider
