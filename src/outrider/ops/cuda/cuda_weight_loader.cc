#include "outrider/ops/cuda/cuda_weight_loader.h"

#include <numeric>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/kernels/cuda/matmul/load_weights.h"
#include "outrider/ops/ops.h"

namespace outrider::cuda {

namespace {

MlpParts PartsOf(const MlpTensors& names, int64_t width, int64_t hidden) {
  return {TensorPart::Whole(names.gate, width, hidden), TensorPart::Whole(names.up, width, hidden),
          TensorPart::Whole(names.down, hidden, width)};
}

std::vector<ExpectedTensor> TensorsOf(const std::vector<MlpParts>& mlps) {
  std::vector<ExpectedTensor> tensors;
  for (const MlpParts& mlp : mlps) {
    for (const TensorPart& part : {mlp.gate, mlp.up, mlp.down}) tensors.push_back(part.Expected());
  }
  return tensors;
}

bool AreEqual(const MlpFormats& a, const MlpFormats& b) {
  return a.gate_up == b.gate_up && a.down == b.down;
}

/// The routed experts and, if it can be packed as they are, the shared MLP, cut into experts of
/// their width.
std::vector<MlpParts> JoinExperts(const WeightSource& source, const std::vector<MlpParts>& routed,
                                  const std::vector<MlpParts>& shared) {
  const int64_t width = routed[0].gate.rows;
  if (shared.empty() || shared[0].gate.rows % width != 0) return routed;
  const auto cut = [&](TensorPart part, int64_t i, bool rows) {
    (rows ? part.first_row : part.first_col) = i * width;
    (rows ? part.rows : part.cols) = width;
    return part;
  };
  std::vector<MlpParts> pieces;
  for (int64_t i = 0; i < shared[0].gate.rows / width; ++i) {
    pieces.push_back(
        {cut(shared[0].gate, i, true), cut(shared[0].up, i, true), cut(shared[0].down, i, false)});
  }
  std::vector<MlpParts> all = routed;
  all.insert(all.end(), pieces.begin(), pieces.end());
  const MlpFormats of_routed = FormatsOf(source, routed);
  return AreEqual(FormatsOf(source, all), of_routed) ? all : routed;
}

/// Throws Error if bfloat16, which the products take, would change a value.
void CheckHeldByBf16(const WeightSource& source, const TensorPart& part) {
  const std::unique_ptr<WeightTensor> tensor = source.Open(part.Expected());
  if (tensor->exact_in_bfloat16()) return;
  std::vector<float> row(static_cast<size_t>(tensor->cols()));
  for (int64_t r = 0; r < tensor->rows(); ++r) {
    tensor->ReadRows(r, 1, row.data());
    for (const float value : row) {
      if (RoundToBFloat16(value) == value) continue;
      throw InvalidArgument(
          "{} holds {} in row {}, which is no bfloat16 number, and the GPU's products take nothing "
          "wider: --device cpu runs the checkpoint",
          part.name, value, r);
    }
  }
}

/// Whether there is a shared MLP that is none of `experts`.
bool IsApart(const std::vector<MlpParts>& shared, const std::vector<MlpParts>& experts,
             const std::vector<MlpParts>& routed) {
  return !shared.empty() && experts.size() == routed.size();
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
        "--quantization int8 is the CPU's: on the GPU weights stay as they are stored, bfloat16, "
        "FP8 or 4 bits");
  }
  OUTRIDER_CHECK(form.place.ranks == 1, "cuts are the processor's");
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
                               int64_t cols, const WeightCut& /*cut*/) {
  PackedWeight* packed = &memory_->matrices.emplace_back();
  const int64_t all_rows = rows * static_cast<int64_t>(names.size());
  *out = {all_rows, cols, packed};
  std::vector<TensorPart> parts;
  std::vector<ExpectedTensor> tensors;
  for (const std::string& name : names) {
    parts.push_back(TensorPart::Whole(name, rows, cols));
    tensors.push_back(parts.back().Expected());
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
      {first_part.Expected(), second_part.Expected()},
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
      {part.Expected()},
      [this, rows, cols](WeightSizes& sizes) {
        AddMatrixSize(WeightFormat::kBf16, rows, cols, 1, sizes);
      },
      [packed, part](TensorUpload& upload) { *packed = upload.Bf16Matrix(part); });
}

void CudaWeightLoader::AddMlpSizes(const std::vector<MlpParts>& mlps, WeightSizes& sizes) const {
  const MlpFormats formats = FormatsOf(source_, mlps);
  const TensorPart& gate = mlps[0].gate;
  const auto count = static_cast<int64_t>(mlps.size());
  AddMatrixSize(formats.gate_up, 2 * gate.rows, gate.cols, count, sizes);
  AddMatrixSize(formats.down, mlps[0].down.rows, mlps[0].down.cols, count, sizes);
}

void CudaWeightLoader::Mlp(Weight* gate_up, Weight* down, const MlpTensors& names, int64_t width,
                           int64_t hidden) {
  PackedWeight* packed_gate_up = &memory_->matrices.emplace_back();
  PackedWeight* packed_down = &memory_->matrices.emplace_back();
  *gate_up = {2 * width, hidden, packed_gate_up};
  *down = {hidden, width, packed_down};
  const std::vector<MlpParts> mlp = {PartsOf(names, width, hidden)};
  Declare(
      TensorsOf(mlp), [this, mlp](WeightSizes& sizes) { AddMlpSizes(mlp, sizes); },
      [packed_gate_up, packed_down, mlp](TensorUpload& upload) {
        upload.Mlps(mlp, packed_gate_up, packed_down);
      });
}

void CudaWeightLoader::MoeExperts(ExpertWeights* out, const Experts& e) {
  CudaExperts* packed = &memory_->experts.emplace_back();
  const int64_t count = e.stacked > 0 ? e.stacked : std::ssize(e.routed);
  *out = {count, e.width, e.shared_width, packed};
  std::vector<MlpParts> routed;
  for (int64_t i = 0; i < count; ++i) {
    const MlpTensors& names = e.routed[e.stacked > 0 ? 0 : static_cast<size_t>(i)];
    MlpParts& mlp = routed.emplace_back(PartsOf(names, e.width, e.hidden));
    for (TensorPart* part : {&mlp.gate, &mlp.up, &mlp.down}) {
      part->stack = e.stacked;
      part->index = i;
    }
  }
  std::vector<MlpParts> shared;
  if (e.shared_width > 0) shared.push_back(PartsOf(e.shared, e.shared_width, e.hidden));
  std::vector<ExpectedTensor> tensors = TensorsOf(routed);
  for (const ExpectedTensor& tensor : TensorsOf(shared)) tensors.push_back(tensor);
  Declare(
      std::move(tensors),
      [this, routed, shared](WeightSizes& sizes) {
        const std::vector<MlpParts> experts = JoinExperts(source_, routed, shared);
        AddMlpSizes(experts, sizes);
        if (IsApart(shared, experts, routed)) AddMlpSizes(shared, sizes);
      },
      [this, packed, routed, shared](TensorUpload& upload) {
        const std::vector<MlpParts> experts = JoinExperts(source_, routed, shared);
        packed->shared = static_cast<int>(experts.size() - routed.size());
        upload.Mlps(experts, &packed->gate_up, &packed->down);
        if (IsApart(shared, experts, routed)) {
          upload.Mlps(shared, &packed->shared_gate_up, &packed->shared_down);
        }
      });
}

void CudaWeightLoader::SplitKvUp(KvUpWeight* out, const std::string& name, const KvUp& sizes) {
  CudaKvUp* packed = &memory_->kv_ups.emplace_back();
  *out = {packed};
  const int64_t rows = sizes.heads * (sizes.nope + sizes.value);
  const TensorPart part = TensorPart::Whole(name, rows, sizes.latent);
  Declare(
      {part.Expected()},
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

void CudaWeightLoader::ExactMatrix(Weight* out, const std::string& name, int64_t rows,
                                   int64_t cols) {
  PackedWeight* packed = &memory_->matrices.emplace_back();
  *out = {rows, cols, packed};
  const TensorPart part = TensorPart::Whole(name, rows, cols);
  Declare(
      {part.Expected()},
      [this, rows, cols](WeightSizes& sizes) {
        AddMatrixSize(WeightFormat::kBf16, rows, cols, 1, sizes);
      },
      [this, packed, part](TensorUpload& upload) {
        CheckHeldByBf16(source_, part);
        *packed = upload.Bf16Matrix(part);
      });
}

void CudaWeightLoader::ExactSideBySide(const std::vector<NamedMatrix>& matrices, int64_t cols) {
  std::vector<TensorPart> parts;
  std::vector<ExpectedTensor> tensors;
  std::vector<PackedWeight*> packed;
  for (const NamedMatrix& m : matrices) {
    packed.push_back(&memory_->matrices.emplace_back());
    *m.out = {m.rows, cols, packed.back()};
    parts.push_back(TensorPart::Whole(m.name, m.rows, cols));
    tensors.push_back(parts.back().Expected());
  }
  Declare(
      std::move(tensors),
      [this, parts](WeightSizes& sizes) {
        for (const TensorPart& part : parts) {
          AddMatrixSize(WeightFormat::kBf16, part.rows, part.cols, 1, sizes);
        }
      },
      [this, packed, parts](TensorUpload& upload) {
        for (const TensorPart& part : parts) CheckHeldByBf16(source_, part);
        upload.Bf16SideBySide(parts, packed);
      });
}

void CudaWeightLoader::StreamMatrix(Weight* out, const std::string& name, int64_t rows,
                                    int64_t cols) {
  CudaFloats* const packed = &memory_->floats.emplace_back();
  *out = {rows, cols, packed};
  Values(&packed->values, name, rows, cols);
}

void CudaWeightLoader::Values(const float** out, const std::string& name, int64_t rows,
                              int64_t cols) {
  Declare(
      {{name, {rows, cols}}},
      [rows, cols](WeightSizes& sizes) {
        sizes[DType::kF32] += rows * cols * static_cast<int64_t>(sizeof(float));
      },
      [out, name, rows, cols](TensorUpload& upload) { *out = upload.Values(name, rows, cols); });
}

void CudaWeightLoader::Integers(const int32_t** out, const std::string& name, int64_t rows,
                                int64_t cols, int64_t limit) {
  Declare(
      {{.name = name, .shape = {rows, cols}, .holds_integers = true}},
      [rows, cols](WeightSizes& sizes) {
        sizes[DType::kI32] += rows * cols * static_cast<int64_t>(sizeof(int32_t));
      },
      [out, name, rows, cols, limit](TensorUpload& upload) {
        *out = upload.Integers(name, rows, cols, limit);
      });
}

void CudaWeightLoader::Table(TokenTable* out, const std::string& name, int64_t rows, int64_t cols) {
  CudaTable* packed = &memory_->tables.emplace_back();
  *out = {rows, cols, packed};
  const TensorPart part = TensorPart::Whole(name, rows, cols);
  Declare(
      {part.Expected()},
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
