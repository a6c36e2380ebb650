// The device that an engine runs on: what of the options and the model it runs, and its operations.
#pragma once

#include <memory>

#include "outrider/checkpoint/model_config.h"
#include "outrider/engine/engine_options.h"
#include "outrider/ops/ops.h"

namespace outrider {

/// What was decided about an engine that its device must run.
struct DevicePlan {
  int modules = 0;  // MTP modules that are used
  int drafts = 0;   // of a request in a step, at most
  DType dtype = DType::kBF16;
  DType kv_dtype = DType::kBF16;
  KvCacheForm form = KvCacheForm::kLatent;
};
/// Throws Error for options and networks that the device of the options does not run, with what it
/// does run.
void CheckRunsOnDevice(const EngineOptions& options, const ModelConfig& config,
                       const DevicePlan& plan);

/// The operations of a device that an engine owns. The CPU's belong to nobody: null.
/// Throws Error where this build or machine has no such device.
std::unique_ptr<Ops> MakeDeviceOps(DeviceKind device);

}  // namespace outrider
