// A directory with the config.json of a small DeepSeek-V3.2 with an MTP module, whose rows read 12
// tokens: for dummy weights.
#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/source_directory.h"
#include "tests/temporary_directory.h"

namespace outrider {

class SmallSparseModel {
 public:
  explicit SmallSparseModel(int32_t vocab_size, int32_t heads = 2) {
    std::ifstream file(SourceDirectory() / "tests/golden/tiny-v32/config.json");
    nlohmann::json config = nlohmann::json::parse(file);
    config["vocab_size"] = vocab_size;
    config["num_nextn_predict_layers"] = 1;
    config["index_topk"] = 12;
    config["num_attention_heads"] = heads;
    config["num_key_value_heads"] = heads;
    std::ofstream(directory() / "config.json") << config;
  }

  const std::filesystem::path& directory() const { return directory_.path(); }

 private:
  TemporaryDirectory directory_;
};

}  // namespace outrider
