#include "outrider/measure/serve_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/http/http_post_client.h"

namespace outrider {

namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string CompletionBody(const GenerationRequest& request, const std::string& model) {
  json body = {{"model", model},
               {"prompt", request.prompt_token_ids},
               {"max_tokens", request.sampling.max_tokens},
               {"temperature", request.sampling.temperature},
               {"ignore_eos", request.sampling.ignore_eos},
               {"stream", true},
               {"return_token_ids", true}};
  if (request.sampling.seed) body["seed"] = *request.sampling.seed;
  return body.dump();
}

/// One load: what its connections share. All run on one thread.
class ServeLoad {
 public:
  ServeLoad(const std::string& model, std::span<const GenerationRequest> requests)
      : model_(model), requests_(requests) {
    row_.requests.resize(requests.size());
    row_.token_ids.resize(requests.size());
  }

  /// The next request, whose time begins now; nothing when none is left.
  std::optional<HttpPost> Next() {
    if (next_ == requests_.size()) return std::nullopt;
    const size_t index = next_++;
    HttpPost post;
    post.target = "/v1/completions";
    post.body = CompletionBody(requests_[index], model_);
    auto answer = std::make_shared<Answer>(Answer{.index = index, .start = Clock::now()});
    post.on_answer = [this, answer](int status, std::string_view piece, bool end) {
      Take(*answer, status, piece, end);
    };
    return post;
  }

  BenchRow& row() { return row_; }

 private:
  struct Answer {
    size_t index = 0;  // of its request
    Clock::time_point start;
    std::string body = {};
    size_t taken = 0;  // bytes of the body
  };

  void Take(Answer& answer, int status, std::string_view piece, bool end) {
    answer.body += piece;
    if (status != 200) {
      if (!end) return;
      throw Error(ErrorCode::kUnavailable,
                  fmt::format("the server answered {}: {}", status, answer.body));
    }
    answer.taken +=
        TakeEvents(answer.index, std::string_view(answer.body).substr(answer.taken), answer.start);
    if (!end) return;
    RequestStats& stats = row_.requests[answer.index];
    stats.total_seconds = SecondsSince(answer.start);
    stats.prompt_tokens = std::ssize(requests_[answer.index].prompt_token_ids);
    stats.completion_tokens = std::ssize(row_.token_ids[answer.index]);
    if (stats.completion_tokens == 0) {
      throw Error(ErrorCode::kUnavailable,
                  "the server ended an answer without a token: " + answer.body);
    }
  }

  /// Takes whole server-sent events from the front of `text`; returns how many bytes they are.
  size_t TakeEvents(size_t index, std::string_view text, Clock::time_point start) {
    constexpr std::string_view kData = "data: ";
    constexpr std::string_view kEnd = "\n\n";
    size_t taken = 0;
    for (size_t end; (end = text.find(kEnd, taken)) != std::string_view::npos;
         taken = end + kEnd.size()) {
      const std::string_view event = text.substr(taken, end - taken);
      if (!event.starts_with(kData) || event == "data: [DONE]") continue;
      const json chunk = json::parse(event.substr(kData.size()));
      if (chunk.contains("error")) {
        throw Error(ErrorCode::kUnavailable, "the server ended an answer: " + chunk.dump());
      }
      for (const json& choice : chunk.at("choices")) TakeTokens(index, choice, start);
    }
    return taken;
  }

  void TakeTokens(size_t index, const json& choice, Clock::time_point start) {
    std::vector<int32_t>& ids = row_.token_ids[index];
    const auto delta = choice.at("token_ids").get<std::vector<int32_t>>();
    if (ids.empty() && !delta.empty()) {
      row_.requests[index].first_token_seconds = SecondsSince(start);
    }
    ids.insert(ids.end(), delta.begin(), delta.end());
  }

  const std::string& model_;
  std::span<const GenerationRequest> requests_;
  size_t next_ = 0;
  BenchRow row_;
};

int64_t NumFinished(const EngineCounters& counters) {
  return counters.finished_stop + counters.finished_length + counters.finished_abort +
         counters.finished_error;
}

/// The counters with all `count` requests in them: a step's answers go out before it is counted.
EngineCounters CountersAfter(const GenerationService& service, const EngineCounters& before,
                             size_t count) {
  constexpr std::chrono::seconds kLongestStep{10};
  const Clock::time_point end = Clock::now() + kLongestStep;
  for (;;) {
    EngineCounters counters = service.Counters();
    const auto finished = static_cast<size_t>(NumFinished(counters) - NumFinished(before));
    if (finished >= count || Clock::now() > end) return counters;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

BenchRow RunServeLoad(uint16_t port, const std::string& model, const GenerationService& service,
                      std::span<const GenerationRequest> requests, int32_t batch_size,
                      const std::atomic<bool>& interrupted) {
  ServeLoad load(model, requests);
  HttpPostClient client({.host = "127.0.0.1", .port = std::to_string(port)});
  const EngineCounters before = service.Counters();
  const Clock::time_point start = Clock::now();
  const auto connections = std::min(static_cast<size_t>(batch_size), requests.size());
  const bool ended = client.Run(
      connections, [&] { return load.Next(); },
      [&] { return interrupted.load(std::memory_order_relaxed); });
  if (!ended) throw Interrupted();
  BenchRow row = std::move(load.row());
  row.seconds = SecondsSince(start);
  row.counters = Growth(before, CountersAfter(service, before, requests.size()));
  row.resident_bytes = ResidentBytes();
  return row;
}

}  // namespace outrider
