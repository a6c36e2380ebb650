// The device that an engine runs on: which one, what of the options and the model it runs, its
// operations and its memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "outrider/checkpoint/model_config.h"
#include "outrider/engine/engine_options.h"
#include "outrider/kv/cache_group.h"
#include "outrider/ops/ops.h"
#include "outrider/ops/support.h"

namespace outrider {

/// A device, and why it was chosen.
struct ChosenDevice {
  DeviceKind kind = DeviceKind::kCpu;  // not kAuto
  std::string why;
};

/// kAuto: the GPU where this build has its kernels and one can be used, else the processor.
ChosenDevice ChooseDevice(DeviceKind wanted);

/// What was decided about an engine that its device must run.
struct DevicePlan {
  DeviceKind device = DeviceKind::kCpu;
  int modules = 0;                       // MTP modules that are used
  const ModelConfig* drafter = nullptr;  // of a drafter with a checkpoint of its own
  int drafts = 0;                        // of a request in a step, at most
  int batched_tokens = 1;                // rows of a step
  DType dtype = DType::kBF16;
  DType kv_dtype = DType::kBF16;
  KvCacheForm form = KvCacheForm::kLatent;
  std::span<const CacheGroupSpec> cache_groups = {};
};

/// Options of an engine, as rules about them read them.
struct AskedOptions {
  const EngineOptions& options;
  const ModelConfig& config;
  const DevicePlan& plan;
};

/// What the GPU takes of options.
std::span<const Rule<AskedOptions>> GpuOptionRules();

/// The table of docs/gpu.md: everything that networks and options may ask of the GPU.
std::string GpuSupportTable();

/// Throws Error for options and networks that the device does not run, with what it does run.
void CheckRunsOnDevice(const EngineOptions& options, const ModelConfig& config,
                       const DevicePlan& plan);

/// The operations of a device that an engine owns. The CPU's belong to nobody: null.
/// Throws Error where this build or machine has no such device.
std::unique_ptr<Ops> MakeDeviceOps(DeviceKind device);

}  // namespace outrider
