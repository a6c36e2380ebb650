// Brings parts of a weight source's tensors into device memory, packed for the matrix products or
// as they are.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "outrider/base/thread_pool.h"
#include "outrider/checkpoint/weight_source.h"
#include "outrider/kernels/cuda/host/device_memory.h"
#include "outrider/kernels/cuda/matmul/matmul.h"
#include "outrider/ops/cuda/weight_formats.h"

namespace outrider::cuda {

class TensorUpload {
 public:
  /// All must outlive the upload. Its work is in `stream`: what it returns is there when the
  /// stream has got so far.
  TensorUpload(const WeightSource& source, ThreadPool& pool, cudaStream_t stream);

  /// A copy of the host's values; they have been read when it returns.
  const void* Keep(std::span<const std::byte> values);
  /// bf16 [rows, cols].
  const void* Plain(const TensorPart& part);
  /// Parts of as many columns, stacked.
  PackedWeight Matrix(const std::vector<TensorPart>& parts, const MatrixForm& form);
  /// Uploads the part rounded to bf16, whatever it is stored as. `plain`, if given, is set to where
  /// its rows are unpacked, until the next matrix comes.
  PackedWeight Bf16Matrix(const TensorPart& part, int segments = 0, const void** plain = nullptr);

  /// Parts of matrices of as many columns and segments, packed by themselves, each right behind the
  /// one before: where all but the last have a multiple of 64 rows, neighbours of one format are
  /// one matrix, too. forms: what all of each matrix is packed as, with segments.
  void SideBySide(const std::vector<TensorPart>& parts, const std::vector<MatrixForm>& forms,
                  std::span<PackedWeight* const> weights);

  /// Matrices of as many columns, rounded to bf16, each right behind the one before: they are one
  /// matrix, too. All but the last have a multiple of 64 rows.
  void Bf16SideBySide(const std::vector<TensorPart>& parts, std::span<PackedWeight* const> weights);

  /// What MLPs are packed as.
  struct MlpForms {
    MatrixForm gate_up;
    MatrixForm down;
  };
  /// MLPs of equal shapes, one after the other: the first one's view.
  void Mlps(const std::vector<MlpParts>& mlps, const MlpForms& forms, PackedWeight* gate_up,
            PackedWeight* down);

  /// Room that is kept with the rest.
  void* Take(size_t bytes);

  /// What was brought; the upload is at its end. Waits for the stream.
  std::vector<DeviceMemory> Finish();

 private:
  OpenPart Open(const TensorPart& part) const;

  /// Writes a part to device memory: bf16, or codes; scales of groups.
  void ReadBf16(const OpenPart& from, void* to);
  void ReadCodes(const OpenPart& from, WeightFormat format, void* to);
  void ReadGroupScales(const OpenPart& from, WeightFormat format, void* to);
  /// Writes rows of `row_bytes` through page-locked memory; read(first row, count, to) writes some
  /// of the tensor's rows.
  using ReadRows = std::function<void(int64_t, int64_t, std::byte*)>;
  void CopyRows(const TensorPart& part, int64_t row_bytes, void* to, const ReadRows& read);

  /// Where a matrix stands that is not packed yet.
  struct Staged {
    const void* w = nullptr;
    const float* scales = nullptr;
    const void* group_scales = nullptr;
  };
  static size_t StagedBytes(WeightFormat format, int64_t rows, int64_t cols);
  Staged Stage(const std::vector<OpenPart>& parts, WeightFormat format, std::byte* to);
  void PackGateUp(const MlpParts& mlp, const PackedWeight& weight);
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

}  // namespace outrider::cuda
