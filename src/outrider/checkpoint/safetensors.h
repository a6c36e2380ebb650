// Reads and checks the header of a safetensors file: which tensors it holds, and where.
// Format: a little-endian u64 N, N bytes of JSON {name: {dtype, shape, data_offsets}}, then data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/base/dtype.h"

namespace outrider {

/// One tensor of a file. Bytes [begin, end) of the file are its elements, row-major, little-endian.
struct TensorInfo {
  std::string name;
  std::optional<DType> dtype;  // nothing for a type that Outrider does not read
  std::string dtype_name;      // as written: "BF16", "F8_E4M3", ...
  std::vector<int64_t> shape;  // [] for a scalar
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// Largest header that is read: what the reference implementation allows.
inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;

/// Parses a header. `start` holds the first bytes of a file of `file_size` bytes: at least the
/// length and the JSON, if the file has them. Checks sizes, types, shapes (no negative dimension,
/// no overflow), that each known dtype fills its range exactly, that ranges lie in the file, do not
/// overlap and leave no hole. Tensors come back ordered by `begin`. Throws Error{kInvalidArgument},
/// its message opening with `where`.
std::vector<TensorInfo> ParseSafetensorsHeader(std::span<const std::byte> start, uint64_t file_size,
                                               std::string_view where);

/// Reads and parses the header of a file. Throws Error{kNotFound} when it cannot be opened.
std::vector<TensorInfo> ReadSafetensorsHeader(const std::filesystem::path& path);

}  // namespace outrider
