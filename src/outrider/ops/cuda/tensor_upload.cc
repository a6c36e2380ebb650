// Longer than most files: one way for each stored format.
#include "outrider/ops/cuda/tensor_upload.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/kernels/cuda/matmul/load_weights.h"

namespace outrider::cuda {

namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kSmallest = size_t{32} << 20;  // of an allocation
constexpr size_t kChunkBytes = size_t{32} << 20;
constexpr int64_t kTaskBytes = int64_t{128} << 10;  // that a thread reads at a time

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int64_t Ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

int Int(int64_t value) { return static_cast<int>(value); }

DummyPart DummyPartOf(const TensorPart& part, const DummyStream& stream) {
  return {.stream = stream,
          .tensor_cols = part.tensor_cols,
          .first_row = part.first_row,
          .first_col = part.first_col,
          .rows = part.rows,
          .cols = part.cols};
}

/// What all codes of a generated tensor of 4 bits are multiplied by.
float DummyScale(const WeightTensor& tensor) {
  const GroupScales& groups = *tensor.group_scales();
  std::vector<uint8_t> row(static_cast<size_t>(tensor.cols() / groups.cols) *
                           DTypeSize(groups.dtype));
  tensor.ReadGroupScales(0, 1, row.data());
  // A pair of codes that stand for 1 each.
  const auto codes = static_cast<uint8_t>(groups.dtype == DType::kBF16 ? 0x99 : 0x22);
  float ones[2];
  WidenFourBitCodes(tensor.stored_dtype(), groups, &codes, row.data(), 2, ones);
  return ones[0];
}

}  // namespace

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

void TensorUpload::CopyRows(const TensorPart& part, int64_t row_bytes, void* to,
                            const ReadRows& read) {
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
    std::byte* const rows = chunk.memory.data();
    const int64_t rows_per_task = std::max<int64_t>(1, kTaskBytes / row_bytes);
    pool_.ParallelForThrowing(Ceil(count, rows_per_task), [&](int64_t task) {
      const int64_t first = task * rows_per_task;
      const int64_t n = std::min(rows_per_task, count - first);
      read(part.first_row + done + first, n, rows + first * row_bytes);
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
  const bool plain = tensor.stored_dtype() == DType::kBF16;
  const DummyStream* const dummy = plain ? tensor.dummy_stream() : nullptr;
  if (dummy != nullptr && (part.first_col | part.cols | part.tensor_cols) % 4 == 0) {
    CheckCuda(FillDummyPart(DummyPartOf(part, *dummy), to, stream_), "random weights");
    return;
  }
  const auto read = [&](int64_t first, int64_t count, std::byte* to_rows) {
    auto* out = reinterpret_cast<BFloat16*>(to_rows);
    if (part.cols == tensor.cols()) return tensor.ReadBFloat16(first, count, out);
    std::vector<BFloat16> rows(static_cast<size_t>(count * tensor.cols()));
    tensor.ReadBFloat16(first, count, rows.data());
    for (int64_t r = 0; r < count; ++r) {
      out = std::copy_n(rows.data() + r * tensor.cols() + part.first_col, part.cols, out);
    }
  };
  CopyRows(part, UnpackedBytes(WeightFormat::kBf16, part.cols), to, read);
}

namespace {

/// `own` bytes from byte `first` on of each of `count` rows of `all` bytes, which read(to) writes.
template <typename Read>
void ReadSomeBytes(int64_t count, int64_t all, int64_t first, int64_t own, std::byte* to,
                   Read read) {
  if (own == all) return read(reinterpret_cast<uint8_t*>(to));
  std::vector<uint8_t> rows(static_cast<size_t>(count * all));
  read(rows.data());
  for (int64_t r = 0; r < count; ++r, to += own) {
    std::memcpy(to, rows.data() + r * all + first, static_cast<size_t>(own));
  }
}

}  // namespace

void TensorUpload::ReadCodes(const OpenPart& from, WeightFormat format, void* to) {
  const TensorPart& part = from.part;
  const DummyStream* const dummy = IsFourBits(format) ? from.tensor->dummy_stream() : nullptr;
  if (dummy != nullptr && (part.first_col | part.cols | part.tensor_cols) % 8 == 0) {
    CheckCuda(FillDummyCodes(DummyPartOf(part, *dummy), DummyScale(*from.tensor),
                             format == WeightFormat::kInt4, to, stream_),
              "random weights");
    return;
  }
  const auto bytes = [&](int64_t cols) { return UnpackedBytes(format, cols); };
  CopyRows(part, bytes(part.cols), to, [&](int64_t first, int64_t count, std::byte* out) {
    ReadSomeBytes(count, bytes(part.tensor_cols), bytes(part.first_col), bytes(part.cols), out,
                  [&](uint8_t* codes) { from.tensor->ReadCodes(first, count, codes); });
  });
}

void TensorUpload::ReadGroupScales(const OpenPart& from, WeightFormat format, void* to) {
  const TensorPart& part = from.part;
  const auto bytes = [&](int64_t cols) { return GroupScaleBytes(format, cols); };
  CopyRows(part, bytes(part.cols), to, [&](int64_t first, int64_t count, std::byte* out) {
    ReadSomeBytes(count, bytes(part.tensor_cols), bytes(part.first_col), bytes(part.cols), out,
                  [&](uint8_t* scales) { from.tensor->ReadGroupScales(first, count, scales); });
  });
}

const void* TensorUpload::Keep(std::span<const std::byte> values) {
  void* const to = Take(values.size());
  // The copy from pageable memory has read it when it returns.
  CheckCuda(cudaMemcpyAsync(to, values.data(), values.size(), cudaMemcpyHostToDevice, stream_),
            "copying weights to the device");
  return to;
}

const void* TensorUpload::Plain(const TensorPart& part) {
  void* const to = Take(static_cast<size_t>(part.rows * part.cols) * sizeof(BFloat16));
  ReadBf16(Open(part), to);
  return to;
}

size_t TensorUpload::StagedBytes(WeightFormat format, int64_t rows, int64_t cols) {
  const auto aligned = [](int64_t bytes) { return Aligned(static_cast<size_t>(bytes)); };
  size_t bytes = aligned(UnpackedBytes(format, rows * cols));
  if (IsFourBits(format)) bytes += aligned(rows * GroupScaleBytes(format, cols));
  // Scales of blocks are fewer than those of rows, or of a row of blocks per 128 rows.
  const int64_t scales = std::max(rows, Ceil(rows, 128) * Ceil(cols, 128));
  return bytes + aligned(scales * static_cast<int64_t>(sizeof(float)));
}

TensorUpload::Staged TensorUpload::Stage(const std::vector<OpenPart>& parts, WeightFormat format,
                                         std::byte* to) {
  int64_t rows = 0;
  for (const OpenPart& part : parts) rows += part.part.rows;
  const int64_t cols = parts[0].part.cols;
  std::byte* const groups = to + Aligned(static_cast<size_t>(UnpackedBytes(format, rows * cols)));
  const int64_t group_bytes = IsFourBits(format) ? GroupScaleBytes(format, cols) : 0;
  std::byte* const floats = groups + Aligned(static_cast<size_t>(rows * group_bytes));
  std::vector<float> scales;
  int64_t row = 0;
  for (const OpenPart& part : parts) {
    std::byte* const codes = to + UnpackedBytes(format, row * cols);
    if (format == WeightFormat::kBf16) {
      ReadBf16(part, codes);
    } else {
      ReadCodes(part, format, codes);
    }
    if (group_bytes > 0) ReadGroupScales(part, format, groups + row * group_bytes);
    const std::vector<float> own = ScalesOf(part, format);
    scales.insert(scales.end(), own.begin(), own.end());
    row += part.part.rows;
  }
  Staged staged = {.w = to};
  if (group_bytes > 0) staged.group_scales = groups;
  if (!scales.empty()) {
    staged.scales = reinterpret_cast<const float*>(floats);
    CheckCuda(cudaMemcpyAsync(floats, scales.data(), scales.size() * sizeof(float),
                              cudaMemcpyHostToDevice, stream_),
              "copying scales to the device");
  }
  return staged;
}

void TensorUpload::PackStack(const std::vector<OpenPart>& parts, const PackedWeight& weight) {
  const Staged staged =
      Stage(parts, weight.format, Staging(StagedBytes(weight.format, weight.n, weight.k)));
  PackWeight({.w = staged.w, .scales = staged.scales, .group_scales = staged.group_scales}, weight,
             stream_);
}

PackedWeight TensorUpload::Matrix(const std::vector<TensorPart>& parts, const MatrixForm& form) {
  std::vector<OpenPart> open;
  int64_t rows = 0;
  for (const TensorPart& part : parts) {
    open.push_back(Open(part));
    rows += part.rows;
  }
  PackedWeight weight = {.format = form.format, .n = Int(rows), .k = Int(parts[0].cols)};
  weight.segments = form.segments;
  weight.data = Take(PackedWeightBytes(weight.format, weight.n, weight.k));
  PackStack(open, weight);
  return weight;
}

void TensorUpload::SideBySide(const std::vector<TensorPart>& parts,
                              const std::vector<MatrixForm>& forms,
                              std::span<PackedWeight* const> weights) {
  OUTRIDER_CHECK(!parts.empty() && parts.size() == forms.size() && parts.size() == weights.size());
  size_t unit_bytes = 0;
  size_t scale_bytes = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    OUTRIDER_CHECK(forms[i].segments > 0 && forms[i].segments == forms[0].segments);
    PackedWeight& weight = *weights[i];
    weight = {.format = forms[i].format, .n = Int(parts[i].rows), .k = Int(parts[i].cols)};
    weight.segments = forms[i].segments;
    for (const MatrixForm& other : forms) {
      const WeightFormat together = Together(weight.format, other.format);
      if (together != WeightFormat::kBf16) weight.format = together;
    }
    unit_bytes += PackedUnitBytes(weight.format, weight.n, weight.k);
    scale_bytes += PackedScaleBytes(weight.format, weight.n, weight.k);
  }
  // Units of all, then scales of all.
  auto* units = static_cast<std::byte*>(Take(unit_bytes + scale_bytes));
  std::byte* scales = units + unit_bytes;
  for (size_t i = 0; i < parts.size(); ++i) {
    PackedWeight& weight = *weights[i];
    weight.data = units;
    units += PackedUnitBytes(weight.format, weight.n, weight.k);
    if (const size_t own = PackedScaleBytes(weight.format, weight.n, weight.k); own > 0) {
      weight.scales = scales;
      scales += own;
    }
    std::vector<OpenPart> open;
    open.push_back(Open(parts[i]));
    PackStack(open, weight);
  }
}

void TensorUpload::Bf16SideBySide(const std::vector<TensorPart>& parts,
                                  std::span<PackedWeight* const> weights) {
  OUTRIDER_CHECK(!parts.empty() && parts.size() == weights.size());
  PackedWeight all = {.k = Int(parts[0].cols)};
  size_t bytes = 0;
  for (const TensorPart& part : parts) {
    all.n += Int(part.rows);
    bytes += PackedUnitBytes(all.format, Int(part.rows), all.k);
  }
  auto* memory = static_cast<std::byte*>(Take(bytes));
  for (size_t i = 0; i < parts.size(); ++i) {
    PackedWeight& weight = *weights[i];
    weight = {.n = Int(parts[i].rows), .k = all.k, .data = memory};
    weight.segments = SegmentsOf(all).count;
    memory += PackedUnitBytes(weight.format, weight.n, weight.k);
    std::vector<OpenPart> open;
    open.push_back(Open(parts[i]));
    PackStack(open, weight);
  }
}

PackedWeight TensorUpload::Bf16Matrix(const TensorPart& part, int segments, const void** plain) {
  PackedWeight weight = {.n = Int(part.rows), .k = Int(part.cols)};
  weight.segments = segments;
  weight.data = Take(PackedWeightBytes(weight.format, weight.n, weight.k));
  std::vector<OpenPart> open;
  open.push_back(Open(part));
  PackStack(open, weight);
  if (plain != nullptr) *plain = staging_.data();
  return weight;
}

void TensorUpload::Mlps(const std::vector<MlpParts>& mlps, const MlpForms& forms,
                        PackedWeight* gate_up, PackedWeight* down) {
  const TensorPart& gate = mlps[0].gate;
  gate_up->gate_up = true;
  gate_up->format = forms.gate_up.format;
  gate_up->segments = forms.gate_up.segments;
  gate_up->n = Int(2 * gate.rows);
  gate_up->k = Int(gate.cols);
  *down = {.format = forms.down.format, .n = Int(mlps[0].down.rows), .k = Int(mlps[0].down.cols)};
  down->segments = forms.down.segments;
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

void TensorUpload::PackGateUp(const MlpParts& mlp, const PackedWeight& weight) {
  const size_t bytes = StagedBytes(weight.format, mlp.gate.rows, mlp.gate.cols);
  std::byte* const to = Staging(2 * bytes);
  const auto stage = [&](const TensorPart& part, std::byte* at) {
    std::vector<OpenPart> open;
    open.push_back(Open(part));
    return Stage(open, weight.format, at);
  };
  const Staged gate = stage(mlp.gate, to);
  const Staged up = stage(mlp.up, to + bytes);
  PackWeight({.w = gate.w,
              .up = up.w,
              .scales = gate.scales,
              .up_scales = up.scales,
              .group_scales = gate.group_scales,
              .up_group_scales = up.group_scales},
             weight, stream_);
}

std::vector<DeviceMemory> TensorUpload::Finish() {
  CheckCuda(cudaStreamSynchronize(stream_), "loading weights");
  staging_ = DeviceMemory();
  return std::move(kept_);
}

}  // namespace outrider::cuda
