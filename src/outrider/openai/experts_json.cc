#include "outrider/openai/experts_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string_view>
#include <vector>

namespace outrider::openai {
namespace {

static_assert(std::endian::native == std::endian::little, "ids go out as they lie in memory");

std::string Base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t count = std::min<size_t>(bytes.size() - i, 3);
    uint32_t group = 0;
    for (size_t b = 0; b < 3; ++b) {
      group = group << 8U | (b < count ? static_cast<uint8_t>(bytes[i + b]) : 0U);
    }
    for (size_t d = 0; d < 4; ++d) {
      text += d <= count ? kDigits[group >> (18 - 6 * d) & 63U] : '=';
    }
  }
  return text;
}

template <typename T>
std::string_view BytesOf(const std::vector<T>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T)};
}

/// What stands before the numbers of a .npy file, version 1.0: a multiple of 64 bytes.
std::string NpyHeader(const RoutedExperts& experts) {
  std::string text =
      fmt::format("{{'descr': '<i2', 'fortran_order': False, 'shape': ({}, {}, {}), }}",
                  experts.tokens, experts.shape.layers, experts.shape.top_k);
  constexpr size_t kBefore = 10;  // magic, version, length
  text.append(63 - (kBefore + text.size()) % 64, ' ');
  text += '\n';
  const auto length = static_cast<uint16_t>(text.size());
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(length & 255U);
  header += static_cast<char>(length >> 8U);
  return header + text;
}

}  // namespace

std::string ExpertsNpy(const RoutedExperts& experts) {
  std::string file = NpyHeader(experts);
  file += BytesOf(experts.ids);
  return Base64(file);
}

std::string ExpertsInt32(const RoutedExperts& experts) {
  return Base64(BytesOf(std::vector<int32_t>(experts.ids.begin(), experts.ids.end())));
}

std::string ExpertMembers(const OutputDelta& delta, bool with_sglangs) {
  if (delta.experts == nullptr) return "";
  std::string out = fmt::format(R"(,"routed_experts":"{}")", ExpertsNpy(*delta.experts));
  if (with_sglangs) {
    out += fmt::format(R"(,"sgl_ext":{{"routed_experts":"{}"}})", ExpertsInt32(*delta.experts));
  }
  return out;
}

}  // namespace outrider::openai
