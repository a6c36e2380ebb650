// A checkpoint loaded for tests, with a cache and one-request layouts.
#pragma once

#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "outrider/networks/network_loader.h"
#include "outrider/ops/cpu/cpu_ops.h"
#include "tests/source_directory.h"

namespace outrider {

struct LoadedModel {
  explicit LoadedModel(const std::filesystem::path& directory, DType dtype = DType::kF32,
                       Isa isa = SelectIsa(), int threads = 1,
                       KvCacheForm form = KvCacheForm::kLatent)
      : pool(threads) {
    const ModelConfig config = ReadModelConfig(directory);
    const auto source = OpenCheckpoint(directory, config);
    const int mtp = CountMtpLayers(*source, config);
    model = LoadNetwork(config, mtp, *source, {dtype},
                        {{cpu::GetCpuOps(isa), &pool},
                         dtype,
                         AttentionPlan(AttentionBackend::kRagged, 1, RowPathsOf(config, form))});
  }

  KvCache MakeCache(int32_t num_blocks, int32_t block_size,
                    const CacheNumbers& numbers = DType::kF32) const {
    const NetworkCache needs = model->cache_needs();
    return {model->device(), MakeCacheConfig(needs, numbers, block_size, num_blocks), needs.layers,
            numbers};
  }

  ThreadPool pool;
  std::unique_ptr<Network> model;
};

inline std::filesystem::path TinyModelDirectory() {
  return SourceDirectory() / "models/tiny-v3-mtp3";
}

/// EAGLE-3 drafters that were trained for that model, with latent and with Llama's attention.
inline std::filesystem::path TinyEagle3Directory() {
  return SourceDirectory() / "models" / "tiny-v3-eagle3";
}
inline std::filesystem::path TinyLlamaEagle3Directory() {
  return SourceDirectory() / "models" / "tiny-v3-eagle3-llama";
}

/// A Ling-3.0 with one MTP module, in blocks of FP8.
inline std::filesystem::path TinyLingDirectory() { return SourceDirectory() / "models/tiny-ling"; }

inline std::filesystem::path GoldenDirectory() { return SourceDirectory() / "tests/golden"; }

/// DeepSeek-V4 with a DSpark drafter, and the same target with its MTP module.
inline std::filesystem::path TinyDSparkDirectory() {
  return SourceDirectory() / "models/tiny-v4-dspark";
}
inline std::filesystem::path TinyV4Directory() { return TinyDSparkDirectory() / "mtp1"; }

/// The checkpoint that a folder of tests/golden belongs to.
inline std::filesystem::path CheckpointDirectory(const std::string& golden) {
  if (golden == "tiny-v4") return TinyV4Directory();
  return golden == "tiny-v3-mtp3" ? TinyModelDirectory() : GoldenDirectory() / golden;
}

/// 0, 1, ..., n - 1: the block table of a request that has the cache to itself.
inline std::vector<int32_t> FirstBlocks(int32_t n) {
  std::vector<int32_t> blocks(static_cast<size_t>(n));
  std::iota(blocks.begin(), blocks.end(), 0);
  return blocks;
}

}  // namespace outrider
