// Which tensors of a checkpoint together are one quantised weight, told by their names and types.
//
//   NAME.weight F8_E4M3  NAME.weight_scale_inv or NAME.scale: of blocks (DeepSeek)
//                        NAME.weight_scale: of the tensor, of rows, or of blocks
//   NAME.weight I8       NAME.scale F8_E8M0: FP4 (DeepSeek-V4)
//   NAME.weight U8 or I8 NAME.weight_scale_inv U8 or F8_E8M0: MXFP4 (experts of Ling-3.0)
//   NAME.weight U8       NAME.weight_scale F8_E4M3, NAME.weight_scale_2: NVFP4 (ModelOpt)
//
//   NAME.weight_packed (compressed-tensors) with NAME.weight_scale for groups of columns:
//     I32, eight codes to a word    scales BF16, NAME.weight_shape: INT4
//     U8, two codes to a byte       scales F8_E4M3, NAME.weight_global_scale, by which is divided:
//                                   NVFP4; scales U8 or F8_E8M0: MXFP4
//
// What says how activations are to be rounded (input_scale and the like) is passed over, as
// activations are not.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "outrider/checkpoint/tensor_entry.h"
#include "outrider/checkpoint/weight_source.h"

namespace outrider {

/// What belongs to a weight NAME.weight beside its codes.
struct QuantizedParts {
  TensorEntry scales;
  std::optional<TensorEntry> global;  // NVFP4: one number
  bool divides_by_global = false;
  std::optional<TensorEntry> shape;  // INT4: [rows, cols]
  int64_t group_cols = 0;            // of 4 bits: columns that share a scale
  std::string problem;               // why the parts are no weight; "": they are
};

using QuantizedTensors = std::map<std::string, QuantizedParts, std::less<>>;

/// Takes what belongs to quantised weights out of `entries` and returns it, by the weights' names.
/// The weights stay there as NAME.weight; of 4 bits with kF4E2M1 or kI4 as type and their own
/// shape.
QuantizedTensors TakeQuantizedTensors(TensorEntries& entries);

/// The scale of a QuantizedParts::global and of none. Throws Error for one that is not finite or 0.
float ReadGlobalScale(const QuantizedParts& parts);

/// Throws Error if the numbers of QuantizedParts::shape are not these.
void CheckStoredShape(const QuantizedParts& parts, const TensorInfo& weight);

}  // namespace outrider
