// Threads that do what requests need before they are in the engine: parsing, templates and
// tokenising must not hold up the I/O thread. Clients take turns, and some of the threads take no
// large jobs, so that small ones never wait for them.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

namespace outrider {

struct WorkOptions {
  size_t max_waiting = 0;     // jobs of all clients; one client may have half of them
  int num_threads = 1;        // that take small jobs
  int num_large_threads = 0;  // more threads, that take large jobs first
  size_t large_bytes = 0;     // jobs of more bytes are large; matters where there are such threads
};

/// Jobs that wait, by client: the clients take turns, each with its oldest job.
class ClientQueues {
 public:
  using Job = std::function<void()>;

  void Push(std::string_view client, Job job);
  bool empty() const { return clients_.empty(); }
  /// Not when empty.
  Job Pop();
  size_t CountOf(std::string_view client) const;

 private:
  struct Client {
    std::string name;
    std::deque<Job> jobs;  // at least one
  };

  std::list<Client> clients_;  // whose turn is next stands in front
  std::unordered_map<std::string, std::list<Client>::iterator> by_name_;
};

class WorkThreads {
 public:
  explicit WorkThreads(const WorkOptions& options);
  /// Drops the jobs that have not begun, and waits for those that have.
  ~WorkThreads();
  WorkThreads(const WorkThreads&) = delete;
  WorkThreads& operator=(const WorkThreads&) = delete;

  /// `client` names who asked, `bytes` says how large what it asked is. False when too many jobs
  /// wait: the job was not taken. Any thread.
  bool TryAdd(std::string_view client, size_t bytes, std::function<void()> job);

 private:
  void Run(bool takes_large);

  const WorkOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  ClientQueues small_;
  ClientQueues large_;
  size_t num_waiting_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace outrider
