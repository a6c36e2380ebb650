#include "outrider/batch/decode_split.h"

#include <algorithm>

#include "outrider/base/error.h"

namespace outrider {

namespace {

bool Qualifies(const RequestRows& request, int32_t longest) {
  return request.phase == Phase::kDecode && request.query_length >= 1 &&
         request.query_length <= longest;
}

int32_t ShortestLength(std::span<const RequestRows> requests, int32_t longest) {
  int32_t shortest = 0;
  for (const RequestRows& request : requests) {
    if (!Qualifies(request, longest)) continue;
    if (shortest == 0 || request.query_length < shortest) shortest = request.query_length;
  }
  return shortest;
}

/// The qualifying length that most requests have; the longest one of several. Left-overs cost an
/// expansion of their context each, so requests count, not rows.
int32_t MostFrequentLength(std::span<const RequestRows> requests, int32_t longest) {
  int32_t best = 0;
  int64_t best_count = 0;
  for (int32_t length = ShortestLength(requests, longest); length != 0;) {
    int64_t count = 0;
    int32_t next = 0;  // the shortest length above this one
    for (const RequestRows& request : requests) {
      if (!Qualifies(request, longest)) continue;
      if (request.query_length == length) ++count;
      if (request.query_length > length && (next == 0 || request.query_length < next)) {
        next = request.query_length;
      }
    }
    if (count >= best_count) {
      best = length;
      best_count = count;
    }
    length = next;
  }
  return best;
}

/// The one length that the kernel runs; 0 when it runs any length up to `longest`.
int32_t ChosenLength(const DecodeKernel& kernel, std::span<const RequestRows> requests,
                     int32_t longest) {
  if (kernel.lengths == QueryLengths::kRagged) return 0;
  if (kernel.lengths == QueryLengths::kSingle) return 1;
  switch (kernel.policy) {
    case UniformPolicy::kShortestQualifying:
      return ShortestLength(requests, longest);
    case UniformPolicy::kLargestClass:
      return MostFrequentLength(requests, longest);
    case UniformPolicy::kPad:
      return 0;
  }
  return 0;
}

}  // namespace

void SplitDecodes(const DecodeKernel& kernel, int32_t threshold,
                  std::span<const RequestRows> requests, DecodeSplit& split) {
  OUTRIDER_CHECK(threshold >= 1 && kernel.longest_query >= 1);
  split.decode.clear();
  split.left_over.clear();
  split.prompts.clear();
  const int32_t longest = std::min(threshold, kernel.longest_query);
  const int32_t chosen = ChosenLength(kernel, requests, longest);
  for (size_t i = 0; i < requests.size(); ++i) {
    const RequestRows& request = requests[i];
    if (request.query_length == 0) continue;
    const auto index = static_cast<int32_t>(i);
    if (request.phase != Phase::kDecode) {
      split.prompts.push_back(index);
    } else if (Qualifies(request, longest) && (chosen == 0 || request.query_length == chosen)) {
      split.decode.push_back(index);
    } else {
      split.left_over.push_back(index);
    }
  }
  const bool pads =
      kernel.lengths == QueryLengths::kUniform && kernel.policy == UniformPolicy::kPad;
  split.query_length = split.decode.empty() ? 0 : (pads ? longest : chosen);
}

void CutRuns(const RequestRows& request, int32_t longest, std::vector<RequestRows>& runs) {
  OUTRIDER_CHECK(longest >= 1);
  for (int32_t first = 0; first < request.query_length;) {
    const int32_t rows = std::min(longest, request.query_length - first);
    RequestRows run = request;
    run.first_row += first;
    run.context_length += first;
    run.query_length = rows;
    run.num_drafts = 0;
    run.num_logits_rows = 0;
    runs.push_back(run);
    first += rows;
  }
}

}  // namespace outrider
