// Runs of operations that a device may record once and repeat at less cost: on a GPU as CUDA
// graphs. A network has one for its passes.
#pragma once

#include <boost/container/small_vector.hpp>
#include <cstdint>
#include <functional>
#include <span>

#include "outrider/ops/kv_cache.h"
#include "outrider/ops/step_inputs.h"
#include "outrider/ops/tensor.h"

namespace outrider {

/// What a run is of, beside its inputs. Runs with equal keys and inputs of equal shapes launch the
/// same operations on the same memory.
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

/// Since the replayer was made.
struct ReplayCounts {
  int64_t repeated = 0;
  int64_t launched = 0;  // one by one, those that were recorded included
};

class Replayer {
 public:
  virtual ~Replayer() = default;

  /// Calls run(), or does what it did in an earlier call. run() must launch operations only, whose
  /// results the host does not read. Only runs over inputs with RowCount::kRounded and without
  /// expanded rows are recorded.
  virtual void Run(const RunKey& key, std::span<const StepInputs* const> inputs,
                   const std::function<void()>& run) = 0;

  virtual ReplayCounts counts() const = 0;
};

/// For devices that do not record.
class PlainReplayer : public Replayer {
 public:
  void Run(const RunKey& /*key*/, std::span<const StepInputs* const> /*inputs*/,
           const std::function<void()>& run) override {
    run();
    ++launched_;
  }
  ReplayCounts counts() const override { return {.launched = launched_}; }

 private:
  int64_t launched_ = 0;
};

}  // namespace outrider
