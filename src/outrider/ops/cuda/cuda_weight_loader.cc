#include "outrider/ops/cuda/cuda_weight_loader.h"

#include <numeric>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/kernels/cuda/load_weights.h"
#include "outrider/ops/ops.h"

namespace outrider::cuda {

namespace {

DType TypeOf(WeightFormat format) {
  return format == WeightFormat::kBf16 ? DType::kBF16 : DType::kF8E4M3;
}

ExpectedTensor Expected(const TensorPart& part) {
  return {part.name, {part.tensor_rows, part.tensor_cols}};
}

TensorUpload::Mlp MlpParts(const MlpTensors& names, int64_t width, int64_t hidden) {
  return {TensorPart::Whole(names.gate, width, hidden), TensorPart::Whole(names.up, width, hidden),
          TensorPart::Whole(names.down, hidden, width)};
}

}  // namespace

CudaWeightLoader::CudaWeightLoader(const WeightSource& source, const WeightForm& form,
                                   cudaStream_t stream)
    : source_(source), stream_(stream), memory_(std::make_unique<Memory>()) {
  if (form.compute_dtype != DType::kBF16) {
    throw InvalidArgument("the GPU computes in bfloat16, not in {}: --dtype bfloat16 runs there",
                          DTypeName(form.compute_dtype));
  }
  if (form.quantization != WeightQuantization::kNone) {
    throw InvalidArgument(
        "--quantization int8 is the CPU's: on the GPU weights stay as they are stored, bfloat16 or "
        "FP8 in blocks of 128x128");
  }
}

void CudaWeightLoader::Declare(std::vector<ExpectedTensor> tensors,
                               std::function<void(WeightSizes&)> measure,
                               std::function<void(TensorUpload&)> fill) {
  pieces_.push_back({std::move(tensors), std::move(measure), std::move(fill)});
}

void CudaWeightLoader::AddMatrixSize(WeightFormat format, int64_t rows, int64_t cols, int64_t count,
                                     WeightSizes& sizes) const {
  sizes[TypeOf(format)] += count * static_cast<int64_t>(PackedWeightBytes(
                                       format, static_cast<int>(rows), static_cast<int>(cols)));
}

void CudaWeightLoader::Stacked(Weight* out, const std::vector<std::string>& names, int64_t rows,
                               int64_t cols) {
  PackedWeight* packed = &memory_->matrices.emplace_back();
  const int64_t all_rows = rows * static_cast<int64_t>(names.size());
  *out = {all_rows, cols, packed};
  std::vector<TensorPart> parts;
  std::vector<ExpectedTensor> tensors;
  for (const std::string& name : names) {
    parts.push_back(TensorPart::Whole(name, rows, cols));
    tensors.push_back(Expected(parts.back()));
  }
  Declare(
      std::move(tensors),
      [this, parts, all_rows, cols](WeightSizes& sizes) {
        AddMatrixSize(FormatOf(source_, parts), all_rows, cols, 1, sizes);
      },
      [packed, parts](TensorUpload& upload) { *packed = upload.Matrix(parts); });
}

void CudaWeightLoader::SideBySide(const NamedMatrix& a, const NamedMatrix& b, int64_t cols) {
  PackedWeight* const first = &memory_->matrices.emplace_back();
  PackedWeight* const second = &memory_->matrices.emplace_back();
  *a.out = {a.rows, cols, first};
  *b.out = {b.rows, cols, second};
  const TensorPart first_part = TensorPart::Whole(a.name, a.rows, cols);
  const TensorPart second_part = TensorPart::Whole(b.name, b.rows, cols);
  Declare(
      {Expected(first_part), Expected(second_part)},
      [this, first_part, second_part](WeightSizes& sizes) {
        for (const TensorPart& part : {first_part, second_part}) {
          AddMatrixSize(FormatOf(source_, {part}), part.rows, part.cols, 1, sizes);
        }
      },
      [first, second, first_part, second_part](TensorUpload& upload) {
        upload.SideBySide(first_part, second_part, first, second);
      });
}

void CudaWeightLoader::UnquantizedMatrix(Weight* out, const std::string& name, int64_t rows,
                                         int64_t cols) {
  PackedWeight* packed = &memory_->matrices.emplace_back();
  *out = {rows, cols, packed};
  const TensorPart part = TensorPart::Whole(name, rows, cols);
  Declare(
      {Expected(part)},
      [this, rows, cols](WeightSizes& sizes) {
        AddMatrixSize(WeightFormat::kBf16, rows, cols, 1, sizes);
      },
      [packed, part](TensorUpload& upload) { *packed = upload.Bf16Matrix(part); });
}

void CudaWeightLoader::DeclareMlps(PackedWeight* gate_up, PackedWeight* down,
                                   const std::vector<TensorUpload::Mlp>& mlps) {
  std::vector<ExpectedTensor> tensors;
  for (const TensorUpload::Mlp& mlp : mlps) {
    for (const TensorPart& part : {mlp.gate, mlp.up, mlp.down}) {
      // Parts of one tensor follow each other.
      if (part.first_row == 0 && part.first_col == 0) tensors.push_back(Expected(part));
    }
  }
  Declare(
      std::move(tensors),
      [this, mlps](WeightSizes& sizes) {
        const MlpFormats formats = FormatsOf(source_, mlps);
        const TensorPart& gate = mlps[0].gate;
        const auto count = static_cast<int64_t>(mlps.size());
        AddMatrixSize(formats.gate_up, 2 * gate.rows, gate.cols, count, sizes);
        AddMatrixSize(formats.down, mlps[0].down.rows, mlps[0].down.cols, count, sizes);
      },
      [gate_up, down, mlps](TensorUpload& upload) { upload.Mlps(mlps, gate_up, down); });
}

void CudaWeightLoader::Mlp(Weight* gate_up, Weight* down, const MlpTensors& names, int64_t width,
                           int64_t hidden) {
  PackedWeight* packed_gate_up = &memory_->matrices.emplace_back();
  PackedWeight* packed_down = &memory_->matrices.emplace_back();
  *gate_up = {2 * width, hidden, packed_gate_up};
  *down = {hidden, width, packed_down};
  DeclareMlps(packed_gate_up, packed_down, {MlpParts(names, width, hidden)});
}

void CudaWeightLoader::MoeExperts(ExpertWeights* out, const Experts& e) {
  if (e.stacked > 0) {
    throw InvalidArgument(
        "{}: experts that are stacked in one tensor do not run on the GPU; --device cpu runs them",
        source_.where());
  }
  if (e.shared_width % e.width != 0) {
    throw InvalidArgument(
        "shared experts of width {} do not run on the GPU: it must be a multiple of the routed "
        "ones', {}; --device cpu runs them",
        e.shared_width, e.width);
  }
  CudaExperts* packed = &memory_->experts.emplace_back();
  packed->shared = static_cast<int>(e.shared_width / e.width);
  *out = {static_cast<int64_t>(e.routed.size()), e.width, e.shared_width, packed};
  std::vector<TensorUpload::Mlp> mlps;
  for (const MlpTensors& names : e.routed) mlps.push_back(MlpParts(names, e.width, e.hidden));
  const auto cut = [&](TensorPart part, int64_t i, bool rows) {
    (rows ? part.first_row : part.first_col) = i * e.width;
    (rows ? part.rows : part.cols) = e.width;
    return part;
  };
  const TensorUpload::Mlp shared = MlpParts(e.shared, e.shared_width, e.hidden);
  for (int64_t i = 0; i < packed->shared; ++i) {
    mlps.push_back(
        {cut(shared.gate, i, true), cut(shared.up, i, true), cut(shared.down, i, false)});
  }
  DeclareMlps(&packed->gate_up, &packed->down, mlps);
}

void CudaWeightLoader::SplitKvUp(KvUpWeight* out, const std::string& name, const KvUp& sizes) {
  CudaKvUp* packed = &memory_->kv_ups.emplace_back();
  *out = {packed};
  const int64_t rows = sizes.heads * (sizes.nope + sizes.value);
  const TensorPart part = TensorPart::Whole(name, rows, sizes.latent);
  Declare(
      {Expected(part)},
      [this, rows, sizes](WeightSizes& total) {
        AddMatrixSize(WeightFormat::kBf16, rows, sizes.latent, 1, total);
        total[DType::kBF16] += rows * sizes.latent * static_cast<int64_t>(sizeof(BFloat16));
      },
      [this, packed, part, sizes](TensorUpload& upload) {
        outrider::cuda::KvUpSplit split = {.heads = static_cast<int>(sizes.heads),
                                           .nope = static_cast<int>(sizes.nope),
                                           .value = static_cast<int>(sizes.value),
                                           .latent = static_cast<int>(sizes.latent)};
        packed->kv_up = upload.Bf16Matrix(part, &split.kv_up);
        const int64_t row = sizes.heads * sizes.latent * static_cast<int64_t>(sizeof(BFloat16));
        split.key_up_t = upload.Take(static_cast<size_t>(sizes.nope * row));
        split.value_up = upload.Take(static_cast<size_t>(sizes.value * row));
        CheckCuda(outrider::cuda::SplitKvUp(split, stream_), "splitting kv_b_proj");
        packed->key_up_t = split.key_up_t;
        packed->value_up = split.value_up;
      });
}

void CudaWeightLoader::Vector(const float** out, const std::string& name, int64_t size,
                              float added) {
  Declare(
      {{name, {size}}},
      [size](WeightSizes& sizes) {
        sizes[DType::kF32] += size * static_cast<int64_t>(sizeof(float));
      },
      [out, name, size, added](TensorUpload& upload) { *out = upload.Vector(name, size, added); });
}

// Of networks that do not run on the GPU (hopper_networks.h).

void CudaWeightLoader::ExactMatrix(Weight* /*out*/, const std::string& name, int64_t /*rows*/,
                                   int64_t /*cols*/) {
  OUTRIDER_CHECK(false, "{} on the GPU", name);
}

void CudaWeightLoader::Values(const float** /*out*/, const std::string& name, int64_t /*rows*/,
                              int64_t /*cols*/) {
  OUTRIDER_CHECK(false, "{} on the GPU", name);
}

void CudaWeightLoader::Integers(const int32_t** /*out*/, const std::string& name, int64_t /*rows*/,
                                int64_t /*cols*/, int64_t /*limit*/) {
  OUTRIDER_CHECK(false, "{} on the GPU", name);
}

void CudaWeightLoader::Table(TokenTable* out, const std::string& name, int64_t rows, int64_t cols) {
  CudaTable* packed = &memory_->tables.emplace_back();
  *out = {rows, cols, packed};
  const TensorPart part = TensorPart::Whole(name, rows, cols);
  Declare(
      {Expected(part)},
      [rows, cols](WeightSizes& sizes) {
        sizes[DType::kBF16] += rows * cols * static_cast<int64_t>(sizeof(BFloat16));
      },
      [packed, part](TensorUpload& upload) { packed->rows = upload.Plain(part); });
}

void CudaWeightLoader::Copy(const std::string& name, const std::string& original, int64_t rows,
                            int64_t cols, std::string_view why) {
  const ExpectedTensor copy = {name, {rows, cols}};
  const ExpectedTensor first = {original, {rows, cols}};
  Declare(
      {copy, first}, [](WeightSizes&) {},
      [this, copy, first, why = std::string(why)](TensorUpload& upload) {
        CheckCopy(source_, copy, first, why, upload.pool());
      });
}

std::vector<ExpectedTensor> CudaWeightLoader::Declared() const {
  std::vector<ExpectedTensor> expected;
  for (const Piece& piece : pieces_) {
    expected.insert(expected.end(), piece.tensors.begin(), piece.tensors.end());
  }
  return expected;
}

void CudaWeightLoader::AddGroups(WeightGroups& groups) {
  for (const Piece& piece : pieces_) {
    WeightSizes sizes;
    piece.measure(sizes);
    if (SumOf(sizes) == 0) continue;
    std::vector<std::unique_ptr<WeightTensor>> open;
    std::vector<const WeightTensor*> tensors;
    for (const ExpectedTensor& tensor : piece.tensors) {
      open.push_back(source_.Open(tensor));
      tensors.push_back(open.back().get());
    }
    groups.Add(piece.tensors.front().name, tensors, sizes);
  }
}

WeightSizes CudaWeightLoader::PackedSizes() {
  WeightSizes sizes;
  for (const Piece& piece : pieces_) piece.measure(sizes);
  return sizes;
}

std::unique_ptr<WeightMemory> CudaWeightLoader::Load(const Device& device,
                                                     const Progress& progress) {
  TensorUpload upload(source_, *device.pool, stream_);
  std::vector<int64_t> bytes;
  for (const Piece& piece : pieces_) {
    bytes.push_back(0);
    for (const ExpectedTensor& tensor : piece.tensors) {
      bytes.back() += source_.Open(tensor)->stored_bytes();
    }
  }
  const int64_t total = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  int64_t done = 0;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    pieces_[i].fill(upload);
    done += bytes[i];
    if (progress) progress(done, total);
  }
  pieces_.clear();
  memory_->bytes = upload.Finish();
  return std::exchange(memory_, std::make_unique<Memory>());
}

}  // namespace outrider::cuda
