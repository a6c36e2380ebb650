#include "outrider/ops/cuda/tensor_upload.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/kernels/cuda/load_weights.h"

namespace outrider::cuda {

namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kSmallest = size_t{32} << 20;  // of an allocation
constexpr size_t kChunkBytes = size_t{32} << 20;
constexpr int64_t kScaleBlock = 128;
constexpr int64_t kTaskBytes = int64_t{128} << 10;  // that a thread reads at a time

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int64_t Ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// The range in which PackWeight takes scales that are powers of two.
bool IsPowerOfTwo(float scale) {
  int exponent = 0;
  return std::frexp(scale, &exponent) == 0.5F && exponent - 1 >= -64 && exponent - 1 <= 7;
}

int Int(int64_t value) { return static_cast<int>(value); }

OpenPart OpenIn(const WeightSource& source, const TensorPart& part) {
  OUTRIDER_CHECK(part.first_row + part.rows <= part.tensor_rows &&
                 part.first_col + part.cols <= part.tensor_cols);
  return {part, source.Open({part.name, {part.tensor_rows, part.tensor_cols}})};
}

bool KeepsCodes(const std::vector<OpenPart>& parts) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const TensorPart& part = parts[i].part;
    const BlockScales* const scales = parts[i].tensor->block_scales();
    if (scales == nullptr || scales->block_rows != kScaleBlock ||
        scales->block_cols != kScaleBlock || part.first_row % kScaleBlock != 0 ||
        part.first_col % kScaleBlock != 0) {
      return false;
    }
    if (i + 1 < parts.size() && part.rows % kScaleBlock != 0) return false;
  }
  return true;
}

WeightFormat FormatOfOpen(const std::vector<OpenPart>& parts) {
  if (!KeepsCodes(parts)) return WeightFormat::kBf16;
  const bool powers = std::ranges::all_of(parts, [](const OpenPart& part) {
    return std::ranges::all_of(part.tensor->block_scales()->values, IsPowerOfTwo);
  });
  return powers ? WeightFormat::kF8PowerOfTwo : WeightFormat::kF8;
}

}  // namespace

WeightFormat FormatOf(const WeightSource& source, const std::vector<TensorPart>& parts) {
  std::vector<OpenPart> open;
  open.reserve(parts.size());
  for (const TensorPart& part : parts) open.push_back(OpenIn(source, part));
  return FormatOfOpen(open);
}

MlpFormats FormatsOf(const WeightSource& source, const std::vector<TensorUpload::Mlp>& mlps) {
  // Each is looked at by itself, since none follows another.
  const auto format_of = [&](auto tensor) {
    bool powers = true;
    for (const TensorUpload::Mlp& mlp : mlps) {
      const WeightFormat format = FormatOf(source, {tensor(mlp)});
      if (format == WeightFormat::kBf16) return format;
      powers = powers && format == WeightFormat::kF8PowerOfTwo;
    }
    return powers ? WeightFormat::kF8PowerOfTwo : WeightFormat::kF8;
  };
  const WeightFormat gate = format_of([](const TensorUpload::Mlp& mlp) { return mlp.gate; });
  const WeightFormat up = format_of([](const TensorUpload::Mlp& mlp) { return mlp.up; });
  MlpFormats formats;
  // One format for both: bf16 if either is, exact powers only if both are.
  if (gate == WeightFormat::kBf16 || up == WeightFormat::kBf16) {
    formats.gate_up = WeightFormat::kBf16;
  } else {
    formats.gate_up = up == WeightFormat::kF8PowerOfTwo ? gate : up;
  }
  formats.down = format_of([](const TensorUpload::Mlp& mlp) { return mlp.down; });
  return formats;
}

TensorUpload::TensorUpload(const WeightSource& source, ThreadPool& pool, cudaStream_t stream)
    : source_(source), pool_(pool), stream_(stream) {}

void* TensorUpload::Take(size_t bytes) {
  const size_t size = Aligned(std::max<size_t>(bytes, 1));
  if (size > room_) {
    room_ = std::max(size, kSmallest);
    kept_.emplace_back(room_, "weights");
  }
  const DeviceMemory& last = kept_.back();
  std::byte* const taken = last.As<std::byte>() + (last.bytes() - room_);
  room_ -= size;
  return taken;
}

std::byte* TensorUpload::Staging(size_t bytes) {
  if (bytes > staging_.bytes()) {
    CheckCuda(cudaStreamSynchronize(stream_), "loading weights");
    staging_ = DeviceMemory();
    staging_ = DeviceMemory(Aligned(bytes), "unpacked weights");
  }
  return staging_.As<std::byte>();
}

OpenPart TensorUpload::Open(const TensorPart& part) const { return OpenIn(source_, part); }

template <typename T, typename Read>
void TensorUpload::CopyRows(const OpenPart& from, void* to, Read read) {
  const TensorPart& part = from.part;
  const int64_t row_bytes = part.cols * static_cast<int64_t>(sizeof(T));
  const int64_t most = std::max<int64_t>(1, static_cast<int64_t>(kChunkBytes) / row_bytes);
  for (int64_t done = 0; done < part.rows; done += most) {
    const int64_t count = std::min(most, part.rows - done);
    Chunk& chunk = chunks_[next_chunk_];
    next_chunk_ = 1 - next_chunk_;
    const auto bytes = static_cast<size_t>(count * row_bytes);
    if (chunk.memory.data() == nullptr || bytes > kChunkBytes) {
      chunk.copied.Wait();
      chunk.memory = PinnedMemory(std::max(bytes, kChunkBytes));
    }
    chunk.copied.Wait();
    auto* const rows = reinterpret_cast<T*>(chunk.memory.data());
    const int64_t rows_per_task = std::max<int64_t>(1, kTaskBytes / row_bytes);
    pool_.ParallelForThrowing(Ceil(count, rows_per_task), [&](int64_t task) {
      const int64_t first = task * rows_per_task;
      const int64_t n = std::min(rows_per_task, count - first);
      read(part.first_row + done + first, n, rows + first * part.cols);
    });
    CheckCuda(cudaMemcpyAsync(static_cast<std::byte*>(to) + done * row_bytes, rows, bytes,
                              cudaMemcpyHostToDevice, stream_),
              "copying weights to the device");
    chunk.copied.Record(stream_);
  }
}

void TensorUpload::ReadBf16(const OpenPart& from, void* to) {
  const TensorPart& part = from.part;
  const WeightTensor& tensor = *from.tensor;
  const DummyStream* const dummy = tensor.dummy_stream();
  if (dummy != nullptr && (part.first_col | part.cols | part.tensor_cols) % 4 == 0) {
    CheckCuda(FillDummyPart({.stream = *dummy,
                             .tensor_cols = part.tensor_cols,
                             .first_row = part.first_row,
                             .first_col = part.first_col,
                             .rows = part.rows,
                             .cols = part.cols},
                            to, stream_),
              "random weights");
    return;
  }
  CopyRows<BFloat16>(from, to, [&](int64_t first, int64_t count, BFloat16* out) {
    if (part.cols == tensor.cols()) return tensor.ReadBFloat16(first, count, out);
    std::vector<BFloat16> rows(static_cast<size_t>(count * tensor.cols()));
    tensor.ReadBFloat16(first, count, rows.data());
    for (int64_t r = 0; r < count; ++r) {
      out = std::copy_n(rows.data() + r * tensor.cols() + part.first_col, part.cols, out);
    }
  });
}

void TensorUpload::ReadCodes(const OpenPart& from, void* to) {
  const TensorPart& part = from.part;
  const WeightTensor& tensor = *from.tensor;
  CopyRows<uint8_t>(from, to, [&](int64_t first, int64_t count, uint8_t* out) {
    std::vector<uint8_t> codes(static_cast<size_t>(count * tensor.cols()));
    tensor.ReadCodes(first, count, codes.data());
    for (int64_t r = 0; r < count; ++r) {
      out = std::copy_n(codes.data() + r * tensor.cols() + part.first_col, part.cols, out);
    }
  });
}

void TensorUpload::ReadPart(const OpenPart& from, WeightFormat format, void* to) {
  if (format == WeightFormat::kBf16) {
    ReadBf16(from, to);
  } else {
    ReadCodes(from, to);
  }
}

std::vector<float> TensorUpload::ScalesOf(const OpenPart& from) {
  const TensorPart& part = from.part;
  const BlockScales& scales = *from.tensor->block_scales();
  const int64_t tensor_blocks = Ceil(part.tensor_cols, kScaleBlock);
  std::vector<float> result;
  for (int64_t r = 0; r < Ceil(part.rows, kScaleBlock); ++r) {
    const int64_t first =
        (part.first_row / kScaleBlock + r) * tensor_blocks + part.first_col / kScaleBlock;
    const auto begin = scales.values.begin() + first;
    result.insert(result.end(), begin, begin + Ceil(part.cols, kScaleBlock));
  }
  return result;
}

const float* TensorUpload::Vector(const std::string& name, int64_t size, float added) {
  const auto tensor = source_.Open({name, {size}});
  std::vector<float> values(static_cast<size_t>(size));
  tensor->ReadRows(0, 1, values.data());
  for (float& value : values) value += added;
  void* const to = Take(values.size() * sizeof(float));
  // The copy from pageable memory has read it when it returns.
  CheckCuda(cudaMemcpyAsync(to, values.data(), values.size() * sizeof(float),
                            cudaMemcpyHostToDevice, stream_),
            "copying weights to the device");
  return static_cast<const float*>(to);
}

const void* TensorUpload::Plain(const TensorPart& part) {
  void* const to = Take(static_cast<size_t>(part.rows * part.cols) * sizeof(BFloat16));
  ReadBf16(Open(part), to);
  return to;
}

void TensorUpload::PackStack(const std::vector<OpenPart>& parts, const PackedWeight& weight) {
  const bool scaled = weight.format != WeightFormat::kBf16;
  const size_t size = scaled ? 1 : sizeof(BFloat16);
  const size_t codes = Aligned(static_cast<size_t>(weight.n) * weight.k * size);
  const auto scale_count =
      static_cast<size_t>(Ceil(weight.n, kScaleBlock) * Ceil(weight.k, kScaleBlock));
  std::byte* const staged = Staging(codes + scale_count * sizeof(float));
  std::byte* next = staged;
  std::vector<float> scales;
  for (const OpenPart& part : parts) {
    ReadPart(part, weight.format, next);
    next += static_cast<size_t>(part.part.rows * part.part.cols) * size;
    if (!scaled) continue;
    const std::vector<float> some = ScalesOf(part);
    scales.insert(scales.end(), some.begin(), some.end());
  }
  UnpackedWeight from = {.w = staged};
  if (scaled) {
    OUTRIDER_CHECK(scales.size() == scale_count);
    from.scales = reinterpret_cast<const float*>(staged + codes);
    CheckCuda(cudaMemcpyAsync(staged + codes, scales.data(), scales.size() * sizeof(float),
                              cudaMemcpyHostToDevice, stream_),
              "copying scales to the device");
  }
  PackWeight(from, weight, stream_);
}

PackedWeight TensorUpload::Matrix(const std::vector<TensorPart>& parts) {
  std::vector<OpenPart> open;
  int64_t rows = 0;
  for (const TensorPart& part : parts) {
    open.push_back(Open(part));
    rows += part.rows;
  }
  PackedWeight weight = {.format = FormatOfOpen(open), .n = Int(rows), .k = Int(parts[0].cols)};
  weight.data = Take(PackedWeightBytes(weight.format, weight.n, weight.k));
  PackStack(open, weight);
  return weight;
}

void TensorUpload::SideBySide(const TensorPart& a, const TensorPart& b, PackedWeight* first,
                              PackedWeight* second) {
  std::vector<OpenPart> open_a;
  std::vector<OpenPart> open_b;
  open_a.push_back(Open(a));
  open_b.push_back(Open(b));
  *first = {.format = FormatOfOpen(open_a), .n = Int(a.rows), .k = Int(a.cols)};
  *second = {.format = FormatOfOpen(open_b), .n = Int(b.rows), .k = Int(b.cols)};
  PackedWeight both = *first;
  both.n += second->n;
  first->segments = second->segments = SegmentsOf(both).count;
  if (first->format != second->format && first->format != WeightFormat::kBf16 &&
      second->format != WeightFormat::kBf16) {
    // One of them has scales that are powers of two, which any scales' products multiply too.
    first->format = second->format = WeightFormat::kF8;
  }
  // Units of both, then scales of both.
  const size_t units = PackedUnitBytes(first->format, first->n, first->k);
  const size_t all_units = units + PackedUnitBytes(second->format, second->n, second->k);
  const size_t scales = PackedScaleBytes(first->format, first->n, first->k);
  auto* const memory = static_cast<std::byte*>(
      Take(all_units + scales + PackedScaleBytes(second->format, second->n, second->k)));
  first->data = memory;
  second->data = memory + units;
  if (first->format != WeightFormat::kBf16) first->scales = memory + all_units;
  if (second->format != WeightFormat::kBf16) second->scales = memory + all_units + scales;
  PackStack(open_a, *first);
  PackStack(open_b, *second);
}

PackedWeight TensorUpload::Bf16Matrix(const TensorPart& part, const void** plain) {
  PackedWeight weight = {.n = Int(part.rows), .k = Int(part.cols)};
  weight.data = Take(PackedWeightBytes(weight.format, weight.n, weight.k));
  std::vector<OpenPart> open;
  open.push_back(Open(part));
  PackStack(open, weight);
  if (plain != nullptr) *plain = staging_.data();
  return weight;
}

void TensorUpload::Mlps(const std::vector<Mlp>& mlps, PackedWeight* gate_up, PackedWeight* down) {
  const MlpFormats formats = FormatsOf(source_, mlps);
  const TensorPart& gate = mlps[0].gate;
  gate_up->gate_up = true;
  gate_up->format = formats.gate_up;
  gate_up->n = Int(2 * gate.rows);
  gate_up->k = Int(gate.cols);
  *down = {.format = formats.down, .n = Int(mlps[0].down.rows), .k = Int(mlps[0].down.cols)};
  const size_t gate_up_bytes = PackedWeightBytes(gate_up->format, gate_up->n, gate_up->k);
  const size_t down_bytes = PackedWeightBytes(down->format, down->n, down->k);
  auto* const gate_ups = static_cast<std::byte*>(Take(gate_up_bytes * mlps.size()));
  auto* const downs = static_cast<std::byte*>(Take(down_bytes * mlps.size()));
  for (size_t i = 0; i < mlps.size(); ++i) {
    gate_up->data = gate_ups + i * gate_up_bytes;
    PackGateUp(mlps[i], *gate_up);
    down->data = downs + i * down_bytes;
    std::vector<OpenPart> open;
    open.push_back(Open(mlps[i].down));
    PackStack(open, *down);
  }
  gate_up->data = gate_ups;
  down->data = downs;
}

void TensorUpload::PackGateUp(const Mlp& mlp, const PackedWeight& weight) {
  const bool scaled = weight.format != WeightFormat::kBf16;
  const size_t matrix =
      Aligned(static_cast<size_t>(mlp.gate.rows * mlp.gate.cols) * (scaled ? 1 : sizeof(BFloat16)));
  const OpenPart gate = Open(mlp.gate);
  const OpenPart up = Open(mlp.up);
  const size_t scale_bytes = Aligned(
      static_cast<size_t>(Ceil(mlp.gate.rows, kScaleBlock) * Ceil(mlp.gate.cols, kScaleBlock)) *
      sizeof(float));
  std::byte* const staged = Staging(2 * matrix + 2 * scale_bytes);
  ReadPart(gate, weight.format, staged);
  ReadPart(up, weight.format, staged + matrix);
  UnpackedWeight from = {.w = staged, .up = staged + matrix};
  if (scaled) {
    const auto upload = [&](const OpenPart& part, std::byte* to) {
      const std::vector<float> scales = ScalesOf(part);
      CheckCuda(cudaMemcpyAsync(to, scales.data(), scales.size() * sizeof(float),
                                cudaMemcpyHostToDevice, stream_),
                "copying scales to the device");
      return reinterpret_cast<const float*>(to);
    };
    from.scales = upload(gate, staged + 2 * matrix);
    from.up_scales = upload(up, staged + 2 * matrix + scale_bytes);
  }
  PackWeight(from, weight, stream_);
}

std::vector<DeviceMemory> TensorUpload::Finish() {
  CheckCuda(cudaStreamSynchronize(stream_), "loading weights");
  staging_ = DeviceMemory();
  return std::move(kept_);
}

}  // namespace outrider::cuda
