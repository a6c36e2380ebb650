#include "outrider/measure/kernel_loads.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

#include "outrider/kernels/machine_limits.h"

namespace outrider {

namespace {

constexpr int32_t kBlockSize = 64;

/// Bytes that are small numbers in bfloat16 and codes of 8 bits otherwise, by a linear congruential
/// generator: magnitudes 2^-8 to 2^-5.
void FillRandom(std::byte* data, size_t bytes) {
  auto* out = reinterpret_cast<uint16_t*>(data);
  uint32_t state = 1;
  for (size_t i = 0; i < bytes / 2; ++i) {
    state = state * 1664525 + 1013904223;
    out[i] = static_cast<uint16_t>((state >> 16 & 0x81ff) + 0x3b80);
  }
}

int NumWeights(const ProductGroup& group) {
  return group.pool > 0 ? group.pool : group.per_call * group.calls;
}

void Append(const std::vector<ProductGroup>& more, std::vector<ProductGroup>& groups) {
  groups.insert(groups.end(), more.begin(), more.end());
}

const ProductGroup kHead = {.name = "lm_head 102400 × 2048", .n = 102400, .k = 2048};

std::vector<ProductGroup> AttentionProducts(int layers) {
  return {{.name = "q_a + kv_a 2112 × 2048", .n = 2112, .k = 2048, .calls = layers},
          {.name = "q_b 3072 × 1536", .n = 3072, .k = 1536, .calls = layers},
          {.name = "16 heads 512 × 128", .n = 512, .k = 128, .per_call = 16, .calls = layers},
          {.name = "16 heads 128 × 512", .n = 128, .k = 512, .per_call = 16, .calls = layers},
          {.name = "o 2048 × 2048", .n = 2048, .k = 2048, .calls = layers}};
}

std::vector<ProductGroup> DenseProducts(int layers) {
  return {{.name = "gate + up 21888 × 2048", .n = 21888, .k = 2048, .calls = layers},
          {.name = "down 2048 × 10944", .n = 2048, .k = 10944, .calls = layers}};
}

}  // namespace

double BestSeconds(const ThreadPool& pool, int repeats, FunctionRef<void()> call) {
  call();
  double best = kNever;
  for (int i = 0; i < repeats; ++i) {
    const double start = KernelClock(pool);
    call();
    best = std::min(best, KernelClock(pool) - start);
  }
  return best;
}

void FillNormal(float* data, int64_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < count; ++i) data[i] = normal(random);
}

std::vector<ProductGroup> D8Products(int layers, bool with_head) {
  std::vector<ProductGroup> groups = AttentionProducts(layers);
  Append(DenseProducts(layers), groups);
  if (with_head) groups.push_back(kHead);
  return groups;
}

std::vector<ProductGroup> M8Products() {
  constexpr int kLayers = 7;
  std::vector<ProductGroup> groups = AttentionProducts(1 + kLayers);
  Append(DenseProducts(1), groups);
  Append({{.name = "shared gate + up 5632 × 2048", .n = 5632, .k = 2048, .calls = kLayers},
          {.name = "shared down 2048 × 2816", .n = 2048, .k = 2816, .calls = kLayers},
          {.name = "6 of 64 experts 2816 × 2048",
           .n = 2816,
           .k = 2048,
           .per_call = 6,
           .calls = kLayers,
           .pool = 64},
          {.name = "6 of 64 experts 2048 × 1408",
           .n = 2048,
           .k = 1408,
           .per_call = 6,
           .calls = kLayers,
           .pool = 64},
          kHead},
         groups);
  return groups;
}

ModelProducts::ModelProducts(const PackedFormat& format, std::vector<ProductGroup> groups)
    : format_(format), groups_(std::move(groups)) {
  size_t bytes = 0;
  for (const ProductGroup& g : groups_) {
    bytes += PackedBytes(format_, g.n, g.k) * static_cast<size_t>(NumWeights(g));
  }
  storage_ = Buffer(bytes);
  FillRandom(storage_.data(), bytes);
  std::byte* next = storage_.data();
  std::mt19937 random(1);
  for (const ProductGroup& g : groups_) {
    const size_t first = weights_.size();
    for (int i = 0; i < NumWeights(g); ++i) {
      weights_.push_back({.format = format_, .rows = g.n, .cols = g.k, .data = next});
      next += PackedBytes(format_, g.n, g.k);
      // Blocks of 128 rows, eight panels, share their scales.
      float* const floats = storage_.as<float>();
      for (int64_t p = 0; p < weights_.back().panels(); ++p) {
        std::fill_n(floats + (weights_.back().scales(p) - floats), ScalesPerPanel(format_, g.k),
                    std::ldexp(1.0F, -9 - static_cast<int>(p / 8 % 8)));
      }
    }
    std::vector<size_t> choice(static_cast<size_t>(NumWeights(g)));
    std::iota(choice.begin(), choice.end(), first);
    for (int call = 0; call < g.calls; ++call) {
      if (g.pool > 0) std::shuffle(choice.begin(), choice.end(), random);
      const auto from = choice.begin() + (g.pool > 0 ? 0 : call * g.per_call);
      order_.insert(order_.end(), from, from + g.per_call);
    }
  }
}

size_t ModelProducts::BytesPerPass(const ProductGroup& group) const {
  return PackedBytes(format_, group.n, group.k) * static_cast<size_t>(group.per_call * group.calls);
}

size_t ModelProducts::bytes_per_pass() const {
  size_t bytes = 0;
  for (const ProductGroup& g : groups_) bytes += BytesPerPass(g);
  return bytes;
}

double ModelProducts::weights_per_pass() const {
  double weights = 0;
  for (const ProductGroup& g : groups_) weights += g.WeightsPerPass();
  return weights;
}

double ModelProducts::ReadBytesPerSecond(ThreadPool& pool, int passes) const {
  return static_cast<double>(storage_.size()) /
         ReadSeconds(pool, storage_.data(), storage_.size(), passes);
}

std::vector<double> ModelProducts::Pass(const KernelTable& kernels, ThreadPool& pool, int64_t rows,
                                        const float* x, float* y) const {
  std::vector<double> seconds;
  const size_t* next = order_.data();
  std::vector<MatMulJob> jobs;
  for (const ProductGroup& g : groups_) {
    const double start = KernelClock(pool);
    for (int call = 0; call < g.calls; ++call) {
      jobs.clear();
      for (int i = 0; i < g.per_call; ++i, ++next) {
        jobs.push_back(
            {.x = {x, rows, g.k}, .w = &weights_[*next], .y = {y + i * rows * g.n, rows, g.n}});
      }
      kernels.matmul(pool, jobs, DType::kBF16);
    }
    seconds.push_back(KernelClock(pool) - start);
  }
  return seconds;
}

std::vector<double> ModelProducts::Seconds(const KernelTable& kernels, ThreadPool& pool,
                                           int64_t rows, int repeats) const {
  int64_t widest_in = 0;
  int64_t widest_out = 0;
  for (const ProductGroup& g : groups_) {
    widest_in = std::max(widest_in, g.k);
    widest_out = std::max(widest_out, g.n * g.per_call);
  }
  std::vector<float> x(static_cast<size_t>(rows * widest_in));
  std::vector<float> y(static_cast<size_t>(rows * widest_out));
  FillNormal(x.data(), static_cast<int64_t>(x.size()));
  std::vector<double> best(groups_.size() + 1, kNever);
  for (int i = 0; i <= repeats; ++i) {
    std::vector<double> seconds = Pass(kernels, pool, rows, x.data(), y.data());
    if (i == 0) continue;
    seconds.push_back(std::accumulate(seconds.begin(), seconds.end(), 0.0));
    for (size_t g = 0; g < best.size(); ++g) best[g] = std::min(best[g], seconds[g]);
  }
  return best;
}

double PagedSeconds(ThreadPool& pool, const PagedLoad& load,
                    FunctionRef<void(const PagedCall&)> call) {
  const int32_t blocks = (load.context + load.rows + kBlockSize - 1) / kBlockSize;
  const int64_t entries = int64_t{blocks} * load.requests * kBlockSize;
  const size_t layer_bytes =
      static_cast<size_t>(entries * load.entry_width) * DTypeSize(load.dtype);
  Buffer storage(layer_bytes * kCacheLayers);
  if (load.dtype == DType::kBF16) {
    FillRandom(storage.data(), storage.size());
  } else {
    FillNormal(storage.as<float>(), static_cast<int64_t>(storage.size() / sizeof(float)));
  }
  std::vector<int32_t> table(static_cast<size_t>(blocks * load.requests));
  std::iota(table.rbegin(), table.rend(), 0);
  const int32_t rows = load.rows * load.requests;
  const int64_t query_width = int64_t{load.heads} * load.query_width;
  std::vector<float> q(static_cast<size_t>(rows * query_width));
  std::vector<float> out(q.size());
  FillNormal(q.data(), static_cast<int64_t>(q.size()));
  std::vector<AttentionSpan> spans;
  spans.reserve(static_cast<size_t>(load.requests));
  for (int32_t r = 0; r < load.requests; ++r) {
    spans.push_back({.first_row = r * load.rows,
                     .query_length = load.rows,
                     .context_length = load.context,
                     .block_table = table.data() + r * blocks});
  }
  const auto all_layers = [&] {
    for (int layer = 0; layer < kCacheLayers; ++layer) {
      call({.cache = {.data = storage.data() + static_cast<size_t>(layer) * layer_bytes,
                      .dtype = load.dtype,
                      .block_size = kBlockSize,
                      .width = load.entry_width,
                      .block_stride = kBlockSize * load.entry_width},
            .q = {q.data(), rows, query_width},
            .requests = spans,
            .out = out.data()});
    }
  };
  return BestSeconds(pool, load.context > 1000 ? 3 : 20, all_layers) / kCacheLayers;
}

double AbsorbedSeconds(const KernelTable& kernels, ThreadPool& pool, int32_t heads, int32_t context,
                       int32_t rows, int32_t requests, DType dtype, int32_t split) {
  constexpr int32_t kRope = 64;
  constexpr int32_t kLatent = kAbsorbedEntry - kRope;
  const PagedLoad load = {.heads = heads,
                          .context = context,
                          .rows = rows,
                          .requests = requests,
                          .dtype = dtype,
                          .query_width = kAbsorbedEntry,
                          .entry_width = kAbsorbedEntry};
  return PagedSeconds(pool, load, [&](const PagedCall& call) {
    kernels.absorbed_attention(pool, {.q = call.q,
                                      .heads = heads,
                                      .latent = kLatent,
                                      .rope = kRope,
                                      .scale = 0.01F,
                                      .cache = call.cache,
                                      .requests = call.requests,
                                      .out = {call.out, call.q.rows, int64_t{heads} * kLatent},
                                      .split = split});
  });
}

double ExpandedSeconds(const KernelTable& kernels, ThreadPool& pool, int32_t heads, int32_t rows) {
  const auto floats = [&](int64_t width) {
    return std::vector<float>(static_cast<size_t>(rows * width));
  };
  std::vector<float> q = floats(heads * 192);
  std::vector<float> kv = floats(heads * 256);
  std::vector<float> k_rope = floats(64);
  std::vector<float> out = floats(heads * 128);
  std::vector<float> max = floats(heads);
  std::vector<float> sum = floats(heads);
  FillNormal(q.data(), static_cast<int64_t>(q.size()));
  FillNormal(kv.data(), static_cast<int64_t>(kv.size()));
  FillNormal(k_rope.data(), static_cast<int64_t>(k_rope.size()));
  std::vector<ExpandedBlock> blocks;
  for (int32_t first = 0; first < rows; first += kExpandedBlock) {
    blocks.push_back({.request = {.first_row = 0, .query_length = rows},
                      .first_key = first,
                      .num_keys = std::min(kExpandedBlock, rows - first),
                      .kv_row = first});
  }
  return BestSeconds(pool, 3, [&] {
    kernels.expanded_attention(pool, {.q = {q.data(), rows, heads * 192},
                                      .heads = heads,
                                      .nope = 128,
                                      .rope = 64,
                                      .value = 128,
                                      .scale = 0.07F,
                                      .kv = {kv.data(), rows, heads * 256},
                                      .k_rope = {k_rope.data(), rows, 64},
                                      .blocks = blocks,
                                      .out = {out.data(), rows, heads * 128},
                                      .running_max = {max.data(), rows, heads},
                                      .running_sum = {sum.data(), rows, heads}});
  });
}

double ExpandedFlops(int32_t heads, int32_t rows) {
  const double pairs = static_cast<double>(rows) * (rows + 1) / 2;
  return pairs * heads * 2 * (192 + 128);
}

}  // namespace outrider
