#include "outrider/openai/logprobs_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "outrider/base/json_text.h"
#include "outrider/text/utf8.h"

// There can be millions of entries: they are spelled straight into the answer's text.
namespace outrider::openai {
namespace {

// JSON has no infinity; vLLM writes this for tokens that cannot come.
double Finite(float logprob) { return std::max(static_cast<double>(logprob), -9999.0); }

// The shortest spelling that gives the number back, and never that of an integer: clients with
// types take it for one.
void AppendNumber(double value, std::string* out) {
  if (!std::isfinite(value)) {
    *out += "null";
    return;
  }
  const size_t begin = out->size();
  fmt::format_to(std::back_inserter(*out), "{}", value);
  if (out->find_first_of(".e", begin) == std::string::npos) *out += ".0";
}

std::string TokenText(const PromptEncoder& encoder, int32_t token_id) {
  return ReplaceInvalidUtf8(encoder.TokenBytes(token_id));
}

// What an entry of a chat begins with; an open object.
void AppendChatEntry(const TokenLogprob& token, const PromptEncoder& encoder, std::string* out) {
  const std::string bytes = encoder.TokenBytes(token.token_id);
  *out += R"({"token":)" + JsonString(bytes) + R"(,"logprob":)";
  AppendNumber(Finite(token.logprob), out);
  *out += R"(,"bytes":[)";
  for (size_t i = 0; i < bytes.size(); ++i) {
    fmt::format_to(std::back_inserter(*out), "{}{}", i > 0 ? "," : "",
                   static_cast<uint8_t>(bytes[i]));
  }
  *out += ']';
}

// An entry of /generate.
void AppendTokenIdEntry(const TokenLogprob& token, std::string* out) {
  fmt::format_to(std::back_inserter(*out), R"({{"token_id":{},"logprob":)", token.token_id);
  AppendNumber(Finite(token.logprob), out);
}

// {"content":[{...,"top_logprobs":[{...}]}]}: `append` writes what an entry begins with.
template <typename Append>
std::string ContentJson(std::span<const PositionLogprobs> positions, const Append& append) {
  std::string out = R"({"content":[)";
  for (size_t i = 0; i < positions.size(); ++i) {
    if (i > 0) out += ',';
    append(positions[i].chosen, &out);
    out += R"(,"top_logprobs":[)";
    for (size_t j = 0; j < positions[i].top.size(); ++j) {
      if (j > 0) out += ',';
      append(positions[i].top[j], &out);
      out += '}';
    }
    out += "]}";
  }
  out += "]}";
  return out;
}

// A position's tokens and their likelihoods; of tokens of the same spelling the most likely.
std::string TopJson(const PositionLogprobs& position, const PromptEncoder& encoder) {
  std::vector<std::pair<std::string, float>> entries;
  const auto add = [&](const TokenLogprob& token) {
    std::string text = TokenText(encoder, token.token_id);
    const auto same = std::find_if(entries.begin(), entries.end(),
                                   [&](const auto& entry) { return entry.first == text; });
    if (same == entries.end()) {
      entries.emplace_back(std::move(text), token.logprob);
    } else {
      same->second = std::max(same->second, token.logprob);
    }
  };
  for (const TokenLogprob& token : position.top) add(token);
  add(position.chosen);
  std::string out;
  for (const auto& [text, logprob] : entries) {
    out += (out.empty() ? '{' : ',') + JsonString(text) + ':';
    AppendNumber(Finite(logprob), &out);
  }
  return out + '}';
}

}  // namespace

std::string ChatLogprobsJson(std::span<const PositionLogprobs> positions,
                             const PromptEncoder& encoder) {
  return ContentJson(positions, [&](const TokenLogprob& token, std::string* out) {
    AppendChatEntry(token, encoder, out);
  });
}

std::string TokenIdLogprobsJson(std::span<const PositionLogprobs> positions) {
  return ContentJson(positions, AppendTokenIdEntry);
}

std::string NumberedLogprobsJson(std::span<const PositionLogprobs> positions) {
  return ContentJson(positions, [](const TokenLogprob& token, std::string* out) {
    fmt::format_to(std::back_inserter(*out), R"({{"token":"token_id:{}","logprob":)",
                   token.token_id);
    AppendLogprob(token.logprob, out);
    *out += R"(,"bytes":null)";
  });
}

void AppendLogprob(float logprob, std::string* out) { AppendNumber(Finite(logprob), out); }

std::string PromptLogprobsJson(std::span<const PositionLogprobs> positions,
                               const PromptEncoder& encoder) {
  std::string out = "[null";
  const auto add = [&](const TokenLogprob& token, int32_t rank) {
    fmt::format_to(std::back_inserter(out), R"("{}":{{"logprob":)", token.token_id);
    AppendNumber(Finite(token.logprob), &out);
    fmt::format_to(std::back_inserter(out), R"(,"rank":{},"decoded_token":{}}})", rank,
                   JsonString(encoder.TokenBytes(token.token_id)));
  };
  for (const PositionLogprobs& position : positions) {
    out += ",{";
    add(position.chosen, position.rank);
    int32_t rank = 0;
    for (const TokenLogprob& token : position.top) {
      ++rank;
      if (token.token_id == position.chosen.token_id) continue;
      out += ',';
      add(token, rank);
    }
    out += '}';
  }
  out += ']';
  return out;
}

int32_t TokenCharacters(int32_t token_id, const PromptEncoder& encoder, bool skip_special) {
  if (skip_special && encoder.IsSpecial(token_id)) return 0;
  const std::string bytes = encoder.TokenBytes(token_id);
  return static_cast<int32_t>(std::count_if(bytes.begin(), bytes.end(), [](char c) {
    return (static_cast<uint8_t>(c) & 0xC0) != 0x80;  // no continuation byte of UTF-8
  }));
}

std::string CompletionLogprobsJson(std::optional<int32_t> first_token,
                                   std::span<const PositionLogprobs> prompt,
                                   std::span<const PositionLogprobs> answer,
                                   std::span<const int32_t> characters,
                                   const PromptEncoder& encoder, int64_t* text_offset) {
  std::string tokens;
  std::string token_logprobs;
  std::string top_logprobs;
  std::string text_offsets;
  const auto next = [](std::string* list) -> std::string& {
    if (!list->empty()) *list += ',';
    return *list;
  };
  for (const int32_t count : characters) {
    fmt::format_to(std::back_inserter(next(&text_offsets)), "{}", *text_offset);
    *text_offset += count;
  }
  if (first_token) {
    next(&tokens) += JsonString(encoder.TokenBytes(*first_token));
    next(&token_logprobs) += "null";
    next(&top_logprobs) += "null";
  }
  for (const std::span<const PositionLogprobs> positions : {prompt, answer}) {
    for (const PositionLogprobs& position : positions) {
      next(&tokens) += JsonString(encoder.TokenBytes(position.chosen.token_id));
      AppendNumber(Finite(position.chosen.logprob), &next(&token_logprobs));
      next(&top_logprobs) += TopJson(position, encoder);
    }
  }
  return fmt::format(
      R"({{"tokens":[{}],"token_logprobs":[{}],"top_logprobs":[{}],"text_offset":[{}]}})", tokens,
      token_logprobs, top_logprobs, text_offsets);
}

}  // namespace outrider::openai
