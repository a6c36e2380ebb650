#include "outrider/engine/engine_device.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "outrider/base/cpu_features.h"
#include "outrider/base/error.h"
#include "outrider/base/processors.h"
#include "outrider/kernels/kernel_table.h"
#include "outrider/ops/cpu/cpu_ops.h"
#ifdef OUTRIDER_ENGINE_CUDA
#include "outrider/ops/cuda/cuda_ops.h"
#include "outrider/ops/cuda/hopper_gpu.h"
#include "outrider/ops/cuda/nccl_communicator.h"
#include "outrider/ops/cuda/peer_communicator.h"
#include "outrider/parallel/nccl_library.h"
#endif

namespace outrider {

namespace {

#ifndef OUTRIDER_ENGINE_CUDA
constexpr const char* kNoKernels =
    "this build has no kernels for GPUs: build with -DOUTRIDER_CUDA=ON, nvcc 13 and cuDNN's "
    "headers "
    "(docs/gpu.md)";
#endif

#ifdef OUTRIDER_ENGINE_CUDA
/// Throws Error if the GPUs neither reach each other's memory nor have NCCL.
void CheckReachEachOther(const std::vector<int>& devices) {
  const std::optional<std::pair<int, int>> strangers = cuda::FindStrangers(devices);
  if (!strangers) return;
  try {
    const NcclLibrary nccl;
  } catch (const Error& error) {
    throw Error(ErrorCode::kUnavailable,
                fmt::format("GPU {} cannot read the memory of GPU {} (NVLink, or PCIe where the "
                            "driver allows it), so --tensor-parallel-size needs NCCL, and {}; or "
                            "choose other GPUs with CUDA_VISIBLE_DEVICES",
                            strangers->first, strangers->second, error.what()));
  }
}
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

Buffer AllocateHostMemory(DeviceKind device, size_t bytes) {
  OUTRIDER_CHECK(device != DeviceKind::kAuto);
#ifdef OUTRIDER_ENGINE_CUDA
  if (device == DeviceKind::kCuda) {
    void* data = nullptr;
    cuda::CheckCuda(cudaMallocHost(&data, bytes), "page-locked memory");
    return {static_cast<std::byte*>(data), bytes,
            [](std::byte* begin, size_t) { cudaFreeHost(begin); }};
  }
#endif
  return Buffer(bytes);
}

std::vector<int> ChooseRankDevices([[maybe_unused]] int32_t ranks,
                                   [[maybe_unused]] const std::vector<int>& wanted) {
#ifdef OUTRIDER_ENGINE_CUDA
  const cuda::GpuDescription gpu = cuda::DescribeGpu();
  cuda::CheckIsHopper(gpu);
  std::vector<int> devices = wanted;
  if (devices.empty()) {
    if (ranks > gpu.count) {
      throw InvalidArgument(
          "--tensor-parallel-size is {}, but {} can be used, and each rank needs its own: use {}, "
          "or "
          "--device cpu",
          ranks, gpu.count == 1 ? "1 GPU" : fmt::format("{} GPUs", gpu.count),
          gpu.count == 1 ? "1" : fmt::format("{} or fewer", gpu.count));
    }
    for (int device = 0; device < ranks; ++device) devices.push_back(device);
  }
  OUTRIDER_CHECK(std::cmp_equal(devices.size(), ranks));
  CheckReachEachOther(devices);
  return devices;
#else
  throw InvalidArgument("--device cuda: {}; or use --device cpu", kNoKernels);
#endif
}

std::vector<std::unique_ptr<Ops>> MakeRankOps(DeviceKind device,
                                              [[maybe_unused]] const std::vector<int>& devices,
                                              [[maybe_unused]] bool whole_attention) {
  std::vector<std::unique_ptr<Ops>> ops;
  if (device == DeviceKind::kCpu) return ops;
#ifdef OUTRIDER_ENGINE_CUDA
  const int32_t head_ranks = whole_attention ? 1 : static_cast<int32_t>(devices.size());
  for (const int gpu : devices) {
    const auto sharers = static_cast<int32_t>(std::ranges::count(devices, gpu));
    ops.push_back(std::make_unique<cuda::CudaOps>(gpu, head_ranks, sharers));
  }
  ops.front()->UseOnThisThread();
#endif
  return ops;
}

std::vector<std::unique_ptr<Communicator>> MakeRankCommunicators(
    [[maybe_unused]] DeviceKind device, const std::vector<const Ops*>& ranks, double seconds) {
#ifdef OUTRIDER_ENGINE_CUDA
  if (device == DeviceKind::kCuda && ranks.size() > 1) {
    std::vector<const cuda::CudaOps*> gpus;
    for (const Ops* ops : ranks) gpus.push_back(static_cast<const cuda::CudaOps*>(ops));
    std::vector<int> devices;
    for (const cuda::CudaOps* ops : gpus) devices.push_back(ops->device());
    if (cuda::FindStrangers(devices)) return cuda::MakeNcclCommunicators(gpus, seconds);
    return cuda::MakePeerCommunicators(gpus, seconds);
  }
#endif
  return MakeThreadCommunicators(static_cast<int32_t>(ranks.size()), seconds);
}

void WaitForPromptPlans([[maybe_unused]] DeviceKind device,
                        [[maybe_unused]] const std::vector<const Ops*>& ranks) {
#ifdef OUTRIDER_ENGINE_CUDA
  if (device != DeviceKind::kCuda) return;
  for (const Ops* ops : ranks) static_cast<const cuda::CudaOps*>(ops)->WaitForPromptPlans();
#endif
}

DeviceMemoryState LeastMemory(const std::vector<const Ops*>& ranks) {
  DeviceMemoryState least = ranks.front()->memory();
  for (size_t i = 1; i < ranks.size(); ++i) {
    ranks[i]->UseOnThisThread();
    const DeviceMemoryState memory = ranks[i]->memory();
    least.total = std::min(least.total, memory.total);
    least.free = std::min(least.free, memory.free);
  }
  ranks.front()->UseOnThisThread();
  return least;
}

OpenedDevice OpenDevice(DeviceKind wanted, int32_t ranks, const std::vector<int>& rank_devices,
                        bool whole_attention) {
  const KernelTable& kernels = GetKernels(SelectIsa());
  OpenedDevice opened;
  opened.facts.chosen = ChooseDevice(wanted);
  const DeviceKind device = opened.facts.chosen.kind;
  if (device == DeviceKind::kCuda && ranks > 1) {
    opened.own_ops = MakeRankOps(device, ChooseRankDevices(ranks, rank_devices), whole_attention);
  } else if (auto own = MakeDeviceOps(device)) {
    opened.own_ops.push_back(std::move(own));
  }
  for (const auto& own : opened.own_ops) opened.ranks.push_back(own.get());
  if (opened.ranks.empty()) {
    opened.ranks.assign(static_cast<size_t>(ranks), &cpu::GetCpuOps(SelectIsa()));
  }
  opened.ops = opened.ranks.front();
  opened.facts.kernels = kernels.name;
  opened.facts.best_isa = IsaName(DetectIsa());
  opened.facts.max_fp8_weights_as_bf16 = kernels.max_fp8_weights_as_bf16;
  opened.facts.activation_type = opened.ops->activation_type();
  opened.facts.memory = LeastMemory(opened.ranks);
  opened.facts.host_memory = AvailableHostMemory();
  opened.facts.processors = UsableProcessors();
  opened.facts.memory_nodes = UsableMemoryNodes().size();
  return opened;
}

}  // namespace outrider
