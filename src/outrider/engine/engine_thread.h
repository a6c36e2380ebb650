// A thread that runs an engine's steps.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "outrider/engine/engine.h"

namespace outrider {

/// Steps `engine` until destroyed, or until it fails; sleeps while it is idle.
class EngineThread {
 public:
  /// on_failure: called on the thread when the engine has failed (Engine::Step), with the reason.
  explicit EngineThread(Engine& engine,
                        std::function<void(const std::string& reason)> on_failure = nullptr);
  ~EngineThread();
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  bool failed() const { return failed_.load(); }

 private:
  void Run();

  Engine& engine_;
  std::function<void(const std::string& reason)> on_failure_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> failed_{false};
  std::thread thread_;
};

}  // namespace outrider
