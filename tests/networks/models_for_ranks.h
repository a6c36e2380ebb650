// The bundled checkpoints as they are, where a number of ranks can share them; else their configs
// with sizes that can be shared, for dummy weights.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "tests/networks/loaded_model.h"
#include "tests/networks/model_directory.h"

namespace outrider {

class ModelForRanks {
 public:
  bool has_dummy_weights() const { return own_.has_value(); }
  std::filesystem::path directory() const { return own_ ? own_->directory() : from_; }

 protected:
  explicit ModelForRanks(std::filesystem::path from) : from_(std::move(from)) {}

  /// change(config) makes the config one that can be shared.
  template <typename Change>
  void Write(Change change) {
    nlohmann::json config = ReadJson(from_ / "config.json");
    change(config);
    own_.emplace(config);
  }

 private:
  std::filesystem::path from_;
  std::optional<ModelDirectory> own_;
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
