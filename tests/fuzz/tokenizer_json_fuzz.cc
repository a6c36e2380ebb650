// tokenizer.json as hostile input: loading either throws Error or gives a tokenizer that works.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  try {
    const outrider::Tokenizer tokenizer = outrider::Tokenizer::FromJson(json, "fuzz");
    for (const auto special : {outrider::SpecialTokens::kText, outrider::SpecialTokens::kParse}) {
      const std::vector<int32_t> ids =
          tokenizer.Encode("It's 2024, <s> naïve 今天 \xFF\n  x", true, special);
      for (const int32_t id : ids) {
        OUTRIDER_CHECK(id >= 0 && id < tokenizer.vocab_size(), "id {}", id);
      }
      (void)tokenizer.Decode(ids, true);
    }
  } catch (const outrider::Error&) {
    return 0;
  }
  return 0;
}
