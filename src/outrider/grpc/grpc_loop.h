// The thread that all calls for tokens are served on: the engine's thread and gRPC's only leave
// word here, so neither waits for an answer to be written, and a call's parts need no lock.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace outrider {

class GrpcLoop {
 public:
  GrpcLoop();
  ~GrpcLoop();
  GrpcLoop(const GrpcLoop&) = delete;
  GrpcLoop& operator=(const GrpcLoop&) = delete;

  /// Runs a job on the loop's thread, after those that came before. Does nothing once it is closed.
  /// Any thread.
  void Post(std::function<void()> job);

  /// Ends the thread after the jobs that there are. Not on the loop's thread.
  void Close();

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::function<void()>> jobs_;  // guarded by mutex_
  bool closed_ = false;                      // guarded by mutex_
  std::thread thread_;
};

}  // namespace outrider
