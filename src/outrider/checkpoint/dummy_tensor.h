// Random numbers in place of a checkpoint's tensor (dummy_values.h), stored as bfloat16, or as
// codes with scales.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "outrider/checkpoint/dummy_values.h"
#include "outrider/checkpoint/model_config.h"
#include "outrider/checkpoint/weight_source.h"

namespace outrider {

/// The stream's values as bfloat16.
std::unique_ptr<WeightTensor> MakeDummyTensor(std::span<const int64_t> shape,
                                              const DummyStream& stream);

/// Numbers below limit, those of a row all different: at most `limit` columns.
std::unique_ptr<WeightTensor> MakeDummyChoices(std::span<const int64_t> shape, uint64_t key,
                                               int64_t limit);

/// Whether a matrix of `cols` columns can be stored in this format.
bool TakesColumns(StoredFormat format, int64_t cols);

/// The stream's values as codes of a format, all of whose scales are the least power of two with
/// which the values fit, and so exact in bfloat16. FP8 blocks have the sizes that `blocks` says.
/// The format has to take the columns of the shape.
std::unique_ptr<WeightTensor> MakeDummyCodes(std::span<const int64_t> shape,
                                             const DummyStream& stream, StoredFormat format,
                                             const Quantization& blocks);

}  // namespace outrider
