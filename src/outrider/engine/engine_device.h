// The device that an engine runs on: which one, its operations, and facts of it.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "outrider/base/buffer.h"
#include "outrider/engine/engine_options.h"
#include "outrider/engine/plan/facts.h"
#include "outrider/ops/ops.h"
#include "outrider/parallel/thread_communicator.h"

namespace outrider {

/// kAuto: the GPU where this build has its kernels and one can be used, else the processor.
ChosenDevice ChooseDevice(DeviceKind wanted);

/// The operations of a device that an engine owns. The CPU's belong to nobody: null.
/// Throws Error where this build or machine has no such device.
std::unique_ptr<Ops> MakeDeviceOps(DeviceKind device);

/// The host's memory for copies from a device and back: page-locked for those of GPUs, which are
/// faster then. Throws Error when there is no more.
Buffer AllocateHostMemory(DeviceKind device, size_t bytes);

/// The GPUs of `ranks` ranks: `wanted` (EngineOptions::rank_devices), or the first ones. Throws
/// Error where there are fewer GPUs, or one cannot reach the memory of another and NCCL is not
/// there.
std::vector<int> ChooseRankDevices(int32_t ranks, const std::vector<int>& wanted);

/// Of ranks that share a model, the operations of each, by rank: on these GPUs, else none.
/// whole_attention: as WeightForm has it. Throws Error as MakeDeviceOps.
std::vector<std::unique_ptr<Ops>> MakeRankOps(DeviceKind device, const std::vector<int>& devices,
                                              bool whole_attention = false);

/// What brings ranks together whose operations these are, one for each by rank: over the memory of
/// GPUs that all reach, else over NCCL. A rank that another waits for longer than `seconds` counts
/// as ended.
std::vector<std::unique_ptr<Communicator>> MakeRankCommunicators(
    DeviceKind device, const std::vector<const Ops*>& ranks, double seconds = kRankSeconds);

struct OpenedDevice {
  std::vector<std::unique_ptr<Ops>> own_ops;  // by rank; empty: nobody owns them
  std::vector<const Ops*> ranks;              // the operations of each rank
  const Ops* ops = nullptr;                   // the first one's
  DeviceFacts facts;
};

/// The device with its operations, and what plans are to know of it and of this machine; of several
/// ranks those of all. Throws Error as MakeDeviceOps and ChooseRankDevices.
OpenedDevice OpenDevice(DeviceKind wanted, int32_t ranks = 1,
                        const std::vector<int>& rank_devices = {}, bool whole_attention = false);

/// Waits for what the GPUs of ranks prepare beside the loading of weights, which may take one of
/// them longer than the others would wait for it.
void FinishPreparing(DeviceKind device, const std::vector<const Ops*>& ranks);

/// Of the GPU of these that has the least, in all and free.
DeviceMemoryState LeastMemory(const std::vector<const Ops*>& ranks);

}  // namespace outrider
