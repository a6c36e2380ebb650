// The two forms of the KV cache: what an entry holds, what that costs, and which form suits a
// model.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace outrider {

enum class KvCacheForm : uint8_t {
  kLatent,  // the latent and the rotated key that all heads share
  kHeads,   // every head's key and value, made once per token, and the rotated key
};

inline constexpr std::array kAllKvCacheForms = {KvCacheForm::kLatent, KvCacheForm::kHeads};

/// "latent", "heads".
std::string_view KvCacheFormName(KvCacheForm form);

/// The sizes of a layer's attention that the cache depends on.
struct CacheShape {
  int64_t heads = 0;
  int64_t latent = 0;  // L
  int64_t nope = 0;    // P
  int64_t rope = 0;    // R
  int64_t value = 0;   // V
};

/// Numbers per token and layer: L + R, or heads * (P + V) + R.
int64_t CacheWidth(KvCacheForm form, const CacheShape& shape);

/// Multiply-adds of a generated row per cached key and layer: the heads attend to the latent as key
/// and value, heads * (2 L + R), or each to its own, heads * (P + R + V).
int64_t MultiplyAddsPerKey(KvCacheForm form, const CacheShape& shape);

/// Multiply-adds that a number more per token has to save. A core does about 4 multiply-adds
/// (AVX2: 16 per cycle) in the time in which it reads a byte from the outer cache or from memory,
/// and a number is 2 bytes; a request alone, with one row per step, then never gets slower.
inline constexpr int64_t kMultiplyAddsPerNumber = 8;

/// kHeads where it saves at least kMultiplyAddsPerNumber multiply-adds for every number that its
/// entries are larger by, else kLatent. Of the shape alone: not of types, lengths or batches.
KvCacheForm ChooseKvCacheForm(const CacheShape& shape);

}  // namespace outrider
