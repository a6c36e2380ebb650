// The ranks that share a model, one thread each: rank 0 on the caller's, the others on threads of
// their own. The caller lays out a step once, and every rank runs its part of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "outrider/base/function_ref.h"
#include "outrider/execute/rank.h"

namespace outrider {

class RankTeam {
 public:
  /// parts: by rank, at least one. A rank that needs more than `seconds` longer than rank 0 for its
  /// part, and shows no progress meanwhile, counts as ended.
  RankTeam(std::vector<RankParts> parts, double seconds);
  /// Where a rank hangs, ends the process (EndProcessWithin).
  ~RankTeam();
  RankTeam(const RankTeam&) = delete;
  RankTeam& operator=(const RankTeam&) = delete;

  /// Returns what the ranks were made of, in order. No part may run. The team can only be destroyed
  /// afterwards.
  std::vector<RankParts> TakeApart();

  size_t size() const { return ranks_.size(); }
  /// Rank 0, which draws tokens.
  Rank& first() { return *ranks_.front(); }
  const Rank& first() const { return *ranks_.front(); }

  /// Runs part(rank) on every rank and returns when all have done it. With one rank throws what its
  /// part threw. With several, once a rank has ended, every call throws Error that names that rank.
  void Run(FunctionRef<void(Rank&)> part);

 private:
  /// A rank's thread.
  struct Worker {
    std::atomic<uint32_t> done{0};  // parts
    std::thread thread;
  };

  void Work(Worker& worker, Rank& rank);
  /// The part on one rank. False: it threw, which the other ranks learn.
  bool RunPart(Rank& rank);
  /// Whether a rank other than 0 has done the last part in time. ends: another one has failed.
  bool WaitFor(size_t rank, bool ends) const;

  double seconds_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<std::unique_ptr<Worker>> workers_;  // of rank 1, 2, ...
  FunctionRef<void(Rank&)>* part_ = nullptr;      // written before `begun_` grows
  std::atomic<uint32_t> begun_{0};                // parts
  std::atomic<bool> stopping_{false};
};

}  // namespace outrider
