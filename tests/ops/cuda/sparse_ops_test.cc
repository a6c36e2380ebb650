// The GPU's operations of sparse attention, one by one beside the CPU's over the same cache, and
// the equality of a row's bits: alone, in windows of 1 to 32 rows, in random steps with pages of
// any size and order, in recorded passes. Pages hold NaN wherever no entry was written. Needs a GPU
// of compute capability 9.0. Long because all of it is about one world of requests.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/cpu/entry_codec.h"
#include "outrider/ops/cuda/cuda_ops.h"
#include "outrider/ops/kv_cache.h"
#include "outrider/ops/mla.h"
#include "outrider/ops/sparse.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/kernels/kernel_fixture.h"
#include "tests/ops/test_step.h"

namespace outrider::cuda {
namespace {

constexpr int32_t kEntry = 576;
constexpr int32_t kLatentDim = 512;
constexpr int32_t kKey = 128;
constexpr int32_t kLayers = 2;      // that share the pages: entries and keys of each
constexpr int32_t kQueryRows = 40;  // the last positions of a request have queries
constexpr float kScale = 0.0625F;

struct SparseCase {
  const char* name;
  int32_t heads;
  int32_t index_heads;
  int32_t top_k;
  std::vector<int32_t> lengths;  // of the requests
  bool interleaved;              // the index keys' pairs
  DType type = DType::kBF16;     // of the cache
};

const SparseCase kCases[] = {
    {"v32", 128, 64, 48, {700, 90, 33, 1, 257}, false},
    {"glm5", 64, 32, 300, {700, 301, 300, 2}, true},  // lists of two splits
    {"few_heads", 3, 8, 20, {129, 64, 21, 20, 19, 400}, false},
    {"more_than_there_is", 16, 16, 2048, {130, 7, 64}, true},  // nothing is scored
    {"v32_8_bits", 128, 64, 48, {700, 90, 33, 1, 257}, false, DType::kF8E4M3},
    {"glm5_8_bits", 64, 32, 300, {700, 301, 300, 2}, true, DType::kF8E4M3},
    {"few_heads_8_bits", 3, 8, 20, {129, 64, 21, 20, 19, 400}, true, DType::kF8E4M3},
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
  std::vector<float> out;  // [heads * 512]
};
using SparseRows = std::map<std::pair<int32_t, int32_t>, SparseRow>;  // by request, position

/// How a step is run.
struct StepForm {
  int32_t block = 64;       // tokens of a page
  bool recorded = false;    // through a replayer, the last time from a graph
  int32_t attended = 4096;  // rows of a call of attention
};

TestMatrix RandomBf16(int64_t rows, int64_t cols, std::mt19937& random, float size = 1) {
  TestMatrix m = TestMatrix::Random(rows, cols, random);
  for (float& v : m.values) v = RoundToBFloat16(v * size);
  return m;
}

/// The numbers of a request, by position.
struct SparseRequest {
  SparseRequest(const SparseCase& c, int32_t length_, std::mt19937& random)
      : length(length_),
        kv(RandomBf16(length, kEntry, random)),
        keys(TestMatrix::Random(length, kKey, random)),
        index_q(RandomBf16(length, int64_t{c.index_heads} * kKey, random)),
        weights(TestMatrix::Random(length, c.index_heads, random)),
        q(RandomBf16(length, int64_t{c.heads} * kEntry, random)) {}

  int32_t length;
  TestMatrix kv, keys, index_q, weights, q;
};

/// A device's cache whose pages hold both layers' entries and keys.
class SparseCache {
 public:
  SparseCache(const Ops& ops, int32_t pages, int32_t block, DType type)
      : cache_({ops}, {.groups = {{.tokens_per_block = block}}, .num_pages = pages}, Layers(),
               type) {}

  LayerCache entries(int32_t layer) { return cache_.layer(2 * layer); }
  LayerCache keys(int32_t layer) { return cache_.layer(2 * layer + 1); }
  std::byte* data() { return cache_.page(0).data(); }
  size_t bytes() const {
    return static_cast<size_t>(cache_.page_bytes() * cache_.config().num_pages);
  }

 private:
  static std::vector<CacheLayerSpec> Layers() {
    std::vector<CacheLayerSpec> layers;
    for (int32_t i = 0; i < kLayers; ++i) {
      layers.push_back({.width = kEntry, .use = CacheUse::kPlain});
      layers.push_back({.width = kKey, .use = CacheUse::kTokenKeys});
    }
    return layers;
  }

  KvCache cache_;
};

/// The bytes of an entry of a layer behind those of the cache.
int64_t EntryAt(SparseCache& cache, const LayerCache& layer, int64_t slot) {
  return layer.data - cache.data() +
         layer.SlotOffset(slot) * static_cast<int64_t>(DTypeSize(layer.dtype));
}

/// Number i of an entry, which may be code; without its scale.
float NumberOf(const LayerCache& layer, const std::byte* entry, int32_t i) {
  if (layer.dtype == DType::kF8E4M3) {
    return Float8E4M3ToFloat(std::to_integer<uint8_t>(entry[i]));
  }
  return ToFloat(reinterpret_cast<const BFloat16*>(entry)[i]);
}

/// The scale of a key, in the memory of a cache.
float ScaleOf(const LayerCache& layer, const std::byte* data, int64_t slot) {
  if (!layer.has_scales) return 1;
  float scale;
  std::memcpy(&scale, data + layer.ScaleOffset(slot), sizeof(scale));
  return scale;
}

/// Scores of so few rows are in memory together that a step takes several rounds.
class FewScoresOps : public CudaOps {
 public:
  bool few = false;

 protected:
  int64_t score_bytes() const override { return few ? 1 : CudaOps::score_bytes(); }
};

class SparseOpsTest : public HopperTest<testing::TestWithParam<SparseCase>> {
 protected:
  static constexpr int32_t kLayer = 1;  // that is used; of the other everything stays NaN

  void SetUp() override {
    HopperTest::SetUp();
    if (IsSkipped()) return;
    gpu_ = std::make_unique<FewScoresOps>();
    gpu_arena_ = gpu_->MakeArena();
    for (const int32_t length : GetParam().lengths) {
      requests_.emplace_back(GetParam(), length, random_);
    }
    for (size_t i = 0; i < vectors_.size(); ++i) {
      vectors_[i] = TestMatrix::Random(1, i == 0 ? kLatentDim : kKey, random_);
      const size_t bytes = vectors_[i].values.size() * sizeof(float);
      gpu_vectors_.push_back(gpu_->Allocate(bytes));
      Transfer(gpu_vectors_.back().data(), vectors_[i].values.data(), bytes);
    }
  }

  void Transfer(void* to, const void* from, size_t bytes) const {
    CheckCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, gpu_->stream()), "test copy");
    gpu_->Synchronize();
  }
  Context GpuContext() { return {{*gpu_, &pool_}, *gpu_arena_, DType::kBF16}; }
  Context CpuContext() { return {{cpu_, &pool_}, cpu_arena_, DType::kBF16}; }
  const float* Vector(const Context& c, size_t i) const {
    if (&c.ops == &cpu_) return vectors_[i].values.data();
    return reinterpret_cast<const float*>(gpu_vectors_[i].data());
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
  std::unique_ptr<TestStep> MakeStep(const Context& c, const std::vector<Window>& windows) const {
    std::vector<StepPart> parts;
    for (const Window& w : windows) {
      parts.push_back({.phase = w.phase,
                       .context = w.begin,
                       .tokens = std::vector<int32_t>(static_cast<size_t>(w.end - w.begin), 1),
                       .tables = {tables_[static_cast<size_t>(w.request)]}});
    }
    return std::make_unique<TestStep>(c, FullHistoryCache(1, block_).groups, std::move(parts),
                                      StepAttention{.listed = true});
  }

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

  /// A copy on the context's device: float32, or of the type that products give.
  Tensor Put(const Context& c, const TestMatrix& m, bool floats) const {
    const Tensor rows = c.Rows(m.view_rows, m.view_cols);
    Transfer(rows.data, m.values.data(), m.values.size() * sizeof(float));
    if (floats || c.ops.activation_type() == DType::kF32) return rows;
    const Tensor to = c.Activations(m.view_rows, m.view_cols);
    c.ops.Copy(c, rows, to);
    return to;
  }

  static Rotary RotaryOf(const Context& c, const StepInputs& inputs, bool interleaved) {
    std::array<float, 32> frequencies = {};
    for (size_t i = 0; i < frequencies.size(); ++i) {
      frequencies[i] = std::pow(10000.0F, -static_cast<float>(i) / 32.0F);
    }
    return c.ops.MakeRotary(c, frequencies, 1.25F, interleaved, inputs);
  }

  void WriteRows(const Context& c, const StepInputs& inputs, SparseCache& cache, Tensor kv,
                 Tensor keys) const {
    const Scratch::Frame frame(c.arena);
    const MlaShape shape = {.heads = GetParam().heads,
                            .latent = kLatentDim,
                            .rope = kEntry - kLatentDim,
                            .norm_eps = 1e-6F};
    c.ops.mla()->WriteLatentEntries(c, shape, inputs,
                                    {.kv = kv,
                                     .norm = Vector(c, 0),
                                     .rotary = RotaryOf(c, inputs, true),
                                     .cache = cache.entries(kLayer)});
    c.ops.sparse()->WriteIndexKeys(c, inputs,
                                   {.keys = keys,
                                    .norm = Vector(c, 1),
                                    .bias = Vector(c, 2),
                                    .norm_eps = 1e-6F,
                                    .rotary = RotaryOf(c, inputs, GetParam().interleaved),
                                    .cache = cache.keys(kLayer)});
  }

  /// Writes what the windows' requests have before them, as prompts.
  void WriteBefore(const Context& c, const std::vector<Window>& windows, SparseCache& cache) const {
    std::vector<Window> before;
    for (const Window& w : windows) {
      if (w.begin > 0) before.push_back({w.request, 0, w.begin, Phase::kPromptChunk});
    }
    if (before.empty()) return;
    const Scratch::Frame frame(c.arena);
    const auto step = MakeStep(c, before);
    const int32_t rows = step->layout().num_rows();
    WriteRows(c, step->inputs(), cache,
              Put(c, Gather(*step, before, rows, &SparseRequest::kv), false),
              Put(c, Gather(*step, before, rows, &SparseRequest::keys), true));
  }

  SelectEntriesArgs SelectArgs(Tensor index_q, Tensor weights, LayerCache keys) const {
    return {.heads = GetParam().index_heads,
            .ratio = 1,
            .top_k = GetParam().top_k,
            .q = index_q,
            .weights = weights,
            .keys = keys};
  }

  int64_t SlotOf(int32_t request, int32_t position) const {
    const std::vector<int32_t>& table = tables_[static_cast<size_t>(request)];
    return int64_t{table[static_cast<size_t>(position / block_)]} * block_ + position % block_;
  }

  /// Of one head, column by column: the sum of what its entries add to the result, each without its
  /// sign. q [576].
  std::vector<double> TermSizes(SparseCache& cache, int32_t request,
                                const std::vector<int32_t>& list, const float* q) const {
    const LayerCache layer = cache.entries(kLayer);
    std::vector<float> entries(list.size() * kEntry);
    std::vector<float> weights(list.size());
    for (size_t e = 0; e < list.size(); ++e) {
      const std::byte* const from = cache.data() + EntryAt(cache, layer, SlotOf(request, list[e]));
      float* const entry = entries.data() + e * kEntry;
      for (int32_t i = 0; i < kEntry; ++i) entry[i] = NumberOf(layer, from, i);
      weights[e] = kScale * std::inner_product(q, q + kEntry, entry, 0.0F);
    }
    const float max = *std::max_element(weights.begin(), weights.end());
    double sum = 0;
    std::vector<double> sizes(kLatentDim);
    for (size_t e = 0; e < list.size(); ++e) {
      const float weight = std::exp(weights[e] - max);
      sum += weight;
      for (size_t i = 0; i < sizes.size(); ++i) {
        sizes[i] += weight * std::abs(entries[e * kEntry + i]);
      }
    }
    for (double& size : sizes) size /= sum;
    return sizes;
  }

  /// The GPU's entry in a slot beside the CPU's. Marks its bytes. Returns how many numbers differ.
  int64_t ExpectEntry(SparseCache& cpus, const LayerCache& layer, int64_t slot,
                      std::vector<bool>& written) const {
    const int64_t at = EntryAt(cpus, layer, slot);
    const bool codes = layer.dtype == DType::kF8E4M3;
    int64_t different = 0;
    const auto bytes = static_cast<size_t>(layer.width) * DTypeSize(layer.dtype);
    std::fill_n(written.begin() + at, bytes, true);
    const int64_t begin = layer.data - cpus.data();
    const float scale = ScaleOf(layer, gpu_bytes_.data() + begin, slot);
    const float wanted_scale = ScaleOf(layer, layer.data, slot);
    if (layer.has_scales) {
      std::fill_n(written.begin() + begin + layer.ScaleOffset(slot), sizeof(float), true);
      EXPECT_EQ(scale, wanted_scale) << "scale of slot " << slot;
    }
    for (int32_t i = 0; i < layer.width; ++i) {
      const float got = scale * NumberOf(layer, gpu_bytes_.data() + at, i);
      const float want = wanted_scale * NumberOf(layer, cpus.data() + at, i);
      // A number near the middle of two codes may become either: one is an eighth more than the
      // other, or 2^-9.
      const double most =
          codes ? 0.126 * std::abs(want) + 0x1.01p-9 * wanted_scale : 0.008 * std::abs(want) + 1e-3;
      EXPECT_NEAR(got, want, most) << (layer.width == kKey ? "index key" : "entry") << " in slot "
                                   << slot << ", number " << i;
      different += got == want ? 0 : 1;
    }
    return different;
  }

  /// All of it on the GPU, over a new cache, whose bytes stay in gpu_bytes_.
  SparseRows Run(const std::vector<Window>& windows, const StepForm& form = {}) {
    SpreadPages(form.block);
    const Context c = GpuContext();
    const Scratch::Frame frame(c.arena);
    SparseCache cache(*gpu_, num_pages_, block_, GetParam().type);
    CheckCuda(cudaMemsetAsync(cache.data(), 0xFF, cache.bytes(), gpu_->stream()), "NaN");
    WriteBefore(c, windows, cache);
    const auto step = MakeStep(c, windows);
    const auto inputs = gpu_->MakeStepInputs();
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
    const Tensor out = c.Activations(rows, int64_t{GetParam().heads} * kLatentDim);
    auto* const lists = c.arena.Take<int32_t>(int64_t{rows} * (GetParam().top_k + 4));
    auto* const counts = c.arena.Take<int32_t>(rows);
    int64_t stride = 0;
    const auto run = [&] {
      const Scratch::Frame of_run(c.arena);
      WriteRows(c, *inputs, cache, kv, keys);
      const SelectedEntries selected =
          gpu_->SelectEntries(c, *inputs, SelectArgs(index_q, weights, cache.keys(kLayer)));
      stride = selected.stride;
      OUTRIDER_CHECK(stride <= GetParam().top_k + 4);
      const auto keep = [&](int32_t* to, const int32_t* from, int64_t count) {
        CheckCuda(cudaMemcpyAsync(to, from, static_cast<size_t>(count) * sizeof(int32_t),
                                  cudaMemcpyDeviceToDevice, gpu_->stream()),
                  "results of a test");
      };
      keep(lists, selected.entries, rows * stride);
      keep(counts, selected.counts, rows);
      for (int32_t first = 0; first < rows; first += form.attended) {
        const int32_t some = std::min(form.attended, rows - first);
        gpu_->SelectedAttention(c, *inputs,
                                {.heads = GetParam().heads,
                                 .softmax_scale = kScale,
                                 .first_row = first,
                                 .q = q.Rows(first, some),
                                 .out = out.Rows(first, some),
                                 .entries = cache.entries(kLayer),
                                 .selected = &selected});
      }
    };
    if (form.recorded) {
      const auto replayer = gpu_->MakeReplayer(c);
      const StepInputs* const all[] = {inputs.get()};
      // Launched twice where the first run made memory, recorded, repeated.
      for (int i = 0; i < 4; ++i) {
        gpu_->SetZero(c, out);
        replayer->Run(c, RunKey(), all, [&](const Context&) { run(); });
      }
      EXPECT_GE(replayer->counts().repeated, 1) << "the last run is not from a graph";
      gpu_->Synchronize();
    } else {
      run();
    }
    std::vector<int32_t> host_lists(static_cast<size_t>(rows * stride));
    std::vector<int32_t> host_counts(static_cast<size_t>(rows));
    Transfer(host_lists.data(), lists, host_lists.size() * sizeof(int32_t));
    Transfer(host_counts.data(), counts, host_counts.size() * sizeof(int32_t));
    TestMatrix results(rows, out.cols);
    gpu_->ToHost(c, out, results.values);
    gpu_bytes_.resize(cache.bytes());
    Transfer(gpu_bytes_.data(), cache.data(), cache.bytes());
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

  /// Rows must have the lists and bits that they have in `all`.
  static void ExpectBits(const SparseRows& some, const SparseRows& all, const std::string& where) {
    ASSERT_FALSE(some.empty()) << where;
    for (const auto& [row, got] : some) {
      const SparseRow& want = all.at(row);
      ASSERT_EQ(got.list, want.list)
          << where << ": the list of request " << row.first << ", position " << row.second;
      for (size_t i = 0; i < got.out.size(); ++i) {
        ASSERT_TRUE(SameBits(&got.out[i], &want.out[i], 1))
            << where << ": request " << row.first << ", position " << row.second << ", head "
            << i / kLatentDim << ", column " << i % kLatentDim << ": " << got.out[i] << " for "
            << want.out[i];
      }
    }
  }

  std::mt19937 random_{20240607};
  ThreadPool pool_{4};
  const cpu::CpuOps& cpu_ = cpu::GetCpuOps(SelectIsa());
  std::unique_ptr<FewScoresOps> gpu_;
  std::unique_ptr<Arena> gpu_arena_;
  Arena cpu_arena_;
  // Norm of latents, norm and bias of keys.
  std::array<TestMatrix, 3> vectors_ = {TestMatrix(1, 1), TestMatrix(1, 1), TestMatrix(1, 1)};
  std::vector<Buffer> gpu_vectors_;
  std::vector<SparseRequest> requests_;
  // Of the last run.
  std::vector<std::vector<int32_t>> tables_;
  int32_t block_ = 0;
  int32_t num_pages_ = 0;
  std::vector<std::byte> gpu_bytes_;
};

TEST_P(SparseOpsTest, EntriesAndKeysBesideTheCpus) {
  const std::vector<Window> windows = LastRows(Phase::kDecode);
  Run(windows, {.block = 32});
  const Context c = CpuContext();
  SparseCache cache(cpu_, num_pages_, block_, GetParam().type);
  std::fill_n(cache.data(), cache.bytes(), std::byte{0xFF});
  WriteBefore(c, windows, cache);
  const auto step = MakeStep(c, windows);
  const int32_t rows = step->layout().num_rows();
  TestMatrix kv = Gather(*step, windows, rows, &SparseRequest::kv);
  TestMatrix keys = Gather(*step, windows, rows, &SparseRequest::keys);
  WriteRows(c, step->inputs(), cache, kv.view(), keys.view());
  std::vector<bool> written(gpu_bytes_.size());
  int64_t different = 0;
  int64_t codes = 0;
  for (size_t r = 0; r < requests_.size(); ++r) {
    for (int32_t p = 0; p < requests_[r].length; ++p) {
      const int64_t slot = SlotOf(static_cast<int32_t>(r), p);
      for (const LayerCache& layer : {cache.entries(kLayer), cache.keys(kLayer)}) {
        const int64_t in_entry = ExpectEntry(cache, layer, slot, written);
        if (layer.dtype != DType::kF8E4M3) continue;
        different += in_entry;
        codes += layer.width;
      }
    }
  }
  EXPECT_LE(different, codes / 100) << "not only codes near a middle differ";
  for (size_t i = 0; i < written.size(); ++i) {
    if (written[i]) continue;
    ASSERT_EQ(gpu_bytes_[i], std::byte{0xFF})
        << "byte " << i << " of the cache is not the step's to write";
  }
}

/// The choice and attention, over the GPU's own cache. A list may differ from the CPU's in entries
/// whose scores are as good as equal; how many rows do is printed.
TEST_P(SparseOpsTest, ChoiceAndAttentionBesideTheCpus) {
  const std::vector<Window> windows = LastRows(Phase::kPromptChunk);
  const SparseRows got = Run(windows, {.block = 16});
  const Context c = CpuContext();
  SparseCache cache(cpu_, num_pages_, block_, GetParam().type);
  std::memcpy(cache.data(), gpu_bytes_.data(), cache.bytes());
  const auto step = MakeStep(c, windows);
  const int32_t rows = step->layout().num_rows();
  TestMatrix index_q = Gather(*step, windows, rows, &SparseRequest::index_q);
  TestMatrix weights = Gather(*step, windows, rows, &SparseRequest::weights);
  TestMatrix q = Gather(*step, windows, rows, &SparseRequest::q);
  const SelectedEntries want = cpu_.SelectEntries(
      c, step->inputs(), SelectArgs(index_q.view(), weights.view(), cache.keys(kLayer)));
  // The GPU's lists for the CPU's attention.
  std::vector<int32_t> lists(static_cast<size_t>(rows) * static_cast<size_t>(want.stride), -1);
  std::vector<int32_t> counts(static_cast<size_t>(rows));
  int ties = 0;
  for (const RequestRows& r : step->layout().requests()) {
    const Window& w = windows[static_cast<size_t>(r.work_index)];
    for (int32_t j = 0; j < r.query_length; ++j) {
      const int32_t row = r.first_row + j;
      const int32_t position = w.begin + j;
      const std::vector<int32_t>& list = got.at({w.request, position}).list;
      const std::string where =
          "request " + std::to_string(w.request) + ", position " + std::to_string(position);
      ASSERT_EQ(list.size(), static_cast<size_t>(want.counts[row])) << where;
      ASSERT_TRUE(std::ranges::is_sorted(list)) << where;
      ASSERT_TRUE(std::ranges::adjacent_find(list) == list.end()) << where;
      ASSERT_TRUE(list.front() >= 0 && list.back() <= position) << where;
      std::ranges::copy(list, lists.begin() + row * want.stride);
      counts[static_cast<size_t>(row)] = want.counts[row];
      const int32_t* wanted = want.entries + row * want.stride;
      std::vector<int32_t> others;
      std::set_symmetric_difference(list.begin(), list.end(), wanted, wanted + want.counts[row],
                                    std::back_inserter(others));
      if (others.empty()) continue;
      ++ties;
      double least = INFINITY, most = -INFINITY, size = 0;
      for (const int32_t entry : others) {
        const LayerCache keys = cache.keys(kLayer);
        const std::byte* const key = cache.data() + EntryAt(cache, keys, SlotOf(w.request, entry));
        const float scale = ScaleOf(keys, keys.data, SlotOf(w.request, entry));
        double score = 0;
        for (int32_t h = 0; h < GetParam().index_heads; ++h) {
          std::vector<float> head(index_q.view().row(row) + h * kKey,
                                  index_q.view().row(row) + (h + 1) * kKey);
          if (keys.has_scales) cpu::RoundIndexQuery(keys, head.data());
          double dot = 0;
          for (int32_t i = 0; i < kKey; ++i) {
            dot += scale * double{head[static_cast<size_t>(i)]} * NumberOf(keys, key, i);
          }
          score += weights.view().row(row)[h] * std::max(dot, 0.0);
          size += std::abs(weights.view().row(row)[h] * std::max(dot, 0.0)) /
                  static_cast<double>(others.size());
        }
        least = std::min(least, score);
        most = std::max(most, score);
      }
      // With codes tensor cores keep 13 bits below the largest of the products added at once.
      EXPECT_LT(most - least, (cache.keys(kLayer).has_scales ? 0x1p-8 : 1e-5) * size)
          << where << ": the CPU chooses other entries, " << others.front() << " among them";
    }
  }
  std::printf("%s: %d of %d rows differ from the CPU's choice by near-ties\n", GetParam().name,
              ties, rows);
  EXPECT_LE(ties, rows / (cache.keys(kLayer).has_scales ? 4 : 10));
  const SelectedEntries selected = {lists.data(), counts.data(), want.stride};
  TestMatrix out(rows, int64_t{GetParam().heads} * kLatentDim);
  cpu_.SelectedAttention(c, step->inputs(),
                         {.heads = GetParam().heads,
                          .softmax_scale = kScale,
                          .first_row = 0,
                          .q = q.view(),
                          .out = out.view(),
                          .entries = cache.entries(kLayer),
                          .selected = &selected});
  for (const RequestRows& r : step->layout().requests()) {
    const Window& w = windows[static_cast<size_t>(r.work_index)];
    for (int32_t j = 0; j < r.query_length; ++j) {
      const SparseRow& row = got.at({w.request, w.begin + j});
      for (int32_t head = 0; head < GetParam().heads; ++head) {
        const int64_t first = int64_t{head} * kLatentDim;
        const std::vector<double> sizes =
            TermSizes(cache, w.request, row.list, q.view().row(r.first_row + j) + head * kEntry);
        for (int64_t i = 0; i < kLatentDim; ++i) {
          const float expected = out.view().row(r.first_row + j)[first + i];
          // bfloat16 has 8 bits: a rounded number is off by 2^-8 of itself at most. On both devices
          // weights may be rounded, and so their sum, by which the result is divided; on one the
          // result is rounded.
          const double most =
              0x1p-7 * sizes[static_cast<size_t>(i)] + 3 * 0x1p-8 * std::abs(expected) + 1e-5;
          ASSERT_NEAR(row.out[static_cast<size_t>(first + i)], expected, most)
              << "attention of request " << w.request << ", position " << w.begin + j << ", head "
              << head << ", column " << i;
        }
      }
    }
  }
}

// The memory of new inputs may be that of inputs that are gone, whose runs are known.
TEST_P(SparseOpsTest, NewInputsAreNotTakenForOldOnes) {
  SpreadPages(64);
  const Context c = GpuContext();
  SparseCache cache(*gpu_, num_pages_, block_, GetParam().type);
  const auto step = MakeStep(c, LastRows(Phase::kDecode));
  const auto replayer = gpu_->MakeReplayer(c);
  for (int i = 0; i < 4; ++i) {
    const auto inputs = gpu_->MakeStepInputs();
    step->AssignTo(*inputs, RowCount::kRounded);
    const StepInputs* const all[] = {inputs.get()};
    replayer->Run(c, RunKey(), all, [&](const Context&) { Cast(*inputs).Of(cache.keys(kLayer)); });
  }
  EXPECT_EQ(replayer->counts().repeated, 0);
}

TEST_P(SparseOpsTest, RowsHaveTheirBitsAloneAndInWindows) {
  const SparseRows all = Run(LastRows(Phase::kPromptChunk));
  for (size_t r = 0; r < requests_.size(); ++r) {
    const auto request = static_cast<int32_t>(r);
    const int32_t length = requests_[r].length;
    const int32_t most = std::min(32, length);
    for (int32_t rows = 1; rows <= most; rows += r == 0 ? 1 : 7) {
      ExpectBits(Run({{request, length - rows, length}}, {.block = 32}), all,
                 "a window of " + std::to_string(rows));
    }
    for (int32_t back = 1; back <= most; back += 9) {
      const Phase phase = back % 2 == 0 ? Phase::kPromptChunk : Phase::kDecode;
      ExpectBits(Run({{request, length - back, length - back + 1, phase}}), all, "a row alone");
    }
  }
}

TEST_P(SparseOpsTest, RowsHaveTheirBitsInAnyStep) {
  const SparseRows all = Run(LastRows(Phase::kDecode));
  ExpectBits(Run(LastRows(Phase::kPromptChunk)), all, "as prompts");
  ExpectBits(Run(LastRows(Phase::kDecode), {.attended = 17}), all, "attention to 17 rows a call");
  gpu_->few = true;
  ExpectBits(Run(LastRows(Phase::kPromptChunk)), all, "scores of 32 rows at a time");
  gpu_->few = false;
  const auto pick = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random_);
  };
  for (int trial = 0; trial < 24; ++trial) {
    std::vector<Window> windows;
    for (const Window& last : LastRows(Phase::kDecode)) {
      if (pick(0, 3) == 0) continue;
      const int32_t begin = pick(last.begin, last.end - 1);
      windows.push_back({last.request, begin, pick(begin + 1, last.end),
                         pick(0, 1) == 0 ? Phase::kDecode : Phase::kPromptChunk});
    }
    if (windows.empty()) continue;
    std::shuffle(windows.begin(), windows.end(), random_);
    const int32_t block = 16 << pick(0, 4);
    ExpectBits(Run(windows, {.block = block}), all,
               "step " + std::to_string(trial) + ", pages of " + std::to_string(block));
  }
}

TEST_P(SparseOpsTest, RecordedStepsHaveTheSameBits) {
  const SparseRows all = Run(LastRows(Phase::kDecode));
  ExpectBits(Run(LastRows(Phase::kDecode), {.recorded = true}), all, "recorded");
  // Rows that are not a rounded number: some are added.
  for (const int32_t rows : {17, 19, 35}) {
    const int32_t length = requests_[0].length;
    ExpectBits(Run({{0, length - rows, length}}, {.block = 16, .recorded = true}), all,
               std::to_string(rows) + " rows, recorded");
  }
}

INSTANTIATE_TEST_SUITE_P(Families, SparseOpsTest, testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace outrider::cuda
