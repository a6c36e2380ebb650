// A layer of DeepSeek-V4's attention on a device: its numbers, which are random, the cache of one
// request and that request's steps.
#pragma once

#include <array>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "outrider/ops/compressed.h"
#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/kv_cache.h"
#include "outrider/ops/ops.h"
#include "tests/ops/exact_rows.h"
#include "tests/ops/test_step.h"
#include "tests/ops/token_row_weights.h"

namespace outrider::compressed_test {

inline constexpr float kNormEps = 1e-5F;

/// Sizes of a layer, of one request and of its steps.
struct CompressedSizes {
  DType type = DType::kBF16;    // of the cache
  DType weights = DType::kF32;  // what products are computed in
  int32_t hidden = 48;          // columns of a layer's input
  int32_t ratio = 4;
  bool overlaps = true;
  int32_t heads = 8;  // of queries and of the indexer
  int32_t dim = 512;
  int32_t rope = 64;
  int32_t key = 128;
  int32_t latents = 192;
  int32_t window = 128;
  int32_t top_k = 0;           // 0: no choice
  int32_t block_tokens = 256;  // of any group
  int32_t unit_tokens = 128;   // of the group of entries
  float scale = 0.05F;
  std::vector<int32_t> ends = {};  // of the request's steps

  /// Of entries (0) and of index keys (1).
  CompressorShape Compressor(size_t which) const {
    return {.ratio = ratio,
            .overlaps = overlaps,
            .width = which == 0 ? dim : key,
            .rope = rope,
            .norm_eps = kNormEps};
  }
};

/// Of all rows; rows of tokens and biases of entries, and of index keys.
struct LayerNumbers {
  explicit LayerNumbers(const CompressedSizes& sizes)
      : kv(TestMatrix::Random(sizes.ends.back(), sizes.dim, random)),
        latents(TestMatrix::Random(sizes.ends.back(), sizes.latents, random)),
        norm(RandomNorm(sizes.dim, random)),
        q_norm(RandomNorm(sizes.latents, random)),
        q(RandomBf16(sizes.ends.back(), int64_t{sizes.heads} * sizes.dim, random)),
        index_q(RandomBf16(sizes.ends.back(), int64_t{sizes.heads} * sizes.key, random)),
        index_weights(TestMatrix::Random(sizes.ends.back(), sizes.heads, random)),
        sinks(TestMatrix::Random(1, sizes.heads, random)),
        x(RandomBf16(sizes.ends.back(), sizes.hidden, random)) {
    for (size_t i = 0; i < 2; ++i) {
      const int32_t channels = sizes.Compressor(i).channels();
      states.push_back(TokenRowWeights::Rows(x, i, channels));
      biases.push_back(TestMatrix::Random(sizes.ratio, channels, random));
    }
  }

  std::mt19937 random{5};
  TestMatrix kv, latents, norm, q_norm, q, index_q, index_weights, sinks, x;
  std::vector<TestMatrix> states, biases;
};

/// A layer on a device.
class CompressedMachine {
 public:
  CompressedMachine(const Ops& ops, const CompressedSizes& sizes)
      : ops_(ops),
        sizes_(sizes),
        arena_(ops.MakeArena()),
        blocks_((sizes.ends.back() + sizes.block_tokens - 1) / sizes.block_tokens),
        cache_(MakeCache(ops)),
        host_(MakeCache(cpu::GetCpuOps(Isa::kReference))),
        weights_({ops, &pool_}, sizes.weights,
                 {sizes.Compressor(0).channels(), sizes.Compressor(1).channels()}, sizes.heads,
                 sizes.hidden),
        numbers_(sizes) {
    for (int32_t page = 3 * blocks_ - 1; page >= 0; --page) {
      tables_[static_cast<size_t>(page) % 3].push_back(page);
    }
  }

  const CompressedSizes& sizes() const { return sizes_; }
  const LayerNumbers& numbers() const { return numbers_; }
  const TokenRowWeights& weights() const { return weights_; }
  Context context() { return {{ops_, &pool_}, *arena_, DType::kF32}; }
  LayerCache window() { return cache_.layer(0); }
  LayerCache entries(size_t compressor) { return cache_.layer(compressor == 0 ? 1 : 3); }
  LayerCache tokens(size_t compressor) { return cache_.layer(compressor == 0 ? 2 : 4); }

  /// The step of the rows [first, end).
  std::unique_ptr<TestStep> MakeStep(int32_t first, int32_t end) {
    std::vector<int32_t> tokens(static_cast<size_t>(end - first), 1);
    return std::make_unique<TestStep>(
        context(), cache_.config().groups,
        std::vector<StepPart>{{.phase = end - first > 8 ? Phase::kPromptChunk : Phase::kDecode,
                               .context = first,
                               .tokens = std::move(tokens),
                               .tables = {tables_.begin(), tables_.end()}}},
        StepAttention{.listed = true});
  }

  /// Rows [first, end) on the device, float32.
  Tensor Put(const TestMatrix& m, int32_t first, int32_t end) {
    const Tensor to = context().Rows(end - first, m.view_cols);
    const auto cols = static_cast<size_t>(m.view_cols);
    ops_.CopyFromHost(std::as_bytes(std::span(m.values).subspan(
                          static_cast<size_t>(first) * cols, static_cast<size_t>(to.rows) * cols)),
                      static_cast<std::byte*>(to.data));
    return to;
  }
  const float* PutVector(const TestMatrix& m) {
    return static_cast<const float*>(Put(m, 0, static_cast<int32_t>(m.view_rows)).data);
  }
  TestMatrix Get(const Tensor& x) {
    TestMatrix m(x.rows, x.cols);
    ops_.ToHost(context(), x, m.values);
    return m;
  }

  /// Reads the device's cache; CachedRow reads what was read.
  void ReadCache() { ops_.CopyToHost(cache_.page(0).data(), {host_.page(0).data(), bytes()}); }
  /// The numbers in a place of a layer: of a token, or of an entry.
  std::vector<float> CachedRow(int32_t layer, int32_t place) {
    const LayerCache cache = host_.layer(layer);
    const std::vector<int32_t>& table = tables_[static_cast<size_t>(cache.group)];
    return NumbersOf(cache, cpu::EntrySlot(cache, table.data(), place));
  }
  /// How many places a layer has.
  int32_t PlacesOf(int32_t layer) { return blocks_ * host_.layer(layer).block_size; }

 private:
  KvCache MakeCache(const Ops& ops) const {
    const int32_t of_entries = 2 * sizes_.Compressor(0).channels();
    const int32_t of_keys = 2 * sizes_.Compressor(1).channels();
    const int32_t r = sizes_.ratio;
    return {
        {ops},
        {.groups = {{.tokens_per_block = sizes_.block_tokens},
                    {.tokens_per_block = sizes_.block_tokens, .unit_tokens = sizes_.unit_tokens},
                    {.tokens_per_block = sizes_.block_tokens}},
         .num_pages = 3 * blocks_},
        {{.group = 0, .width = sizes_.dim},
         {.group = 1, .width = sizes_.dim, .ratio = r},
         {.group = 2, .width = of_entries, .use = CacheUse::kState},
         {.group = 1, .width = sizes_.key, .ratio = r, .use = CacheUse::kIndexKeys},
         {.group = 2, .width = of_keys, .use = CacheUse::kState}},
        sizes_.type};
  }
  size_t bytes() const {
    return static_cast<size_t>(cache_.page_bytes() * cache_.config().num_pages);
  }

  const Ops& ops_;
  const CompressedSizes sizes_;
  ThreadPool pool_{2};
  std::unique_ptr<Arena> arena_;
  const int32_t blocks_;  // of a group
  KvCache cache_;
  KvCache host_;
  std::array<std::vector<int32_t>, 3> tables_;
  TokenRowWeights weights_;
  LayerNumbers numbers_;
};

}  // namespace outrider::compressed_test
