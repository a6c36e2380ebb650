// Model directories that tests make: a config.json, for dummy weights, and what else a test adds.
#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/temporary_directory.h"

namespace outrider {

inline nlohmann::json ReadJson(const std::filesystem::path& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

class ModelDirectory {
 public:
  explicit ModelDirectory(const nlohmann::json& config) { WriteConfig(config); }

  const std::filesystem::path& directory() const { return directory_.path(); }

 protected:
  ModelDirectory() = default;
  void WriteConfig(const nlohmann::json& config) const {
    std::ofstream(directory() / "config.json") << config;
  }

 private:
  TemporaryDirectory directory_;
};

}  // namespace outrider
