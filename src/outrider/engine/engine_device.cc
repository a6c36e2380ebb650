#include "outrider/engine/engine_device.h"

#include "outrider/base/cpu_features.h"
#include "outrider/base/error.h"
#include "outrider/base/processors.h"
#include "outrider/kernels/kernel_table.h"
#include "outrider/ops/cpu/cpu_ops.h"
#ifdef OUTRIDER_ENGINE_CUDA
#include "outrider/ops/cuda/cuda_ops.h"
#include "outrider/ops/cuda/hopper_gpu.h"
#endif

namespace outrider {

namespace {

#ifndef OUTRIDER_ENGINE_CUDA
constexpr const char* kNoKernels =
    "this build has no kernels for GPUs: build with -DOUTRIDER_CUDA=ON, nvcc 13 and cuDNN's "
    "headers "
    "(docs/gpu.md)";
#endif

}  // namespace

ChosenDevice ChooseDevice(DeviceKind wanted) {
  if (wanted == DeviceKind::kCpu) return {DeviceKind::kCpu, "--device cpu"};
  if (wanted == DeviceKind::kCuda) return {DeviceKind::kCuda, "--device cuda"};
#ifdef OUTRIDER_ENGINE_CUDA
  try {
    cuda::CheckIsHopper(cuda::DescribeGpu());
    return {DeviceKind::kCuda, "there is a GPU that can be used"};
  } catch (const Error& error) {
    return {DeviceKind::kCpu, error.what()};
  }
#else
  return {DeviceKind::kCpu, kNoKernels};
#endif
}

std::unique_ptr<Ops> MakeDeviceOps(DeviceKind device) {
  OUTRIDER_CHECK(device != DeviceKind::kAuto);
  if (device == DeviceKind::kCpu) return nullptr;
#ifdef OUTRIDER_ENGINE_CUDA
  return std::make_unique<cuda::CudaOps>();
#else
  throw InvalidArgument("--device cuda: {}; or use --device cpu", kNoKernels);
#endif
}

OpenedDevice OpenDevice(DeviceKind wanted) {
  const KernelTable& kernels = GetKernels(SelectIsa());
  OpenedDevice opened;
  opened.facts.chosen = ChooseDevice(wanted);
  opened.own_ops = MakeDeviceOps(opened.facts.chosen.kind);
  opened.ops = opened.own_ops ? opened.own_ops.get() : &cpu::GetCpuOps(SelectIsa());
  opened.facts.kernels = kernels.name;
  opened.facts.best_isa = IsaName(DetectIsa());
  opened.facts.max_fp8_weights_as_bf16 = kernels.max_fp8_weights_as_bf16;
  opened.facts.activation_type = opened.ops->activation_type();
  opened.facts.memory = opened.ops->memory();
  opened.facts.host_memory = AvailableHostMemory();
  opened.facts.processors = UsableProcessors();
  opened.facts.memory_nodes = UsableMemoryNodes().size();
  return opened;
}

}  // namespace outrider
