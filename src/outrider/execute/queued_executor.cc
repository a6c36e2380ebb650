#include "outrider/execute/queued_executor.h"

#include <utility>

#include "outrider/base/error.h"

namespace outrider {

QueuedExecutor::QueuedExecutor(std::unique_ptr<Executor> inner) : inner_(std::move(inner)) {
  OUTRIDER_CHECK(inner_->max_in_flight() == 1);
  thread_ = std::thread([this] { Run(); });
}

QueuedExecutor::~QueuedExecutor() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  queued_.notify_one();
  thread_.join();
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

Ticket QueuedExecutor::Launch(const StepPlan& plan, int32_t num_drafts) {
  const Ticket ticket = ++last_launched_;
  Step& step = StepOf(ticket);
  step.plan.requests = plan.requests;
  step.tables.resize(plan.requests.size());
  for (size_t i = 0; i < plan.requests.size(); ++i) {
    step.tables[i] = *plan.requests[i].tables;
    step.plan.requests[i].tables = &step.tables[i];
  }
  Push([this, ticket, num_drafts] { RunStep(ticket, num_drafts); });
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

void QueuedExecutor::Run() {
  while (true) {
    std::function<void()> call;
    {
      std::unique_lock lock(mutex_);
      queued_.wait(lock, [this] { return stopping_ || !calls_.empty(); });
      if (stopping_) return;
      call = std::move(calls_.front());
      calls_.pop_front();
    }
    try {
      call();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      error_ = std::current_exception();
      ran_.notify_all();
      return;
    }
  }
}

void QueuedExecutor::RunStep(Ticket ticket, int32_t num_drafts) {
  Step& step = StepOf(ticket);
  const Ticket inner = inner_->Launch(step.plan, num_drafts);
  step.results = inner_->Wait(inner);
  CountTo(last_sampled_, ticket);
  step.num_drafts = inner_->WaitDrafts(inner);
  step.seconds = inner_->seconds();
  step.passes = inner_->passes();
  CountTo(last_ended_, ticket);
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
