// How a config says that a checkpoint's matrices are stored. Which ones really are is read from the
// tensors themselves (quantized_tensors.h); what is declared counts for random weights.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {

enum class StoredFormat {
  kFp8Tensor,  // a scale for the matrix
  kFp8Row,     // one for each row
  kFp8Block,   // one for each block
  kInt4,       // a bfloat16 scale for a group of columns of a row
  kNvfp4,      // e2m1, an e4m3 scale for 16 columns of a row, a float32 scale for the matrix
  kMxfp4,      // e2m1, a power of two for 32 columns of a row
};

struct Quantization {
  std::string method;  // quant_method: "" (none), "fp8", "compressed-tensors", "modelopt", or one
                       // that OpenCheckpoint refuses by name
  int64_t block_rows = 0;  // kFp8Block: rows and columns that share a scale
  int64_t block_cols = 0;
  std::optional<StoredFormat> format;  // of matrices; none where the method is not known
  std::optional<StoredFormat> experts_format = {};  // of routed experts, where they have their own
  /// Modules whose matrices are not quantised: names, "re:" and a regular expression for the
  /// beginning of a name (compressed-tensors), or with * for any characters (ModelOpt).
  std::vector<std::string> ignored;

  /// Whether the matrix of a module, "model.layers.1.mlp.experts.0.up_proj", is declared quantised.
  bool Covers(std::string_view module) const;
};

/// Why AWQ's and GPTQ's tensors are refused.
inline constexpr std::string_view kForeignInt4 =
    "its INT4 (qweight, qzeros, scales) is not supported; of INT4, compressed-tensors' "
    "pack-quantized is, symmetric and in groups of 32 columns or a multiple";

/// Throws Error naming `where` unless weights of this method of quantization, "" for none, can be
/// read.
void CheckMethod(std::string_view where, std::string_view method);

/// "FP8 with a scale per row", ...
std::string_view StoredFormatName(StoredFormat format);

/// Whether an element of Quantization::ignored names the module. Of regular expressions these are
/// understood: characters, "\\" before one, ".", "*" behind one of them, "(a|b)" of characters, "^"
/// at the beginning and "$" at the end; others match nothing.
bool NamesModule(std::string_view pattern, std::string_view module);

}  // namespace outrider
