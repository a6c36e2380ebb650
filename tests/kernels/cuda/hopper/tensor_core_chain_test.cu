// What the design of the matrix products rests on: on Hopper the bits of an output of the tensor
// cores depend on its chain of k-slices of 16 alone. The tile it stands in, its number of columns,
// which operand is on M, whether A comes from registers, mma.sync or wgmma, and the order within a
// slice change nothing. The order of slices and a second chain do. Needs compute capability 9.0.
#include <cuda_bf16.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "outrider/kernels/cuda/hopper/hopper_instructions.cuh"
#include "outrider/kernels/cuda/hopper/wgmma_kmajor.cuh"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/kernels/cuda/mla_decode/mla_decode_reference.h"

namespace outrider::cuda {
namespace {

constexpr int kRows = 768;  // of both operands: a multiple of 64 and of every number of columns
constexpr int kDepth = 256;

/// Where an output goes: [row of a, row of b], or transposed.
__device__ __forceinline__ void Put(float* out, bool transposed, int row_a, int row_b,
                                    float value) {
  out[transposed ? row_b * kRows + row_a : row_a * kRows + row_b] = value;
}

/// One block: 64 rows of a by kColumns rows of b. Operands [kRows, kDepth].
template <int kColumns, bool kRegisters>
__global__ void __launch_bounds__(128)
    WgmmaChain(const uint16_t* a, const uint16_t* b, float* out, bool transposed) {
  extern __shared__ uint8_t raw[];
  uint8_t* const shared =
      reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(raw) + 1023) / 1024 * 1024);
  const int row_a = blockIdx.x * 64;
  const int row_b = blockIdx.y * kColumns;
  // Sub-tiles of 64 columns: [kDepth / 64][64 + kColumns rows][64], rows of 128 bytes, swizzled.
  for (int i = threadIdx.x; i < (64 + kColumns) * kDepth; i += 128) {
    const int row = i / kDepth;
    const int k = i % kDepth;
    const uint16_t value =
        row < 64 ? a[(row_a + row) * kDepth + k] : b[(row_b + row - 64) * kDepth + k];
    const int r = row < 64 ? row : row - 64;
    const int base =
        row < 64 ? k / 64 * 64 * 128 : kDepth / 64 * 64 * 128 + k / 64 * kColumns * 128;
    const int offset = base + r * 128 + ((k % 64 / 8) ^ (r % 8)) * 16 + k % 8 * 2;
    *reinterpret_cast<uint16_t*>(shared + offset) = value;
  }
  ProxyFence();
  __syncthreads();
  const uint32_t at_a = SharedAddress(shared);
  const uint32_t at_b = at_a + kDepth / 64 * 64 * 128;
  float d[kColumns / 2];
#pragma unroll
  for (float& value : d) value = 0;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint32_t fragments[kDepth / 16][4];
#pragma unroll
  for (int slice = 0; slice < kDepth / 16; ++slice) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = row_a + warp * 16 + i % 2 * 8 + lane / 4;
      const int k = slice * 16 + i / 2 * 8 + lane % 4 * 2;
      fragments[slice][i] = *reinterpret_cast<const uint32_t*>(a + row * kDepth + k);
    }
  }
  PinRegisters(d);
  WgmmaFence();
#pragma unroll
  for (int slice = 0; slice < kDepth / 16; ++slice) {
    const uint64_t b_slice =
        MakeDescriptor(at_b + slice / 4 * kColumns * 128 + slice % 4 * 32, 16, 1024);
    if constexpr (kRegisters) {
      WgmmaKMajor<kColumns>::MultiplyRegisters(d, fragments[slice], b_slice, 1);
    } else {
      WgmmaKMajor<kColumns>::Multiply(
          d, MakeDescriptor(at_a + slice / 4 * 64 * 128 + slice % 4 * 32, 16, 1024), b_slice, 1);
    }
  }
  WgmmaCommit();
  WgmmaWait<0>();
  PinRegisters(d);
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) {
    Put(out, transposed, row_a + warp * 16 + i / 2 % 2 * 8 + lane / 4,
        row_b + i / 4 * 8 + lane % 4 * 2 + i % 2, d[i]);
  }
}

/// One warp: 16 rows of a by 8 rows of b.
__global__ void __launch_bounds__(32)
    MmaSyncChain(const uint16_t* a, const uint16_t* b, float* out, bool transposed) {
  const int row_a = blockIdx.x * 16, row_b = blockIdx.y * 8;
  const int lane = threadIdx.x;
  float d[4] = {};
  for (int k = lane % 4 * 2; k < kDepth; k += 16) {
    uint32_t fa[4], fb[2];
    for (int i = 0; i < 4; ++i) {
      fa[i] = *reinterpret_cast<const uint32_t*>(a + (row_a + i % 2 * 8 + lane / 4) * kDepth + k +
                                                 i / 2 * 8);
    }
    for (int i = 0; i < 2; ++i) {
      fb[i] = *reinterpret_cast<const uint32_t*>(b + (row_b + lane / 4) * kDepth + k + i * 8);
    }
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]));
  }
  for (int i = 0; i < 4; ++i) {
    Put(out, transposed, row_a + i / 2 * 8 + lane / 4, row_b + lane % 4 * 2 + i % 2, d[i]);
  }
}

template <int kColumns, bool kRegisters>
void LaunchWgmma(const uint16_t* a, const uint16_t* b, float* out, bool transposed) {
  const size_t bytes = (64 + kColumns) * kDepth * 2 + 1024;
  CudaOk(cudaFuncSetAttribute(WgmmaChain<kColumns, kRegisters>,
                              cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
         "shared memory");
  WgmmaChain<kColumns, kRegisters>
      <<<dim3(kRows / 64, kRows / kColumns), 128, bytes>>>(a, b, out, transposed);
}

void LaunchMmaSync(const uint16_t* a, const uint16_t* b, float* out, bool transposed) {
  MmaSyncChain<<<dim3(kRows / 16, kRows / 8), 32>>>(a, b, out, transposed);
}

using Launcher = void (*)(const uint16_t*, const uint16_t*, float*, bool);

struct Form {
  const char* name;
  Launcher launch;
};

constexpr Form kForms[] = {
    {"wgmma n8", LaunchWgmma<8, false>},
    {"wgmma n16", LaunchWgmma<16, false>},
    {"wgmma n24", LaunchWgmma<24, false>},
    {"wgmma n32", LaunchWgmma<32, false>},
    {"wgmma n64", LaunchWgmma<64, false>},
    {"wgmma n96", LaunchWgmma<96, false>},
    {"wgmma n128", LaunchWgmma<128, false>},
    {"wgmma n192", LaunchWgmma<192, false>},
    {"wgmma n256", LaunchWgmma<256, false>},
    {"wgmma n8, A in registers", LaunchWgmma<8, true>},
    {"wgmma n64, A in registers", LaunchWgmma<64, true>},
    {"wgmma n128, A in registers", LaunchWgmma<128, true>},
    {"mma.sync m16n8k16", LaunchMmaSync},
};

enum class Data { kNormal, kWideExponents, kCancelling };

class TensorCoreChain : public HopperTest<::testing::TestWithParam<Data>> {
 protected:
  std::vector<uint16_t> Draw() {
    std::normal_distribution<float> normal;
    std::uniform_int_distribution<int> exponent(-40, 40);
    std::vector<uint16_t> values(static_cast<size_t>(kRows) * kDepth);
    for (size_t i = 0; i < values.size(); ++i) {
      float value = normal(random_);
      if (GetParam() == Data::kWideExponents) value = std::ldexp(value, exponent(random_));
      // Every second value nearly undoes the one before it.
      if (GetParam() == Data::kCancelling && i % 2 == 1) {
        value = -Bf16ToFloat(values[i - 1]) * (1 + value * 0x1p-7F);
      }
      values[i] = FloatToBf16(value);
    }
    return values;
  }

  std::vector<float> Run(Launcher launch, const DeviceArray<uint16_t>& w,
                         const DeviceArray<uint16_t>& x, bool x_on_m) {
    const DeviceArray<float> out(static_cast<size_t>(kRows) * kRows);
    launch(x_on_m ? x.data() : w.data(), x_on_m ? w.data() : x.data(), out.data(), x_on_m);
    CudaOk(cudaGetLastError(), "launch");
    CudaOk(cudaDeviceSynchronize(), "run");
    return out.Download();
  }

  static size_t Differences(const std::vector<float>& a, const std::vector<float>& b) {
    size_t count = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      count += std::memcmp(&a[i], &b[i], sizeof(float)) != 0 ? 1 : 0;
    }
    return count;
  }

  /// Both operands with their columns in another order.
  template <typename Source>
  static std::vector<uint16_t> Permuted(const std::vector<uint16_t>& values, Source source) {
    std::vector<uint16_t> result(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const int k = static_cast<int>(i) % kDepth;
      result[i] = values[i - k + source(k)];
    }
    return result;
  }

  std::mt19937 random_{11};
};

TEST_P(TensorCoreChain, BitsDependOnTheSlicesAlone) {
  const std::vector<uint16_t> w = Draw(), x = Draw();
  const DeviceArray<uint16_t> d_w(w), d_x(x);
  const std::vector<float> expected = Run(kForms[0].launch, d_w, d_x, false);
  // The sums are right: the tolerance is that of truncated terms below the largest one.
  double worst = 0;
  for (int n = 0; n < kRows; n += 37) {
    for (int m = 0; m < kRows; m += 41) {
      double sum = 0, size = 0;
      for (int k = 0; k < kDepth; ++k) {
        const double term =
            static_cast<double>(Bf16ToFloat(w[n * kDepth + k])) * Bf16ToFloat(x[m * kDepth + k]);
        sum += term;
        size += std::abs(term);
      }
      worst = std::max(worst, std::abs(expected[n * kRows + m] - sum) / size);
    }
  }
  EXPECT_LT(worst, 2e-6);
  for (const Form& form : kForms) {
    for (const bool x_on_m : {false, true}) {
      EXPECT_EQ(Differences(Run(form.launch, d_w, d_x, x_on_m), expected), 0U)
          << form.name << (x_on_m ? ", x on M" : ", w on M");
    }
  }
}

TEST_P(TensorCoreChain, OrderWithinASliceIsFreeAndOrderOfSlicesIsNot) {
  const std::vector<uint16_t> w = Draw(), x = Draw();
  const DeviceArray<uint16_t> d_w(w), d_x(x);
  const auto within = [](int k) { return k / 16 * 16 + k % 16 * 7 % 16; };
  const auto across = [](int k) { return kDepth - 16 - k / 16 * 16 + k % 16; };
  const DeviceArray<uint16_t> w_within(Permuted(w, within)), x_within(Permuted(x, within));
  const DeviceArray<uint16_t> w_across(Permuted(w, across)), x_across(Permuted(x, across));
  for (const Form& form : {kForms[0], kForms[6], kForms[12]}) {
    const std::vector<float> expected = Run(form.launch, d_w, d_x, false);
    EXPECT_EQ(Differences(Run(form.launch, w_within, x_within, false), expected), 0U) << form.name;
    EXPECT_GT(Differences(Run(form.launch, w_across, x_across, false), expected), 1000U)
        << form.name;
  }
}

std::string DataName(const ::testing::TestParamInfo<Data>& data) {
  constexpr const char* kNames[] = {"Normal", "WideExponents", "Cancelling"};
  return kNames[static_cast<int>(data.param)];
}

INSTANTIATE_TEST_SUITE_P(Hopper, TensorCoreChain,
                         ::testing::Values(Data::kNormal, Data::kWideExponents, Data::kCancelling),
                         DataName);

}  // namespace
}  // namespace outrider::cuda
