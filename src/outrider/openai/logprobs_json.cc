#include "outrider/openai/logprobs_json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "outrider/text/utf8.h"

namespace outrider::openai {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no infinity; vLLM writes this for tokens that cannot come.
double Finite(float logprob) { return std::max(static_cast<double>(logprob), -9999.0); }

std::string TokenText(const PromptEncoder& encoder, int32_t token_id) {
  return ReplaceInvalidUtf8(encoder.TokenBytes(token_id));
}

Json ChatEntry(const TokenLogprob& token, const PromptEncoder& encoder) {
  Json bytes = Json::array();
  for (const char c : encoder.TokenBytes(token.token_id)) {
    bytes.push_back(static_cast<uint8_t>(c));
  }
  return {{"token", TokenText(encoder, token.token_id)},
          {"logprob", Finite(token.logprob)},
          {"bytes", std::move(bytes)}};
}

}  // namespace

std::string ChatLogprobsJson(std::span<const PositionLogprobs> positions,
                             const PromptEncoder& encoder) {
  Json content = Json::array();
  for (const PositionLogprobs& position : positions) {
    Json entry = ChatEntry(position.chosen, encoder);
    Json top = Json::array();
    for (const TokenLogprob& token : position.top) top.push_back(ChatEntry(token, encoder));
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  return Json{{"content", std::move(content)}}.dump();
}

std::string TokenIdLogprobsJson(std::span<const PositionLogprobs> positions) {
  const auto entry = [](const TokenLogprob& token) {
    return Json{{"token_id", token.token_id}, {"logprob", Finite(token.logprob)}};
  };
  Json content = Json::array();
  for (const PositionLogprobs& position : positions) {
    Json top = Json::array();
    for (const TokenLogprob& token : position.top) top.push_back(entry(token));
    content.push_back(entry(position.chosen));
    content.back()["top_logprobs"] = std::move(top);
  }
  return Json{{"content", std::move(content)}}.dump();
}

std::string PromptLogprobsJson(std::span<const PositionLogprobs> positions,
                               const PromptEncoder& encoder) {
  Json result = Json::array({nullptr});
  for (const PositionLogprobs& position : positions) {
    Json entry = Json::object();
    const auto add = [&](const TokenLogprob& token, int32_t rank) {
      entry.emplace(std::to_string(token.token_id),
                    Json{{"logprob", Finite(token.logprob)},
                         {"rank", rank},
                         {"decoded_token", TokenText(encoder, token.token_id)}});
    };
    add(position.chosen, position.rank);
    int32_t rank = 0;
    for (const TokenLogprob& token : position.top) add(token, ++rank);
    result.push_back(std::move(entry));
  }
  return result.dump();
}

int32_t TokenCharacters(int32_t token_id, const PromptEncoder& encoder, bool skip_special) {
  if (skip_special && encoder.IsSpecial(token_id)) return 0;
  const std::string bytes = encoder.TokenBytes(token_id);
  return static_cast<int32_t>(std::count_if(bytes.begin(), bytes.end(), [](char c) {
    return (static_cast<uint8_t>(c) & 0xC0) != 0x80;  // no continuation byte of UTF-8
  }));
}

std::string CompletionLogprobsJson(std::optional<int32_t> first_token,
                                   std::span<const PositionLogprobs> positions,
                                   std::span<const int32_t> characters,
                                   const PromptEncoder& encoder, int64_t* text_offset) {
  Json tokens = Json::array();
  Json token_logprobs = Json::array();
  Json top_logprobs = Json::array();
  Json text_offsets = Json::array();
  for (const int32_t count : characters) {
    text_offsets.push_back(*text_offset);
    *text_offset += count;
  }
  if (first_token) {
    tokens.push_back(TokenText(encoder, *first_token));
    token_logprobs.push_back(nullptr);
    top_logprobs.push_back(nullptr);
  }
  for (const PositionLogprobs& position : positions) {
    const std::string text = TokenText(encoder, position.chosen.token_id);
    Json top = Json::object();
    const auto add = [&](const std::string& key, float logprob) {
      const auto [entry, inserted] = top.emplace(key, Finite(logprob));
      if (!inserted && entry->get<double>() < Finite(logprob)) *entry = Finite(logprob);
    };
    for (const TokenLogprob& token : position.top) {
      add(TokenText(encoder, token.token_id), token.logprob);
    }
    add(text, position.chosen.logprob);
    tokens.push_back(text);
    token_logprobs.push_back(Finite(position.chosen.logprob));
    top_logprobs.push_back(std::move(top));
  }
  return Json{{"tokens", std::move(tokens)},
              {"token_logprobs", std::move(token_logprobs)},
              {"top_logprobs", std::move(top_logprobs)},
              {"text_offset", std::move(text_offsets)}}
      .dump();
}

}  // namespace outrider::openai
