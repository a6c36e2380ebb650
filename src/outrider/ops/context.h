// What every operation gets beside its arguments: where it runs and where it finds memory.
#pragma once

#include <cstdint>

#include "outrider/base/dtype.h"
#include "outrider/base/scratch.h"
#include "outrider/base/thread_pool.h"
#include "outrider/ops/tensor.h"
#include "outrider/parallel/communicator.h"

namespace outrider {

class Ops;

/// Memory of the device for what a step leaves behind it. Operations may keep in it what they need
/// from call to call: a device then has its own kind (Ops::MakeArena).
class Arena : public Scratch {
 public:
  using Scratch::Scratch;
  virtual ~Arena() = default;
};

/// What runs operations.
struct Device {
  const Ops& ops;
  ThreadPool* pool = nullptr;     // null: a device that needs no threads of the host
  Communicator* ranks = nullptr;  // with the devices that share a model; null: this one has all

  RankPlace place() const { return ranks == nullptr ? RankPlace{} : ranks->place(); }
};

struct Context {
  const Ops& ops;
  ThreadPool* pool;     // the device's
  Communicator* ranks;  // the device's
  Arena& arena;
  DType operand_dtype;  // kF32 or kBF16: what matrix products round their inputs to

  Context(const Device& device, Arena& arena_, DType operand_dtype_)
      : ops(device.ops),
        pool(device.pool),
        ranks(device.ranks),
        arena(arena_),
        operand_dtype(operand_dtype_) {}

  /// Which of the ranks that share the model this is.
  RankPlace place() const { return ranks == nullptr ? RankPlace{} : ranks->place(); }

  /// A context for work in which no other rank takes part.
  Context Alone() const { return {{ops, pool}, arena, operand_dtype}; }

  /// Uninitialised float32 rows between two operations, until the arena's frame ends.
  Tensor Rows(int64_t rows, int64_t cols) const { return arena.Matrix(rows, cols); }

  /// Uninitialised rows that products and attention read: of the type in which the device reads
  /// them (Ops::activation_type).
  Tensor Activations(int64_t rows, int64_t cols) const;
};

}  // namespace outrider
