// What a network keeps in the KV cache, and how its groups fill the pages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "outrider/base/dtype.h"
#include "outrider/kv/cache_group.h"

namespace outrider {

/// What the entries of a layer are, which decides how a cache keeps their numbers.
enum class CacheUse : uint8_t {
  kEntries,    // what attention reads
  kPlain,      // kEntries of latent and grouped-query attention: in 8 bits, codes without scales
  kIndexKeys,  // what an indexer chooses entries by
  kTokenKeys,  // kIndexKeys where every token has a key (DeepSeek-V3.2, GLM-5)
  kState,      // rows that entries are still to be made of: always float32
};

/// What one layer keeps per entry: `width` numbers, in the pages of a group. An entry stands for
/// `ratio` tokens.
struct CacheLayerSpec {
  int32_t group = 0;
  int32_t width = 0;
  int32_t ratio = 1;
  CacheUse use = CacheUse::kEntries;
  int32_t rope = 0;       // kEntries: the last numbers, which are rotated
  std::string what = {};  // for `outrider explain`, where a layer keeps several things

  bool operator==(const CacheLayerSpec&) const = default;
};

/// What is kept of kEntries and kIndexKeys in a cache of kF8E4M3.
enum class Fp8Form : uint8_t {
  kPublished,         // codes and scales, as CacheNumbers tells
  kPublishedNumbers,  // the numbers that those stand for, in bfloat16: of a GPU
  kPerTensor,         // as of kPlain and kTokenKeys
};

/// How a cache keeps numbers.
struct CacheNumbers {
  /// kF32, kBF16, or kF8E4M3. Then kPlain entries are e4m3 codes of their numbers; kTokenKeys, as
  /// DeepSeek-V3.2 publishes them, go through a Hadamard transform and are e4m3 codes with a scale
  /// each, a power of two in float32; and others are rounded as in DeepSeek-V4's published cache:
  /// kEntries are e4m3 codes in groups of kFp8CacheGroup with a scale each, but for their rotated
  /// numbers; index keys go through a Hadamard transform and are e2m1 codes in groups of kFp4Group.
  DType dtype = DType::kBF16;
  DType rotated = DType::kBF16;        // kF8E4M3: the type of the rotated numbers, kF32 or kBF16
  Fp8Form form = Fp8Form::kPublished;  // kF8E4M3

  CacheNumbers(DType dtype_) : dtype(dtype_) {}  // NOLINT(google-explicit-constructor)
  CacheNumbers(DType dtype_, DType rotated_, Fp8Form form_ = Fp8Form::kPublished)
      : dtype(dtype_), rotated(rotated_), form(form_) {}
};

inline constexpr int32_t kFp8CacheGroup = 64;

/// What a network keeps in the cache.
struct NetworkCache {
  std::vector<CacheGroupSpec> groups;  // names, kinds and windows
  std::vector<CacheLayerSpec> layers;  // the target's, then those of the modules
  RunningStateSpec state = {};         // of linear attention
};

/// The type of a layer's numbers: kF4E2M1 for the index keys of a rounded cache.
DType LayerDType(const CacheLayerSpec& layer, const CacheNumbers& numbers);

/// Whether entries of a layer are numbers of bfloat16 that were rounded before (Fp8Form).
bool HoldsRoundedNumbers(const CacheLayerSpec& layer, const CacheNumbers& numbers);

/// Whether entries of a layer are codes in groups that have scales.
bool HasGroupScales(const CacheLayerSpec& layer, const CacheNumbers& numbers);

/// Whether entries of a layer are codes with a scale each.
bool HasEntryScales(const CacheLayerSpec& layer, const CacheNumbers& numbers);

/// Bytes of an entry of a layer; of codes and scales whole multiples of 4.
int64_t EntryBytes(const CacheLayerSpec& layer, const CacheNumbers& numbers);

/// Bytes of a layer's entries for `tokens` tokens, a multiple of its ratio: whole multiples of 4.
int64_t LayerBytes(const CacheLayerSpec& layer, const CacheNumbers& numbers, int32_t tokens);

/// Fills the units and numbers of layers of the groups from what the layers keep.
void SizeGroups(std::vector<CacheGroupSpec>& groups, const std::vector<CacheLayerSpec>& layers,
                const CacheNumbers& numbers);

/// Tokens between places where a request can resume, at most, unless blocks are longer than that.
inline constexpr int32_t kMostTokensPerResume = 256;

/// Gives every group, sized as SizeGroups does, its tokens per block, so that blocks fill pages of
/// one size. The group of full history fills them exactly, as it grows with a request: with
/// `tokens` tokens or, where windows take more bytes per token, up to kMostTokensPerResume. Windows
/// get what fits in such a page, parts or multiples of that number.
void ChooseBlockSizes(std::vector<CacheGroupSpec>& groups, int32_t tokens);

/// A network's groups over `num_pages` pages, sized, with the blocks of ChooseBlockSizes. With a
/// running state blocks are of multiples of kStateBlock tokens, and as long as its pieces need.
CacheConfig MakeCacheConfig(const NetworkCache& network, const CacheNumbers& numbers,
                            int32_t tokens, int32_t num_pages);

/// Bytes that one token takes over all layers, while it is in every window.
int64_t BytesPerToken(const std::vector<CacheGroupSpec>& groups);

}  // namespace outrider
