#include "outrider/ops/cuda/weight_formats.h"

#include <algorithm>
#include <cmath>

#include "outrider/base/error.h"

namespace outrider::cuda {

namespace {

constexpr int64_t kScaleBlock = 128;

int64_t Ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// The range in which PackWeight takes scales of blocks that are powers of two.
bool IsPowerOfTwo(float scale) {
  int exponent = 0;
  return std::frexp(scale, &exponent) == 0.5F && exponent - 1 >= -64 && exponent - 1 <= 7;
}

WeightFormat FormatOfGroups(const TensorPart& part, const WeightTensor& tensor) {
  const GroupScales& scales = *tensor.group_scales();
  const WeightFormat format = scales.dtype == DType::kBF16     ? WeightFormat::kInt4
                              : scales.dtype == DType::kF8E4M3 ? WeightFormat::kNvfp4
                                                               : WeightFormat::kFp4;
  const int group = GroupColumns(format);
  const bool reads = scales.cols == group && part.first_col % group == 0 && part.cols % group == 0;
  // Packing multiplies a global scale by a power of two.
  const bool global =
      format == WeightFormat::kNvfp4 ? std::fabs(scales.global) < 0x1p100F : scales.global == 1;
  return reads && global ? format : WeightFormat::kBf16;
}

/// What one part is packed as, if others follow it (`last` false) or not.
WeightFormat FormatOfPart(const TensorPart& part, const WeightTensor& tensor, bool last) {
  if (tensor.group_scales() != nullptr) return FormatOfGroups(part, tensor);
  const BlockScales* const scales = tensor.block_scales();
  if (scales == nullptr) return WeightFormat::kBf16;
  if (scales->block_cols == tensor.cols() &&
      (scales->block_rows == 1 || scales->block_rows == tensor.rows())) {
    return WeightFormat::kF8Rows;
  }
  const bool blocks = scales->block_rows == kScaleBlock && scales->block_cols == kScaleBlock &&
                      part.first_row % kScaleBlock == 0 && part.first_col % kScaleBlock == 0 &&
                      (last || part.rows % kScaleBlock == 0);
  if (!blocks) return WeightFormat::kBf16;
  return std::ranges::all_of(scales->values, IsPowerOfTwo) ? WeightFormat::kF8PowerOfTwo
                                                           : WeightFormat::kF8;
}

}  // namespace

OpenPart OpenIn(const WeightSource& source, const TensorPart& part) {
  OUTRIDER_CHECK(part.first_row + part.rows <= part.tensor_rows &&
                 part.first_col + part.cols <= part.tensor_cols);
  return {part, source.Open(part.Expected())};
}

WeightFormat Together(WeightFormat a, WeightFormat b) {
  if (a == b) return a;
  // Products with any scales multiply powers of two, too.
  return HasBlockScales(a) && HasBlockScales(b) ? WeightFormat::kF8 : WeightFormat::kBf16;
}

WeightFormat FormatOf(const std::vector<OpenPart>& parts) {
  const auto format_of = [&](size_t i) {
    return FormatOfPart(parts[i].part, *parts[i].tensor, i + 1 == parts.size());
  };
  WeightFormat format = format_of(0);
  for (size_t i = 1; i < parts.size(); ++i) format = Together(format, format_of(i));
  return format;
}

WeightFormat FormatOf(const WeightSource& source, const std::vector<TensorPart>& parts) {
  std::vector<OpenPart> open;
  open.reserve(parts.size());
  for (const TensorPart& part : parts) open.push_back(OpenIn(source, part));
  return FormatOf(open);
}

void CheckCut(const WeightSource& source, const std::vector<TensorPart>& wholes, Cut cut,
              const RankPlace& place, WeightFormat format) {
  if (place.ranks == 1 || !HasBlockScales(format)) return;
  const TensorPart& whole = wholes.front();
  const auto fits = [&](const Share& share) {
    const int64_t in_block = (whole.first_row + share.first) % kScaleBlock;
    const bool begins = in_block == 0 || in_block + share.count <= kScaleBlock;
    return begins && (wholes.size() == 1 || share.count % kScaleBlock == 0);
  };
  const Share own = ShareOf(cut, whole.rows, place);
  if (fits(own)) return;
  const int64_t first = whole.first_row + own.first;
  throw InvalidArgument(
      "{}: {} has too few rows for {} ranks: rows {} to {} do not lie as blocks of {} FP8 weights "
      "do, by which the GPU's kernels multiply; {} can share it",
      source.where(), whole.name, place.ranks, first, first + own.count, kScaleBlock,
      FewerRanks(cut, whole.rows, place.ranks, fits));
}

MlpFormats FormatsOf(const WeightSource& source, const std::vector<MlpParts>& mlps) {
  // Each matrix is looked at by itself, since none follows another.
  const auto format_of = [&](const TensorPart& part) { return FormatOf(source, {part}); };
  const auto formats_of = [&](const MlpParts& mlp) {
    return MlpFormats{Together(format_of(mlp.gate), format_of(mlp.up)), format_of(mlp.down)};
  };
  MlpFormats formats = formats_of(mlps[0]);
  for (size_t i = 1; i < mlps.size(); ++i) {
    const MlpFormats own = formats_of(mlps[i]);
    formats = {Together(formats.gate_up, own.gate_up), Together(formats.down, own.down)};
  }
  return formats;
}

DType TypeOf(WeightFormat format) {
  switch (format) {
    case WeightFormat::kBf16:
      return DType::kBF16;
    case WeightFormat::kInt4:
      return DType::kI4;
    case WeightFormat::kFp4:
    case WeightFormat::kNvfp4:
      return DType::kF4E2M1;
    default:
      return DType::kF8E4M3;
  }
}

int64_t UnpackedBytes(WeightFormat format, int64_t count) {
  if (format == WeightFormat::kBf16) return count * static_cast<int64_t>(sizeof(BFloat16));
  return IsFourBits(format) ? count / 2 : count;
}

int64_t GroupScaleBytes(WeightFormat format, int64_t cols) {
  return cols / GroupColumns(format) * (format == WeightFormat::kInt4 ? 2 : 1);
}

std::vector<float> ScalesOf(const OpenPart& from, WeightFormat format) {
  const TensorPart& part = from.part;
  std::vector<float> result;
  if (format == WeightFormat::kNvfp4) {
    result.assign(static_cast<size_t>(part.rows), from.tensor->group_scales()->global);
  } else if (format == WeightFormat::kF8Rows) {
    const BlockScales& scales = *from.tensor->block_scales();
    for (int64_t r = part.first_row; r < part.first_row + part.rows; ++r) {
      result.push_back(scales.values[static_cast<size_t>(r / scales.block_rows)]);
    }
  } else if (HasBlockScales(format)) {
    const BlockScales& scales = *from.tensor->block_scales();
    const int64_t tensor_blocks = Ceil(part.tensor_cols, kScaleBlock);
    for (int64_t r = 0; r < Ceil(part.rows, kScaleBlock); ++r) {
      const int64_t first =
          (part.first_row / kScaleBlock + r) * tensor_blocks + part.first_col / kScaleBlock;
      const auto begin = scales.values.begin() + first;
      result.insert(result.end(), begin, begin + Ceil(part.cols, kScaleBlock));
    }
  }
  return result;
}

}  // namespace outrider::cuda
