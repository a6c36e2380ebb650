#include "outrider/ops/cpu/entry_codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/kv/network_cache.h"

namespace outrider::cpu {

namespace {

constexpr float kLargestFp8 = 448;
constexpr float kLargestFp4 = 6;
// What counts as the largest value of a group at least.
constexpr float kLeastFp8 = 1e-4F;
constexpr float kLeastFp4 = 6 * 0x1p-126F;

/// The exponent e of the least scale 2^(e - 127) with which the largest of x [n] is at most
/// `largest`.
uint8_t ScaleExponent(const float* x, int64_t n, float least, float largest) {
  float most = least;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, std::fabs(x[i]));
  int exponent = 0;
  if (std::frexp(most / largest, &exponent) == 0.5F) --exponent;
  return static_cast<uint8_t>(exponent + 127);
}

float PowerOfTwo(int exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent) << 23);
}

/// What e4m3 codes are, by code.
const std::array<float, 256>& Fp8Values() {
  static const auto values = [] {
    std::array<float, 256> all;
    for (size_t i = 0; i < all.size(); ++i) all[i] = Float8E4M3ToFloat(static_cast<uint8_t>(i));
    return all;
  }();
  return values;
}

/// x = H x / sqrt(n) with the Hadamard matrix H [n, n].
void Hadamard(float* x, int32_t n) {
  OUTRIDER_CHECK(std::has_single_bit(static_cast<uint32_t>(n)));
  for (int32_t half = 1; half < n; half *= 2) {
    for (int32_t first = 0; first < n; first += 2 * half) {
      for (int32_t i = first; i < first + half; ++i) {
        const float a = x[i];
        const float b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
    }
  }
  const float scale = 1.0F / std::sqrt(static_cast<float>(n));
  for (int32_t i = 0; i < n; ++i) x[i] *= scale;
}

struct Fp8Entry {
  std::byte* codes;
  std::byte* rotated;
  std::byte* exponents;
  int32_t num_codes;

  Fp8Entry(const LayerCache& cache, std::byte* entry)
      : codes(entry),
        rotated(entry + cache.width - cache.rope),
        exponents(rotated + static_cast<size_t>(cache.rope) * DTypeSize(cache.rotated)),
        num_codes(cache.width - cache.rope) {}
};

void StoreFp8(const LayerCache& cache, std::byte* to, const float* values) {
  const Fp8Entry entry(cache, to);
  for (int32_t first = 0, g = 0; first < entry.num_codes; first += kFp8CacheGroup, ++g) {
    const int32_t count = std::min(kFp8CacheGroup, entry.num_codes - first);
    const uint8_t e = ScaleExponent(values + first, count, kLeastFp8, kLargestFp8);
    const float inverse = PowerOfTwo(254 - e);
    for (int32_t i = first; i < first + count; ++i) {
      entry.codes[i] = std::byte{ToFloat8E4M3(values[i] * inverse)};
    }
    entry.exponents[g] = std::byte{e};
  }
  const float* rotated = values + entry.num_codes;
  for (int32_t i = 0; i < cache.rope; ++i) {
    if (cache.rotated == DType::kF32) {
      std::memcpy(entry.rotated + i * sizeof(float), rotated + i, sizeof(float));
    } else {
      const BFloat16 narrow = ToBFloat16(rotated[i]);
      std::memcpy(entry.rotated + i * sizeof(narrow), &narrow, sizeof(narrow));
    }
  }
}

/// to [width] of type T, which holds the rotated numbers as they are.
template <typename T>
void LoadFp8(const LayerCache& cache, std::byte* from, T* to) {
  const Fp8Entry entry(cache, from);
  const std::array<float, 256>& values = Fp8Values();
  for (int32_t first = 0, g = 0; first < entry.num_codes; first += kFp8CacheGroup, ++g) {
    const int32_t end = std::min(first + kFp8CacheGroup, entry.num_codes);
    const float scale = PowerOfTwo(std::to_integer<int>(entry.exponents[g]));
    for (int32_t i = first; i < end; ++i) {
      const float value = values[std::to_integer<size_t>(entry.codes[i])] * scale;
      // Exact: a code has four significant bits.
      if constexpr (std::is_same_v<T, float>) {
        to[i] = value;
      } else {
        to[i] = {static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16)};
      }
    }
  }
  std::memcpy(to + entry.num_codes, entry.rotated, static_cast<size_t>(cache.rope) * sizeof(T));
}

/// The numbers of codes without scales. to [width] of type T, which holds them as they are.
template <typename T>
void LoadPlain(const LayerCache& cache, const std::byte* from, std::byte* to) {
  const std::array<float, 256>& values = Fp8Values();
  for (int32_t i = 0; i < cache.width; ++i) {
    const float value = values[std::to_integer<size_t>(from[i])];
    if constexpr (std::is_same_v<T, float>) {
      reinterpret_cast<T*>(to)[i] = value;
    } else {
      reinterpret_cast<T*>(to)[i] = ToBFloat16(value);
    }
  }
}

/// Codes of x [n], and the scale of them all.
float StoreScaled(const float* x, int32_t n, std::byte* to) {
  const uint8_t e = ScaleExponent(x, n, kLeastFp8, kLargestFp8);
  const float inverse = PowerOfTwo(254 - e);
  for (int32_t i = 0; i < n; ++i) to[i] = std::byte{ToFloat8E4M3(x[i] * inverse)};
  return PowerOfTwo(e);
}

void LoadScaled(const std::byte* from, float scale, int32_t n, float* x) {
  const std::array<float, 256>& values = Fp8Values();
  for (int32_t i = 0; i < n; ++i) x[i] = values[std::to_integer<size_t>(from[i])] * scale;
}

/// Codes and exponents of x [n] behind each other.
void StoreFp4(const float* x, int32_t n, std::byte* to) {
  std::byte* exponents = to + (n + 1) / 2;
  for (int32_t first = 0; first < n; first += kFp4Group) {
    const int32_t count = std::min<int32_t>(kFp4Group, n - first);
    const uint8_t e = ScaleExponent(x + first, count, kLeastFp4, kLargestFp4);
    const float inverse = PowerOfTwo(254 - e);
    for (int32_t i = first; i < first + count; ++i) {
      const std::byte code{ToFloat4E2M1(x[i] * inverse)};
      to[i / 2] = i % 2 == 0 ? code : to[i / 2] | code << 4;
    }
    *exponents++ = std::byte{e};
  }
}

void LoadFp4(const std::byte* from, int32_t n, float* x) {
  const std::byte* exponents = from + (n + 1) / 2;
  for (int32_t i = 0; i < n; ++i) {
    const auto pair = std::to_integer<uint8_t>(from[i / 2]);
    x[i] = Float4E2M1ToFloat(i % 2 == 0 ? pair : pair >> 4) *
           PowerOfTwo(std::to_integer<int>(exponents[i / kFp4Group]));
  }
}

/// The Hadamard transform of an index key, until the next one of this thread.
const float* Transformed(const LayerCache& cache, const float* values) {
  thread_local std::vector<float> transformed;
  transformed.assign(values, values + cache.width);
  Hadamard(transformed.data(), cache.width);
  return transformed.data();
}

std::byte* At(const LayerCache& cache, int64_t slot) {
  const int64_t size = cache.code_bytes > 0 ? 1 : static_cast<int64_t>(DTypeSize(cache.dtype));
  return cache.data + cache.SlotOffset(slot) * size;
}

}  // namespace

void StoreEntry(const LayerCache& cache, int64_t slot, const float* values) {
  std::byte* to = At(cache, slot);
  // What pads codes is a function of the values, too.
  if (cache.code_bytes > 0) std::memset(to + cache.code_bytes - 4, 0, 4);
  switch (cache.dtype) {
    case DType::kF32:
      std::copy_n(values, cache.width, reinterpret_cast<float*>(to));
      return;
    case DType::kBF16:
      std::transform(values, values + cache.width, reinterpret_cast<BFloat16*>(to), ToBFloat16);
      return;
    case DType::kF8E4M3:
      if (cache.has_scales) {
        const float scale = StoreScaled(Transformed(cache, values), cache.width, to);
        std::memcpy(cache.data + cache.ScaleOffset(slot), &scale, sizeof(scale));
      } else if (cache.code_bytes > 0) {
        StoreFp8(cache, to, values);
      } else {
        std::transform(values, values + cache.width, to,
                       [](float x) { return std::byte{ToFloat8E4M3(x)}; });
      }
      return;
    case DType::kF4E2M1:
      StoreFp4(Transformed(cache, values), cache.width, to);
      return;
    default:
      OUTRIDER_CHECK(false, "a cache of {}", DTypeName(cache.dtype));
  }
}

const std::byte* LoadEntry(const LayerCache& cache, int64_t slot, std::byte* buffer) {
  if (cache.dtype != DType::kF8E4M3) return At(cache, slot);
  if (cache.code_bytes == 0) {
    const auto load = cache.rotated == DType::kF32 ? LoadPlain<float> : LoadPlain<BFloat16>;
    load(cache, At(cache, slot), buffer);
  } else if (cache.rotated == DType::kF32) {
    LoadFp8(cache, At(cache, slot), reinterpret_cast<float*>(buffer));
  } else {
    LoadFp8(cache, At(cache, slot), reinterpret_cast<BFloat16*>(buffer));
  }
  return buffer;
}

const float* LoadFloats(const LayerCache& cache, int64_t slot, float* buffer) {
  std::byte* at = At(cache, slot);
  switch (cache.dtype) {
    case DType::kF32:
      return reinterpret_cast<const float*>(at);
    case DType::kBF16:
      for (int32_t i = 0; i < cache.width; ++i) {
        buffer[i] = ToFloat(reinterpret_cast<const BFloat16*>(at)[i]);
      }
      return buffer;
    case DType::kF8E4M3: {
      OUTRIDER_CHECK(cache.has_scales);
      float scale;
      std::memcpy(&scale, cache.data + cache.ScaleOffset(slot), sizeof(scale));
      LoadScaled(at, scale, cache.width, buffer);
      return buffer;
    }
    case DType::kF4E2M1:
      LoadFp4(at, cache.width, buffer);
      return buffer;
    default:
      OUTRIDER_CHECK(false, "floats of a cache of {}", DTypeName(cache.dtype));
  }
}

void RoundIndexQuery(const LayerCache& keys, float* x) {
  const int32_t n = keys.width;
  Hadamard(x, n);
  thread_local std::vector<std::byte> codes;
  if (keys.dtype == DType::kF8E4M3) {
    codes.resize(static_cast<size_t>(n));
    LoadScaled(codes.data(), StoreScaled(x, n, codes.data()), n, x);
    return;
  }
  codes.resize(static_cast<size_t>((n + 1) / 2 + (n + kFp4Group - 1) / kFp4Group));
  StoreFp4(x, n, codes.data());
  LoadFp4(codes.data(), n, x);
}

}  // namespace outrider::cpu
