#include "outrider/execute/queued_executor.h"

#include <utility>

#include "outrider/base/error.h"

namespace outrider {

QueuedExecutor::QueuedExecutor(std::unique_ptr<Executor> inner) : inner_(std::move(inner)) {
  inner_->WhileLaunching([this] {
    if (last_finished_ < last_run_ && inner_->Ready(last_run_)) Finish(last_run_);
  });
  thread_ = std::thread([this] { Run(); });
}

QueuedExecutor::~QueuedExecutor() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  queued_.notify_one();
  thread_.join();
  inner_->WhileLaunching({});
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
  Push([this, ticket] { Finish(ticket); });
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

void QueuedExecutor::Run() {
  try {
    while (const std::function<void()> call = NextCall()) call();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
    ran_.notify_all();
  }
}

std::function<void()> QueuedExecutor::NextCall() {
  std::unique_lock lock(mutex_);
  queued_.wait(lock, [this] { return stopping_ || !calls_.empty(); });
  if (stopping_) return nullptr;
  std::function<void()> call = std::move(calls_.front());
  calls_.pop_front();
  return call;
}

void QueuedExecutor::RunLaunch(Ticket ticket, int32_t num_drafts) {
  // Who waits for results that are there gets them first.
  if (!inner_->CanLaunchAhead()) Finish(ticket - 1);
  const Ticket inner = inner_->Launch(StepOf(ticket).plan, num_drafts);
  OUTRIDER_CHECK(inner == ticket);
  last_run_ = ticket;
  Finish(ticket - 1);
  if (!inner_->CanLaunchAhead()) Finish(ticket);
}

void QueuedExecutor::Finish(Ticket ticket) {
  while (last_finished_ < ticket) {
    Step& step = StepOf(++last_finished_);
    step.results = inner_->Wait(last_finished_);
    CountTo(last_sampled_, last_finished_);
    step.num_drafts = inner_->WaitDrafts(last_finished_);
    step.seconds = inner_->seconds();
    step.passes = inner_->passes();
    CountTo(last_ended_, last_finished_);
  }
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
