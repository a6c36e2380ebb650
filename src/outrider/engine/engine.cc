#include "outrider/engine/engine.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <utility>
#include <variant>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/engine/engine_core.h"
#include "outrider/engine/request_check.h"

namespace outrider {

/// What other threads leave for the stepping thread, and what it leaves for them.
struct Engine::Mailbox {
  struct Submission {
    RequestId id;
    GenerationRequest request;
    OutputSink sink;
  };

  std::mutex mutex;
  std::condition_variable changed;
  /// A RequestId asks to abort; a function, for what it does.
  using Message = std::variant<Submission, RequestId, std::function<void(EngineCore&)>>;
  std::vector<Message> messages;
  int64_t num_queued = 0;    // submissions among the messages
  int64_t num_arriving = 0;  // submissions that the step that runs took; not in `counters` yet
  RequestId next_id = 1;
  bool woken = false;
  std::string failure;  // why no request is taken any more
  EngineCounters counters;

  /// As Engine::CheckRoom. With `mutex`.
  void CheckRoom(int64_t count, const EngineParts& parts) const {
    if (!failure.empty()) {
      throw Error(ErrorCode::kUnavailable, fmt::format("the engine has stopped: {}", failure));
    }
    if (!parts.max_num_queued_reqs) return;
    const int64_t limit = *parts.max_num_queued_reqs;
    const int64_t slots = parts.scheduler.max_num_seqs;
    if (count > slots + limit) {
      throw InvalidArgument(
          "{} choices or prompts cannot be taken at a time: at most {} run and {} wait "
          "(--max-num-seqs, --max-num-queued-reqs); ask for fewer in one request",
          count, slots, limit);
    }
    // What is new takes free slots, unless some wait in spite of them, for room in the cache.
    const int64_t waiting = counters.num_requests_waiting;
    const int64_t free = waiting > 0 ? 0 : slots - counters.num_requests_running;
    const int64_t unplaced = num_queued + num_arriving - free;  // negative: slots that are left
    if (waiting + std::max<int64_t>(unplaced + count, 0) <= limit) return;
    throw Error(ErrorCode::kOverloaded,
                fmt::format("{} requests are waiting (--max-num-queued-reqs {}): try again later",
                            waiting + std::max<int64_t>(unplaced, 0), limit));
  }
};

Engine::Engine(std::unique_ptr<EngineCore> core)
    : core_(std::move(core)), mailbox_(std::make_unique<Mailbox>()) {}

Engine::~Engine() = default;

RequestId Engine::Submit(GenerationRequest request, OutputSink sink) {
  CheckRequest(request, *core_);
  const std::lock_guard lock(mailbox_->mutex);
  mailbox_->CheckRoom(1, core_->parts());
  const RequestId id = mailbox_->next_id++;
  mailbox_->messages.emplace_back(Mailbox::Submission{id, std::move(request), std::move(sink)});
  ++mailbox_->num_queued;
  mailbox_->changed.notify_one();
  return id;
}

void Engine::CheckRoom(int64_t count) const {
  const std::lock_guard lock(mailbox_->mutex);
  mailbox_->CheckRoom(count, core_->parts());
}

void Engine::Abort(RequestId id) {
  const std::lock_guard lock(mailbox_->mutex);
  mailbox_->messages.emplace_back(id);
  mailbox_->changed.notify_one();
}

EngineCounters Engine::Counters() const {
  const std::lock_guard lock(mailbox_->mutex);
  EngineCounters counters = mailbox_->counters;
  counters.num_requests_waiting += mailbox_->num_queued + mailbox_->num_arriving;
  counters.failed = !mailbox_->failure.empty();
  return counters;
}

EngineCounters Engine::CountersAfterStep() {
  auto ended = std::make_shared<std::promise<void>>();
  const std::future<void> end = ended->get_future();
  {
    const std::lock_guard lock(mailbox_->mutex);
    if (mailbox_->failure.empty()) {
      mailbox_->messages.emplace_back([ended](EngineCore&) { ended->set_value(); });
      mailbox_->changed.notify_one();
    }
  }
  // A promise that nobody can keep ends the wait, too: an engine that fails drops its messages.
  ended.reset();
  end.wait();
  return Counters();
}

void Engine::Command(std::function<void(EngineCore&)> command) {
  const std::lock_guard lock(mailbox_->mutex);
  mailbox_->messages.emplace_back(std::move(command));
  mailbox_->changed.notify_one();
}

std::function<void()> Engine::AfterStep(std::function<void()> done) {
  return [this, done = std::move(done)] { done_.push_back(done); };
}

ControlDone Engine::AfterStep(ControlDone done) {
  return [this, done = std::move(done)](const Error* error) {
    done_.emplace_back([done, error = error == nullptr ? std::optional<Error>() : *error] {
      done(error ? &*error : nullptr);
    });
  };
}

void Engine::TellWhatIsDone() {
  for (const auto& done : std::exchange(done_, {})) done();
}

void Engine::Pause(PauseMode mode, bool forget_prefixes, std::function<void()> done) {
  Command([mode, forget_prefixes, done = AfterStep(std::move(done))](EngineCore& core) {
    core.Pause(mode, forget_prefixes, done);
  });
}

void Engine::Resume(std::function<void()> done) {
  Command([done = AfterStep(std::move(done))](EngineCore& core) { core.Resume(done); });
}

void Engine::ForgetPrefixes(std::function<void()> done) {
  Command([done = AfterStep(std::move(done))](EngineCore& core) {
    core.ForgetPrefixes();
    done();
  });
}

void Engine::Control(std::function<void(EngineCore&)> change, ControlDone done) {
  Command([change = std::move(change), done = AfterStep(std::move(done))](EngineCore& core) {
    try {
      change(core);
    } catch (const Error& error) {
      return done(&error);
    }
    done(nullptr);
  });
}

void Engine::UpdateWeights(WeightUpdate update, ControlDone done) {
  Control([update = std::move(update)](EngineCore& core) { core.UpdateWeights(update); },
          std::move(done));
}

void Engine::Sleep(EngineMemory memory, PauseMode mode, ControlDone done) {
  Command([memory, mode, done = AfterStep(std::move(done))](EngineCore& core) {
    try {
      core.Sleep(memory, mode, done);
    } catch (const Error& error) {
      done(&error);
    }
  });
}

void Engine::WakeUp(EngineMemory memory, ControlDone done) {
  Control([memory](EngineCore& core) { core.WakeUp(memory); }, std::move(done));
}

void Engine::SetKvEventSink(KvEventSink sink) { core_->SetKvEventSink(std::move(sink)); }

bool Engine::Step() {
  std::vector<Mailbox::Message> messages;
  {
    const std::lock_guard lock(mailbox_->mutex);
    messages.swap(mailbox_->messages);
    mailbox_->num_arriving = std::exchange(mailbox_->num_queued, 0);
  }
  for (auto& message : messages) {
    if (auto* submission = std::get_if<Mailbox::Submission>(&message)) {
      core_->Add(submission->id, std::move(submission->request), std::move(submission->sink));
    } else if (const auto* id = std::get_if<RequestId>(&message)) {
      core_->Abort(*id);
    } else {
      std::get<std::function<void(EngineCore&)>>(message)(*core_);
    }
  }
  bool ran = false;
  try {
    ran = core_->Step();
  } catch (const Error& error) {
    Fail(error.what());
    throw;
  }
  {
    const std::lock_guard lock(mailbox_->mutex);
    core_->ReadCounters(mailbox_->counters);
    mailbox_->num_arriving = 0;
  }
  TellWhatIsDone();
  return ran || !messages.empty();
}

// Requests that came meanwhile are told, too.
void Engine::Fail(const std::string& reason) {
  std::vector<Mailbox::Message> messages;
  {
    const std::lock_guard lock(mailbox_->mutex);
    mailbox_->failure = reason;
    messages.swap(mailbox_->messages);
    mailbox_->num_queued = 0;
  }
  for (auto& message : messages) {
    if (auto* submission = std::get_if<Mailbox::Submission>(&message)) {
      core_->Add(submission->id, std::move(submission->request), std::move(submission->sink));
    }
  }
  core_->Fail(reason);
  {
    const std::lock_guard lock(mailbox_->mutex);
    core_->ReadCounters(mailbox_->counters);
    mailbox_->num_arriving = 0;
  }
  TellWhatIsDone();
}

void Engine::WaitForWork(double seconds) {
  std::unique_lock lock(mailbox_->mutex);
  mailbox_->changed.wait_for(lock, std::chrono::duration<double>(seconds),
                             [&] { return mailbox_->woken || !mailbox_->messages.empty(); });
  mailbox_->woken = false;
}

void Engine::Wake() {
  const std::lock_guard lock(mailbox_->mutex);
  mailbox_->woken = true;
  mailbox_->changed.notify_all();
}

bool Engine::Idle() const {
  const std::lock_guard lock(mailbox_->mutex);
  return mailbox_->messages.empty() && mailbox_->num_arriving == 0 &&
         mailbox_->counters.num_requests_running == 0 &&
         mailbox_->counters.num_requests_waiting == 0;
}

StepLog& Engine::step_log() { return core_->step_log(); }

int32_t Engine::max_model_len() const { return core_->parts().scheduler.max_model_len; }

int32_t Engine::vocab_size() const { return core_->vocab_size(); }

int32_t Engine::num_speculative_tokens() const { return core_->parts().scheduler.max_drafts; }

}  // namespace outrider
