// Parses arbitrary bytes as a whole safetensors file. What is accepted must cover the file's data.
#include <cstdint>
#include <span>
#include <string_view>

#include "outrider/base/dtype.h"
#include "outrider/base/error.h"
#include "outrider/checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using outrider::TensorInfo;
  try {
    uint64_t at = 0;
    for (const TensorInfo& tensor :
         outrider::ParseSafetensorsHeader(std::as_bytes(std::span(data, size)), size, "input")) {
      OUTRIDER_CHECK(at == 0 || tensor.begin == at);
      OUTRIDER_CHECK(tensor.begin <= tensor.end && tensor.end <= size);
      at = tensor.end;
      if (!tensor.dtype) continue;
      uint64_t elements = 1;
      for (const int64_t dimension : tensor.shape) elements *= static_cast<uint64_t>(dimension);
      OUTRIDER_CHECK(elements * outrider::DTypeSize(*tensor.dtype) == tensor.end - tensor.begin);
    }
    OUTRIDER_CHECK(at == 0 || at == size);
  } catch (const outrider::Error& error) {
    OUTRIDER_CHECK(std::string_view(error.what()).find('\n') == std::string_view::npos);
  }
  return 0;
}
