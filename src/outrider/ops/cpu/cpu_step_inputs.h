// The CPU's StepInputs: views of the layout, and requests as the kernels of attention take them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "outrider/kernels/kernel_table.h"
#include "outrider/ops/host_tokens.h"
#include "outrider/ops/step_inputs.h"

namespace outrider {
template <typename Inputs>
class OwnPart;
}

namespace outrider::cpu {

class CpuStepInputs : public StepInputs {
 public:
  CpuStepInputs();
  ~CpuStepInputs() override;

  void ShiftTokens(std::span<const int32_t> sources, TokenRefs tokens) override {
    tokens_.Shift(sources, tokens);
  }

  const OwnRows* own() const override;

  std::span<const TokenRef> tokens() const { return tokens_.tokens(); }  // [rows]
  std::span<const int32_t> positions() const { return positions_; }      // [rows]
  std::span<const RequestRows> requests() const { return requests_; }    // of the layout
  /// [rows] of a cache group; negative: the row writes nothing.
  const int64_t* slots(int32_t group) const { return of(group).slots; }

  /// The requests of each kind of attention, with the block tables of a cache group.
  std::span<const AttentionSpan> one_path(int32_t group) const { return of(group).one_path; }
  /// Rows count from decode_rows().first on.
  std::span<const AttentionSpan> decode(int32_t group) const { return of(group).decode; }
  std::span<const AttentionSpan> prompts(int32_t group) const { return of(group).prompts; }
  /// Decode requests that the decode kernel does not take.
  std::span<const AttentionSpan> left_over(int32_t group) const { return of(group).left_over; }

  /// 0: the decode kernel takes requests of any lengths. Else it takes one length only: requests
  /// have it, or with pads() at most that.
  int32_t uniform_length() const { return uniform_length_; }
  bool pads() const { return pads_; }

 protected:
  void AssignRows(const BatchLayout& layout, const AttentionPlan& plan, RowCount count,
                  std::span<const int32_t> places) override;

 private:
  struct Group {
    const int64_t* slots = nullptr;
    std::vector<AttentionSpan> one_path;
    std::vector<AttentionSpan> decode;
    std::vector<AttentionSpan> prompts;
    std::vector<AttentionSpan> left_over;
  };
  const Group& of(int32_t group) const { return groups_.at(static_cast<size_t>(group)); }

  HostTokens tokens_;
  std::span<const int32_t> positions_;
  std::span<const RequestRows> requests_;
  std::vector<Group> groups_;
  std::unique_ptr<OwnPart<CpuStepInputs>> part_;  // null: attention of all rows runs here
  int32_t uniform_length_ = 0;
  bool pads_ = false;
};

/// Those that CpuOps::MakeStepInputs made.
inline const CpuStepInputs& Cast(const StepInputs& inputs) {
  return static_cast<const CpuStepInputs&>(inputs);
}

}  // namespace outrider::cpu
