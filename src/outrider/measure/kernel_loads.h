// What kernels are timed on: the matrix products of a model, and attention over a paged cache.
// Weights and caches are random and larger than caches of the processor, as a model's are.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "outrider/base/buffer.h"
#include "outrider/kernels/kernel_table.h"

namespace outrider {

constexpr double kNever = 1e30;  // seconds, before any were measured

/// Products of one kind in a pass over a model: `calls` calls of the kernel, each over `per_call`
/// weights [n, k].
struct ProductGroup {
  std::string name;
  int64_t n = 0;
  int64_t k = 0;
  int per_call = 1;
  int calls = 1;
  /// Weights there are, of which each call takes other ones, as tokens take experts; 0: all are
  /// used once.
  int pool = 0;

  double WeightsPerPass() const { return static_cast<double>(n * k) * per_call * calls; }
};

/// D8: hidden 2048, 16 heads, FFN 10944, 8 layers, and a head of 102,400 tokens.
std::vector<ProductGroup> D8Products(int layers, bool with_head);

/// M8: D8 with experts in 7 of 8 layers, 6 of 64 and 2 shared ones of width 1408 per token. All of
/// them choose from one layer's experts, which no cache holds.
std::vector<ProductGroup> M8Products();

/// All matrix products of a model, in order, on weights of their own.
class ModelProducts {
 public:
  ModelProducts(const PackedFormat& format, std::vector<ProductGroup> groups);

  std::span<const ProductGroup> groups() const { return groups_; }
  /// What a pass reads.
  size_t BytesPerPass(const ProductGroup& group) const;
  size_t bytes_per_pass() const;
  double weights_per_pass() const;

  /// Bytes per second of reading all weights and doing nothing with them.
  double ReadBytesPerSecond(ThreadPool& pool, int passes) const;

  /// Seconds per group (all its calls) of a pass with `rows` rows: of each group and of the whole,
  /// last, the best of `repeats` after one that warms up.
  std::vector<double> Seconds(const KernelTable& kernels, ThreadPool& pool, int64_t rows,
                              int repeats) const;

 private:
  std::vector<double> Pass(const KernelTable& kernels, ThreadPool& pool, int64_t rows,
                           const float* x, float* y) const;

  PackedFormat format_;
  std::vector<ProductGroup> groups_;
  Buffer storage_;
  std::vector<PackedMatrix> weights_;
  std::vector<size_t> order_;  // of weights_, over all calls of a pass
};

/// Decode requests of equal length over paged caches of several layers.
struct PagedLoad {
  int32_t heads = 0;
  int32_t context = 0;  // cached tokens of each request
  int32_t rows = 0;     // of each request
  int32_t requests = 1;
  DType dtype = DType::kBF16;
  int32_t query_width = 0;  // numbers per head of a query
  int32_t entry_width = 0;  // numbers of a cache entry
};

/// Attention of one layer: what a kernel is given, and where it writes rows as wide as queries.
struct PagedCall {
  LayerCache cache;
  MatrixView<const float> q;
  std::span<const AttentionSpan> requests;
  float* out;
};

inline constexpr int kCacheLayers = 16;
/// Seconds of one call, over caches of kCacheLayers layers in turn; the best of several rounds, of
/// three where contexts are longer than 1000.
double PagedSeconds(ThreadPool& pool, const PagedLoad& load,
                    FunctionRef<void(const PagedCall&)> call);

/// Absorbed attention with a latent of 512 and 64 rotated, as all published MLA models have.
double AbsorbedSeconds(const KernelTable& kernels, ThreadPool& pool, int32_t heads, int32_t context,
                       int32_t rows, int32_t requests, DType dtype, int32_t split = kPagedSplit);
inline constexpr int32_t kAbsorbedEntry = 512 + 64;
/// Multiply-adds of a row, a head and a key.
inline constexpr double kAbsorbedMacs = 512 + 64 + 512;

/// Expanded attention of a prompt of `rows` tokens from its start: nope 128, rope 64, value 128.
double ExpandedSeconds(const KernelTable& kernels, ThreadPool& pool, int32_t heads, int32_t rows);
/// Its floating-point operations.
double ExpandedFlops(int32_t heads, int32_t rows);

/// Seconds of one call, the best of `repeats`, after one that warms up.
double BestSeconds(const ThreadPool& pool, int repeats, FunctionRef<void()> call);

void FillNormal(float* data, int64_t count);

}  // namespace outrider
