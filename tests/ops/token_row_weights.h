// Random weights of a layer's compressors and of its indexer's heads, side by side as a layer's.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "outrider/checkpoint/weight_source.h"
#include "outrider/ops/compressed_attention.h"
#include "outrider/ops/ops.h"
#include "outrider/ops/weight_loader.h"
#include "tests/kernels/kernel_fixture.h"

namespace outrider {

class TokenRowWeights {
 public:
  /// channels: of each compressor. heads: of the indexer; 0: there is none. input: columns of x.
  TokenRowWeights(const Device& device, DType dtype, const std::array<int32_t, 2>& channels,
                  int64_t heads, int64_t input) {
    const auto source = MakeDummyWeights(ModelConfig{}, kSeed);
    const auto loader = device.ops.MakeWeightLoader(*source, {.compute_dtype = dtype});
    std::vector<WeightLoader::NamedMatrix> matrices;
    for (size_t i = 0; i < 2; ++i) {
      for (const bool gates : {false, true}) {
        matrices.push_back(
            {.out = gates ? &gates_[i] : &values_[i], .name = Name(i, gates), .rows = channels[i]});
      }
    }
    if (heads > 0) matrices.push_back({.out = &of_heads, .name = kHeads, .rows = heads});
    loader->SideBySide(matrices, input);
    memory_ = loader->Load(device, nullptr);
  }

  TokenRowArgs Of(size_t compressor, LayerCache tokens) const {
    return {.values = &values_[compressor], .gates = &gates_[compressor], .tokens = tokens};
  }

  /// The rows that tokens leave for a compressor: values, then gates.
  static TestMatrix Rows(const TestMatrix& x, size_t compressor, int32_t channels) {
    TestMatrix rows(x.view_rows, int64_t{2} * channels);
    Multiply(x, Name(compressor, false), channels, rows, 0);
    Multiply(x, Name(compressor, true), channels, rows, channels);
    return rows;
  }
  /// [rows, heads]
  static TestMatrix HeadRows(const TestMatrix& x, int64_t heads) {
    TestMatrix rows(x.view_rows, heads);
    Multiply(x, kHeads, heads, rows, 0);
    return rows;
  }

  Weight of_heads;  // [heads, input]

 private:
  static constexpr uint64_t kSeed = 7;

  static constexpr const char* kHeads = "heads";

  /// In float64.
  static void Multiply(const TestMatrix& x, const std::string& name, int64_t count, TestMatrix& y,
                       int64_t first) {
    const auto source = MakeDummyWeights(ModelConfig{}, kSeed);
    std::vector<float> weight(static_cast<size_t>(count * x.view_cols));
    source->Open({.name = name, .shape = {count, x.view_cols}})->ReadRows(0, count, weight.data());
    for (int64_t r = 0; r < x.view_rows; ++r) {
      for (int64_t i = 0; i < count; ++i) {
        double sum = 0;
        for (int64_t k = 0; k < x.view_cols; ++k) {
          sum += double{x.view().row(r)[k]} * weight[static_cast<size_t>(i * x.view_cols + k)];
        }
        y.view().row(r)[first + i] = static_cast<float>(sum);
      }
    }
  }
  static std::string Name(size_t compressor, bool gates) {
    return (gates ? "gates" : "values") + std::to_string(compressor);
  }

  std::array<Weight, 2> values_;
  std::array<Weight, 2> gates_;
  std::unique_ptr<WeightMemory> memory_;
};

}  // namespace outrider
