// Where a model's weights come from: a checkpoint's files, or random numbers in their place. A
// loader asks for tensors by name and reads their rows as floats, whatever they are stored as.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "outrider/base/dtype.h"
#include "outrider/base/function_ref.h"
#include "outrider/checkpoint/dummy_values.h"
#include "outrider/checkpoint/model_config.h"

namespace outrider {

/// A tensor that the model needs, or one matrix of a stack of them.
struct ExpectedTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::optional<int64_t> index = std::nullopt;  // which matrix of a tensor [n, rows, cols]
  bool holds_integers = false;                  // of 32 or 64 bits, read as the nearest floats
  bool any_ones = false;  // the file's shape may have more or fewer dimensions of 1
};

/// Scales of an FP8 tensor's blocks: value(r, c) is multiplied by
/// values[r / block_rows][c / block_cols], of [ceil(rows/block_rows), ceil(cols/block_cols)]
/// values, all finite; 0 only for blocks of zeros.
struct BlockScales {
  int64_t block_rows = 0;
  int64_t block_cols = 0;
  int64_t stored_bytes = 0;
  std::vector<float> values;
};

/// Scales of a tensor of 4-bit codes: every `cols` columns of a row share one, of kF8E8M0 or
/// kF8E4M3 with kF4E2M1, of kBF16 with kI4.
struct GroupScales {
  int64_t cols = 0;
  int64_t stored_cols = 0;  // columns that share one in the file: a multiple of cols
  DType dtype = DType::kF8E8M0;
  float global = 1;  // all values are multiplied by it too; finite, not 0
};

/// One tensor, open for reading. Reading is thread-safe; a tensor may outlive its source.
class WeightTensor {
 public:
  virtual ~WeightTensor() = default;

  const std::vector<int64_t>& shape() const { return shape_; }
  /// The last dimension is the columns, the product of the others the rows: a vector [N] is one
  /// row of N.
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

  /// The element type in the file (for FP8, without its scales).
  virtual DType stored_dtype() const = 0;
  /// Bytes that the tensor and its scales take in the file; 0 for generated weights.
  virtual int64_t stored_bytes() const = 0;
  /// True when every value is known to be a bfloat16 value: stored so, FP4 with a global scale of
  /// 1, or FP8 whose scales are powers of two within range.
  virtual bool exact_in_bfloat16() const = 0;

  /// What generated values are made of, before they become codes (dummy_values.h); else null.
  virtual const DummyStream* dummy_stream() const { return nullptr; }

  /// The scales of a tensor that is FP8 in the file, else null.
  virtual const BlockScales* block_scales() const { return nullptr; }
  /// What scales a tensor of 4-bit codes (stored_dtype kF4E2M1 or kI4), else null.
  virtual const GroupScales* group_scales() const { return nullptr; }
  /// Writes rows [first_row, first_row + count) of an FP8 tensor to out[count][cols()] as e4m3
  /// codes; of a tensor of 4-bit codes to out[count][cols() / 2], the even column in the lower half
  /// of a byte. Throws Error when the file cannot be read or a code is NaN.
  virtual void ReadCodes(int64_t first_row, int64_t count, uint8_t* out) const;
  /// Writes the scales of groups of these rows as they are stored, out[count][cols() / cols of a
  /// group]. Throws Error when the file cannot be read, a scale is zero or not finite, or a product
  /// with a power of two might be no normal bfloat16 value.
  virtual void ReadGroupScales(int64_t first_row, int64_t count, uint8_t* out) const;

  /// Writes rows [first_row, first_row + count) to out[count][cols()]. FP8 blocks and groups of
  /// 4-bit codes are multiplied by their scales (one float32 product per element, rounded once; a
  /// global scale is another one). Throws Error when the file cannot be read.
  virtual void ReadRows(int64_t first_row, int64_t count, float* out) const = 0;

  /// Reads the values rounded to bfloat16. A tensor that is stored so is read as it is.
  virtual void ReadBFloat16(int64_t first_row, int64_t count, BFloat16* out) const;

 protected:
  explicit WeightTensor(std::vector<int64_t> shape);

 private:
  std::vector<int64_t> shape_;
  int64_t rows_ = 1;
  int64_t cols_ = 1;
};

/// The values of `size` codes of 4 bits, two to a byte, whose groups have the scales that follow
/// one another in group_scales.
void WidenFourBitCodes(DType dtype, const GroupScales& scales, const uint8_t* codes,
                       const uint8_t* group_scales, int64_t size, float* out);

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  /// Whether there is such a tensor. Scales of tensors of 8 and 4 bits are not tensors of their
  /// own.
  virtual bool Has(std::string_view name) const = 0;

  /// Opens a tensor of the given shape, or the matrix [rows, cols] that it names. Throws Error when
  /// it is missing, has another shape, a dtype that cannot be read, or FP8 values without scales.
  /// Check says all of that about all tensors.
  virtual std::unique_ptr<WeightTensor> Open(const ExpectedTensor& tensor) const = 0;

  /// Throws one Error that names every expected tensor that is missing, mis-shaped, of an
  /// unreadable dtype or without scales, and every tensor present that is neither expected nor
  /// ignorable(name) (at most 20 names of each kind).
  virtual void Check(std::span<const ExpectedTensor> expected,
                     FunctionRef<bool(std::string_view)> ignorable) const = 0;

  /// What messages about it begin with: the directory.
  virtual std::string where() const = 0;

  /// Names of all tensors, sorted; empty for generated weights, which have any name.
  virtual std::vector<std::string> names() const = 0;
};

/// Opens model.safetensors, or the files that model.safetensors.index.json names, in `directory`.
/// Tensors have the names that loaders ask for, where files say them differently (tensor_names.h).
/// Only headers are read here. Throws Error: no such files, a broken index or header, a tensor that
/// is not in the file the index names, a path that leaves the directory, an unknown quantization.
std::unique_ptr<WeightSource> OpenCheckpoint(const std::filesystem::path& directory,
                                             const ModelConfig& config);

/// Random weights for timing shapes without a checkpoint. A value is a function of (seed, name,
/// element index), exact in bfloat16; Open answers any name and shape. Matrices [.., K] are uniform
/// with standard deviation K^-1/2 (embeddings 1), norms 1 ± 1/16, biases 0, so activations keep
/// their magnitude; decays of linear attention are such that it remembers; tables of experts by
/// token hold different ones per token. Matrices that a config of compressed-tensors or ModelOpt
/// says are codes are codes of that format; so are those that DeepSeek-V4 publishes as FP8 or FP4,
/// if its config says "fp8"; all others are bfloat16. Has() knows the tensors of the trunk and of
/// the declared draft modules. Throws Error where OpenCheckpoint would for the config's
/// quantization.
std::unique_ptr<WeightSource> MakeDummyWeights(const ModelConfig& config, uint64_t seed);

/// How many MTP modules the source holds: consecutive i from 0 with a tensor
/// {prefix}model.layers.{num_hidden_layers + i}.eh_proj.weight, whatever the config declares;
/// for DeepSeek-V4 {prefix}mtp.{i}.e_proj.weight or, if the config says that there is a DSpark
/// drafter, the number of its stages if the source has {prefix}mtp.0.main_proj.weight, else 0.
int CountMtpLayers(const WeightSource& source, const ModelConfig& config);

}  // namespace outrider
