// tiktoken.model as hostile input: reading either throws Error or gives a tokenizer whose parts
// name tokens that it has. What is behind the bytes' own lines is the fuzzer's.
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/text/tiktoken_model.h"

namespace {

std::string LinesOfBytes() {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string lines;
  for (int byte = 0; byte < 256; ++byte) {
    lines += fmt::format("{}{}== {}\n", kDigits[byte >> 2], kDigits[(byte & 3) << 4], byte);
  }
  return lines;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string kBytes = LinesOfBytes();
  std::string model(reinterpret_cast<const char*>(data), size);
  if (size > 0 && data[0] != '\n') model = kBytes + model;
  try {
    const outrider::TokenizerSpec spec =
        outrider::ParseTiktokenModel(model, "fuzz", {{260, {"<x>", true}}});
    const auto known = [&](int32_t id) { return id >= 0 && id < spec.vocab_size; };
    for (const auto& [token, id] : spec.ids) OUTRIDER_CHECK(known(id), "{}", id);
    for (const outrider::Merge& merge : spec.merges) {
      OUTRIDER_CHECK(known(merge.left) && known(merge.right) && known(merge.merged));
    }
    OUTRIDER_CHECK(spec.added_tokens.size() == 258);
    OUTRIDER_CHECK(spec.in_vocabulary.size() == static_cast<size_t>(spec.vocab_size));
  } catch (const outrider::Error&) {
    return 0;
  }
  return 0;
}
