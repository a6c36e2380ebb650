// What travels between the ranks that share a model. Nothing here adds: a communicator moves
// numbers as they are, and every sum is made whole on one rank. So output does not depend on the
// number of ranks, bit for bit, whatever moves the numbers.
//
// All ranks make the same calls in the same order; a call ends when this rank has what it wanted of
// it. Where a rank has ended or does not come, calls throw Error that names that rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "outrider/base/matrix_view.h"
#include "outrider/parallel/share.h"

namespace outrider {

/// Rows whose columns the ranks have parts of. Columns are counted in bytes.
struct GatheredRows {
  MatrixView<const std::byte> mine;  // [rows, this rank's columns]; it may be those of `all`
  /// [rows, columns of all ranks]: is written; without data where this rank does not want it.
  MatrixView<std::byte> all;
  std::span<const Share> columns;  // of `all`, by rank
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual RankPlace place() const = 0;

  /// Stores this rank's part of every one of `rows` where the others find it, and tells them so,
  /// without waiting. The next call must be Collect with equal shapes.
  virtual void Store(std::span<const GatheredRows> rows) = 0;
  /// Waits for the parts of the others; fills `all` of every one of `rows`.
  virtual void Collect(std::span<const GatheredRows> rows) = 0;
  void Gather(std::span<const GatheredRows> rows) {
    Store(rows);
    Collect(rows);
  }

  /// `bytes` become those of rank `root`. All ranks give as many.
  virtual void Broadcast(int32_t root, std::span<std::byte> bytes) = 0;

  /// A number that moves while this rank works: as long as it does, the others wait. Called before
  /// they make calls; `progress` runs on their threads.
  virtual void ShowProgress(std::function<uint64_t()> progress) = 0;

  /// This rank has ended, and why: from now on calls of all ranks throw Error that says it. May be
  /// called on any thread.
  virtual void End(const std::string& reason) = 0;
  /// What calls throw from then on.
  virtual void ThrowIfEnded() = 0;
};

}  // namespace outrider
