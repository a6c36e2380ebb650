#include "outrider/base/gumbel_noise.h"
#include "outrider/base/token_order.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/sampling/token_race_kernels.h"

namespace outrider::cuda {

namespace {

constexpr int kThreads = 256;

__device__ size_t Index() { return blockIdx.x * size_t{kThreads} + threadIdx.x; }

unsigned Blocks(size_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }

__global__ void Noise(const uint32_t* words, size_t count, uint32_t* out) {
  const size_t i = Index();
  if (i >= count) return;
  out[2 * i] = FloatBits(Gumbel(words[i]));
  out[2 * i + 1] = FloatBits(GumbelBound(words[i]));
}

__global__ void Order(const float* xs, size_t count, uint64_t* out) {
  const size_t i = Index();
  if (i >= count) return;
  const float x = xs[i];
  const uint64_t key = TokenKey(x, static_cast<int32_t>(i));
  const float fraction = fabsf(x) <= 1 ? fabsf(x) : 1.0f;
  out[4 * i] = key;
  out[4 * i + 1] = TokenWeight(x > 0 ? 0.0f : x);
  out[4 * i + 2] = MinPWeight(fraction);
  out[4 * i + 3] = TopPLimit(key, fraction);
}

__global__ void Bits(uint64_t seed, int64_t position, size_t count, uint32_t* out) {
  const size_t i = Index();
  if (i < count)
    out[i] = GumbelBits(seed, position, RandomStream::kTarget, static_cast<int32_t>(i));
}

__global__ void Inverses(const float* temperatures, size_t count, uint32_t* out) {
  const size_t i = Index();
  if (i < count) out[i] = FloatBits(InverseTemperature(temperatures[i]));
}

}  // namespace

std::vector<uint32_t> DeviceNoise(const std::vector<uint32_t>& words) {
  const DeviceArray<uint32_t> in(words), out(2 * words.size());
  Noise<<<Blocks(words.size()), kThreads>>>(in.data(), words.size(), out.data());
  return out.Download();
}

std::vector<uint64_t> DeviceOrder(const std::vector<float>& xs) {
  const DeviceArray<float> in(xs);
  const DeviceArray<uint64_t> out(4 * xs.size());
  Order<<<Blocks(xs.size()), kThreads>>>(in.data(), xs.size(), out.data());
  return out.Download();
}

std::vector<uint32_t> DeviceBits(uint64_t seed, int64_t position, int32_t count) {
  const DeviceArray<uint32_t> out(static_cast<size_t>(count));
  Bits<<<Blocks(out.size()), kThreads>>>(seed, position, out.size(), out.data());
  return out.Download();
}

std::vector<uint32_t> DeviceInverseTemperatures(const std::vector<float>& temperatures) {
  const DeviceArray<float> in(temperatures);
  const DeviceArray<uint32_t> out(temperatures.size());
  Inverses<<<Blocks(out.size()), kThreads>>>(in.data(), out.size(), out.data());
  return out.Download();
}

}  // namespace outrider::cuda
