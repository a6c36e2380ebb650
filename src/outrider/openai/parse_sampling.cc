#include "outrider/openai/parse_sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace outrider::openai {
namespace {

using nlohmann::json;

constexpr int64_t kMaxN = 128;
// Each choice has its own copy of these.
constexpr size_t kMaxStopStrings = 16;
constexpr size_t kMaxStopBytes = 1024;  // of one
constexpr size_t kMaxStopTokens = 1024;
constexpr size_t kMaxBadWords = 512;
constexpr size_t kMaxBadWordBytes = size_t{32} << 10;  // of all

float ParsePenalty(FieldReader& body, const char* name, double min, double max, float neutral) {
  const std::optional<double> value = body.Number(name, min, max);
  return value ? static_cast<float>(*value) : neutral;
}

std::vector<TokenBias> ParseLogitBias(FieldReader& body, int32_t vocab_size) {
  std::vector<TokenBias> result;
  const json* value = body.Find("logit_bias");
  if (value == nullptr) return result;
  if (!value->is_object()) {
    body.Refuse("logit_bias", fmt::format("must be an object of token ids with numbers, not {}",
                                          Shorten(*value)));
  }
  std::unordered_set<int32_t> given;
  for (const auto& [key, bias] : value->items()) {
    int32_t token = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    const bool whole = error == std::errc() && end == key.data() + key.size();
    if (!whole || token < 0 || token >= vocab_size) {
      body.Refuse("logit_bias",
                  fmt::format("{} is not a token id: must be an integer from 0 to {}, as a string",
                              Shorten(json(key)), vocab_size - 1));
    }
    if (!bias.is_number() || !(std::abs(bias.get<double>()) <= 100)) {
      body.Refuse("logit_bias", fmt::format("{} of token {} is out of range: must be a number from "
                                            "-100 to 100",
                                            Shorten(bias), token));
    }
    if (!given.insert(token).second) {  // "7" and "07" are the same token
      body.Refuse("logit_bias", fmt::format("token {} is given twice", token));
    }
    result.push_back({token, bias.get<float>()});
  }
  return result;
}

std::vector<std::string> ParseBadWords(FieldReader& body) {
  std::vector<std::string> words;
  const json* value = body.Find("bad_words");
  if (value == nullptr) return words;
  if (!value->is_array()) {
    body.Refuse("bad_words", fmt::format("must be an array of strings, not {}", Shorten(*value)));
  }
  if (value->size() > kMaxBadWords) {
    body.Refuse("bad_words",
                fmt::format("has {} strings; at most {} are allowed", value->size(), kMaxBadWords));
  }
  size_t bytes = 0;
  for (const json& word : *value) {
    if (!word.is_string() ||
        word.get_ref<const std::string&>().find_first_not_of(" \t\n\r\f\v") == std::string::npos) {
      body.Refuse("bad_words",
                  fmt::format("must hold strings that are not blank, not {}", Shorten(word)));
    }
    words.push_back(word.get<std::string>());
    bytes += words.back().size();
  }
  if (bytes > kMaxBadWordBytes) {
    body.Refuse("bad_words", fmt::format("have {} bytes in all; at most {} are allowed", bytes,
                                         kMaxBadWordBytes));
  }
  return words;
}

// In ascending order.
std::vector<int32_t> Distinct(std::vector<int32_t> ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

std::optional<std::vector<int32_t>> ParseAllowedTokens(FieldReader& body, int32_t vocab_size) {
  if (body.Find("allowed_token_ids") == nullptr) return std::nullopt;
  std::vector<int32_t> ids = body.TokenIds("allowed_token_ids", vocab_size);
  if (ids.empty()) {
    body.Refuse("allowed_token_ids", "is an empty array: must hold at least one token id");
  }
  return Distinct(std::move(ids));
}

std::vector<int32_t> ParseStopTokens(FieldReader& body, int32_t vocab_size) {
  std::vector<int32_t> ids = body.TokenIds("stop_token_ids", vocab_size);
  if (ids.size() > kMaxStopTokens) {
    body.Refuse("stop_token_ids",
                fmt::format("has {} tokens; at most {} are allowed", ids.size(), kMaxStopTokens));
  }
  return Distinct(std::move(ids));
}

}  // namespace

std::optional<uint64_t> ParseSeed(FieldReader& body, const char* name) {
  const json* value = body.Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  if (value->is_number_integer()) return static_cast<uint64_t>(value->get<int64_t>());
  body.Refuse(name, fmt::format("must be a 64-bit integer, not {}", Shorten(*value)));
}

void ParseStop(FieldReader& body, const char* name, SamplingParams* sampling) {
  const json* value = body.Find(name);
  if (value == nullptr) return;
  if (!value->is_string() && !value->is_array()) {
    body.Refuse(name,
                fmt::format("must be a string or an array of strings, not {}", Shorten(*value)));
  }
  const json list = value->is_array() ? *value : json::array({*value});
  if (list.size() > kMaxStopStrings) {
    body.Refuse(
        name, fmt::format("has {} strings; at most {} are allowed", list.size(), kMaxStopStrings));
  }
  for (const json& text : list) {
    if (!text.is_string() || text.get_ref<const std::string&>().empty()) {
      body.Refuse(name, fmt::format("must hold strings that are not empty, not {}", Shorten(text)));
    }
    sampling->stop.push_back(text.get<std::string>());
    if (sampling->stop.back().size() > kMaxStopBytes) {
      body.Refuse(name, fmt::format("has a string of {} bytes; at most {} are allowed",
                                    sampling->stop.back().size(), kMaxStopBytes));
    }
  }
}

void ParseSampling(FieldReader& body, const RequestLimits& limits, TokenRequest* request) {
  SamplingParams* const sampling = &request->sampling;
  const SamplingDefaults& defaults = limits.defaults;
  const auto number = [&](const char* name, double max, std::optional<float> fallback,
                          float neutral) {
    const std::optional<double> value = body.Number(name, 0, max);
    return value ? static_cast<float>(*value) : fallback.value_or(neutral);
  };
  sampling->temperature =
      body.NonNegative("temperature").value_or(defaults.temperature.value_or(1.0F));
  // Its inverse is a float too: what is smaller is as good as 0.
  if (sampling->temperature < std::numeric_limits<float>::min()) sampling->temperature = 0;
  sampling->top_p = number("top_p", 1, defaults.top_p, 1.0F);
  if (sampling->top_p <= 0) {
    const json* given = body.Find("top_p");
    if (given == nullptr || given->get<double>() <= 0) {
      body.Refuse("top_p", "0 is out of range: must be above 0, at most 1");
    }
    sampling->top_p = std::numeric_limits<float>::min();  // smaller than a float can be
  }
  sampling->min_p = number("min_p", 1, defaults.min_p, 0.0F);
  const std::optional<int64_t> top_k = body.Integer("top_k", -1, kMaxInt32);
  // vLLM says "all tokens" by -1 or 0.
  sampling->top_k =
      top_k ? static_cast<int32_t>(std::max<int64_t>(*top_k, 0)) : defaults.top_k.value_or(0);
  sampling->seed = ParseSeed(body, "seed");
  sampling->repetition_penalty =
      ParsePenalty(body, "repetition_penalty", 0.01, 100, defaults.repetition_penalty.value_or(1));
  sampling->presence_penalty = ParsePenalty(body, "presence_penalty", -2, 2, 0);
  sampling->frequency_penalty = ParsePenalty(body, "frequency_penalty", -2, 2, 0);
  sampling->logit_bias = ParseLogitBias(body, limits.vocab_size);
  sampling->allowed_token_ids = ParseAllowedTokens(body, limits.vocab_size);
  request->bad_words = ParseBadWords(body);
  request->n = static_cast<int32_t>(body.Integer("n", 1, kMaxN).value_or(1));
  sampling->min_tokens = static_cast<int32_t>(body.Integer("min_tokens", 0, kMaxInt32).value_or(0));
  ParseStop(body, "stop", sampling);
  sampling->stop_token_ids = ParseStopTokens(body, limits.vocab_size);
  sampling->ignore_eos = body.Bool("ignore_eos").value_or(false);
  sampling->include_stop_str_in_output = body.Bool("include_stop_str_in_output").value_or(false);
  sampling->skip_special_tokens = body.Bool("skip_special_tokens").value_or(true);
}

}  // namespace outrider::openai
