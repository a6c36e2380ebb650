// What an engine is planned from, beside the options: facts of the machine and of the checkpoints.
// The plans are functions of these alone, so a test can make them up.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "outrider/base/dtype.h"
#include "outrider/base/host_memory.h"
#include "outrider/checkpoint/model_config.h"
#include "outrider/engine/engine_options.h"
#include "outrider/ops/ops.h"

namespace outrider {

/// A device, and why it was chosen.
struct ChosenDevice {
  DeviceKind kind = DeviceKind::kCpu;  // not kAuto
  std::string why;
};

struct DeviceFacts {
  ChosenDevice chosen;
  std::string kernels = {};                    // of the processor: the instruction set that is used
  std::string best_isa = {};                   // the best one that the machine has
  int64_t max_fp8_weights_as_bf16 = 0;         // KernelTable's
  DType activation_type = DType::kF32;         // Ops'
  DeviceMemoryState memory = {};               // of a GPU, before weights are read
  std::optional<HostMemory> host_memory = {};  // nothing: the system does not tell
  std::vector<int> processors = {0};           // that this process may use
  size_t memory_nodes = 1;                     // NUMA nodes that it may use
};

/// What is known of a drafter with a checkpoint of its own.
struct DrafterFacts {
  ModelConfig config;          // of family kEagle3
  bool own_embedding = false;  // else it reads the target's
};

/// What is known of a model's checkpoint, and of a drafter's, without reading weights.
struct ModelFacts {
  ModelConfig config;
  int32_t modules = 0;  // draft modules that the files hold (CountMtpLayers)
  std::optional<DrafterFacts> drafter = {};
};

}  // namespace outrider
