// Each layer of a network on the device beside the CPU's: prompts, prompts in parts, generated
// rows, and draft modules that go on from them.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/networks/cuda/device_run.h"
#include "tests/networks/cuda/known_requests.h"
#include "tests/networks/rounded_queries_ops.h"

namespace outrider::cuda {

/// What AddErrorsOfLayers runs.
struct LayerComparison {
  const ModelConfig& config;
  const WeightSource& source;
  int modules = 1;
  int32_t block = 32;         // tokens of a block
  int32_t long_prompt = 300;  // tokens; the other prompts have 70 and 3
  int32_t first_chunk = 190;  // of the long prompt, in the first step
  /// The CPU's, whose operands are rounded as the device's.
  const cpu::CpuOps& rounded_ops = cpu::GetCpuOps(SelectIsa());
  CacheNumbers cache = DType::kBF16;  // the device's, and that CPU's
  Nearness nearness = {};
};

/// By step and layer or module.
using ErrorsOfLayers = std::map<std::string, ErrorsOfRows>;

/// Adds the errors of the residual stream after each layer, and of the rows of each module.
inline void AddErrorsOfLayers(const LayerComparison& run, ErrorsOfLayers& errors) {
  std::mt19937 random(2);
  TestNetwork network(run.config, run.source, run.modules);
  std::vector<KnownRequest> requests =
      RandomRequests(random, static_cast<int32_t>(run.config.vocab_size), {70, run.long_prompt, 3},
                     40, network.Groups(run.block, run.cache));
  SpreadStates(random, requests, network.ConfigOfCache(run.block, run.cache));
  const int32_t blocks = NumBlocks(requests);
  const std::vector<CacheGroupSpec> groups = network.Groups(run.block, run.cache);
  CpuNetwork f32(run.config, run.source, run.modules, DType::kF32, blocks, run.block,
                 cpu::GetCpuOps(SelectIsa()), std::nullopt, groups);
  CpuNetwork bf16(run.config, run.source, run.modules, DType::kBF16, blocks, run.block,
                  run.rounded_ops, run.cache, groups);
  KvCache cache = network.MakeCache(blocks, run.block, run.cache);
  BatchLayout layout(cache.config().groups);
  // Prompts; then generated rows of two requests beside the rest of another's prompt.
  const int32_t rest = run.long_prompt - run.first_chunk;
  const std::vector<std::vector<Piece>> steps = {
      {{0, 0, 70}, {1, 0, run.first_chunk}, {2, 0, 3}},
      {{0, 70, 40}, {1, run.first_chunk, rest}, {2, 3, 40}}};
  for (size_t step = 0; step < steps.size(); ++step) {
    const std::vector<Piece>& pieces = steps[step];
    const auto assign = [&](int32_t shift) {
      std::vector<RequestWork> work;
      for (const Piece& piece : pieces) {
        work.push_back(requests[piece.request].Work(static_cast<int32_t>(piece.request),
                                                    piece.first, piece.count, shift));
      }
      layout.Assign(work);
    };
    assign(0);
    const std::vector<std::vector<float>> exact = f32.Forward(layout);
    const std::vector<std::vector<float>> rounded = bf16.Forward(layout);
    network.Forward(layout, cache, [&](int64_t layer, const std::vector<float>& got) {
      const auto i = static_cast<size_t>(layer);
      errors[fmt::format("step {}, layer {:2}", step, layer)].Add(got, rounded[i], exact[i],
                                                                  run.config.hidden_size);
    });
    // The modules go on from equal rows, which bfloat16 holds.
    std::vector<uint16_t> previous;
    std::vector<float> equal;
    for (const float x : exact.back()) {
      previous.push_back(ToBFloat16(x).bits);
      equal.push_back(RoundToBFloat16(x));
    }
    for (int m = 0; m < run.modules; ++m) {
      assign(m + 1);
      std::vector<float> got;
      for (const uint16_t bits : network.ForwardMtp(m, layout, cache, previous)) {
        got.push_back(ToFloat(BFloat16{bits}));
      }
      errors[fmt::format("step {}, module {}", step, m)].Add(got, bf16.ForwardMtp(m, layout, equal),
                                                             f32.ForwardMtp(m, layout, equal),
                                                             network.output_width());
    }
  }
}

/// Expects them to be as near to float32's as those of the CPU whose operands are rounded alike.
inline void ExpectLayersBesideCpu(const LayerComparison& run) {
  ErrorsOfLayers errors;
  AddErrorsOfLayers(run, errors);
  for (const auto& [what, of_rows] : errors) ExpectAsNear(of_rows, what, run.nearness);
}

}  // namespace outrider::cuda
