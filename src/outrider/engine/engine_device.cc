#include "outrider/engine/engine_device.h"

#include <algorithm>
#include <string_view>
#include <variant>

#include "outrider/base/error.h"
#ifdef OUTRIDER_ENGINE_CUDA
#include "outrider/ops/cuda/cuda_ops.h"
#include "outrider/ops/cuda/hopper_gpu.h"
#include "outrider/ops/cuda/hopper_networks.h"
#endif

namespace outrider {

#ifdef OUTRIDER_ENGINE_CUDA
namespace {

void Require(bool runs, std::string_view what, std::string_view use) {
  if (!runs) throw InvalidArgument("the GPU does not run {}: use {}", what, use);
}

void CheckNumbers(const EngineOptions& options, const ModelConfig& config, const DevicePlan& plan) {
  constexpr int32_t kMostRequests = 4096;  // of a step: attention's
  Require(plan.dtype == DType::kBF16, "--dtype float32", "--dtype bfloat16, or --device cpu");
  Require(plan.kv_dtype != DType::kF32, "--kv-cache-dtype float32",
          "--kv-cache-dtype bfloat16 or fp8, or --device cpu");
  const bool latent = std::holds_alternative<MlaSpec>(config.layer(0).attention);
  Require(plan.form == KvCacheForm::kLatent || !latent,
          "a KV cache of per-head entries of latent attention",
          "--kv-cache-form latent, or --device cpu");
  Require(options.quantization == WeightQuantization::kNone, "--quantization int8",
          "--quantization none, or --device cpu");
  Require(options.attention_backend == AttentionBackend::kRagged,
          "decode kernels of one query length", "--attention-backend ragged, or --device cpu");
  const int32_t block = options.block_size;
  for (const CacheGroupSpec& group : plan.cache_groups) {
    Require(latent || group.tokens_per_block % 8 == 0,
            fmt::format("--block-size {}, with which the cache group \"{}\" has {} tokens a page",
                        block, group.name, group.tokens_per_block),
            "a larger one, so that all groups have multiples of 8");
  }
  Require(block == 16 || block == 32 || block == 64 || block == 256,
          fmt::format("--block-size {}", block), "16, 32, 64 or 256");
  Require(options.max_num_seqs <= kMostRequests,
          fmt::format("--max-num-seqs {}", options.max_num_seqs), "up to 4096");
  const int64_t rows =
      std::max<int64_t>(plan.batched_tokens, int64_t{options.max_num_seqs} * (1 + plan.drafts));
  Require(rows <= cuda::kMostRows, fmt::format("steps of {} rows", rows),
          "--max-num-batched-tokens and --max-num-seqs, times 1 + drafts, up to 16384");
}

}  // namespace
#else
namespace {

constexpr const char* kNoKernels =
    "this build has no kernels for GPUs: build with -DOUTRIDER_CUDA=ON, nvcc 13 and cuDNN's "
    "headers "
    "(docs/gpu.md)";

}  // namespace
#endif

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

void CheckRunsOnDevice(const EngineOptions& options, const ModelConfig& config,
                       const DevicePlan& plan) {
  if (plan.device == DeviceKind::kCpu) return;
#ifdef OUTRIDER_ENGINE_CUDA
  cuda::CheckRunsOnHopper(config, plan.modules);
  if (plan.drafter != nullptr) cuda::CheckDrafterRunsOnHopper(config, *plan.drafter);
  CheckNumbers(options, config, plan);
#else
  static_cast<void>(options);
  static_cast<void>(config);
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

}  // namespace outrider
