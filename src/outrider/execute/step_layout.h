// The requests of a plan that run in a step, and their rows. The plan has bounds; the slots have
// the numbers. Every rank runs this layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "outrider/batch/batch_layout.h"
#include "outrider/execute/executor.h"
#include "outrider/execute/request_slot.h"
#include "outrider/execute/slot_table.h"

namespace outrider {

class StepLayout {
 public:
  explicit StepLayout(std::vector<CacheGroupSpec> groups) : rows_(std::move(groups)) {}

  /// Replaces the layout. results [requests of the plan] are reset and `ran` is set; result() leads
  /// to them until the next call. Reuses memory.
  void Assign(const StepPlan& plan, SlotTable& slots, std::span<RequestResult> results);

  bool empty() const { return requests_.empty(); }
  /// Rows of the requests that run; RequestRows::work_index names a request below.
  const BatchLayout& rows() const { return rows_; }
  std::span<const RequestRows> requests() const { return rows_.requests(); }

  const RequestWork& work(const RequestRows& rows) const { return work_[Index(rows)]; }
  RequestSlot& slot(const RequestRows& rows) const { return *requests_[Index(rows)].slot; }
  RequestResult& result(const RequestRows& rows) const { return *requests_[Index(rows)].result; }
  /// The request's place in the plan.
  size_t plan_index(const RequestRows& rows) const { return requests_[Index(rows)].plan_index; }
  /// Whether a request asks for the experts of its tokens.
  bool tells_experts() const { return tells_experts_; }
  /// As the plan says.
  bool publishes(const RequestRows& rows) const { return requests_[Index(rows)].publishes; }

 private:
  struct Request {
    RequestSlot* slot = nullptr;
    RequestResult* result = nullptr;
    size_t plan_index = 0;
    bool publishes = false;
  };

  static size_t Index(const RequestRows& rows) { return static_cast<size_t>(rows.work_index); }

  BatchLayout rows_;
  std::vector<RequestWork> work_;
  std::vector<Request> requests_;  // by index of the work
  bool tells_experts_ = false;
};

}  // namespace outrider
