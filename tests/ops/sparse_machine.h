// A table's operations of sparse attention, over the cache of several requests. Pages lie in any
// order and hold NaN wherever no entry was written.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/kv_cache.h"
#include "outrider/ops/mla.h"
#include "outrider/ops/ops.h"
#include "outrider/ops/sparse.h"
#include "tests/kernels/kernel_fixture.h"
#include "tests/ops/exact_rows.h"
#include "tests/ops/test_step.h"

namespace outrider::sparse_test {

inline constexpr int32_t kLayers = 2;      // that share the pages: entries and keys of each
inline constexpr int32_t kLayer = 1;       // that is used; of the other everything stays NaN
inline constexpr int32_t kQueryRows = 40;  // the last positions of a request have queries
inline constexpr float kNormEps = 1e-6F;   // of latents
inline constexpr float kKeyNormEps = 0.5F;

/// Sizes are a GPU's where nothing else is said.
struct SparseCase {
  const char* name;
  int32_t heads;
  int32_t index_heads;
  int32_t top_k;
  std::vector<int32_t> lengths;  // of the requests
  bool interleaved;              // the index keys' pairs
  DType type = DType::kBF16;     // of the cache
  int32_t latent = 512;
  int32_t rope = 64;  // of an entry, behind the latent
  int32_t key = 128;
  int32_t key_rope = 64;  // its first numbers, which are rotated
  float scale = 0.0625F;

  int32_t entry() const { return latent + rope; }
};

/// Positions begin .. end - 1 of a request, as rows of a step.
struct Window {
  int32_t request;
  int32_t begin;
  int32_t end;
  Phase phase = Phase::kDecode;
};

/// What a row got.
struct SparseRow {
  std::vector<int32_t> list;
  std::vector<float> out;  // [heads * latent]
};
using SparseRows = std::map<std::pair<int32_t, int32_t>, SparseRow>;  // by request, position

/// How a step is run.
struct StepForm {
  int32_t block = 64;       // tokens of a page
  bool recorded = false;    // through a replayer, the last time from a graph
  int32_t attended = 4096;  // rows of a call of attention
};

/// The numbers of a request, by position.
struct SparseRequest {
  SparseRequest(const SparseCase& c, int32_t length_, std::mt19937& random)
      : length(length_),
        kv(RandomBf16(length, c.entry(), random)),
        keys(TestMatrix::Random(length, c.key, random)),
        index_q(RandomBf16(length, int64_t{c.index_heads} * c.key, random)),
        weights(TestMatrix::Random(length, c.index_heads, random)),
        q(RandomBf16(length, int64_t{c.heads} * c.entry(), random)) {}

  int32_t length;
  TestMatrix kv, keys, index_q, weights, q;
};

/// A cache whose pages hold both layers' entries and keys.
class SparseCache {
 public:
  SparseCache(const Ops& ops, const SparseCase& c, int32_t pages, int32_t block)
      : cache_({ops}, {.groups = {{.tokens_per_block = block}}, .num_pages = pages}, Layers(c),
               c.type) {}

  LayerCache entries(int32_t layer) { return cache_.layer(2 * layer); }
  LayerCache keys(int32_t layer) { return cache_.layer(2 * layer + 1); }
  std::byte* data() { return cache_.page(0).data(); }
  size_t bytes() const {
    return static_cast<size_t>(cache_.page_bytes() * cache_.config().num_pages);
  }

 private:
  static std::vector<CacheLayerSpec> Layers(const SparseCase& c) {
    std::vector<CacheLayerSpec> layers;
    for (int32_t i = 0; i < kLayers; ++i) {
      layers.push_back({.width = c.entry(), .use = CacheUse::kPlain});
      layers.push_back({.width = c.key, .use = CacheUse::kTokenKeys});
    }
    return layers;
  }

  KvCache cache_;
};

class SparseMachine {
 public:
  /// Copies memory of the device when what was launched before has run.
  using CopyLater = std::function<void(void* to, const void* from, size_t bytes)>;
  static void CopyNow(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }

  SparseMachine(const Ops& ops, const SparseCase& c, CopyLater copy_later = CopyNow)
      : ops_(ops), case_(c), copy_later_(std::move(copy_later)), arena_(ops.MakeArena()) {
    for (const int32_t length : c.lengths) requests_.emplace_back(c, length, random_);
    for (size_t i = 0; i < vectors_.size(); ++i) {
      vectors_[i] = i == 0 ? RandomNorm(c.latent, random_) : TestMatrix::Random(1, c.key, random_);
      const auto bytes = std::as_bytes(std::span(vectors_[i].values));
      device_vectors_.push_back(ops.Allocate(bytes.size()));
      ops.CopyFromHost(bytes, device_vectors_.back().data());
    }
  }

  const SparseCase& parameters() const { return case_; }
  const std::vector<SparseRequest>& requests() const { return requests_; }
  std::mt19937& random() { return random_; }
  Context context() { return {{ops_, &pool_}, *arena_, DType::kBF16}; }
  /// The bytes of the cache of the last run.
  const std::vector<std::byte>& bytes() const { return bytes_; }
  SparseCache MakeCache(const Ops& ops) const { return {ops, case_, num_pages_, block_}; }

  int64_t SlotOf(int32_t request, int32_t position) const {
    const std::vector<int32_t>& table = tables_[static_cast<size_t>(request)];
    return int64_t{table[static_cast<size_t>(position / block_)]} * block_ + position % block_;
  }

  /// What must be in the cache of a position, by definition: the entry, and the index key.
  Doubles EntryOf(int32_t request, int32_t position) const {
    const float* const kv = requests_[static_cast<size_t>(request)].kv.view().row(position);
    Doubles entry(kv, kv + case_.entry());
    NormExactly(std::span(entry).first(static_cast<size_t>(case_.latent)),
                vectors_[0].values.data(), kNormEps);
    Turn(std::span(entry).last(static_cast<size_t>(case_.rope)), position, true);
    return entry;
  }
  Doubles KeyOf(int32_t request, int32_t position) const {
    const float* const x = requests_[static_cast<size_t>(request)].keys.view().row(position);
    Doubles key(x, x + case_.key);
    const double mean = std::accumulate(key.begin(), key.end(), 0.0) / case_.key;
    double variance = 0;
    for (const double v : key) variance += (v - mean) * (v - mean) / case_.key;
    for (size_t i = 0; i < key.size(); ++i) {
      key[i] = vectors_[1].values[i] * (key[i] - mean) / std::sqrt(variance + double{kKeyNormEps}) +
               vectors_[2].values[i];
    }
    Turn(std::span(key).first(static_cast<size_t>(case_.key_rope)), position, case_.interleaved);
    return key;
  }

  /// Gives the requests pages in random order; page 0 is nobody's.
  void SpreadPages(int32_t block) {
    int32_t next = 1;
    tables_.clear();
    for (const SparseRequest& request : requests_) {
      tables_.emplace_back(static_cast<size_t>((request.length + block - 1) / block));
      for (int32_t& page : tables_.back()) page = next++;
    }
    std::vector<int32_t> order(static_cast<size_t>(next));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin() + 1, order.end(), random_);
    for (auto& table : tables_) {
      for (int32_t& page : table) page = order[static_cast<size_t>(page)];
    }
    block_ = block;
    num_pages_ = next;
  }

  /// The windows as a step of listed rows.
  std::unique_ptr<TestStep> MakeStep(const std::vector<Window>& windows) {
    std::vector<StepPart> parts;
    for (const Window& w : windows) {
      parts.push_back({.phase = w.phase,
                       .context = w.begin,
                       .tokens = std::vector<int32_t>(static_cast<size_t>(w.end - w.begin), 1),
                       .tables = {tables_[static_cast<size_t>(w.request)]}});
    }
    return std::make_unique<TestStep>(context(), FullHistoryCache(1, block_).groups,
                                      std::move(parts), StepAttention{.listed = true});
  }

  /// All of it, over a new cache, whose bytes stay in bytes().
  SparseRows Run(const std::vector<Window>& windows, const StepForm& form = {}) {
    SpreadPages(form.block);
    const Context c = context();
    const Scratch::Frame frame(c.arena);
    SparseCache cache = MakeCache(ops_);
    bytes_.assign(cache.bytes(), std::byte{0xFF});
    ops_.CopyFromHost(bytes_, cache.data());
    WriteBefore(c, windows, cache);
    const auto step = MakeStep(windows);
    const auto inputs = ops_.MakeStepInputs();
    step->AssignTo(*inputs, form.recorded ? RowCount::kRounded : RowCount::kExact);
    const int32_t rows = inputs->num_rows();
    const auto put = [&](TestMatrix SparseRequest::* matrix, bool floats) {
      return Put(c, Gather(*step, windows, rows, matrix), floats);
    };
    const Tensor kv = put(&SparseRequest::kv, false);
    const Tensor keys = put(&SparseRequest::keys, true);
    const Tensor index_q = put(&SparseRequest::index_q, false);
    const Tensor weights = put(&SparseRequest::weights, true);
    const Tensor q = put(&SparseRequest::q, false);
    const Tensor out = c.Activations(rows, int64_t{case_.heads} * case_.latent);
    auto* const lists = c.arena.Take<int32_t>(int64_t{rows} * (case_.top_k + 4));
    auto* const counts = c.arena.Take<int32_t>(rows);
    int64_t stride = 0;
    const auto run = [&] {
      const Scratch::Frame of_run(c.arena);
      WriteRows(c, *inputs, cache, kv, keys);
      const SelectedEntries selected = ops_.sparse()->SelectEntries(c, *inputs,
                                                                    {.heads = case_.index_heads,
                                                                     .ratio = 1,
                                                                     .top_k = case_.top_k,
                                                                     .q = index_q,
                                                                     .weights = weights,
                                                                     .keys = cache.keys(kLayer)});
      stride = selected.stride;
      OUTRIDER_CHECK(stride <= case_.top_k + 4);
      copy_later_(lists, selected.entries, static_cast<size_t>(rows * stride) * sizeof(int32_t));
      copy_later_(counts, selected.counts, static_cast<size_t>(rows) * sizeof(int32_t));
      for (int32_t first = 0; first < rows; first += form.attended) {
        const int32_t some = std::min(form.attended, rows - first);
        ops_.sparse()->SelectedAttention(c, *inputs,
                                         {.heads = case_.heads,
                                          .softmax_scale = case_.scale,
                                          .first_row = first,
                                          .q = q.Rows(first, some),
                                          .out = out.Rows(first, some),
                                          .entries = cache.entries(kLayer),
                                          .selected = &selected});
      }
    };
    if (form.recorded) {
      const auto replayer = ops_.MakeReplayer(c);
      const StepInputs* const all[] = {inputs.get()};
      // Launched twice where the first run made memory, recorded, repeated.
      for (int i = 0; i < 4; ++i) {
        ops_.SetZero(c, out);
        replayer->Run(c, RunKey(), all, [&](const Context&) { run(); });
      }
      EXPECT_GE(replayer->counts().repeated, 1) << "the last run is not from a graph";
    } else {
      run();
    }
    std::vector<int32_t> host_lists(static_cast<size_t>(rows * stride));
    std::vector<int32_t> host_counts(static_cast<size_t>(rows));
    const auto read = [&](const int32_t* from, std::vector<int32_t>& to) {
      ops_.CopyToHost(reinterpret_cast<const std::byte*>(from),
                      std::as_writable_bytes(std::span(to)));
    };
    read(lists, host_lists);
    read(counts, host_counts);
    TestMatrix results(rows, out.cols);
    ops_.ToHost(c, out, results.values);
    ops_.CopyToHost(cache.data(), bytes_);
    SparseRows all;
    for (const RequestRows& r : step->layout().requests()) {
      const Window& w = windows[static_cast<size_t>(r.work_index)];
      for (int32_t j = 0; j < r.query_length; ++j) {
        const auto row = static_cast<size_t>(r.first_row + j);
        const auto list = host_lists.begin() + static_cast<int64_t>(row) * stride;
        const float* of_row = results.view().row(r.first_row + j);
        all[{w.request, w.begin + j}] = {
            .list = {list, list + std::clamp(host_counts[row], 0, static_cast<int32_t>(stride))},
            .out = {of_row, of_row + results.view_cols}};
      }
    }
    return all;
  }

  /// The last positions of every request.
  std::vector<Window> LastRows(Phase phase) const {
    std::vector<Window> windows;
    for (size_t r = 0; r < requests_.size(); ++r) {
      const int32_t length = requests_[r].length;
      windows.push_back({static_cast<int32_t>(r), std::max(0, length - kQueryRows), length, phase});
    }
    return windows;
  }

 private:
  /// The step's rows of a matrix of the requests, and NaN in rows that were added to them.
  TestMatrix Gather(const TestStep& step, const std::vector<Window>& windows, int32_t rows,
                    TestMatrix SparseRequest::* matrix) const {
    TestMatrix gathered(rows, (requests_[0].*matrix).view_cols);
    std::fill(gathered.values.begin(), gathered.values.end(), kNaN);
    for (const RequestRows& r : step.layout().requests()) {
      const Window& w = windows[static_cast<size_t>(r.work_index)];
      const TestMatrix& from = requests_[static_cast<size_t>(w.request)].*matrix;
      for (int32_t j = 0; j < r.query_length; ++j) {
        std::copy_n(from.view().row(w.begin + j), from.view_cols,
                    gathered.view().row(r.first_row + j));
      }
    }
    return gathered;
  }

  /// A copy on the device: float32, or of the type that products give.
  Tensor Put(const Context& c, const TestMatrix& m, bool floats) const {
    const Tensor rows = c.Rows(m.view_rows, m.view_cols);
    ops_.CopyFromHost(std::as_bytes(std::span(m.values)), static_cast<std::byte*>(rows.data));
    if (floats || ops_.activation_type() == DType::kF32) return rows;
    const Tensor to = c.Activations(m.view_rows, m.view_cols);
    ops_.Copy(c, rows, to);
    return to;
  }

  void WriteRows(const Context& c, const StepInputs& inputs, SparseCache& cache, Tensor kv,
                 Tensor keys) const {
    const Scratch::Frame frame(c.arena);
    const auto vector = [&](size_t i) { return device_vectors_[i].as<float>(); };
    const auto angles = [&](int32_t rope, bool interleaved) {
      return ops_.MakeRotary(c, FrequenciesOf(rope), kAngleMagnitude, interleaved, inputs);
    };
    ops_.mla()->WriteLatentEntries(
        c, {.heads = case_.heads, .latent = case_.latent, .rope = case_.rope, .norm_eps = kNormEps},
        inputs,
        {.kv = kv,
         .norm = vector(0),
         .rotary = angles(case_.rope, true),
         .cache = cache.entries(kLayer)});
    ops_.sparse()->WriteIndexKeys(c, inputs,
                                  {.keys = keys,
                                   .norm = vector(1),
                                   .bias = vector(2),
                                   .norm_eps = kKeyNormEps,
                                   .rotary = angles(case_.key_rope, case_.interleaved),
                                   .cache = cache.keys(kLayer)});
  }

  /// Writes what the windows' requests have before them, as prompts.
  void WriteBefore(const Context& c, const std::vector<Window>& windows, SparseCache& cache) {
    std::vector<Window> before;
    for (const Window& w : windows) {
      if (w.begin > 0) before.push_back({w.request, 0, w.begin, Phase::kPromptChunk});
    }
    if (before.empty()) return;
    const Scratch::Frame frame(c.arena);
    const auto step = MakeStep(before);
    const int32_t rows = step->layout().num_rows();
    WriteRows(c, step->inputs(), cache,
              Put(c, Gather(*step, before, rows, &SparseRequest::kv), false),
              Put(c, Gather(*step, before, rows, &SparseRequest::keys), true));
  }

  const Ops& ops_;
  const SparseCase case_;
  CopyLater copy_later_;
  std::mt19937 random_{20240607};
  ThreadPool pool_{2};
  std::unique_ptr<Arena> arena_;
  // Norm of latents, norm and bias of keys.
  std::array<TestMatrix, 3> vectors_ = {TestMatrix(1, 1), TestMatrix(1, 1), TestMatrix(1, 1)};
  std::vector<Buffer> device_vectors_;
  std::vector<SparseRequest> requests_;
  // Of the last run.
  std::vector<std::vector<int32_t>> tables_;
  int32_t block_ = 0;
  int32_t num_pages_ = 0;
  std::vector<std::byte> bytes_;
};

}  // namespace outrider::sparse_test
