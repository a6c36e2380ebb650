// Runs of operations that a device may record once and repeat at less cost: on a GPU as CUDA
// graphs. A network has one for its passes.
#pragma once

#include <boost/container/small_vector.hpp>
#include <cstdint>
#include <functional>
#include <span>

#include "outrider/ops/context.h"
#include "outrider/ops/kv_cache.h"
#include "outrider/ops/step_inputs.h"
#include "outrider/ops/tensor.h"

namespace outrider {

/// Tells one run of operations from another, beside its inputs. Runs with equal keys and inputs of
/// equal shapes launch equal operations on equal memory.
class RunKey {
 public:
  RunKey& Add(int64_t number) {
    numbers_.push_back(static_cast<uint64_t>(number));
    return *this;
  }
  RunKey& Add(const Tensor& rows) {
    return Add(rows.data)
        .Add(rows.rows)
        .Add(rows.cols)
        .Add(rows.stride)
        .Add(static_cast<int64_t>(rows.dtype));
  }
  RunKey& Add(const void* memory) {
    return Add(static_cast<int64_t>(reinterpret_cast<intptr_t>(memory)));
  }

  std::span<const uint64_t> numbers() const { return {numbers_.data(), numbers_.size()}; }

 private:
  boost::container::small_vector<uint64_t, 64> numbers_;  // made anew in every pass
};

/// Runs since the replayer was made.
struct ReplayCounts {
  int64_t repeated = 0;  // from a recording
  int64_t launched = 0;  // operation by operation, runs that were recorded meanwhile included
};

/// Launches the operations of a run in this context.
using Pass = std::function<void(const Context&)>;

class Replayer {
 public:
  virtual ~Replayer() = default;

  /// Calls run with `context` or one in its place that records, or repeats what an earlier call of
  /// it launched. It must launch operations only. The host must not read their results in it. Only
  /// runs over inputs with RowCount::kRounded and without expanded rows are recorded.
  virtual void Run(const Context& context, const RunKey& key,
                   std::span<const StepInputs* const> inputs, const Pass& run) = 0;

  virtual ReplayCounts counts() const = 0;
};

/// Calls every run: for devices that do not record.
class PlainReplayer : public Replayer {
 public:
  void Run(const Context& context, const RunKey& /*key*/,
           std::span<const StepInputs* const> /*inputs*/, const Pass& run) override {
    run(context);
    ++launched_;
  }
  ReplayCounts counts() const override { return {.launched = launched_}; }

 private:
  int64_t launched_ = 0;
};

}  // namespace outrider
