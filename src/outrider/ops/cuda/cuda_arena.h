// The arena of a CudaOps' contexts. Beside the rows of a step it holds what operations keep from
// call to call: the routing of a layer, and work spaces of attention. A work space has a plan,
// which is made once per step for all layers that read it.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/kernels/cuda/compressed/compressed_rows.h"
#include "outrider/kernels/cuda/gqa/gqa_attention.h"
#include "outrider/kernels/cuda/host/device_memory.h"
#include "outrider/kernels/cuda/mla_decode/mla_decode.h"
#include "outrider/kernels/cuda/moe/expert_router.h"
#include "outrider/kernels/cuda/sparse/listed_attention.h"
#include "outrider/kernels/cuda/sparse/sparse_rows.h"
#include "outrider/ops/context.h"
#include "outrider/ops/moe.h"
#include "outrider/ops/sparse.h"

namespace outrider::cuda {

/// Bytes behind its pieces that may be read: enough for the slack rows of 128 heads of 256 that
/// attention of prompts reads behind its queries.
inline constexpr size_t kQueryReach = size_t{24} << 20;

/// The routed pairs of the layer that was routed last.
struct CudaRouting : Routing {
  ExpertRouting device;
  int64_t rows = 0;
  int top_k = 0;    // of a row, those that it chose
  int choices = 0;  // with the shared experts
  int experts = 0;  // with the shared ones
  int tile_rows = 0;
};

inline const CudaRouting& RoutingOf(const Routing& routing) {
  return static_cast<const CudaRouting&>(routing);
}

/// Memory of the device with a plan in it.
struct WorkSpace {
  DeviceMemory memory;
  uint64_t planned_serial = 0;  // of the inputs that the plan is of; 0: none
};

/// The work space of absorbed attention.
struct DecodeWork : WorkSpace {
  MlaDecodeLimits limits = {};
};

/// The work space of grouped-query attention.
struct GqaWork : WorkSpace {
  GqaLimits limits;
};

/// What the rows of a step see of the entries that indexers of one shape choose from.
struct SparsePlan : WorkSpace {
  int max_rows = 0;
  int top_k = 0;
  SparseRows rows;
};

/// The work space of listed attention. A plan covers a range of a step's rows.
struct ListedWork : WorkSpace {
  ListedAttentionLimits limits = {};
  const SparsePlan* planned_rows = nullptr;
  int planned_first = 0;
  int planned_count = 0;
};

/// A kind of compressed attention: its layers read equal rows.
struct CompressedKind {
  int heads = 0;
  int window = 0;
  int ratio = 0;
  int top_k = 0;  // 0: all entries
  bool in_blocks = false;
  auto operator<=>(const CompressedKind&) const = default;
};

/// What the rows of a step read in compressed attention of a kind.
struct CompressedPlan : WorkSpace {
  int max_rows = 0;
  CompressedRows rows;
};

/// The work space of compressed attention. A plan covers a range of a step's rows.
struct CompressedWork : WorkSpace {
  CompressedPlan plan;
  ListedAttentionLimits limits = {};
  int planned_first = 0;
  int planned_count = 0;
};

class CudaArena : public Arena {
 public:
  CudaArena(Scratch::Allocate allocate, cudaStream_t stream)
      : Arena(std::move(allocate), kQueryReach), stream_(stream) {}

  /// Gives a work space `bytes` of zeroed memory in place of what it had, and no plan. Launched
  /// work may still read the old one: waits for it.
  void Replace(WorkSpace& work, size_t bytes, std::string_view name) {
    CheckCuda(cudaStreamSynchronize(stream_), "waiting for the device");
    work = {};
    ++memory_version_;
    work.memory = DeviceMemory(bytes, name.data());
    CheckCuda(cudaMemsetAsync(work.memory.data(), 0, bytes, stream_), "clearing the work space");
  }
  /// Changes whenever memory was replaced that recorded steps may refer to.
  int64_t memory_version() const { return memory_version_; }

  /// Makes every plan anew when it is needed next, as a recorded step has left other plans.
  void ForgetPlans() {
    for (auto& [key, work] : decode) work.planned_serial = 0;
    for (auto& [key, work] : gqa) work.planned_serial = 0;
    for (auto& [key, plan] : sparse) plan.planned_serial = 0;
    for (auto& [key, work] : listed) work.planned_serial = 0;
    for (auto& [key, work] : compressed) work.plan.planned_serial = work.planned_serial = 0;
  }

  /// The plan of the rows that entries were chosen for.
  const SparsePlan& PlanOf(const SelectedEntries& selected) const {
    const auto plan = std::ranges::find_if(
        sparse, [&](const auto& made) { return made.second.rows.counts == selected.counts; });
    OUTRIDER_CHECK(plan != sparse.end(), "entries that were not chosen here");
    return plan->second;
  }

  CudaRouting routing;
  std::map<std::pair<int32_t, int>, DecodeWork> decode;       // by cache group, heads
  std::map<std::tuple<int, int, int, GqaBody>, GqaWork> gqa;  // heads, of entries, window, body
  std::map<std::tuple<int, int, int>, SparsePlan> sparse;     // index heads, ratio, top k
  std::map<std::pair<int, int>, ListedWork> listed;           // heads, top k
  std::map<CompressedKind, CompressedWork> compressed;
  // Plans that were made, of a kind once per step.
  int64_t compressed_plans = 0;  // of rows, and of work
  int64_t sparse_plans = 0;      // of the rows that an indexer chooses for

 private:
  cudaStream_t stream_;
  int64_t memory_version_ = 0;
};

/// The arena of a CudaOps' call.
inline CudaArena& ArenaOf(const Context& context) { return static_cast<CudaArena&>(context.arena); }

}  // namespace outrider::cuda
