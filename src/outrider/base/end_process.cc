#include "outrider/base/end_process.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <system_error>
#include <thread>

#include "outrider/base/logging.h"

namespace outrider {

void EndProcessWithin(double seconds) {
  try {
    // Nothing joins it: it ends with the process, or ends the process.
    std::thread([seconds] {
      std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
      static std::atomic<bool> ending{false};
      if (ending.exchange(true)) return;
      SPDLOG_ERROR("Some threads have not ended in time: the process ends without them");
      FlushLog();
      _exit(1);
    }).detach();
  } catch (const std::system_error&) {  // no memory for a thread: the system does it
    std::signal(SIGALRM, SIG_DFL);
    alarm(static_cast<unsigned>(std::ceil(seconds)));
  }
}

}  // namespace outrider
