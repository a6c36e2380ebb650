// What every operation gets beside its arguments: where it runs and where it finds memory.
#pragma once

#include <cstdint>
#include <functional>

#include "outrider/base/dtype.h"
#include "outrider/base/scratch.h"
#include "outrider/base/thread_pool.h"
#include "outrider/ops/tensor.h"
#include "outrider/parallel/communicator.h"

namespace outrider {

class Ops;

/// A device's work space: memory for rows between operations. Operations may keep in it what they
/// need from call to call; such a device has its own kind of arena (Ops::MakeArena).
class Arena : public Scratch {
 public:
  using Scratch::Scratch;
  virtual ~Arena() = default;
};

/// What a device that runs beside the host calls now and then between the launches of a long pass;
/// empty: nothing. It may wait for results of a sampler that are ready, no more.
using BetweenLaunches = std::function<void()>;

/// What runs operations.
struct Device {
  const Ops& ops;
  ThreadPool* pool = nullptr;     // null: a device that needs no threads of the host
  Communicator* ranks = nullptr;  // with the devices that share a model; null: this one has all
  const BetweenLaunches* between_launches = nullptr;  // null: nothing is called

  RankPlace place() const { return ranks == nullptr ? RankPlace{} : ranks->place(); }
};

struct Context {
  const Ops& ops;
  ThreadPool* pool;                         // the device's
  Communicator* ranks;                      // the device's
  const BetweenLaunches* between_launches;  // the device's
  Arena& arena;
  DType operand_dtype;  // kF32 or kBF16: what matrix products round their inputs to

  Context(const Device& device, Arena& arena_, DType operand_dtype_)
      : ops(device.ops),
        pool(device.pool),
        ranks(device.ranks),
        between_launches(device.between_launches),
        arena(arena_),
        operand_dtype(operand_dtype_) {}

  /// This rank's number, and how many share the model.
  RankPlace place() const { return ranks == nullptr ? RankPlace{} : ranks->place(); }

  /// A context for work in which no other rank takes part.
  Context Alone() const { return {{ops, pool, nullptr, between_launches}, arena, operand_dtype}; }

  /// Calls between_launches, if there is something to call. Operations do where a pass may be long.
  void PauseLaunching() const {
    if (between_launches != nullptr && *between_launches) (*between_launches)();
  }

  /// Uninitialised float32 rows between two operations, until the arena's frame ends.
  Tensor Rows(int64_t rows, int64_t cols) const { return arena.Matrix(rows, cols); }

  /// Uninitialised rows that products and attention read, of the device's type for them
  /// (Ops::activation_type).
  Tensor Activations(int64_t rows, int64_t cols) const;
};

}  // namespace outrider
