#include "outrider/cli/remote_chat.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <utility>

#include "outrider/base/error.h"

namespace outrider::cli {

namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::string_view kDefaultPort = "80";
constexpr std::string_view kRoute = "/v1/chat/completions";

HttpAddress AddressOf(const std::string& url) {
  std::optional<HttpAddress> address = ParseHttpAddress(url, kDefaultPort);
  if (!address) {
    throw InvalidArgument(
        "--url: '{}' is no address of a server: give it as http://HOST:PORT or https://HOST:PORT, "
        "perhaps with a path",
        url);
  }
  // "/v1", as OpenAI's clients have their base URL, means the same as none.
  while (address->path.ends_with('/')) address->path.pop_back();
  if (address->path.ends_with("/v1")) address->path.resize(address->path.size() - 3);
  return *std::move(address);
}

/// A JSON text of the server. Throws Error when it is none.
Json ParseAnswer(std::string_view text) {
  Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_object()) return value;
  throw Error(ErrorCode::kUnavailable,
              fmt::format("the server's answer is no JSON: {}", text.substr(0, 200)));
}

int64_t Count(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

std::string Text(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

/// {"error": {"message"}} as this server and OpenAI's say it.
std::string MessageOf(std::string_view body) {
  const Json value = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  const bool known = value.is_object() && value.contains("error") && value["error"].is_object();
  const std::string message = known ? Text(value["error"], "message") : "";
  return message.empty() ? std::string(body.substr(0, 300)) : message;
}

}  // namespace

std::string ChatBody(const GenerateSettings& settings, const std::string& messages_json,
                     const std::string& model) {
  Json body = {{"messages", Json::parse(messages_json)},
               {"stream", true},
               {"stream_options", {{"include_usage", true}, {"continuous_usage_stats", true}}},
               {"per_request_spec_decode_metrics", "summary"},
               {"seed", settings.seed}};
  const auto set = [&](const char* name, const auto& value) {
    if (value) body[name] = *value;
  };
  if (!model.empty()) body["model"] = model;
  set("temperature", settings.temperature);
  set("top_k", settings.top_k);
  set("top_p", settings.top_p);
  set("min_p", settings.min_p);
  set("repetition_penalty", settings.repetition_penalty);
  set("max_tokens", settings.max_tokens);
  if (!settings.stop.empty()) body["stop"] = settings.stop;
  if (!settings.bad_words.empty()) body["bad_words"] = settings.bad_words;
  const SamplingParams& sampling = settings.sampling;
  if (sampling.min_tokens > 0) body["min_tokens"] = sampling.min_tokens;
  if (sampling.presence_penalty != 0) body["presence_penalty"] = sampling.presence_penalty;
  if (sampling.frequency_penalty != 0) body["frequency_penalty"] = sampling.frequency_penalty;
  for (const auto& [token, value] : sampling.logit_bias) {
    body["logit_bias"][std::to_string(token)] = value;
  }
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void ChatStream::Take(int status, std::string_view piece, bool end) {
  rest_ += piece;
  if (status != 200) {
    if (!end) return;
    const ErrorCode code = status >= 500 ? ErrorCode::kUnavailable : ErrorCode::kInvalidArgument;
    throw Error(code, fmt::format("the server answered {}: {}", status, MessageOf(rest_)));
  }
  constexpr std::string_view kEnd = "\n\n";
  constexpr std::string_view kData = "data: ";
  size_t begin = 0;
  for (size_t found; (found = rest_.find(kEnd, begin)) != std::string::npos;) {
    const std::string_view event = std::string_view(rest_).substr(begin, found - begin);
    begin = found + kEnd.size();
    if (event.starts_with(kData)) TakeEvent(event.substr(kData.size()));
  }
  rest_.erase(0, begin);
  if (end && !complete_) {
    throw Error(ErrorCode::kUnavailable, "the server broke its answer off");
  }
}

void ChatStream::TakeEvent(std::string_view data) {
  if (data == "[DONE]") {
    complete_ = true;
    return;
  }
  const Json event = ParseAnswer(data);
  if (event.contains("error")) throw Error(ErrorCode::kInvalidArgument, MessageOf(data));
  RequestStats& stats = answer_.stats;
  if (const auto usage = event.find("usage"); usage != event.end() && usage->is_object()) {
    stats.prompt_tokens = Count(*usage, "prompt_tokens");
    stats.completion_tokens = Count(*usage, "completion_tokens");
  }
  const auto metrics = event.find("metrics");
  if (metrics != event.end() && metrics->contains("speculative_decoding")) {
    const Json& figures = (*metrics)["speculative_decoding"];
    stats.speculation.num_drafts = Count(figures, "num_spec_steps");
    stats.speculation.num_draft_tokens = Count(figures, "num_draft_tokens");
    stats.speculation.num_accepted_tokens = Count(figures, "num_accepted_draft_tokens");
  }
  const auto choices = event.find("choices");
  if (choices == event.end() || !choices->is_array() || choices->empty()) return;
  const Json& choice = choices->front();
  if (Text(choice, "finish_reason") == "length") answer_.finish_reason = FinishReason::kLength;
  if (Text(choice, "finish_reason") == "stop") answer_.finish_reason = FinishReason::kStop;
  const auto delta = choice.find("delta");
  if (delta == choice.end() || !delta->is_object()) return;
  Show(/*reasoning=*/true, Text(*delta, "reasoning"));
  Show(/*reasoning=*/false, Text(*delta, "content"));
}

void ChatStream::Show(bool reasoning, const std::string& text) {
  if (text.empty()) return;
  if (reasoning != std::exchange(in_reasoning_, reasoning)) {
    on_text_(reasoning ? "<think>" : "</think>\n");
  }
  on_text_(text);
  if (!reasoning) answer_.text += text;
}

RemoteChat::RemoteChat(const ChatSettings& settings)
    : url_(settings.url),
      api_key_(settings.api_key),
      address_(AddressOf(url_)),
      client_({address_.host, address_.port, address_.tls}) {
  if (api_key_.find_first_of("\r\n") != std::string::npos) {
    throw InvalidArgument("--api-key: a key is one line");
  }
}

OutputDelta RemoteChat::Answer(const std::string& body,
                               const std::function<void(std::string_view)>& on_text,
                               const std::atomic<bool>& interrupted) {
  const Clock::time_point start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  double first_token_seconds = 0;
  ChatStream stream([&](std::string_view text) {
    if (first_token_seconds == 0) first_token_seconds = elapsed();
    on_text(text);
  });
  std::optional<HttpPost> post =
      HttpPost{.target = address_.path + std::string(kRoute),
               .body = body,
               .bearer = api_key_,
               .last = true,
               .on_answer = [&](int status, std::string_view piece, bool end) {
                 stream.Take(status, piece, end);
               }};
  bool whole = false;
  try {
    whole = client_.Run(
        1, [&] { return std::exchange(post, std::nullopt); }, [&] { return interrupted.load(); });
  } catch (const Error&) {
    throw;
  } catch (const std::runtime_error& error) {
    throw Error(ErrorCode::kUnavailable, fmt::format("{}: {}", url_, error.what()));
  }
  OutputDelta answer = stream.answer();
  if (!whole) answer.finish_reason = FinishReason::kAbort;
  if (!answer.finish_reason) answer.finish_reason = FinishReason::kStop;
  answer.stats.first_token_seconds = first_token_seconds;
  answer.stats.total_seconds = elapsed();
  return answer;
}

}  // namespace outrider::cli
