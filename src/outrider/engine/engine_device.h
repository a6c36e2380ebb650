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

/// Makes the operations of a device, for an engine that owns them. Null for the CPU, whose
/// operations nobody owns. Throws Error where this build or machine has no such device.
std::unique_ptr<Ops> MakeDeviceOps(DeviceKind device);

/// Takes memory of the host for copies from a device and back. For a GPU it is page-locked, which
/// makes copies faster. Throws Error when there is no more.
Buffer AllocateHostMemory(DeviceKind device, size_t bytes);

/// Chooses the GPUs of `ranks` ranks: `wanted` (EngineOptions::rank_devices), or the first ones.
/// Throws Error where there are fewer GPUs, or where GPUs cannot reach each other's memory and NCCL
/// is not there.
std::vector<int> ChooseRankDevices(int32_t ranks, const std::vector<int>& wanted);

/// Makes the operations of ranks that share a model, by rank, on these GPUs; none for the CPU.
/// whole_attention: as in WeightForm. Throws Error as MakeDeviceOps does.
std::vector<std::unique_ptr<Ops>> MakeRankOps(DeviceKind device, const std::vector<int>& devices,
                                              bool whole_attention = false);

/// Makes the communicators of ranks with these operations, by rank. Those of GPUs use memory that
/// all of them reach, else NCCL. A rank that another waits for longer than `seconds` counts as
/// ended.
std::vector<std::unique_ptr<Communicator>> MakeRankCommunicators(
    DeviceKind device, const std::vector<const Ops*>& ranks, double seconds = kRankSeconds);

struct OpenedDevice {
  std::vector<std::unique_ptr<Ops>> own_ops;  // by rank; empty: nobody owns them
  std::vector<const Ops*> ranks;              // the operations of each rank
  const Ops* ops = nullptr;                   // the first one's
  DeviceFacts facts;
};

/// Opens the device of every rank and finds the facts about it and this machine that plans need.
/// Throws Error as MakeDeviceOps and ChooseRankDevices do.
OpenedDevice OpenDevice(DeviceKind wanted, int32_t ranks = 1,
                        const std::vector<int>& rank_devices = {}, bool whole_attention = false);

/// Waits for what the GPUs of ranks prepare while weights are loaded. One of them may take longer
/// than the others would wait for it in a step.
void WaitForPromptPlans(DeviceKind device, const std::vector<const Ops*>& ranks);

/// The memory of the GPU that has the least, in all and free.
DeviceMemoryState LeastMemory(const std::vector<const Ops*>& ranks);

}  // namespace outrider
