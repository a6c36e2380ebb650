// Writes small safetensors files and model directories for tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/base/error.h"

namespace outrider::test_checkpoints {

/// One tensor to write: `data` are its bytes.
struct TensorToWrite {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string data;
};

/// The bytes of a vector's elements.
template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// The bytes of a safetensors file with this header text and data.
std::string SafetensorsBytes(std::string_view header, std::string_view data);

void WriteFile(const std::filesystem::path& path, std::string_view content);
void WriteSafetensors(const std::filesystem::path& path, const std::vector<TensorToWrite>& tensors);

/// The message of the Error that `action` throws, with its code's name: "not_found: ...".
/// "nothing was thrown" if none.
template <typename Action>
std::string ErrorOf(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    return std::string(ErrorCodeName(error.code())) + ": " + error.what();
  }
  return "nothing was thrown";
}

}  // namespace outrider::test_checkpoints
