#include "outrider/engine/engine_thread.h"

namespace outrider {

EngineThread::EngineThread(Engine& engine)
    : engine_(engine), thread_([this] {
        while (!stop_.load()) {
          if (!engine_.Step()) engine_.WaitForWork(1.0);
        }
      }) {}

EngineThread::~EngineThread() {
  stop_.store(true);
  engine_.Wake();
  thread_.join();
}

}  // namespace outrider
