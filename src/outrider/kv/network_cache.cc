#include "outrider/kv/network_cache.h"

#include <algorithm>
#include <numeric>

#include "outrider/base/error.h"

namespace outrider {

bool HoldsRoundedNumbers(const CacheLayerSpec& layer, const CacheNumbers& numbers) {
  return numbers.dtype == DType::kF8E4M3 && numbers.form == Fp8Form::kPublishedNumbers &&
         (layer.use == CacheUse::kEntries || layer.use == CacheUse::kIndexKeys);
}

DType LayerDType(const CacheLayerSpec& layer, const CacheNumbers& numbers) {
  switch (layer.use) {
    case CacheUse::kPlain:
    case CacheUse::kTokenKeys:
      return numbers.dtype;
    case CacheUse::kEntries:
    case CacheUse::kIndexKeys:
      if (HoldsRoundedNumbers(layer, numbers)) return DType::kBF16;
      if (layer.use == CacheUse::kEntries || numbers.dtype != DType::kF8E4M3) return numbers.dtype;
      return numbers.form == Fp8Form::kPerTensor ? DType::kF8E4M3 : DType::kF4E2M1;
    case CacheUse::kState:
      return DType::kF32;
  }
  OUTRIDER_CHECK(false);
}

bool HasGroupScales(const CacheLayerSpec& layer, const CacheNumbers& numbers) {
  const DType dtype = LayerDType(layer, numbers);
  if (dtype == DType::kF4E2M1) return true;
  return dtype == DType::kF8E4M3 && layer.use == CacheUse::kEntries &&
         numbers.form == Fp8Form::kPublished;
}

bool HasEntryScales(const CacheLayerSpec& layer, const CacheNumbers& numbers) {
  return LayerDType(layer, numbers) == DType::kF8E4M3 &&
         (layer.use == CacheUse::kTokenKeys || layer.use == CacheUse::kIndexKeys);
}

int64_t EntryBytes(const CacheLayerSpec& layer, const CacheNumbers& numbers) {
  const DType dtype = LayerDType(layer, numbers);
  const auto whole = [](int64_t bytes) { return (bytes + 3) / 4 * 4; };
  if (HasGroupScales(layer, numbers) && dtype == DType::kF8E4M3) {
    const int64_t codes = layer.width - layer.rope;
    return whole(codes + (codes + kFp8CacheGroup - 1) / kFp8CacheGroup +
                 layer.rope * static_cast<int64_t>(DTypeSize(numbers.rotated)));
  }
  if (dtype == DType::kF4E2M1) {
    return whole((layer.width + 1) / 2 + (layer.width + kFp4Group - 1) / kFp4Group);
  }
  if (HasEntryScales(layer, numbers)) {
    return layer.width + static_cast<int64_t>(sizeof(float));
  }
  return layer.width * static_cast<int64_t>(DTypeSize(dtype));
}

int64_t LayerBytes(const CacheLayerSpec& layer, const CacheNumbers& numbers, int32_t tokens) {
  OUTRIDER_CHECK(tokens % layer.ratio == 0);
  return (tokens / layer.ratio * EntryBytes(layer, numbers) + 3) / 4 * 4;
}

void SizeGroups(std::vector<CacheGroupSpec>& groups, const std::vector<CacheLayerSpec>& layers,
                const CacheNumbers& numbers) {
  for (CacheGroupSpec& group : groups) {
    group.layers = 0;
    group.unit_tokens = 1;
    group.unit_bytes = 0;
  }
  for (const CacheLayerSpec& layer : layers) {
    CacheGroupSpec& group = groups.at(static_cast<size_t>(layer.group));
    group.unit_tokens = std::lcm(group.unit_tokens, layer.ratio);
    ++group.layers;
  }
  for (const CacheLayerSpec& layer : layers) {
    CacheGroupSpec& group = groups[static_cast<size_t>(layer.group)];
    group.unit_bytes += LayerBytes(layer, numbers, group.unit_tokens);
  }
}

namespace {

double BytesOfToken(const CacheGroupSpec& group) {
  return static_cast<double>(group.unit_bytes) / group.unit_tokens;
}

}  // namespace

void ChooseBlockSizes(std::vector<CacheGroupSpec>& groups, int32_t tokens) {
  std::vector<CacheGroupSpec*> windows;  // the one with the most bytes first
  CacheGroupSpec* full = nullptr;
  for (CacheGroupSpec& group : groups) {
    if (group.kind == CacheGroupKind::kSlidingWindow) {
      windows.push_back(&group);
    } else {
      OUTRIDER_CHECK(full == nullptr);
      full = &group;
    }
  }
  std::ranges::sort(windows, [](const CacheGroupSpec* a, const CacheGroupSpec* b) {
    const double bytes_of_a = BytesOfToken(*a);
    const double bytes_of_b = BytesOfToken(*b);
    return bytes_of_a != bytes_of_b ? bytes_of_a > bytes_of_b : a < b;
  });
  if (full == nullptr) {
    full = windows.back();
    windows.pop_back();
  }
  const int32_t most = std::max(tokens, kMostTokensPerResume);
  const double ratio = windows.empty() ? 1 : BytesOfToken(*windows.front()) / BytesOfToken(*full);
  const auto wanted =
      static_cast<int32_t>(std::min<double>(most, tokens * std::max(1.0, std::round(ratio))));
  const int32_t unit = full->unit_tokens;
  full->tokens_per_block = (wanted + unit - 1) / unit * unit;
  const auto page = static_cast<double>(full->bytes_per_block());
  int32_t part = 1;
  for (CacheGroupSpec* window : windows) {
    const double bytes = BytesOfToken(*window);
    int32_t& own = window->tokens_per_block;
    own = full->tokens_per_block;
    if (own * bytes > page) {
      do {
        --own;
      } while (own > part &&
               (own % part != 0 || full->tokens_per_block % own != 0 || own * bytes > page));
      part = own;
    } else {
      while (2 * own <= most && 2 * own * bytes <= page) own *= 2;
    }
  }
}

CacheConfig MakeCacheConfig(const NetworkCache& network, const CacheNumbers& numbers,
                            int32_t tokens, int32_t num_pages) {
  CacheConfig config{.groups = network.groups, .num_pages = num_pages, .state = network.state};
  SizeGroups(config.groups, network.layers, numbers);
  if (config.state.heads > 0) tokens = (tokens + kStateBlock - 1) / kStateBlock * kStateBlock;
  ChooseBlockSizes(config.groups, tokens);
  while (config.PageBytes() < config.state.LeastPageBytes()) {
    tokens += kStateBlock;
    ChooseBlockSizes(config.groups, tokens);
  }
  return config;
}

int64_t BytesPerToken(const std::vector<CacheGroupSpec>& groups) {
  int64_t bytes = 0;
  for (const CacheGroupSpec& group : groups) {
    bytes += group.bytes_per_block() / group.tokens_per_block;
  }
  return bytes;
}

}  // namespace outrider
