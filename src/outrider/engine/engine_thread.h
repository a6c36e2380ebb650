// A thread that runs an engine's steps.
#pragma once

#include <atomic>
#include <thread>

#include "outrider/engine/engine.h"

namespace outrider {

/// Steps `engine` until destroyed; sleeps while it is idle.
class EngineThread {
 public:
  explicit EngineThread(Engine& engine);
  ~EngineThread();
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

 private:
  Engine& engine_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace outrider
