// Reads the golden outputs that tests compare with.
#pragma once

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/checkpoint/safetensors.h"

namespace outrider {

/// A safetensors file of float32 and int32 tensors, read whole. Where OUTRIDER_GOLDEN_READS names a
/// file, a line "PATH NAME" is added to it for each tensor that a test reads
/// (tools/trim_goldens.py).
class GoldenFile {
 public:
  explicit GoldenFile(const std::filesystem::path& path) : path_(std::filesystem::canonical(path)) {
    std::ifstream file(path, std::ios::binary);
    OUTRIDER_CHECK(file.good(), "cannot open {}", path.string());
    for (const TensorInfo& info : ReadSafetensorsHeader(path)) {
      Entry& entry = entries_[info.name];
      entry.shape = info.shape;
      entry.bytes.resize(info.end - info.begin);
      file.seekg(static_cast<std::streamoff>(info.begin));
      file.read(entry.bytes.data(), static_cast<std::streamsize>(entry.bytes.size()));
    }
    OUTRIDER_CHECK(file.good());
  }

  bool Has(const std::string& name) const { return entries_.contains(name); }
  const std::vector<int64_t>& Shape(const std::string& name) const {
    return entries_.at(name).shape;
  }

  template <typename T>
  std::vector<T> Read(const std::string& name) const {
    const Entry& entry = entries_.at(name);
    if (const char* reads = std::getenv("OUTRIDER_GOLDEN_READS")) {
      std::ofstream(reads, std::ios::app) << path_.string() << ' ' << name << '\n';
    }
    std::vector<T> values(entry.bytes.size() / sizeof(T));
    std::memcpy(values.data(), entry.bytes.data(), entry.bytes.size());
    return values;
  }

 private:
  struct Entry {
    std::vector<int64_t> shape;
    std::vector<char> bytes;
  };
  std::filesystem::path path_;
  std::map<std::string, Entry> entries_;
};

}  // namespace outrider
