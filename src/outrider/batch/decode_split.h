// The decode split: which requests of a step a decode kernel runs, and how. Kernels differ in the
// query lengths that they take; what one cannot take is left over, for the expanded form with
// cached context. A pure function of lengths and roles: no request is dropped, none is cut in two.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "outrider/batch/batch_layout.h"

namespace outrider {

/// The query lengths that a decode kernel takes in one call.
enum class QueryLengths : uint8_t {
  kSingle,   // one row per request
  kUniform,  // the same number of rows for all requests
  kRagged,   // any number of rows per request
};

/// What a kUniform kernel is given when the decode requests of a step differ in length.
enum class UniformPolicy : uint8_t {
  kShortestQualifying,  // the requests of the shortest length
  kLargestClass,        // those of the length that most requests have; the longer one of equals
  kPad,                 // all of them, each padded to the longest length that qualifies
};

struct DecodeKernel {
  static constexpr int32_t kAnyLength = std::numeric_limits<int32_t>::max();

  QueryLengths lengths = QueryLengths::kRagged;
  UniformPolicy policy = UniformPolicy::kShortestQualifying;  // read for kUniform only
  int32_t longest_query = kAnyLength;                         // rows per request, at least 1
};

/// Every request with rows is in exactly one of the three lists. Each list holds indices into the
/// given requests, rising.
struct DecodeSplit {
  std::vector<int32_t> decode;     // for the decode kernel
  std::vector<int32_t> left_over;  // decode requests for the expanded form
  std::vector<int32_t> prompts;    // prompt chunks, for the expanded form as ever
  /// Rows per request of the kernel call: the length of all of `decode`, or what they are padded
  /// to. 0 for a ragged kernel, and when `decode` is empty.
  int32_t query_length = 0;
};

/// Splits `requests` by phase and query length. `threshold` is the number of rows that a decode
/// request has at most, 1 + k: a decode request qualifies when its length is 1 to
/// min(threshold, kernel.longest_query), and is left over when it is longer. The phase decides
/// what a prompt is, whatever its length. Requests without rows, as padding of a batch, are in no
/// list. Replaces `split` and reuses its memory.
void SplitDecodes(const DecodeKernel& kernel, int32_t threshold,
                  std::span<const RequestRows> requests, DecodeSplit& split);

/// Appends to `runs` the rows of a decode request as requests of at most `longest` rows with
/// growing context, for attention only: a run has no drafts and no logits rows. Row-invariant
/// kernels give a row the same bits in a run as in the whole request, so a kernel with a longest
/// query can still run all decode rows of a step.
void CutRuns(const RequestRows& request, int32_t longest, std::vector<RequestRows>& runs);

}  // namespace outrider
