// Launches a kernel that may start while the one before it in its stream finishes. Every thread of
// such a kernel calls WaitForPriorGrid before its first access of what another kernel writes or
// reads, and before it returns: so all that came earlier in the stream is done where it goes on.
//
// Before it waits, a kernel may read weights, and what was complete when a kernel since then had
// waited and only afterwards let the next one start (LaunchDependents behind WaitForPriorGrid). A
// kernel in front that was launched plainly is not enough: the next one starts when its blocks have
// ended, and may read what was there before they wrote.
#pragma once

#include <cuda_runtime.h>

namespace outrider::cuda {

template <typename... Parameters, typename... Arguments>
cudaError_t LaunchDependent(void (*kernel)(Parameters...), dim3 blocks, dim3 threads, size_t shared,
                            cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace outrider::cuda
