#include "outrider/server/step_feed.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace outrider {
namespace {

constexpr std::chrono::milliseconds kPeriod{200};
// Steps told one by one in an event; when more ran, the older ones are only counted.
constexpr size_t kMaxSteps = 64;

void AppendStep(const StepRecord& step, std::string* out) {
  fmt::format_to(
      std::back_inserter(*out),
      R"({{"step":{},"seconds":{:.6f},"decode_requests":{},"prompt_requests":{},"decode_rows":{},)"
      R"("draft_rows":{},"prompt_rows":{},"accepted_drafts":{},"emitted_tokens":{},)"
      R"("num_speculative_tokens":{},"running":{},"waiting":{},"kv_cache_usage":{:.4f}}})",
      step.step, step.seconds, step.decode_requests, step.prompt_requests, step.decode_rows,
      step.draft_rows, step.prompt_rows, step.accepted_drafts, step.emitted_tokens,
      step.num_speculative_tokens, step.running, step.waiting, step.kv_cache_usage);
}

}  // namespace

StepFeed::StepFeed(GenerationService& service, std::string first_event, const bool& stopping)
    : service_(service),
      first_event_(std::move(first_event)),
      stopping_(stopping),
      listener_(std::make_unique<StepLog::Listener>(service.step_log())) {}

void StepFeed::Produce(HttpOutput* output) {
  const bool first = !std::exchange(head_sent_, true);
  if (first) {
    HttpResponse head;
    head.content_type = "text/event-stream; charset=utf-8";
    head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
    output->head = std::move(head);
    output->heartbeat = ": ping\n\n";
    output->produce_every = std::chrono::duration<double>(kPeriod).count();
    output->body = "data: " + first_event_ + "\n\n";
    last_ = service_.Counters();
  }
  if (stopping_ || cancelled_) {
    output->end = true;
    listener_.reset();
    return;
  }
  const Clock::time_point now = Clock::now();
  if (!first && now - last_event_ < kPeriod) return;
  const size_t before = output->body.size();
  AppendEvent(&output->body);
  if (output->body.size() > before) last_event_ = now;
}

// Nothing while nothing changes.
void StepFeed::AppendEvent(std::string* out) {
  int64_t skipped = listener_->Read(&records_);
  EngineCounters now = service_.Counters();
  const bool same = records_.empty() && now.num_requests_running == last_.num_requests_running &&
                    now.num_requests_waiting == last_.num_requests_waiting &&
                    now.kv_cache_usage == last_.kv_cache_usage;
  if (same && last_event_ != Clock::time_point()) return;
  const size_t omitted = records_.size() - std::min(records_.size(), kMaxSteps);
  skipped += static_cast<int64_t>(omitted);
  *out += R"(data: {"steps":[)";
  for (size_t i = omitted; i < records_.size(); ++i) {
    if (i > omitted) *out += ',';
    AppendStep(records_[i], out);
  }
  fmt::format_to(
      std::back_inserter(*out),
      R"(],"skipped":{},"emitted_tokens":{},"running":{},"waiting":{},"kv_cache_usage":{:.4f}}})"
      "\n\n",
      skipped, now.generation_tokens - last_.generation_tokens, now.num_requests_running,
      now.num_requests_waiting, now.kv_cache_usage);
  last_ = std::move(now);
}

}  // namespace outrider
