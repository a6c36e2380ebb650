// The decode kernels that the uniform and single backends call: absorbed attention that takes one
// query length for all requests of a call. The reference of what such a kernel does, on top of the
// ragged entry of the kernel table.
#pragma once

#include <cstdint>

#include "outrider/ops/cpu/compute.h"

namespace outrider::cpu {

/// Absorbed attention over requests that all have `query_length` rows: request i holds the rows
/// [i * query_length, (i + 1) * query_length) of args.q and args.out. Row j has position
/// context_length + j, and context_length may be negative: a row before position 0 sees no keys and
/// its output is 0.
void UniformDecodeAttention(const Compute& compute, const AbsorbedAttentionArgs& args,
                            int32_t query_length);

/// Runs requests of 1 to `query_length` rows as one uniform call. Rows are put in front of shorter
/// requests, whose last row keeps its position: padded rows attend at the positions before, so they
/// read no key that the request does not have, and nothing of them is written to args.out. The real
/// rows' outputs are those of the ragged kernel, bit for bit.
void PaddedDecodeAttention(const Compute& compute, const AbsorbedAttentionArgs& args,
                           int32_t query_length);

}  // namespace outrider::cpu
