// What the threads of a block share in the pass of Kimi Delta Attention.
#pragma once

#include "outrider/kernels/cuda/kda/kda_finish_row.cuh"
#include "outrider/kernels/cuda/kda/kda_token_block.cuh"

namespace outrider::cuda {

/// Rows of a block of tokens.
using KdaTile = float[kStateBlock][kKdaDim];
/// Lanes that touch 8 neighbouring floats of each of 4 rows meet all 32 banks.
using KdaPaddedTile = float[kStateBlock][kKdaDim + 8];

/// The request of a block of threads.
struct KdaBlock {
  KdaRequest request;
  int end;        // position behind the last row
  int state_end;  // tokens of the state that the step leaves
  // Of the head's kept rows, in floats from the start of the cache's memory. A pointer that shared
  // memory holds would be of any memory.
  int64_t kept;
};

struct KdaShared {
  // Of two blocks of tokens in turn.
  alignas(16) KdaTile q[2];            // then q P
  float apart[16];                     // lanes that read q and k alike meet all banks
  alignas(16) KdaTile k[2];            // then k P
  alignas(16) KdaPaddedTile decay[2];  // then, of a block that ends, K_15
  alignas(16) KdaPaddedTile value[2];  // v, then u
  KdaTokenBlock of_rows[2];            // what rows have to do with each other
  alignas(16) KdaTile of_key;          // S^T (k P)
  alignas(16) KdaTile of_query;        // S^T (q P)
  KdaParts parts[kStateBlock];         // of sums of rows
  KdaLengths lengths;
  KdaBlock block;
};
// Two blocks run on a multiprocessor.
static_assert(2 * (sizeof(KdaShared) + 1024) <= 196 * 1024);

}  // namespace outrider::cuda
