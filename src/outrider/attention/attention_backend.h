// The attention backends that --attention-backend chooses from: what their decode kernels take, and
// whether they keep the promise of exact speculation.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "outrider/batch/decode_split.h"

namespace outrider {

enum class AttentionBackend : uint8_t {
  kRagged,           // decode requests of any lengths in one kernel call
  kUniformPad,       // a uniform kernel; shorter requests are padded to 1 + k rows
  kUniformShortest,  // a uniform kernel that runs the shortest length; the others are left over
  kUniformLargest,   // a uniform kernel that runs the most frequent length
  kSingle,           // a kernel for one row per request; verify rows are left over
};

inline constexpr std::array kAllAttentionBackends = {
    AttentionBackend::kRagged, AttentionBackend::kUniformPad, AttentionBackend::kUniformShortest,
    AttentionBackend::kUniformLargest, AttentionBackend::kSingle};

/// "ragged", "uniform-pad", "uniform-shortest", "uniform-largest", "single".
std::string_view AttentionBackendName(AttentionBackend backend);

/// What it does with decode requests, in one clause for people.
std::string_view AttentionBackendSummary(AttentionBackend backend);

/// What the backend's decode kernel takes.
DecodeKernel DecodeKernelOf(AttentionBackend backend);

/// Whether a generated token always runs in the absorbed form. With the others the form of a token
/// depends on what else is in the batch, so its bits do too.
bool KeepsExactness(AttentionBackend backend);

}  // namespace outrider
