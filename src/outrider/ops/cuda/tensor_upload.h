// Brings parts of a weight source's tensors into device memory, packed for the matrix products or
// as they are.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "outrider/base/thread_pool.h"
#include "outrider/checkpoint/weight_source.h"
#include "outrider/kernels/cuda/device_memory.h"
#include "outrider/kernels/cuda/matmul.h"

namespace outrider::cuda {

/// Rows and columns of a tensor [tensor_rows, tensor_cols].
struct TensorPart {
  std::string name;
  int64_t tensor_rows = 0;
  int64_t tensor_cols = 0;
  int64_t first_row = 0;
  int64_t first_col = 0;
  int64_t rows = 0;
  int64_t cols = 0;

  static TensorPart Whole(std::string name, int64_t rows, int64_t cols) {
    return {.name = std::move(name),
            .tensor_rows = rows,
            .tensor_cols = cols,
            .rows = rows,
            .cols = cols};
  }
};

/// A part and its tensor, open for reading.
struct OpenPart {
  TensorPart part;
  std::unique_ptr<WeightTensor> tensor;
};

class TensorUpload {
 public:
  /// The two matrices of a gated MLP and the third.
  struct Mlp {
    TensorPart gate;
    TensorPart up;
    TensorPart down;
  };

  /// All must outlive the upload. Its work is in `stream`: what it returns is there when the
  /// stream has got so far.
  TensorUpload(const WeightSource& source, ThreadPool& pool, cudaStream_t stream);

  /// float32 values of a vector, each plus `added`.
  const float* Vector(const std::string& name, int64_t size, float added = 0);
  /// bf16 [rows, cols].
  const void* Plain(const TensorPart& part);
  /// Parts of as many columns, stacked.
  PackedWeight Matrix(const std::vector<TensorPart>& parts);
  /// The same rounded to bf16, whatever it is stored as. `plain`, if given, is set to where its
  /// rows are unpacked, until the next matrix comes.
  PackedWeight Bf16Matrix(const TensorPart& part, const void** plain = nullptr);

  /// Matrices of as many columns, packed by themselves, the second right behind the first: bf16
  /// ones are one matrix, too. Products with either cut K as a product with both does.
  void SideBySide(const TensorPart& a, const TensorPart& b, PackedWeight* first,
                  PackedWeight* second);

  /// MLPs of equal shapes, one after the other: the first one's view.
  void Mlps(const std::vector<Mlp>& mlps, PackedWeight* gate_up, PackedWeight* down);

  /// Room that is kept with the rest.
  void* Take(size_t bytes);

  /// What was brought; the upload is at its end. Waits for the stream.
  std::vector<DeviceMemory> Finish();
  ThreadPool& pool() const { return pool_; }

 private:
  OpenPart Open(const TensorPart& part) const;

  /// Writes a part to device memory: bf16, or codes with their scales behind them.
  void ReadBf16(const OpenPart& from, void* to);
  void ReadCodes(const OpenPart& from, void* to);
  /// Scales of the part's blocks [ceil(rows / 128), ceil(cols / 128)].
  static std::vector<float> ScalesOf(const OpenPart& from);
  void ReadPart(const OpenPart& from, WeightFormat format, void* to);
  /// Reads rows through page-locked memory; read(first row, count, to) writes rows of the tensor.
  template <typename T, typename Read>
  void CopyRows(const OpenPart& from, void* to, Read read);
  void PackGateUp(const Mlp& mlp, const PackedWeight& weight);
  void PackStack(const std::vector<OpenPart>& parts, const PackedWeight& weight);

  /// Device memory for what is not packed yet; what was there before is gone.
  std::byte* Staging(size_t bytes);

  const WeightSource& source_;
  ThreadPool& pool_;
  cudaStream_t stream_;
  std::vector<DeviceMemory> kept_;
  size_t room_ = 0;  // left in the last of them
  DeviceMemory staging_;
  struct Chunk {
    PinnedMemory memory;
    DeviceEvent copied;
  };
  Chunk chunks_[2];
  int next_chunk_ = 0;
};

/// What a matrix of these parts, one under the other, is packed as.
WeightFormat FormatOf(const WeightSource& source, const std::vector<TensorPart>& parts);

/// What MLPs of equal shapes are packed as: all of them alike.
struct MlpFormats {
  WeightFormat gate_up;
  WeightFormat down;
};
MlpFormats FormatsOf(const WeightSource& source, const std::vector<TensorUpload::Mlp>& mlps);

}  // namespace outrider::cuda
