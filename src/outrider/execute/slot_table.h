// The request slots of an executor.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "outrider/execute/executor.h"
#include "outrider/execute/request_slot.h"

namespace outrider {

class SlotTable {
 public:
  /// eos_token_ids must outlive the table. A slot has room for the 1 + max_drafts tokens that a
  /// step may add before it is known which of them stay.
  SlotTable(int32_t num_slots, std::span<const int32_t> eos_token_ids, int32_t vocab_size,
            int32_t max_drafts)
      : slots_(static_cast<size_t>(num_slots)),
        eos_token_ids_(eos_token_ids),
        vocab_size_(vocab_size),
        max_drafts_(max_drafts) {}

  RequestSlot& At(int32_t slot) { return slots_[static_cast<size_t>(slot)]; }

  /// The slot must be free.
  void Admit(const SlotAdmission& admission) {
    At(admission.slot).Admit(admission, eos_token_ids_, vocab_size_, 1 + max_drafts_);
    ++num_taken_;
  }
  void Release(int32_t slot) {
    At(slot).Release();
    --num_taken_;
  }
  /// Whether requests get drafts at all.
  bool have_drafts() const { return max_drafts_ > 0; }
  bool AllFree() const { return num_taken_ == 0; }

  /// See RequestSlot::Take.
  void Take(RequestSlot& slot, size_t first, RequestResult& result) const {
    slot.Take(first, eos_token_ids_, result);
  }

 private:
  std::vector<RequestSlot> slots_;
  int32_t num_taken_ = 0;
  std::span<const int32_t> eos_token_ids_;
  int32_t vocab_size_;
  int32_t max_drafts_;
};

}  // namespace outrider
