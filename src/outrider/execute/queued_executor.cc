#include "outrider/execute/queued_executor.h"

#include <utility>

#include "outrider/base/error.h"

namespace outrider {

QueuedExecutor::QueuedExecutor(std::unique_ptr<Executor> inner)
    : inner_(std::move(inner)),
      thread_([this] { Run(); }),
      late_thread_([this] { Guard([this] { FinishLateSteps(); }); }) {}

QueuedExecutor::~QueuedExecutor() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  queued_.notify_one();
  thread_.join();
  late_thread_.join();
}

void QueuedExecutor::Admit(const SlotAdmission& admission) {
  Push([this, admission = SlotAdmission(admission),
        tokens = std::vector(admission.tokens.begin(), admission.tokens.end())]() mutable {
    admission.tokens = tokens;
    inner_->Admit(admission);
  });
}

void QueuedExecutor::Release(int32_t slot) {
  Push([this, slot] { inner_->Release(slot); });
}

void QueuedExecutor::CallAndWait(const std::function<void()>& call) {
  const Ticket ticket = ++last_called_;
  Push([this, &call, ticket] {
    call();
    CountTo(last_made_, ticket);
  });
  WaitFor(last_made_, ticket);
}

void QueuedExecutor::ReadPage(int32_t page, std::span<std::byte> to) {
  CallAndWait([&] { inner_->ReadPage(page, to); });
}

void QueuedExecutor::WritePage(int32_t page, std::span<const std::byte> from) {
  CallAndWait([&] { inner_->WritePage(page, from); });
}

Ticket QueuedExecutor::Launch(const StepPlan& plan, int32_t num_drafts) {
  const Ticket ticket = ++last_launched_;
  Step& step = StepOf(ticket);
  step.plan.requests = plan.requests;
  step.tables.resize(plan.requests.size());
  for (size_t i = 0; i < plan.requests.size(); ++i) {
    step.tables[i] = *plan.requests[i].tables;
    step.plan.requests[i].tables = &step.tables[i];
  }
  Push([this, ticket, num_drafts] { RunLaunch(ticket, num_drafts); });
  return ticket;
}

std::span<const RequestResult> QueuedExecutor::Wait(Ticket ticket) {
  WaitFor(last_sampled_, ticket);
  return StepOf(ticket).results;
}

std::span<const int32_t> QueuedExecutor::WaitDrafts(Ticket ticket) {
  WaitFor(last_ended_, ticket);
  const Step& step = StepOf(ticket);
  seconds_ = step.seconds;
  passes_ = step.passes;
  return step.num_drafts;
}

void QueuedExecutor::Push(std::function<void()> call) {
  {
    const std::lock_guard lock(mutex_);
    calls_.push_back(std::move(call));
  }
  queued_.notify_one();
}

void QueuedExecutor::Guard(const std::function<void()>& calls) {
  try {
    calls();
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
    queued_.notify_one();
    ran_.notify_all();
  }
}

void QueuedExecutor::Run() {
  Guard([this] {
    while (true) {
      std::unique_lock lock(mutex_);
      queued_.wait(lock, [this] { return stopping_ || error_ || !calls_.empty(); });
      if (stopping_ || error_) return;
      const std::function<void()> call = std::move(calls_.front());
      calls_.pop_front();
      lock.unlock();
      call();
    }
  });
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  ran_.notify_all();
}

void QueuedExecutor::RunLaunch(Ticket ticket, int32_t num_drafts) {
  // The step before it has ended, or is late.
  WaitFor(last_ended_, ticket - 2);
  const Ticket inner = inner_->Launch(StepOf(ticket).plan, num_drafts);
  OUTRIDER_CHECK(inner == ticket);
  if (inner_->IsLate(ticket)) {
    NoteSeconds(ticket);
    return CountTo(last_late_, ticket);
  }
  WaitFor(last_ended_, ticket - 1);
  TakeResults(ticket);
  NoteSeconds(ticket);
  CountTo(last_ended_, ticket);
}

void QueuedExecutor::FinishLateSteps() {
  while (true) {
    std::unique_lock lock(mutex_);
    ran_.wait(lock, [this] { return last_late_ > last_ended_ || stopped_; });
    if (last_late_ <= last_ended_) return;
    const Ticket ticket = last_ended_ + 1;
    lock.unlock();
    TakeResults(ticket);
    CountTo(last_ended_, ticket);
  }
}

void QueuedExecutor::TakeResults(Ticket ticket) {
  Step& step = StepOf(ticket);
  step.results = inner_->Wait(ticket);
  CountTo(last_sampled_, ticket);
  step.num_drafts = inner_->WaitDrafts(ticket);
}

void QueuedExecutor::NoteSeconds(Ticket ticket) {
  StepOf(ticket).seconds = inner_->seconds();
  StepOf(ticket).passes = inner_->passes();
}

void QueuedExecutor::CountTo(Ticket& count, Ticket ticket) {
  {
    const std::lock_guard lock(mutex_);
    count = ticket;
  }
  ran_.notify_all();
}

void QueuedExecutor::WaitFor(const Ticket& count, Ticket ticket) {
  std::unique_lock lock(mutex_);
  ran_.wait(lock, [&] { return count >= ticket || error_ != nullptr; });
  // A step that ended before the error counts.
  if (count < ticket) std::rethrow_exception(error_);
}

}  // namespace outrider
