#include "tests/server/stub_generation_service.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "outrider/base/error.h"

namespace outrider {
namespace {

constexpr int32_t kBos = 256;
constexpr int32_t kAssistant = 257;
constexpr int32_t kStop = '.';

double Seconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

/// Experts of token t in layer l: 10 t + l, and 300 more.
std::shared_ptr<const RoutedExperts> ExpertsOf(const GenerationRequest& request,
                                               const RequestStats& stats) {
  if (!request.experts_from) return nullptr;
  RoutedExperts experts = {.from = *request.experts_from, .shape = {.layers = 2, .top_k = 2}};
  const auto end = static_cast<int32_t>(request.prompt_token_ids.size()) +
                   static_cast<int32_t>(stats.completion_tokens) - 1;
  for (int32_t token = experts.from; token < end; ++token, ++experts.tokens) {
    for (int32_t layer = 0; layer < 2; ++layer) {
      experts.ids.push_back(static_cast<int16_t>(10 * token + layer));
      experts.ids.push_back(static_cast<int16_t>(10 * token + layer + 300));
    }
  }
  return std::make_shared<const RoutedExperts>(std::move(experts));
}

}  // namespace

std::vector<int32_t> BytePromptEncoder::EncodeText(std::string_view text,
                                                   bool add_special_tokens) const {
  std::vector<int32_t> ids;
  if (add_special_tokens) ids.push_back(kBos);
  for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  return ids;
}

EncodedChat BytePromptEncoder::EncodeChat(const ChatPrompt& chat) const {
  EncodedChat encoded;
  encoded.text = nlohmann::json::parse(chat.messages_json).back()["content"];
  if (encoded.text.size() > chat.max_bytes) throw PromptTooLong(encoded.text.size());
  encoded.token_ids = EncodeText(encoded.text, false);
  if (chat.add_generation_prompt) encoded.token_ids.push_back(kAssistant);
  return encoded;
}

std::string BytePromptEncoder::TokenBytes(int32_t token_id) const {
  if (token_id < 256) return std::string(1, static_cast<char>(token_id));
  return token_id == kBos ? "<bos>" : "<assistant>";
}

StubGenerationService::StubGenerationService(StubOptions options)
    : options_(options), held_(options.held), thread_([this] { Run(); }) {}

StubGenerationService::~StubGenerationService() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

RequestId StubGenerationService::Submit(GenerationRequest request, OutputSink sink) {
  RefuseTooMany(1);
  std::lock_guard<std::mutex> lock(mutex_);
  last_sampling_ = request.sampling;
  last_cache_salt_ = request.cache_salt;
  last_grammar_ = request.grammar;
  if (request.sampling.prompt_logprobs) ++num_scored_prompts_;
  const RequestId id = next_id_++;
  Request added;
  added.stats.prompt_tokens = static_cast<int64_t>(request.prompt_token_ids.size());
  added.stats.cached_tokens = 1;
  if (request.sampling.prompt_logprobs) added.wait_steps = options_.scored_wait_steps;
  added.request = std::move(request);
  added.sink = std::move(sink);
  added.submitted = std::chrono::steady_clock::now();
  added_.emplace_back(id, std::move(added));
  ++num_running_;
  changed_.notify_one();
  return id;
}

void StubGenerationService::CheckRoom(int64_t count) const {
  if (!options_.refuses_late) RefuseTooMany(count);
}

void StubGenerationService::RefuseTooMany(int64_t count) const {
  if (!options_.max_requests) return;
  const auto most = static_cast<int64_t>(*options_.max_requests);
  if (count > std::max<int64_t>(most, 1)) {
    throw InvalidArgument("{} at a time are more than the queue takes", count);
  }
  if (static_cast<int64_t>(num_running_) + count > most) {
    throw Error(ErrorCode::kOverloaded, "the queue is full");
  }
}

void StubGenerationService::Release() {
  std::lock_guard<std::mutex> lock(mutex_);
  held_ = false;
  changed_.notify_one();
}

void StubGenerationService::Abort(RequestId id) {
  std::lock_guard<std::mutex> lock(mutex_);
  to_abort_.push_back(id);
  changed_.notify_one();
}

EngineCounters StubGenerationService::Counters() const {
  std::lock_guard<std::mutex> lock(mutex_);
  EngineCounters counters = counters_;
  counters.num_requests_running = static_cast<int64_t>(num_running_);
  counters.kv_cache_usage = 0.25;
  counters.paused = paused_;
  counters.failed = failed_;
  counters.kv_block_size = 16;
  counters.num_kv_blocks = 100;
  counters.max_num_seqs = 8;
  counters.max_num_batched_tokens = 512;
  return counters;
}

void StubGenerationService::Fail() {
  const std::lock_guard lock(mutex_);
  failed_ = true;
}

void StubGenerationService::Pause(PauseMode mode, bool forget_prefixes,
                                  std::function<void()> done) {
  static constexpr std::array kNames = {"abort", "wait", "keep"};
  {
    const std::lock_guard lock(mutex_);
    controls_.push_back(kNames.at(static_cast<size_t>(mode)) +
                        std::string(forget_prefixes ? " prefixes" : ""));
    paused_ = true;
  }
  done();
}

void StubGenerationService::Resume(std::function<void()> done) {
  {
    const std::lock_guard lock(mutex_);
    paused_ = false;
    changed_.notify_one();
  }
  done();
}

void StubGenerationService::UpdateWeights(WeightUpdate update, ControlDone done) {
  const std::filesystem::path folder = update.folders.model;
  if (folder.filename() == "bad") {
    const Error error(ErrorCode::kInvalidArgument, "bad: holds no weights");
    return done(&error);
  }
  {
    const std::lock_guard lock(mutex_);
    const std::filesystem::path drafter = update.folders.drafter;
    controls_.push_back(fmt::format("weights {} {} {}{}", folder.filename().string(),
                                    drafter.filename().string(), update.version,
                                    update.aborts_requests ? " abort" : ""));
    counters_.weight_version = update.version;
  }
  done(nullptr);
}

void StubGenerationService::Sleep(EngineMemory memory, PauseMode mode, ControlDone done) {
  {
    const std::lock_guard lock(mutex_);
    counters_.weights_asleep |= memory.weights;
    counters_.cache_asleep |= memory.kv_cache;
    controls_.push_back(fmt::format("sleep{}{} {}", memory.weights ? " weights" : "",
                                    memory.kv_cache ? " kv_cache" : "", static_cast<int>(mode)));
  }
  done(nullptr);
}

void StubGenerationService::WakeUp(EngineMemory memory, ControlDone done) {
  {
    const std::lock_guard lock(mutex_);
    counters_.weights_asleep &= !memory.weights;
    counters_.cache_asleep &= !memory.kv_cache;
    controls_.push_back(fmt::format("wake{}{}", memory.weights ? " weights" : "",
                                    memory.kv_cache ? " kv_cache" : ""));
  }
  done(nullptr);
}

void StubGenerationService::ForgetPrefixes(std::function<void()> done) {
  {
    const std::lock_guard lock(mutex_);
    controls_.emplace_back("prefixes");
  }
  done();
}

std::vector<std::string> StubGenerationService::controls() const {
  const std::lock_guard lock(mutex_);
  return controls_;
}

size_t StubGenerationService::num_running() const { return num_running_; }

SamplingParams StubGenerationService::last_sampling() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return last_sampling_;
}

std::string StubGenerationService::last_cache_salt() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return last_cache_salt_;
}

GrammarConstraint StubGenerationService::last_grammar() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return last_grammar_;
}

OutputDelta StubGenerationService::Step(Request& request) const {
  RequestStats& stats = request.stats;
  const SamplingParams& sampling = request.request.sampling;
  const std::vector<int32_t>& prompt = request.request.prompt_token_ids;
  OutputDelta delta;
  if (request.aborted) {
    delta.finish_reason = FinishReason::kAbort;
  } else if (options_.fail_after && stats.completion_tokens >= *options_.fail_after) {
    delta.finish_reason = FinishReason::kError;
    delta.stop_reason = options_.failure;
  }
  for (int32_t i = 0; i < options_.tokens_per_step && !delta.finish_reason; ++i) {
    const int32_t id = prompt[static_cast<size_t>(stats.completion_tokens) % prompt.size()];
    if (sampling.prompt_logprobs && stats.completion_tokens == 0) {
      for (size_t p = 1; p < prompt.size(); ++p) {
        delta.prompt_logprobs.push_back({{prompt[p], -0.25F}, {{'x', -0.125F}}, 7});
      }
    }
    delta.token_ids.push_back(id);
    if (id < 256 || !sampling.skip_special_tokens) {
      request.text.Push(BytePromptEncoder().TokenBytes(id), &delta.text);
    }
    if (sampling.logprobs) {
      PositionLogprobs logprobs;
      logprobs.chosen = {id, -0.5F};
      for (int32_t k = 0; k < *sampling.logprobs; ++k) {
        logprobs.top.push_back({(id + k) % 256, -0.5F - static_cast<float>(k)});
      }
      delta.logprobs.push_back(std::move(logprobs));
    }
    ++stats.completion_tokens;
    if (id == kStop && !sampling.ignore_eos) {
      delta.finish_reason = FinishReason::kStop;
    } else if (stats.completion_tokens >= sampling.max_tokens) {
      delta.finish_reason = FinishReason::kLength;
    }
  }
  const auto now = Seconds(std::chrono::steady_clock::now() - request.submitted);
  if (stats.first_token_seconds == 0) stats.first_token_seconds = now;
  if (options_.tokens_per_step > 1 && !delta.token_ids.empty()) {
    const auto accepted = static_cast<int32_t>(delta.token_ids.size()) - 1;
    delta.num_draft_tokens = options_.tokens_per_step - 1;
    delta.num_accepted_tokens = accepted;
    stats.speculation.AddStep(delta.num_draft_tokens, accepted);
  }
  if (request.request.trace_steps) {
    StepTrace& step = delta.steps.emplace_back();
    step.num_accepted = delta.num_accepted_tokens;
    step.num_tokens = static_cast<int32_t>(delta.token_ids.size());
    step.drafts.assign(delta.token_ids.begin(), delta.token_ids.begin() + step.num_accepted);
    step.drafts.resize(static_cast<size_t>(delta.num_draft_tokens), 'w');
  }
  if (delta.finish_reason) {
    request.text.Flush(&delta.text);
    stats.total_seconds = now;
    delta.stats = stats;
    delta.experts = ExpertsOf(request.request, stats);
  }
  return delta;
}

void StubGenerationService::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] {
      if (held_ || paused_) return stopping_;
      return stopping_ || !added_.empty() || !to_abort_.empty() || !running_.empty();
    });
    if (stopping_) return;
    for (auto& [id, request] : added_) running_.emplace(id, std::move(request));
    added_.clear();
    for (const RequestId id : to_abort_) {
      const auto found = running_.find(id);
      if (found != running_.end()) found->second.aborted = true;
    }
    to_abort_.clear();
    lock.unlock();
    EngineCounters step;
    std::vector<std::pair<int32_t, int32_t>> drafts;
    for (auto it = running_.begin(); it != running_.end();) {
      if (it->second.wait_steps-- > 0) {
        ++it;
        continue;
      }
      OutputDelta delta = Step(it->second);
      if (delta.num_draft_tokens > 0) {
        drafts.emplace_back(delta.num_draft_tokens, delta.num_accepted_tokens);
      }
      step.generation_tokens += static_cast<int64_t>(delta.token_ids.size());
      const std::optional<FinishReason> reason = delta.finish_reason;
      if (reason) {
        step.prompt_tokens += delta.stats.prompt_tokens;
        if (reason == FinishReason::kAbort) ++num_aborted_;
        --num_running_;  // who sees the end may ask again at once
      }
      step.finished_abort += reason == FinishReason::kAbort ? 1 : 0;
      step.finished_stop += reason == FinishReason::kStop ? 1 : 0;
      step.finished_length += reason == FinishReason::kLength ? 1 : 0;
      it->second.sink(it->first, std::move(delta));
      it = reason ? running_.erase(it) : std::next(it);
    }
    if (options_.step_time.count() > 0) std::this_thread::sleep_for(options_.step_time);
    lock.lock();
    ++counters_.num_steps;
    counters_.prompt_tokens += step.prompt_tokens;
    counters_.generation_tokens += step.generation_tokens;
    counters_.finished_abort += step.finished_abort;
    counters_.finished_stop += step.finished_stop;
    counters_.finished_length += step.finished_length;
    StepRecord record = {.step = counters_.num_steps, .seconds = 0.25};
    record.emitted_tokens = static_cast<int32_t>(step.generation_tokens);
    for (const auto& [drafted, accepted] : drafts) {
      counters_.speculation.AddStep(drafted, accepted);
      ++record.decode_rows;
      record.draft_rows += drafted;
      record.accepted_drafts += accepted;
    }
    if (step_log_.has_listeners()) step_log_.Add(record);
  }
}

}  // namespace outrider
