// Turns a checkpoint's tensors into packed weights: every weight is declared once, with its name
// and shape; the declarations are checked against the checkpoint, then filled, in one block of
// memory.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/base/buffer.h"
#include "outrider/base/thread_pool.h"
#include "outrider/checkpoint/weight_source.h"
#include "outrider/kernels/packed_matrix.h"
#include "outrider/networks/weight_format.h"

namespace outrider {

/// The embedding: one row per token, as bfloat16 where that is exact or asked for, else float32.
struct EmbeddingTable {
  DType format = DType::kBF16;
  int64_t rows = 0;
  int64_t cols = 0;
  const std::byte* data = nullptr;

  /// Writes the row of `token` as float32 [cols].
  void Read(int32_t token, float* out) const;
};

/// Bytes of weights in memory by what they are.
using WeightSizes = std::map<DType, int64_t>;
int64_t SumOf(const WeightSizes& sizes);

class WeightLoader {
 public:
  /// The source must outlive the loader.
  WeightLoader(const WeightSource& source, WeightForm form) : source_(source), form_(form) {}

  const WeightSource& source() const { return source_; }

  // Declarations: `out` is filled by Load and must stay where it is until then.

  /// A weight [rows, cols] of `y = x W^T`. weights_used_together: MatrixUse's, if larger than the
  /// weight's own size.
  void Matrix(PackedMatrix* out, const std::string& name, int64_t rows, int64_t cols,
              int64_t weights_used_together = 0);
  void UnquantizedMatrix(PackedMatrix* out, const std::string& name, int64_t rows, int64_t cols);

  /// Weights [rows, cols] each, stacked into [names.size() * rows, cols].
  void Stacked(PackedMatrix* out, const std::vector<std::string>& names, int64_t rows, int64_t cols,
               int64_t weights_used_together = 0);

  /// kv_b_proj [heads * (nope + value), latent], split by head into W_UK [nope, latent], its
  /// transpose and W_UV [value, latent].
  struct KvUp {
    std::vector<PackedMatrix>* key_up;
    std::vector<PackedMatrix>* key_up_t;
    std::vector<PackedMatrix>* value_up;
    int64_t heads, nope, value, latent;
  };
  void SplitKvUp(const KvUp& out, const std::string& name);

  /// A float32 vector.
  void Vector(const float** out, const std::string& name, int64_t size);

  void Table(EmbeddingTable* out, const std::string& name, int64_t rows, int64_t cols);

  /// A tensor that repeats `original`; nothing is kept of it. Load throws Error if they differ.
  void Copy(const std::string& name, const std::string& original, int64_t rows, int64_t cols);

  /// Throws one Error that lists all that is missing, mis-shaped or unexpected; MTP modules that
  /// were not declared and copies of embedding and head inside MTP modules are not unexpected.
  void Check(const ModelConfig& config) const;

  /// Of all declared weights, with their scales. Opens every tensor.
  WeightSizes PackedSizes();

  /// Bytes read so far, and in all, of the files; called on the loading thread.
  using Progress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

  /// Fills everything that was declared; returns the memory that the views point into.
  Buffer Load(ThreadPool& pool, const Progress& progress);

 private:
  struct PieceSize {
    size_t bytes = 0;
    DType dtype = DType::kF32;  // of the elements, of most of them if they differ
  };
  struct Piece {
    std::vector<ExpectedTensor> tensors;
    OpenTensors open;
    PieceSize size;
    std::function<PieceSize(Piece&)> measure;  // once the tensors are open
    std::function<void(Piece&, std::byte* memory, ThreadPool&)> fill;
  };

  void Declare(std::vector<ExpectedTensor> tensors, std::function<PieceSize(Piece&)> measure,
               std::function<void(Piece&, std::byte*, ThreadPool&)> fill);
  void DeclareStacked(PackedMatrix* out, const std::vector<std::string>& names, int64_t rows,
                      int64_t cols, int64_t weights_used_together, WeightForm form);
  void OpenAll();

  const WeightSource& source_;
  WeightForm form_;
  std::vector<Piece> pieces_;
};

}  // namespace outrider
