// The GPU's StepInputs: arrays in its memory, copied there once per step.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "outrider/kernels/cuda/device_memory.h"
#include "outrider/kv/layer_cache.h"
#include "outrider/ops/host_tokens.h"
#include "outrider/ops/step_inputs.h"

namespace outrider::cuda {

/// What decode attention reads, on the device.
struct DecodeRequests {
  int count = 0;
  int max_seq_len = 0;
  const int32_t* query_start_loc = nullptr;  // [count + 1], from the first decode row on
  const int32_t* seq_lens = nullptr;         // [count]
  const int32_t* block_tables = nullptr;     // [count, block_table_stride]
  int block_table_stride = 0;
  int num_blocks = 0;  // more than any of the tables
};

/// A piece of a prompt.
struct PromptRequest {
  int first_row = 0;
  int num_rows = 0;
  int num_keys = 0;                      // its own rows included
  const int32_t* block_table = nullptr;  // on the device
};

/// What the layers of a cache group read. The kernels know blocks that follow each other; those of
/// a layer lie some blocks apart in the pool's pages, so numbers of blocks are counted in these.
struct CacheInputs {
  const int64_t* slots = nullptr;  // [rows] on the device; negative: the row writes nothing
  DecodeRequests decode;
  std::vector<PromptRequest> prompts;
};

class CudaStepInputs : public StepInputs {
 public:
  explicit CudaStepInputs(cudaStream_t stream) : stream_(stream) {}

  void Assign(const Context& context, const BatchLayout& layout,
              const AttentionPlan& plan) override;
  void ShiftTokens(const Context& context, std::span<const int32_t> sources,
                   std::span<const int32_t> tokens) override;

  const int32_t* token_ids() const { return token_ids_; }  // [rows] on the device
  const int32_t* positions() const { return positions_; }  // [rows] on the device
  /// Of the cache of a layer; copied to the device by the first call after Assign.
  const CacheInputs& Of(const LayerCache& cache) const;
  /// Another number after every Assign, of all objects.
  uint64_t serial() const { return serial_; }

 private:
  /// Arrays that are copied to the device together.
  class Arrays {
   public:
    void Clear() { bytes_.clear(); }
    /// Where the array begins.
    template <typename T>
    size_t Add(const T* values, size_t count);
    void Copy(cudaStream_t stream);
    template <typename T>
    const T* At(size_t offset) const {
      return reinterpret_cast<const T*>(device_.As<std::byte>() + offset);
    }

   private:
    std::vector<std::byte> bytes_;
    DeviceMemory device_;
  };
  struct Group {
    uint64_t serial = 0;  // of the inputs that it was made for
    int64_t block_step = 0;
    Arrays arrays;
    CacheInputs inputs;
  };
  /// Copies tokens and positions of the rows.
  void CopyRows();
  void Fill(const LayerCache& cache, Group& group) const;

  cudaStream_t stream_;
  uint64_t serial_ = 0;
  const BatchLayout* layout_ = nullptr;
  const AttentionPlan* plan_ = nullptr;
  HostTokens tokens_;
  Arrays rows_;
  const int32_t* token_ids_ = nullptr;
  const int32_t* positions_ = nullptr;
  mutable std::vector<Group> groups_;
};

/// Those that CudaOps::MakeStepInputs made.
inline const CudaStepInputs& Cast(const StepInputs& inputs) {
  return static_cast<const CudaStepInputs&>(inputs);
}

}  // namespace outrider::cuda
