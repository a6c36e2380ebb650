#include "tests/checkpoint/checkpoint_writer.h"

#include <fstream>

namespace outrider::test_checkpoints {

std::string SafetensorsBytes(std::string_view header, std::string_view data) {
  const uint64_t length = header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
  bytes += header;
  bytes += data;
  return bytes;
}

void WriteFile(const std::filesystem::path& path, std::string_view content) {
  std::ofstream out(path, std::ios::binary);
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
  OUTRIDER_CHECK(out.good());
}

void WriteSafetensors(const std::filesystem::path& path,
                      const std::vector<TensorToWrite>& tensors) {
  std::string header = "{";
  std::string data;
  for (const TensorToWrite& tensor : tensors) {
    header +=
        fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                    header.size() == 1 ? "" : ",", tensor.name, tensor.dtype,
                    fmt::join(tensor.shape, ","), data.size(), data.size() + tensor.data.size());
    data += tensor.data;
  }
  WriteFile(path, SafetensorsBytes(header + "}", data));
}

}  // namespace outrider::test_checkpoints
