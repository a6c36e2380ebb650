#include "outrider/ops/cpu/cpu_weight_loader.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "outrider/base/error.h"

namespace outrider::cpu {

namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kRowsPerTask = 8 * kPanelRows;

WeightSizes SizesOf(size_t bytes, DType dtype) { return {{dtype, static_cast<int64_t>(bytes)}}; }

/// Where panel p of a matrix is, in memory that Load made.
std::byte* Panel(const PackedMatrix& matrix, int64_t p) {
  return const_cast<std::byte*>(matrix.data) +
         static_cast<size_t>(p) * PanelBytes(matrix.format.dtype, matrix.cols);
}

float* Scales(const PackedMatrix& matrix, int64_t p) {
  return const_cast<float*>(matrix.scales(p));
}

int64_t GroupScaleBytesOfRow(const PackedMatrix& matrix) {
  return matrix.cols / matrix.format.group_cols() *
         static_cast<int64_t>(DTypeSize(matrix.format.group_scale));
}

void SetRowScale(const PackedMatrix& matrix, int64_t row, float scale) {
  const_cast<float*>(matrix.row_scales(row / kPanelRows))[row % kPanelRows] = scale;
}

/// Packs rows [first, first + count) of a matrix; `first` starts a panel.
void PackRows(const PackedMatrix& matrix, int64_t first, int64_t count, const float* rows) {
  for (int64_t r = 0; r < count; r += kPanelRows, rows += kPanelRows * matrix.cols) {
    const int64_t p = (first + r) / kPanelRows;
    const int64_t n = std::min(kPanelRows, count - r);
    if (matrix.format.dtype == DType::kI8) {
      PackInt8Panel(rows, n, matrix.cols, Panel(matrix, p), Scales(matrix, p));
    } else {
      PackPanel(matrix.format.dtype, rows, n, matrix.cols, Panel(matrix, p));
    }
  }
}

/// Packs rows of e4m3 codes. scale(r, k): that of the block of row r, column k.
void PackRows(const PackedMatrix& matrix, int64_t first, int64_t count, const uint8_t* rows,
              FunctionRef<float(int64_t, int64_t)> scale) {
  const int64_t scales = ScalesPerPanel(matrix.format, matrix.cols);
  for (int64_t r = first; r < first + count; r += kPanelRows, rows += kPanelRows * matrix.cols) {
    const int64_t p = r / kPanelRows;
    PackFp8Panel(rows, std::min(kPanelRows, first + count - r), matrix.cols, Panel(matrix, p));
    for (int64_t g = 0; g < scales; ++g) {
      Scales(matrix, p)[g] = scale(r, g * matrix.format.scale_cols);
    }
  }
}

/// Packs rows of 4-bit codes and their scales as they are stored.
void PackRows(const PackedMatrix& matrix, int64_t first, int64_t count, const uint8_t* codes,
              const uint8_t* group_scales) {
  const int64_t scale_bytes = GroupScaleBytesOfRow(matrix);
  for (int64_t r = 0; r < count; r += kPanelRows) {
    PackFourBitPanel(matrix, (first + r) / kPanelRows, codes + r * matrix.cols / 2,
                     group_scales + r * scale_bytes, std::min(kPanelRows, count - r));
  }
}

float ScaleAt(const WeightTensor& tensor, int64_t row, int64_t col) {
  const BlockScales& scales = *tensor.block_scales();
  const int64_t per_row = (tensor.cols() + scales.block_cols - 1) / scales.block_cols;
  return scales
      .values[static_cast<size_t>(row / scales.block_rows * per_row + col / scales.block_cols)];
}

/// ReadRows, with only finite values where they are to be rounded to multiples of a scale.
void ReadFinite(const WeightTensor& tensor, const ExpectedTensor& expected, DType format,
                int64_t first, int64_t count, float* out) {
  tensor.ReadRows(first, count, out);
  if (format != DType::kI8) return;
  float* const end = out + count * tensor.cols();
  if (!std::all_of(out, end, [](float v) { return std::isfinite(v); })) {
    throw InvalidArgument("{} holds a value that is not finite, which int8 cannot stand for",
                          expected.name);
  }
}

template <typename T>
std::vector<T> Transposed(const T* rows, int64_t count, int64_t cols) {
  std::vector<T> result(static_cast<size_t>(count * cols));
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      result[static_cast<size_t>(j * count + i)] = rows[i * cols + j];
    }
  }
  return result;
}

}  // namespace

CpuWeightLoader::CpuWeightLoader(const WeightSource& source, const WeightForm& form)
    : WeightLoader(source, form, kAlignment), memory_(std::make_unique<Memory>()) {}

PackedMatrix* CpuWeightLoader::NewMatrix(Weight* out, int64_t count, int64_t rows, int64_t cols,
                                         const WeightCut& cut) {
  PackedMatrix* packed = &memory_->matrices.emplace_back();
  *out = Handle(packed, count, rows, cols, cut);
  return packed;
}

void CpuWeightLoader::Stacked(Weight* out, const std::vector<std::string>& names, int64_t rows,
                              int64_t cols, const WeightCut& cut) {
  PackedMatrix* packed = NewMatrix(out, std::ssize(names), rows, cols, cut);
  std::vector<ExpectedTensor> tensors;
  tensors.reserve(names.size());
  for (const std::string& name : names) tensors.push_back({name, {rows, cols}});
  DeclareStacked(packed, std::move(tensors), rows, cols, {.cut = out->cut.rows, .form = form()});
}

void CpuWeightLoader::UnquantizedMatrix(Weight* out, const std::string& name, int64_t rows,
                                        int64_t cols) {
  DeclareStacked(NewMatrix(out, 1, rows, cols), {{name, {rows, cols}}}, rows, cols,
                 {.form = {.compute_dtype = form().compute_dtype}});
}

void CpuWeightLoader::ExactMatrix(Weight* out, const std::string& name, int64_t rows,
                                  int64_t cols) {
  DeclareStacked(NewMatrix(out, 1, rows, cols), {{name, {rows, cols}}}, rows, cols,
                 {.form = {.compute_dtype = DType::kF32}});
}

void CpuWeightLoader::Mlp(Weight* gate_up, Weight* down, const MlpTensors& names, int64_t width,
                          int64_t hidden) {
  const int64_t used_together = 3 * width * hidden;
  DeclareStacked(NewMatrix(gate_up, 2, width, hidden, {.rows = Cut::kInner}),
                 {{names.gate, {width, hidden}}, {names.up, {width, hidden}}}, width, hidden,
                 {Cut::kInner, used_together, form()});
  DeclareStacked(NewMatrix(down, 1, hidden, width, {.rows = Cut::kRows, .input = Cut::kInner}),
                 {{names.down, {hidden, width}}}, hidden, width,
                 {Cut::kRows, used_together, form()});
}

void CpuWeightLoader::DeclareMlp(PackedMlp* out, const MlpTensors& names, int64_t width,
                                 int64_t hidden, int64_t num_mlps, std::optional<int64_t> index) {
  const int64_t used_together = num_mlps * 3 * width * hidden;
  const auto tensor = [&](const std::string& name, int64_t rows, int64_t cols) {
    return index ? ExpectedTensor{name, {num_mlps, rows, cols}, index}
                 : ExpectedTensor{name, {rows, cols}};
  };
  DeclareStacked(&out->gate_up,
                 {tensor(names.gate, width, hidden), tensor(names.up, width, hidden)}, width,
                 hidden, {Cut::kInner, used_together, form()});
  DeclareStacked(&out->down, {tensor(names.down, hidden, width)}, hidden, width,
                 {Cut::kRows, used_together, form()});
}

void CpuWeightLoader::MoeExperts(ExpertWeights* out, const Experts& experts) {
  const bool stacked = experts.stacked > 0;
  PackedExperts& packed = memory_->experts.emplace_back();
  *out = Handle(&packed, experts);
  if (experts.shared_width > 0) {
    DeclareMlp(&packed.shared, experts.shared, experts.shared_width, experts.hidden, 1, {});
  }
  packed.experts.resize(static_cast<size_t>(out->experts));
  for (int64_t e = 0; e < out->experts; ++e) {
    DeclareMlp(&packed.experts[static_cast<size_t>(e)],
               experts.routed[stacked ? 0 : static_cast<size_t>(e)], experts.width, experts.hidden,
               out->experts, stacked ? std::optional(e) : std::nullopt);
  }
}

void CpuWeightLoader::DeclareStacked(PackedMatrix* out, std::vector<ExpectedTensor> tensors,
                                     int64_t whole_rows, int64_t cols, const StackedUse& stacked) {
  const auto num_tensors = static_cast<int64_t>(tensors.size());
  const Share share = OwnShare(stacked.cut, whole_rows);
  const int64_t rows = share.count;  // of each tensor
  const int64_t total_rows = rows * num_tensors;
  // Where one tensor ends and the next begins, a panel must not have rows of both.
  const MatrixUse use = {.weights_used_together = std::max(stacked.weights_used_together,
                                                           whole_rows * num_tensors * cols),
                         .cols = cols,
                         .part_row_multiple = num_tensors > 1 ? whole_rows : kPanelRows,
                         .whole_rows = true};
  const auto format = [form = stacked.form, use](const Piece& p) {
    return ChooseFormat(form, p.open, use);
  };
  Declare(
      std::move(tensors),
      [this, format, cut = stacked.cut, whole_rows, total_rows, cols](const Piece& p) {
        CheckCut(p, format(p), cut, whole_rows);
        return SizesOf(PackedBytes(format(p), total_rows, cols), format(p).dtype);
      },
      [this, format, out, first_row = share.first, rows, total_rows, cols](const Piece& p,
                                                                           ThreadPool& pool) {
        *out = {format(p), total_rows, cols, Take(p)};
        // Where a row of the matrix stands: its tensor and the row there.
        const auto tensor_of = [&](int64_t r) { return static_cast<size_t>(r / rows); };
        const auto row_of = [&](int64_t r) { return first_row + r % rows; };
        // A range may cross from one tensor into the next: read(tensor, its row, count, offset).
        const auto for_tensors = [&](int64_t first, int64_t count, auto read) {
          for (int64_t done = 0; done < count;) {
            const int64_t r = first + done;
            const int64_t n = std::min(count - done, rows - r % rows);
            read(tensor_of(r), row_of(r), n, done * cols);
            done += n;
          }
        };
        const int64_t tasks = (total_rows + kRowsPerTask - 1) / kRowsPerTask;
        pool.ParallelForThrowing(tasks, [&](int64_t task) {
          const int64_t first = task * kRowsPerTask;
          const int64_t count = std::min(kRowsPerTask, total_rows - first);
          if (out->format.row_scales) {
            for (int64_t r = first; r < first + count; ++r) {
              SetRowScale(*out, r, RowScale(*p.open[tensor_of(r)], row_of(r)));
            }
          }
          if (out->format.group_cols() > 0) {
            const int64_t scale_bytes = GroupScaleBytesOfRow(*out);
            std::vector<uint8_t> codes(static_cast<size_t>(count * cols / 2));
            std::vector<uint8_t> scales(static_cast<size_t>(count * scale_bytes));
            for_tensors(first, count, [&](size_t t, int64_t row, int64_t n, int64_t offset) {
              p.open[t]->ReadCodes(row, n, codes.data() + offset / 2);
              p.open[t]->ReadGroupScales(row, n, scales.data() + offset / cols * scale_bytes);
            });
            PackRows(*out, first, count, codes.data(), scales.data());
            return;
          }
          if (out->format.dtype == DType::kF8E4M3) {
            std::vector<uint8_t> codes(static_cast<size_t>(count * cols));
            for_tensors(first, count, [&](size_t t, int64_t row, int64_t n, int64_t offset) {
              p.open[t]->ReadCodes(row, n, codes.data() + offset);
            });
            PackRows(*out, first, count, codes.data(), [&](int64_t r, int64_t k) {
              if (out->format.row_scales) return 1.0F;
              return ScaleAt(*p.open[tensor_of(r)], row_of(r), k);
            });
            return;
          }
          std::vector<float> values(static_cast<size_t>(count * cols));
          for_tensors(first, count, [&](size_t t, int64_t row, int64_t n, int64_t offset) {
            ReadFinite(*p.open[t], p.tensors[t], out->format.dtype, row, n, values.data() + offset);
          });
          PackRows(*out, first, count, values.data());
        });
      },
      static_cast<double>(rows) / static_cast<double>(whole_rows));
}

void CpuWeightLoader::CheckCut(const Piece& piece, const PackedFormat& format, Cut cut,
                               int64_t whole_rows) const {
  const bool has_blocks = format.dtype == DType::kF8E4M3 && !format.row_scales;
  if (!has_blocks || form().place.ranks == 1) return;
  // A panel has one scale for its rows.
  const int64_t block_rows = piece.open.front()->block_scales()->block_rows;
  const auto fits = [&](const Share& share) {
    const bool in_one_block = share.first % block_rows + share.count <= block_rows;
    return (share.first % kPanelRows == 0 || in_one_block) &&
           (piece.open.size() == 1 || share.count % kPanelRows == 0);
  };
  if (fits(OwnShare(cut, whole_rows))) return;
  throw InvalidArgument(
      "{}: {} has too few rows for {} ranks: its blocks of {} FP8 rows are cut at multiples of {}; "
      "{} can share it",
      source().where(), piece.tensors.front().name, form().place.ranks, block_rows, kPanelRows,
      FewerRanks(cut, whole_rows, form().place.ranks, fits));
}

void CpuWeightLoader::SplitKvUp(KvUpWeight* handle, const std::string& name, const KvUp& whole) {
  PackedKvUp* packed = &memory_->kv_ups.emplace_back();
  handle->packed = packed;
  const Share heads = OwnShare(Cut::kHeads, whole.heads);
  KvUp out = whole;
  out.heads = heads.count;
  const int64_t head_rows = out.nope + out.value;
  const MatrixUse use = {.weights_used_together = whole.heads * head_rows * out.latent,
                         .cols = std::gcd(out.latent, out.nope),
                         .part_row_multiple = std::gcd(head_rows, out.nope)};
  const auto format = [this, use](const Piece& p) { return ChooseFormat(form(), p.open, use); };
  // Its columns are rows of the tensor, its rows columns: blocks meet at multiples of these.
  const auto transposed_format = [this, head_rows, format](const Piece& p) {
    PackedFormat result = format(p);
    if (result.dtype != DType::kF8E4M3) return result;
    const BlockScales& scales = *p.open[0]->block_scales();
    if (scales.block_cols % kPanelRows != 0) {
      return PackedFormat{.dtype = PlainFormat(form(), p.open)};
    }
    result.scale_cols = std::gcd(scales.block_rows, head_rows);
    return result;
  };
  Declare(
      {{name, {whole.heads * head_rows, out.latent}}},
      [out, format, transposed_format](const Piece& p) {
        const size_t head = PackedBytes(format(p), out.nope, out.latent) +
                            PackedBytes(transposed_format(p), out.latent, out.nope) +
                            PackedBytes(format(p), out.value, out.latent);
        return SizesOf(static_cast<size_t>(out.heads) * head, format(p).dtype);
      },
      [this, packed, out, first_head = heads.first, head_rows, format, transposed_format](
          const Piece& p, ThreadPool& pool) {
        std::byte* memory = Take(p);
        const auto place = [&](std::vector<PackedMatrix>* views, PackedFormat view_format,
                               int64_t rows, int64_t cols) {
          views->clear();
          for (int64_t h = 0; h < out.heads; ++h) {
            views->push_back({view_format, rows, cols, memory});
            memory += PackedBytes(view_format, rows, cols);
          }
        };
        place(&packed->key_up, format(p), out.nope, out.latent);
        place(&packed->key_up_t, transposed_format(p), out.latent, out.nope);
        place(&packed->value_up, format(p), out.value, out.latent);
        pool.ParallelForThrowing(out.heads, [&](int64_t h) {
          const PackedMatrix& key = packed->key_up[static_cast<size_t>(h)];
          const PackedMatrix& key_t = packed->key_up_t[static_cast<size_t>(h)];
          const PackedMatrix& value = packed->value_up[static_cast<size_t>(h)];
          const WeightTensor& tensor = *p.open[0];
          const int64_t first = (first_head + h) * head_rows;
          const int64_t keys = out.nope * out.latent;
          std::vector<uint8_t> codes;
          std::vector<float> values;
          const bool fp8 = key.format.dtype == DType::kF8E4M3;
          if (fp8) {
            codes.resize(static_cast<size_t>(head_rows * out.latent));
            tensor.ReadCodes(first, head_rows, codes.data());
            PackRows(key, 0, out.nope, codes.data(),
                     [&](int64_t r, int64_t k) { return ScaleAt(tensor, first + r, k); });
            PackRows(value, 0, out.value, codes.data() + keys, [&](int64_t r, int64_t k) {
              return ScaleAt(tensor, first + out.nope + r, k);
            });
          }
          if (fp8 && key_t.format.dtype == DType::kF8E4M3) {
            PackRows(key_t, 0, out.latent, Transposed(codes.data(), out.nope, out.latent).data(),
                     [&](int64_t r, int64_t k) { return ScaleAt(tensor, first + k, r); });
            return;
          }
          values.resize(static_cast<size_t>(head_rows * out.latent));
          ReadFinite(tensor, p.tensors[0], key.format.dtype, first, head_rows, values.data());
          PackRows(key_t, 0, out.latent, Transposed(values.data(), out.nope, out.latent).data());
          if (fp8) return;
          PackRows(key, 0, out.nope, values.data());
          PackRows(value, 0, out.value, values.data() + keys);
        });
      },
      1.0 / ranks());
}

void CpuWeightLoader::Table(TokenTable* handle, const std::string& name, int64_t rows,
                            int64_t cols) {
  PackedTable* out = &memory_->tables.emplace_back();
  *handle = {rows, cols, out};
  Declare(
      {{name, {rows, cols}}},
      [this, rows, cols](const Piece& p) {
        const DType dtype = PlainFormat(form(), p.open);
        return SizesOf(static_cast<size_t>(rows * cols) * DTypeSize(dtype), dtype);
      },
      [this, out, rows, cols](const Piece& p, ThreadPool& pool) {
        std::byte* const memory = Take(p);
        *out = {PlainFormat(form(), p.open), rows, cols, memory};
        const int64_t tasks = (rows + kRowsPerTask - 1) / kRowsPerTask;
        pool.ParallelForThrowing(tasks, [&](int64_t task) {
          const int64_t first = task * kRowsPerTask;
          const int64_t count = std::min(kRowsPerTask, rows - first);
          if (out->format == DType::kF32) {
            p.open[0]->ReadRows(first, count, reinterpret_cast<float*>(memory) + first * cols);
            return;
          }
          std::vector<float> values(static_cast<size_t>(count * cols));
          p.open[0]->ReadRows(first, count, values.data());
          auto* narrow = reinterpret_cast<BFloat16*>(memory) + first * cols;
          for (size_t i = 0; i < values.size(); ++i) narrow[i] = ToBFloat16(values[i]);
        });
      });
}

void CpuWeightLoader::Begin(ThreadPool& /*pool*/) {
  memory_->bytes = Buffer(static_cast<size_t>(SumOf(PackedSizes())));
  next_ = memory_->bytes.data();
}

std::unique_ptr<WeightMemory> CpuWeightLoader::Finish() {
  OUTRIDER_CHECK(next_ == memory_->bytes.data() + memory_->bytes.size());
  return std::exchange(memory_, std::make_unique<Memory>());
}

std::byte* CpuWeightLoader::Take(int64_t bytes) {
  return std::exchange(next_, next_ + (bytes + kAlignment - 1) / kAlignment * kAlignment);
}

const void* CpuWeightLoader::Keep(std::span<const std::byte> values) {
  std::byte* const kept = Take(std::ssize(values));
  std::ranges::copy(values, kept);
  return kept;
}

}  // namespace outrider::cpu
