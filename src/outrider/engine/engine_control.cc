// What trainers and operators ask of an engine: pauses, other weights, sleep.
#include <utility>

#include "outrider/base/error.h"
#include "outrider/engine/engine_core.h"

namespace outrider {

void EngineCore::Pause(PauseMode mode, bool forget_prefixes, std::function<void()> done) {
  if (!pause_) pause_.emplace(PauseState{.mode = mode, .forget_prefixes = false});
  pause_->mode = mode;
  pause_->at_rest = false;  // until what this one asks for is done
  pause_->forget_prefixes |= forget_prefixes && mode != PauseMode::kKeep;
  pause_->waiting.push_back(std::move(done));
  if (mode == PauseMode::kAbort) AbortAll();
}

bool EngineCore::ComeToRest() {
  if (!pause_ || pause_->at_rest) return false;
  if (pause_->mode == PauseMode::kWait && !requests_.empty()) return false;
  pause_->at_rest = true;
  if (pause_->forget_prefixes) ForgetPrefixes();
  pause_->forget_prefixes = false;
  for (const auto& done : std::exchange(pause_->waiting, {})) done();
  if (const auto sleep = std::exchange(pause_->sleep, {})) {
    FallAsleep(sleep->memory);
    sleep->done(nullptr);
    if (sleep->pauses) Resume([] {});
  }
  return true;
}

void EngineCore::Resume(const std::function<void()>& done) {
  if (pause_) {
    for (const auto& waiting : pause_->waiting) waiting();
    if (pause_->sleep) {
      const Error error(ErrorCode::kUnavailable, "it was to go on before it had come to rest");
      pause_->sleep->done(&error);
    }
  }
  pause_.reset();
  for (Held& held : std::exchange(held_, {})) Admit(std::move(held));
  done();
}

void EngineCore::ForgetPrefixes() {
  scheduler_.ForgetPrefixes();
  TellKvEvents();
}

ExecutorMaker& EngineCore::MakerThatChanges() {
  if (parts_.maker == nullptr) {
    throw InvalidArgument("the weights and the cache of this engine stay what they are");
  }
  parts_.maker->CheckCanChange();
  return *parts_.maker;
}

void EngineCore::FinishSteps() {
  finishing_ = true;
  while (num_in_flight_ > 0) Step();
  finishing_ = false;
}

void EngineCore::EmptyCache() {
  for (RequestState* const state : std::vector(by_slot_)) {
    if (state == nullptr) continue;
    LeaveSlot(*state);
    state->Preempted();
    ++counters_.num_preemptions;
  }
  scheduler_.PreemptAll();
  ForgetPrefixes();
}

void EngineCore::UpdateWeights(const WeightUpdate& update) {
  ExecutorMaker& maker = MakerThatChanges();
  FinishSteps();
  maker.ReadOtherWeights(update.folders);
  if (update.aborts_requests) AbortAll();
  EmptyCache();
  TakeWeights();
  ++num_updates_;
  weight_version_ = std::make_shared<const std::string>(
      update.version.empty() ? fmt::format("update-{}", num_updates_) : update.version);
  for (const auto& [id, state] : requests_) {
    state->SetWeightVersion(weight_version_);
    state->ForgetExperts();
    if (state->block_keys) StartKeys(*state);
  }
}

void EngineCore::TakeWeights() {
  if (parts_.executor) parts_.maker->TakeApart(std::move(parts_.executor));
  parts_.executor = parts_.maker->Make();
  asleep_.weights = false;
}

void EngineCore::Sleep(EngineMemory memory, PauseMode mode, const ControlDone& done) {
  MakerThatChanges();
  if (pause_ && pause_->sleep) throw InvalidArgument("it is about to fall asleep already");
  const bool pauses = !pause_;
  Pause(mode, true, [] {});
  pause_->sleep = {.memory = memory, .pauses = pauses, .done = done};
}

void EngineCore::FallAsleep(EngineMemory memory) {
  EmptyCache();
  if (memory.kv_cache && !asleep_.kv_cache) {
    parts_.maker->FreeCache();
    asleep_.kv_cache = true;
  }
  if (memory.weights && !asleep_.weights) {
    parts_.maker->TakeApart(std::move(parts_.executor));
    asleep_.weights = true;
  }
}

void EngineCore::WakeUp(EngineMemory memory) {
  ExecutorMaker& maker = MakerThatChanges();
  if (memory.weights && asleep_.weights) {
    maker.ReadOtherWeights(maker.folders());
    TakeWeights();
  }
  if (memory.kv_cache && asleep_.kv_cache) {
    maker.RestoreCache();
    asleep_.kv_cache = false;
  }
}

}  // namespace outrider
