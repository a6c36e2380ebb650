// The device that an engine runs on: which one, its operations, and facts of it.
#pragma once

#include <memory>

#include "outrider/engine/engine_options.h"
#include "outrider/engine/plan/facts.h"
#include "outrider/ops/ops.h"

namespace outrider {

/// kAuto: the GPU where this build has its kernels and one can be used, else the processor.
ChosenDevice ChooseDevice(DeviceKind wanted);

/// The operations of a device that an engine owns. The CPU's belong to nobody: null.
/// Throws Error where this build or machine has no such device.
std::unique_ptr<Ops> MakeDeviceOps(DeviceKind device);

struct OpenedDevice {
  std::unique_ptr<Ops> own_ops;  // null: nobody owns them
  const Ops* ops = nullptr;
  DeviceFacts facts;
};

/// The device with its operations, and what plans are to know of it and of this machine. Throws
/// Error as MakeDeviceOps.
OpenedDevice OpenDevice(DeviceKind wanted);

}  // namespace outrider
