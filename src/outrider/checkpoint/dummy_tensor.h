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

/// The stream's values as e4m3 codes in blocks, all of whose scales are the least power of two with
/// which the values fit.
std::unique_ptr<WeightTensor> MakeDummyFp8Tensor(std::span<const int64_t> shape,
                                                 const DummyStream& stream,
                                                 const Quantization& blocks);

/// The same as e2m1 codes; the last dimension is a multiple of kFp4Group.
std::unique_ptr<WeightTensor> MakeDummyFp4Tensor(std::span<const int64_t> shape,
                                                 const DummyStream& stream);

}  // namespace outrider
