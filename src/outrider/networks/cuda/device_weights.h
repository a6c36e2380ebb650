// The weights of a whole network in device memory, as the Hopper kernels read them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "outrider/base/thread_pool.h"
#include "outrider/checkpoint/model_config.h"
#include "outrider/checkpoint/weight_source.h"
#include "outrider/kernels/cuda/device_memory.h"
#include "outrider/kernels/cuda/matmul.h"
#include "outrider/ops/cuda/hopper_networks.h"

namespace outrider::cuda {

/// One layer's attention.
struct DeviceMlaWeights {
  // q_a over kv_a with q_lora_rank, else q over kv_a: [q_columns + 576, hidden].
  PackedWeight q_kv_a;
  PackedWeight q_b;                  // [heads * (P + R), q_lora]; empty without q_lora
  PackedWeight o;                    // [hidden, heads * V]
  PackedWeight kv_up;                // kv_b_proj [heads * (P + V), 512], bf16: expands keys
  const void* key_up_t = nullptr;    // bf16 [heads, 512, P]: absorbs queries
  const void* value_up = nullptr;    // bf16 [heads, V, 512]
  const float* q_a_norm = nullptr;   // [q_lora]
  const float* kv_a_norm = nullptr;  // [512]
};

struct DeviceLayerWeights {
  LayerSpec spec;
  const float* input_norm = nullptr;           // [hidden]
  const float* post_attention_norm = nullptr;  // [hidden]
  DeviceMlaWeights attention;
  // The dense MLP; of an MoE layer all experts, one after the other: the routed ones, then the
  // shared MLP, cut into as many of their width.
  PackedWeight gate_up;
  PackedWeight down;
  PackedWeight router;                 // [experts, hidden], bf16
  const float* router_bias = nullptr;  // [experts] or null
};

/// As MtpWeights of the CPU.
struct DeviceMtpWeights {
  const float* embedding_norm = nullptr;
  const float* hidden_norm = nullptr;
  PackedWeight projection;  // eh_proj [hidden, 2 * hidden], embedding half first
  DeviceLayerWeights layer;
  const float* output_norm = nullptr;
};

struct DeviceWeights {
  std::vector<DeviceMemory> memory;  // what all pointers point into
  const void* embedding = nullptr;   // bf16 [vocab, hidden]
  std::vector<DeviceLayerWeights> layers;
  const float* final_norm = nullptr;  // [hidden]
  PackedWeight head;                  // [vocab, hidden]
  std::vector<DeviceMtpWeights> mtp;

  size_t bytes() const;
};

/// Bytes read so far, and in all, of the files.
using DeviceLoadProgress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

/// Reads everything, brings it to the current device and packs it there; waits until it is done.
///
/// A matrix keeps its e4m3 codes if it is stored so, in blocks of 128x128, and its parts begin at
/// multiples of 128 rows and columns. Any other is bf16, rounded once. Random weights
/// (MakeDummyWeights) are made on the device, with the values that they have on the CPU.
///
/// Throws Error that lists every tensor that is missing or wrong, for a network that does not run
/// there, and where the device has no room.
DeviceWeights LoadDeviceWeights(const ModelConfig& config, int num_mtp_modules,
                                const WeightSource& source, ThreadPool& pool,
                                const DeviceLoadProgress& progress);

}  // namespace outrider::cuda
