#include "outrider/engine/measure_step_times.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/base/random.h"

namespace outrider {

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kMostSeconds = 3;
constexpr int32_t kMostRequests = 64;
constexpr int32_t kGrowth = 4;  // from one number of requests to the next
constexpr int32_t kRounds = 3;  // over all numbers of drafts, for each batch size
// The prompts of this number of requests say what a row of a prompt takes.
constexpr int32_t kLeastPromptRequests = 4;
constexpr int32_t kMostPromptRequests = 16;
// Rows of each prompt. A model with slow steps has no time for long ones; a GPU takes as long for a
// few rows as for many.
constexpr int32_t kPromptRows = 8;
constexpr int32_t kOverlappedPromptRows = 128;
constexpr size_t kRunSteps = 16;        // of a run, at most
constexpr size_t kLeastRunSteps = 1;    // at least
constexpr size_t kLeastOverlapped = 5;  // at least, of steps that overlap
constexpr double kRunSeconds = 0.03;    // a run of slow steps ends then, if it has the least

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Takes over what is less, for each number of drafts: whatever disturbs a step makes it longer.
/// Zero is no measurement.
void KeepLeast(std::vector<double>& least, const std::vector<double>& measured) {
  if (measured.empty() || std::ranges::find(measured, 0) != measured.end()) return;
  if (least.empty()) least = measured;
  for (size_t i = 0; i < least.size(); ++i) least[i] = std::min(least[i], measured[i]);
}

class StepTimer {
 public:
  StepTimer(EngineParts parts, bool looks_up)
      : max_drafts_(parts.scheduler.max_drafts),
        looks_up_(looks_up),
        overlaps_(parts.executor->max_in_flight() > 1),
        core_(std::move(parts)),
        listener_(core_.step_log()) {}

  StepTimes Measure(const StepTimesProgress& progress) {
    StepTimes times;
    const int32_t most = std::min(core_.parts().scheduler.max_num_seqs, kMostRequests);
    double round_seconds = 0;  // of the last round
    for (int32_t n = 1; n <= most && HasRoom(n) && kGrowth * round_seconds < SecondsLeft();
         n *= kGrowth) {
      StepTimes::Batch batch{.num_requests = n, .seconds = {}};
      std::vector<double> prompt_row_seconds;
      for (int32_t round = 0; round < kRounds; ++round) {
        if (round > 0 && round_seconds > SecondsLeft()) break;
        const Clock::time_point start = Clock::now();
        if (!RunRound(batch, prompt_row_seconds)) break;
        round_seconds = SecondsSince(start);
      }
      if (batch.seconds.empty()) break;
      if (progress) progress(batch);
      times.batches.push_back(std::move(batch));
      const bool tells = !looks_up_ && n >= kLeastPromptRequests && n <= kMostPromptRequests;
      if (tells) KeepLeast(times.prompt_row_seconds, prompt_row_seconds);
    }
    return times;
  }

  EngineParts ReleaseParts() && { return std::move(core_).ReleaseParts(); }

 private:
  /// Seconds of one run's steps.
  struct RunTimes {
    /// Its fastest step: what disturbs a step makes it longer. Of steps that overlap, a long one
    /// makes the next one shorter: the median.
    double step_seconds = 0;
    double prompt_row_seconds = 0;  // 0: the prompts took several steps
  };

  int32_t PromptRows(int32_t num_requests) const {
    if (num_requests == 1) return 1;
    const int32_t most = core_.parts().scheduler.max_num_batched_tokens / num_requests;
    return overlaps_ ? std::clamp(most, 1, kOverlappedPromptRows) : kPromptRows;
  }

  double SecondsLeft() const { return kMostSeconds - SecondsSince(start_); }

  /// Most tokens of a request: steps while others compute their prompts count, too.
  int32_t MostTokens() const { return static_cast<int32_t>(kRunSteps + 2) * (1 + max_drafts_); }

  /// Whether `num_requests` requests fit.
  bool HasRoom(int32_t num_requests) const {
    const SchedulerConfig& config = core_.parts().scheduler;
    const int32_t tokens = PromptRows(num_requests) + MostTokens();
    const int64_t pages = config.cache.MostPages(tokens + config.lookahead_tokens, tokens);
    return tokens <= config.max_model_len && num_requests * pages <= config.cache.num_pages;
  }

  /// Every number of drafts once; false, and nothing is learned, when there is no time for all.
  bool RunRound(StepTimes::Batch& batch, std::vector<double>& prompt_row_seconds) {
    std::vector<double> seconds;
    std::vector<double> prompt;
    double run_seconds = 0;  // of the last run
    for (int32_t k = 0; k <= max_drafts_; ++k) {
      if (run_seconds > SecondsLeft()) return false;
      const Clock::time_point start = Clock::now();
      const std::optional<RunTimes> run = Run(batch.num_requests, k, k);
      if (!run) return false;
      run_seconds = SecondsSince(start);
      seconds.push_back(run->step_seconds);
      prompt.push_back(run->prompt_row_seconds);
    }
    if (looks_up_) {
      const std::optional<RunTimes> run = Run(batch.num_requests, 1, 0);
      if (!run) return false;
      const double known = batch.looking_seconds;
      batch.looking_seconds = known > 0 ? std::min(known, run->step_seconds) : run->step_seconds;
    }
    KeepLeast(batch.seconds, seconds);
    KeepLeast(prompt_row_seconds, prompt);
    return true;
  }

  /// Requests from their prompts on, with k drafts of those that the engine wants; nothing if they
  /// did not run as they should.
  std::optional<RunTimes> Run(int32_t num_requests, int32_t wanted, int32_t k) {
    core_.SetDraftSchedule(DraftSchedule(wanted, {}));
    const RequestId first = next_id_;
    for (int32_t i = 0; i < num_requests; ++i) Submit(num_requests, k);
    const size_t least = overlaps_ ? kLeastOverlapped : kLeastRunSteps;
    const int32_t prompt_rows = num_requests * PromptRows(num_requests);
    double prompt_seconds = 0;
    steps_.clear();
    const Clock::time_point start = Clock::now();
    while (steps_.size() < kRunSteps &&
           (steps_.size() < least || SecondsSince(start) < kRunSeconds)) {
      if (!core_.Step()) break;
      listener_.Read(&records_);
      const StepRecord& step = records_.back();
      if (step.prompt_rows == prompt_rows) prompt_seconds = step.seconds;
      if (step.decode_requests == num_requests && step.prompt_rows == 0 &&
          step.draft_rows == num_requests * k) {
        steps_.push_back(step.seconds);
      }
    }
    for (RequestId id = first; id < next_id_; ++id) core_.Abort(id);
    if (steps_.size() < least) return {};
    RunTimes times;
    if (overlaps_) {
      // The device still drafts behind the prompts when the first of these begins.
      std::nth_element(steps_.begin() + 1, steps_.begin() + std::ssize(steps_) / 2, steps_.end());
      times.step_seconds = steps_[steps_.size() / 2];
      if (prompt_seconds > 0) prompt_seconds += std::max(steps_.front() - times.step_seconds, 0.0);
    } else {
      times.step_seconds = *std::ranges::min_element(steps_);
    }
    times.prompt_row_seconds = prompt_seconds / prompt_rows;
    return times;
  }

  void Submit(int32_t num_requests, int32_t k) {
    const RequestId id = next_id_++;
    const auto vocab = static_cast<uint32_t>(core_.parts().executor->vocab_size());
    GenerationRequest request;
    for (int32_t i = 0; i < PromptRows(num_requests); ++i) {
      const auto place = static_cast<uint32_t>(i);
      request.prompt_token_ids.push_back(
          static_cast<int32_t>(Philox4x32(id, {place, 0, 0, 0x74696d65})[0] % vocab));
    }
    request.sampling.temperature = 0;
    request.sampling.ignore_eos = true;
    request.sampling.max_tokens = MostTokens();
    request.num_speculative_tokens = k;
    request.always_drafts = true;
    core_.Add(id, std::move(request), [](RequestId, OutputDelta&&) {});
  }

  int32_t max_drafts_;
  bool looks_up_;
  bool overlaps_;  // a step begins before the one before has ended
  EngineCore core_;
  StepLog::Listener listener_;
  std::vector<StepRecord> records_;
  std::vector<double> steps_;  // seconds of a run's
  RequestId next_id_ = 1;
  Clock::time_point start_ = Clock::now();
};

}  // namespace

StepTimes MeasureStepTimes(EngineParts& parts, bool looks_up, const StepTimesProgress& progress) {
  OUTRIDER_CHECK(parts.scheduler.max_drafts > 0 && !parts.draft_length_policy);
  DraftSchedule schedule = parts.draft_schedule;
  StepTimer timer(std::move(parts), looks_up);
  StepTimes times = timer.Measure(progress);
  parts = std::move(timer).ReleaseParts();
  parts.draft_schedule = std::move(schedule);
  return times;
}

}  // namespace outrider
