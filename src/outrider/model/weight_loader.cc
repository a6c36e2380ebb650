#include "outrider/model/weight_loader.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <utility>

#include "outrider/base/error.h"

namespace outrider {

namespace {

constexpr size_t kAlignment = 64;
constexpr int64_t kRowsPerTask = 8 * kPanelRows;

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// ParallelFor for tasks that may throw (reading a file can fail): the first exception comes out.
void ParallelForThrowing(ThreadPool& pool, int64_t count, FunctionRef<void(int64_t)> task) {
  std::mutex mutex;
  std::exception_ptr failure;
  pool.ParallelFor(count, [&](int64_t i, int) {
    try {
      task(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
}

/// Packs rows [0, matrix.rows) that read(first, count, out) delivers.
void PackRows(const PackedMatrix& matrix, std::byte* memory, ThreadPool& pool,
              FunctionRef<void(int64_t, int64_t, float*)> read) {
  const size_t panel_bytes = PanelBytes(matrix.format, matrix.cols);
  const int64_t tasks = (matrix.rows + kRowsPerTask - 1) / kRowsPerTask;
  ParallelForThrowing(pool, tasks, [&](int64_t task) {
    const int64_t first = task * kRowsPerTask;
    const int64_t count = std::min(kRowsPerTask, matrix.rows - first);
    std::vector<float> rows(static_cast<size_t>(count * matrix.cols));
    read(first, count, rows.data());
    for (int64_t r = 0; r < count; r += kPanelRows) {
      PackPanel(matrix.format, rows.data() + r * matrix.cols, std::min(kPanelRows, count - r),
                matrix.cols, memory + static_cast<size_t>((first + r) / kPanelRows) * panel_bytes);
    }
  });
}

/// Copies of the target's embedding and head that some checkpoints carry in every MTP layer, and
/// buffers that are computed, not stored.
bool IsRedundant(std::string_view name) {
  return name.ends_with(".shared_head.head.weight") ||
         (name.ends_with(".embed_tokens.weight") &&
          name.find(".layers.") != std::string_view::npos) ||
         name.ends_with(".rotary_emb.inv_freq");
}

/// The layer of a "...layers.N..." name, or -1.
int64_t LayerOf(std::string_view name) {
  constexpr std::string_view kKey = "layers.";
  const size_t at = name.find(kKey);
  if (at == std::string_view::npos) return -1;
  int64_t layer = -1;
  for (const char c : name.substr(at + kKey.size())) {
    if (c < '0' || c > '9' || layer > 1'000'000) break;
    layer = std::max<int64_t>(layer, 0) * 10 + (c - '0');
  }
  return layer;
}

}  // namespace

void EmbeddingTable::Read(int32_t token, float* out) const {
  OUTRIDER_CHECK(token >= 0 && token < rows, "token id {}", token);
  if (format == DType::kF32) {
    std::memcpy(out, reinterpret_cast<const float*>(data) + token * cols,
                static_cast<size_t>(cols) * sizeof(float));
    return;
  }
  const auto* row = reinterpret_cast<const BFloat16*>(data) + token * cols;
  for (int64_t i = 0; i < cols; ++i) out[i] = ToFloat(row[i]);
}

void WeightLoader::Declare(std::vector<ExpectedTensor> tensors, std::function<size_t(Piece&)> size,
                           std::function<void(Piece&, std::byte*, ThreadPool&)> fill) {
  Piece piece;
  piece.tensors = std::move(tensors);
  piece.size = std::move(size);
  piece.fill = std::move(fill);
  pieces_.push_back(std::move(piece));
}

DType WeightLoader::FormatOf(const Piece& piece) const {
  if (compute_dtype_ == DType::kBF16) return DType::kBF16;
  const bool exact = std::all_of(piece.open.begin(), piece.open.end(),
                                 [](const auto& t) { return t->exact_in_bfloat16(); });
  return exact ? DType::kBF16 : DType::kF32;
}

void WeightLoader::Matrix(PackedMatrix* out, const std::string& name, int64_t rows, int64_t cols) {
  Stacked(out, {name}, rows, cols);
}

void WeightLoader::Stacked(PackedMatrix* out, const std::vector<std::string>& names, int64_t rows,
                           int64_t cols) {
  std::vector<ExpectedTensor> tensors;
  tensors.reserve(names.size());
  for (const std::string& name : names) tensors.push_back({name, {rows, cols}});
  const auto total_rows = rows * static_cast<int64_t>(names.size());
  Declare(
      std::move(tensors),
      [this, total_rows, cols](Piece& p) { return PackedBytes(FormatOf(p), total_rows, cols); },
      [this, out, rows, total_rows, cols](Piece& p, std::byte* memory, ThreadPool& pool) {
        *out = {FormatOf(p), total_rows, cols, memory};
        PackRows(*out, memory, pool, [&](int64_t first, int64_t count, float* data) {
          while (count > 0) {  // a range may cross from one tensor into the next
            const int64_t row = first % rows;
            const int64_t n = std::min(count, rows - row);
            p.open[static_cast<size_t>(first / rows)]->ReadRows(row, n, data);
            first += n;
            count -= n;
            data += n * cols;
          }
        });
      });
}

void WeightLoader::SplitKvUp(const KvUp& out, const std::string& name) {
  const int64_t head_rows = out.nope + out.value;
  Declare(
      {{name, {out.heads * head_rows, out.latent}}},
      [this, out](Piece& p) {
        const DType format = FormatOf(p);
        return static_cast<size_t>(out.heads) * (PackedBytes(format, out.nope, out.latent) +
                                                 PackedBytes(format, out.latent, out.nope) +
                                                 PackedBytes(format, out.value, out.latent));
      },
      [this, out, head_rows](Piece& p, std::byte* memory, ThreadPool& pool) {
        const DType format = FormatOf(p);
        const auto place = [&](std::vector<PackedMatrix>* views, int64_t rows, int64_t cols) {
          views->clear();
          for (int64_t h = 0; h < out.heads; ++h) {
            views->push_back({format, rows, cols, memory});
            memory += PackedBytes(format, rows, cols);
          }
        };
        place(out.key_up, out.nope, out.latent);
        place(out.key_up_t, out.latent, out.nope);
        place(out.value_up, out.value, out.latent);
        ParallelForThrowing(pool, out.heads, [&](int64_t h) {
          std::vector<float> rows(static_cast<size_t>(head_rows * out.latent));
          p.open[0]->ReadRows(h * head_rows, head_rows, rows.data());
          std::vector<float> transposed(static_cast<size_t>(out.latent * out.nope));
          for (int64_t i = 0; i < out.nope; ++i) {
            for (int64_t j = 0; j < out.latent; ++j) {
              transposed[static_cast<size_t>(j * out.nope + i)] =
                  rows[static_cast<size_t>(i * out.latent + j)];
            }
          }
          const auto pack = [](const PackedMatrix& m, const float* data) {
            auto* panel = const_cast<std::byte*>(m.data);  // the view was made above, from `memory`
            for (int64_t r = 0; r < m.rows; r += kPanelRows) {
              PackPanel(m.format, data + r * m.cols, std::min(kPanelRows, m.rows - r), m.cols,
                        panel);
              panel += PanelBytes(m.format, m.cols);
            }
          };
          pack((*out.key_up)[static_cast<size_t>(h)], rows.data());
          pack((*out.key_up_t)[static_cast<size_t>(h)], transposed.data());
          pack((*out.value_up)[static_cast<size_t>(h)], rows.data() + out.nope * out.latent);
        });
      });
}

void WeightLoader::Vector(const float** out, const std::string& name, int64_t size) {
  Declare(
      {{name, {size}}}, [size](Piece&) { return static_cast<size_t>(size) * sizeof(float); },
      [out](Piece& p, std::byte* memory, ThreadPool&) {
        auto* data = reinterpret_cast<float*>(memory);
        p.open[0]->ReadRows(0, 1, data);
        *out = data;
      });
}

void WeightLoader::Table(EmbeddingTable* out, const std::string& name, int64_t rows, int64_t cols) {
  Declare(
      {{name, {rows, cols}}},
      [this, rows, cols](Piece& p) {
        return static_cast<size_t>(rows * cols) * DTypeSize(FormatOf(p));
      },
      [this, out, rows, cols](Piece& p, std::byte* memory, ThreadPool& pool) {
        *out = {FormatOf(p), rows, cols, memory};
        const int64_t tasks = (rows + kRowsPerTask - 1) / kRowsPerTask;
        ParallelForThrowing(pool, tasks, [&](int64_t task) {
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

void WeightLoader::Check(const ModelConfig& config) const {
  std::vector<ExpectedTensor> expected;
  for (const Piece& piece : pieces_) {
    expected.insert(expected.end(), piece.tensors.begin(), piece.tensors.end());
  }
  source_.Check(expected, [&](std::string_view name) {
    return IsRedundant(name) || LayerOf(name) >= config.num_hidden_layers ||
           (!config.tensor_prefix.empty() && !name.starts_with(config.tensor_prefix));
  });
}

void WeightLoader::OpenAll() {
  for (Piece& piece : pieces_) {
    if (!piece.open.empty()) continue;
    for (const ExpectedTensor& tensor : piece.tensors) {
      piece.open.push_back(source_.Open(tensor.name, tensor.shape));
    }
    piece.bytes = Aligned(piece.size(piece));
  }
}

int64_t WeightLoader::PackedSize() {
  OpenAll();
  size_t sum = 0;
  for (const Piece& piece : pieces_) sum += piece.bytes;
  return static_cast<int64_t>(sum);
}

Buffer WeightLoader::Load(ThreadPool& pool, const Progress& progress) {
  Buffer memory(static_cast<size_t>(PackedSize()));
  int64_t total = 0;
  for (const Piece& piece : pieces_) {
    for (const auto& tensor : piece.open) total += tensor->stored_bytes();
  }
  int64_t done = 0;
  std::byte* next = memory.data();
  for (Piece& piece : pieces_) {
    piece.fill(piece, next, pool);
    next += piece.bytes;
    for (const auto& tensor : piece.open) done += tensor->stored_bytes();
    piece.open.clear();
    if (progress) progress(done, total);
  }
  pieces_.clear();
  return memory;
}

}  // namespace outrider
