#include "outrider/engine/engine_thread.h"

#include <utility>

#include "outrider/base/error.h"

namespace outrider {

EngineThread::EngineThread(Engine& engine,
                           std::function<void(const std::string& reason)> on_failure)
    : engine_(engine), on_failure_(std::move(on_failure)), thread_([this] { Run(); }) {}

EngineThread::~EngineThread() {
  stop_.store(true);
  engine_.Wake();
  thread_.join();
}

void EngineThread::Run() {
  try {
    while (!stop_.load()) {
      if (!engine_.Step()) engine_.WaitForWork(1.0);
    }
  } catch (const Error& error) {
    failed_.store(true);
    if (on_failure_) on_failure_(error.what());
  }
}

}  // namespace outrider
