#include "outrider/ops/cuda/cuda_weight_loader.h"

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
    : WeightLoader(source, form, /*alignment=*/1),
      stream_(stream),
      memory_(std::make_unique<Memory>()) {
  if (form.compute_dtype != DType::kBF16) {
    throw InvalidArgument("the GPU computes in bfloat16, not in {}: --dtype bfloat16 runs there",
                          DTypeName(form.compute_dtype));
  }
  if (form.quantization != WeightQuantization::kNone) {
    throw InvalidArgument(
        "--quantization int8 is the CPU's: on the GPU weights stay as they are stored, bfloat16, "
        "FP8 or 4 bits");
  }
}

TensorPart CudaWeightLoader::OwnPart(TensorPart whole, Cut cut) const {
  const Share own = OwnShare(cut, whole.rows);
  whole.first_row += own.first;
  whole.rows = own.count;
  return whole;
}

MlpParts CudaWeightLoader::OwnMlp(const MlpParts& whole) const {
  return {OwnPart(whole.gate, Cut::kInner), OwnPart(whole.up, Cut::kInner),
          OwnPart(whole.down, Cut::kRows)};
}

std::vector<MlpParts> CudaWeightLoader::OwnMlps(const std::vector<MlpParts>& wholes) const {
  std::vector<MlpParts> own;
  own.reserve(wholes.size());
  for (const MlpParts& whole : wholes) own.push_back(OwnMlp(whole));
  return own;
}

MatrixForm CudaWeightLoader::FormOf(WeightFormat format, int64_t rows, int64_t cols) const {
  if (form().place.ranks == 1) return {.format = format};
  const PackedWeight whole = {
      .format = format, .n = static_cast<int>(rows), .k = static_cast<int>(cols)};
  return {.format = format, .segments = SegmentsOf(whole).count};
}

TensorUpload::MlpForms CudaWeightLoader::FormsOf(const std::vector<MlpParts>& wholes) const {
  const MlpFormats formats = outrider::cuda::FormatsOf(source(), wholes);
  const MlpParts& first = wholes[0];
  return {.gate_up = FormOf(formats.gate_up, 2 * first.gate.rows, first.gate.cols),
          .down = FormOf(formats.down, first.down.rows, first.down.cols)};
}

std::vector<MatrixForm> CudaWeightLoader::SideBySideForms(
    const std::vector<TensorPart>& wholes) const {
  std::vector<MatrixForm> forms;
  int64_t rows = 0;
  for (const TensorPart& whole : wholes) {
    forms.push_back({.format = FormatOf(source(), {whole})});
    rows += whole.rows;
  }
  const PackedWeight all = {.format = forms[0].format,
                            .n = static_cast<int>(rows),
                            .k = static_cast<int>(wholes[0].cols)};
  for (MatrixForm& form : forms) form.segments = SegmentsOf(all).count;
  return forms;
}

void CudaWeightLoader::DeclarePacked(std::vector<ExpectedTensor> tensors,
                                     std::function<void(WeightSizes&)> measure,
                                     std::function<void(TensorUpload&)> fill, double part) {
  Declare(
      std::move(tensors),
      [measure = std::move(measure)](const Piece&) {
        WeightSizes sizes;
        measure(sizes);
        return sizes;
      },
      [this, fill = std::move(fill)](const Piece&, ThreadPool&) { fill(*upload_); }, part);
}

void CudaWeightLoader::AddMatrixSize(WeightFormat format, int64_t rows, int64_t cols, int64_t count,
                                     WeightSizes& sizes) const {
  sizes[TypeOf(format)] += count * static_cast<int64_t>(PackedWeightBytes(
                                       format, static_cast<int>(rows), static_cast<int>(cols)));
}

void CudaWeightLoader::Stacked(Weight* out, const std::vector<std::string>& names, int64_t rows,
                               int64_t cols, const WeightCut& declared) {
  PackedWeight* packed = &memory_->matrices.emplace_back();
  const int64_t count = std::ssize(names);
  *out = Handle(packed, count, rows, cols, declared);
  const Cut cut = out->cut.rows;
  const int64_t own_rows = count * OwnShare(cut, rows).count;
  std::vector<TensorPart> wholes;
  std::vector<TensorPart> parts;
  std::vector<ExpectedTensor> tensors;
  for (const std::string& name : names) {
    wholes.push_back(TensorPart::Whole(name, rows, cols));
    parts.push_back(OwnPart(wholes.back(), cut));
    tensors.push_back(wholes.back().Expected());
  }
  DeclarePacked(
      std::move(tensors),
      [this, wholes, cut, own_rows, cols](WeightSizes& sizes) {
        const WeightFormat format = FormatOf(source(), wholes);
        CheckCut(source(), wholes, cut, form().place, format);
        AddMatrixSize(format, own_rows, cols, 1, sizes);
      },
      [this, packed, wholes, parts, whole_rows = count * rows, cols](TensorUpload& upload) {
        *packed = upload.Matrix(parts, FormOf(FormatOf(source(), wholes), whole_rows, cols));
      },
      static_cast<double>(own_rows) / static_cast<double>(count * rows));
}

void CudaWeightLoader::SideBySide(const std::vector<NamedMatrix>& matrices, int64_t cols) {
  std::vector<PackedWeight*> packed;
  std::vector<TensorPart> wholes;
  std::vector<TensorPart> parts;
  std::vector<Cut> cuts;
  std::vector<ExpectedTensor> tensors;
  int64_t whole_rows = 0;
  int64_t own_rows = 0;
  for (const NamedMatrix& m : matrices) {
    OUTRIDER_CHECK(m.cut.rows != Cut::kRows);
    packed.push_back(&memory_->matrices.emplace_back());
    wholes.push_back(TensorPart::Whole(m.name, m.rows, cols));
    parts.push_back(OwnPart(wholes.back(), m.cut.rows));
    tensors.push_back(wholes.back().Expected());
    *m.out = Handle(packed.back(), 1, m.rows, cols, m.cut);
    cuts.push_back(m.out->cut.rows);
    whole_rows += m.rows;
    own_rows += parts.back().rows;
  }
  DeclarePacked(
      std::move(tensors),
      [this, wholes, parts, cuts](WeightSizes& sizes) {
        for (size_t i = 0; i < parts.size(); ++i) {
          const WeightFormat format = FormatOf(source(), {wholes[i]});
          CheckCut(source(), {wholes[i]}, cuts[i], form().place, format);
          AddMatrixSize(format, parts[i].rows, parts[i].cols, 1, sizes);
        }
      },
      [this, packed, wholes, parts](TensorUpload& upload) {
        upload.SideBySide(parts, SideBySideForms(wholes), packed);
      },
      static_cast<double>(own_rows) / static_cast<double>(whole_rows));
}

void CudaWeightLoader::UnquantizedMatrix(Weight* out, const std::string& name, int64_t rows,
                                         int64_t cols) {
  PackedWeight* packed = &memory_->matrices.emplace_back();
  *out = {rows, cols, packed};
  const TensorPart part = TensorPart::Whole(name, rows, cols);
  DeclarePacked(
      {part.Expected()},
      [this, rows, cols](WeightSizes& sizes) {
        AddMatrixSize(WeightFormat::kBf16, rows, cols, 1, sizes);
      },
      [packed, part](TensorUpload& upload) { *packed = upload.Bf16Matrix(part); });
}

void CudaWeightLoader::AddMlpSizes(const std::vector<MlpParts>& mlps, WeightSizes& sizes) const {
  const MlpFormats formats = outrider::cuda::FormatsOf(source(), mlps);
  const MlpParts first = OwnMlp(mlps[0]);
  for (const MlpParts& mlp : mlps) {
    CheckCut(source(), {mlp.gate}, Cut::kInner, form().place, formats.gate_up);
    CheckCut(source(), {mlp.down}, Cut::kRows, form().place, formats.down);
  }
  const auto count = static_cast<int64_t>(mlps.size());
  AddMatrixSize(formats.gate_up, 2 * first.gate.rows, first.gate.cols, count, sizes);
  AddMatrixSize(formats.down, first.down.rows, first.down.cols, count, sizes);
}

void CudaWeightLoader::Mlp(Weight* gate_up, Weight* down, const MlpTensors& names, int64_t width,
                           int64_t hidden) {
  PackedWeight* packed_gate_up = &memory_->matrices.emplace_back();
  PackedWeight* packed_down = &memory_->matrices.emplace_back();
  *gate_up = Handle(packed_gate_up, 2, width, hidden, {.rows = Cut::kInner});
  *down = Handle(packed_down, 1, hidden, width, {.rows = Cut::kRows, .input = Cut::kInner});
  const std::vector<MlpParts> mlp = {PartsOf(names, width, hidden)};
  DeclarePacked(
      TensorsOf(mlp), [this, mlp](WeightSizes& sizes) { AddMlpSizes(mlp, sizes); },
      [this, packed_gate_up, packed_down, mlp](TensorUpload& upload) {
        upload.Mlps(OwnMlps(mlp), FormsOf(mlp), packed_gate_up, packed_down);
      },
      1.0 / form().place.ranks);
}

void CudaWeightLoader::MoeExperts(ExpertWeights* out, const Experts& e) {
  CudaExperts* packed = &memory_->experts.emplace_back();
  *out = Handle(packed, e);
  std::vector<MlpParts> routed;
  for (int64_t i = 0; i < out->experts; ++i) {
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
  DeclarePacked(
      std::move(tensors),
      [this, routed, shared](WeightSizes& sizes) {
        const std::vector<MlpParts> experts = JoinExperts(source(), routed, shared);
        AddMlpSizes(experts, sizes);
        if (IsApart(shared, experts, routed)) AddMlpSizes(shared, sizes);
      },
      [this, packed, routed, shared](TensorUpload& upload) {
        const std::vector<MlpParts> experts = JoinExperts(source(), routed, shared);
        packed->shared = static_cast<int>(experts.size() - routed.size());
        upload.Mlps(OwnMlps(experts), FormsOf(experts), &packed->gate_up, &packed->down);
        if (IsApart(shared, experts, routed)) {
          upload.Mlps(OwnMlps(shared), FormsOf(shared), &packed->shared_gate_up,
                      &packed->shared_down);
        }
      },
      1.0 / form().place.ranks);
}

void CudaWeightLoader::SplitKvUp(KvUpWeight* out, const std::string& name, const KvUp& whole) {
  CudaKvUp* packed = &memory_->kv_ups.emplace_back();
  *out = {packed};
  const int64_t head_rows = whole.nope + whole.value;
  const Share heads = OwnShare(Cut::kHeads, whole.heads);
  KvUp sizes = whole;
  sizes.heads = heads.count;
  TensorPart part = TensorPart::Whole(name, whole.heads * head_rows, whole.latent);
  const ExpectedTensor expected = part.Expected();
  const MatrixForm form = FormOf(WeightFormat::kBf16, part.rows, part.cols);
  part.first_row = heads.first * head_rows;
  part.rows = heads.count * head_rows;
  DeclarePacked(
      {expected},
      [this, rows = part.rows, sizes](WeightSizes& total) {
        AddMatrixSize(WeightFormat::kBf16, rows, sizes.latent, 1, total);
        total[DType::kBF16] += rows * sizes.latent * static_cast<int64_t>(sizeof(BFloat16));
      },
      [this, packed, part, form, sizes](TensorUpload& upload) {
        outrider::cuda::KvUpSplit split = {.heads = static_cast<int>(sizes.heads),
                                           .nope = static_cast<int>(sizes.nope),
                                           .value = static_cast<int>(sizes.value),
                                           .latent = static_cast<int>(sizes.latent)};
        packed->kv_up = upload.Bf16Matrix(part, form.segments, &split.kv_up);
        const int64_t row = sizes.heads * sizes.latent * static_cast<int64_t>(sizeof(BFloat16));
        split.key_up_t = upload.Take(static_cast<size_t>(sizes.nope * row));
        split.value_up = upload.Take(static_cast<size_t>(sizes.value * row));
        CheckCuda(outrider::cuda::SplitKvUp(split, stream_), "splitting kv_b_proj");
        packed->key_up_t = split.key_up_t;
        packed->value_up = split.value_up;
      },
      1.0 / ranks());
}

void CudaWeightLoader::ExactMatrix(Weight* out, const std::string& name, int64_t rows,
                                   int64_t cols) {
  PackedWeight* packed = &memory_->matrices.emplace_back();
  *out = {rows, cols, packed};
  const TensorPart part = TensorPart::Whole(name, rows, cols);
  DeclarePacked(
      {part.Expected()},
      [this, rows, cols](WeightSizes& sizes) {
        AddMatrixSize(WeightFormat::kBf16, rows, cols, 1, sizes);
      },
      [this, packed, part](TensorUpload& upload) {
        CheckHeldByBf16(source(), part);
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
  DeclarePacked(
      std::move(tensors),
      [this, parts](WeightSizes& sizes) {
        for (const TensorPart& part : parts) {
          AddMatrixSize(WeightFormat::kBf16, part.rows, part.cols, 1, sizes);
        }
      },
      [this, packed, parts](TensorUpload& upload) {
        for (const TensorPart& part : parts) CheckHeldByBf16(source(), part);
        upload.Bf16SideBySide(parts, packed);
      });
}

void CudaWeightLoader::StreamMatrix(Weight* out, const std::string& name, int64_t rows,
                                    int64_t cols) {
  CudaFloats* const packed = &memory_->floats.emplace_back();
  *out = {rows, cols, packed};
  Values(&packed->values, name, rows, cols);
}

void CudaWeightLoader::Table(TokenTable* out, const std::string& name, int64_t rows, int64_t cols) {
  CudaTable* packed = &memory_->tables.emplace_back();
  *out = {rows, cols, packed};
  const TensorPart part = TensorPart::Whole(name, rows, cols);
  DeclarePacked(
      {part.Expected()},
      [rows, cols](WeightSizes& sizes) {
        sizes[DType::kBF16] += rows * cols * static_cast<int64_t>(sizeof(BFloat16));
      },
      [packed, part](TensorUpload& upload) { packed->rows = upload.Plain(part); });
}

void CudaWeightLoader::Begin(ThreadPool& pool) { upload_.emplace(source(), pool, stream_); }

std::unique_ptr<WeightMemory> CudaWeightLoader::Finish() {
  memory_->bytes = upload_->Finish();
  upload_.reset();
  return std::exchange(memory_, std::make_unique<Memory>());
}

}  // namespace outrider::cuda
