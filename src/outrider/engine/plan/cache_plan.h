// How many pages the KV cache has, and how long requests may get.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "outrider/checkpoint/model_config.h"
#include "outrider/engine/engine_options.h"
#include "outrider/engine/plan/decision.h"
#include "outrider/engine/plan/engine_plan.h"
#include "outrider/schedule/scheduler.h"

namespace outrider {

/// What is known of the memory of a GPU before the KV cache is made.
struct GpuBudget {
  int64_t total = 0;       // of the GPU
  int64_t usable = 0;      // gpu_memory_utilization of it
  int64_t work_space = 0;  // between operations, libraries and other processes
  bool measured = false;   // false: the work space is an estimate
};

/// Whether the KV cache takes what is left of a GPU's memory.
bool FillsGpu(const EngineOptions& options, DeviceKind device);

/// Before weights are read: with an estimate of the work space. weight_bytes: of all weights.
/// Throws Error if nothing is left.
GpuBudget EstimateGpu(const EngineOptions& options, const DeviceMemoryState& memory,
                      int64_t weight_bytes);
/// With weights and work space in the GPU's memory.
GpuBudget MeasureGpu(const EngineOptions& options, const DeviceMemoryState& memory,
                     int64_t weight_bytes);

/// Bytes for the KV cache of a rank, and what says so.
struct CacheMemory {
  int64_t bytes = 0;
  std::string why;
};

/// gpu: of a GPU that the cache fills.
CacheMemory MemoryOfCache(const EngineOptions& options, const std::optional<GpuBudget>& gpu,
                          int64_t weight_bytes);

/// Bytes that a token takes for good: those of windows are freed when the token leaves them.
int64_t HistoryBytesPerToken(const std::vector<CacheGroupSpec>& groups);

/// Pages of a request, at most.
struct RequestPages {
  int64_t history = 0;     // of the entries of all its tokens
  int64_t generating = 0;  // of windows and running states, while it generates
  int64_t prompt = 0;      // in their place, in a step of its prompt that has all rows
};

/// Pages of one group while a request of `tokens` tokens generates.
int64_t PagesWhileGenerating(const EnginePlan& plan, const CacheGroupSpec& group, int32_t tokens);

/// Of a request of `tokens` tokens.
RequestPages PagesOfRequest(const EnginePlan& plan, int32_t tokens);

/// "33.5 MiB in 19 pages ...": what a request takes beside its history.
std::string RequestPagesText(const RequestPages& pages, int64_t page_bytes);

/// Everything that the scheduler is to know. Throws Error if the memory does not hold a request of
/// the length that is asked for, or of two tokens.
SchedulerConfig PlanCache(const EngineOptions& options, const ModelConfig& config,
                          const EnginePlan& plan, const CacheMemory& memory, Decisions& decisions);

}  // namespace outrider
