// The bundled checkpoints as they are, where a number of ranks can share them; else their configs
// with sizes that can be shared, for dummy weights.
#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/networks/loaded_model.h"
#include "tests/temporary_directory.h"

namespace outrider {

class ModelForRanks {
 public:
  bool has_dummy_weights() const { return has_dummy_weights_; }
  std::filesystem::path directory() const { return has_dummy_weights_ ? own_.path() : from_; }

 protected:
  explicit ModelForRanks(std::filesystem::path from) : from_(std::move(from)) {}

  /// change(config) makes the config one that can be shared.
  template <typename Change>
  void Write(Change change) {
    std::ifstream file(from_ / "config.json");
    nlohmann::json config = nlohmann::json::parse(file);
    change(config);
    std::ofstream(own_.path() / "config.json") << config;
    has_dummy_weights_ = true;
  }

 private:
  std::filesystem::path from_;
  TemporaryDirectory own_;
  bool has_dummy_weights_ = false;
};

/// The bundled DeepSeek-V3. Of 640 inner columns in FP8 eight GPUs would have parts that begin
/// within one block of 128 and end in the next.
class V3ForRanks : public ModelForRanks {
 public:
  explicit V3ForRanks(int32_t ranks) : ModelForRanks(TinyModelDirectory()) {
    if (ranks <= 4) return;
    Write([](nlohmann::json& config) { config["intermediate_size"] = 1024; });
  }
};

/// A bundled DeepSeek-V4, in `from`, whose 4 heads come in 2 groups.
class V4ForRanks : public ModelForRanks {
 public:
  V4ForRanks(const std::filesystem::path& from, int32_t ranks) : ModelForRanks(from) {
    if (ranks <= 2) return;
    Write([&](nlohmann::json& config) {
      config["o_groups"] = ranks;
      config["num_attention_heads"] = ranks;
      config.erase("quantization_config");
      config.erase("expert_dtype");
    });
  }
};

}  // namespace outrider
