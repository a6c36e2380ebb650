#include "outrider/sampling/sampling_params.h"

#include <cmath>

#include "outrider/base/error.h"

namespace outrider {

namespace {

constexpr size_t kMaxStops = 16;

template <typename T>
void CheckRange(const char* field, T value, bool ok, const char* range) {
  if (!ok) throw InvalidArgument("{} is {}: it must be {}", field, value, range);
}

}  // namespace

void SamplingParams::Validate(int32_t vocab_size, int32_t max_logprobs) const {
  // Written so that NaN fails.
  CheckRange("temperature", temperature, temperature >= 0 && temperature <= 2, "in [0, 2]");
  CheckRange("top_k", top_k, top_k >= 0, "at least 1, or 0 for no limit");
  CheckRange("top_p", top_p, top_p > 0 && top_p <= 1, "in (0, 1]");
  CheckRange("min_p", min_p, min_p >= 0 && min_p <= 1, "in [0, 1]");
  CheckRange("max_tokens", max_tokens, max_tokens >= 1, "at least 1");
  CheckRange("number of stop strings", stop.size(), stop.size() <= kMaxStops, "at most 16");
  for (const std::string& s : stop) {
    if (s.empty()) throw InvalidArgument("stop holds an empty string: give at least one character");
  }
  for (const int32_t id : stop_token_ids) {
    if (id < 0 || id >= vocab_size) {
      throw InvalidArgument("stop_token_ids holds {}: ids of this model are 0 to {}", id,
                            vocab_size - 1);
    }
  }
  if (logprobs && (*logprobs < 0 || *logprobs > max_logprobs)) {
    throw InvalidArgument("logprobs is {}: it must be 0 to {} (--max-logprobs)", *logprobs,
                          max_logprobs);
  }
}

}  // namespace outrider
