// Time of the absorption and un-absorption of one layer, by number of tokens, beside the time that
// their bytes (weights, x, y) take at 4.3 TB/s. Graph replay, median of 40, weights rotating over
// more than 256 MB.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "outrider/kernels/cuda/head_projection.h"
#include "tests/kernels/cuda/device_array.h"

namespace outrider::cuda {
namespace {

void RunCase(int heads, int k, int n, int tokens, cudaStream_t stream) {
  const size_t weights = static_cast<size_t>(heads) * n * k;
  const size_t copies = std::min<size_t>(64, (size_t{512} << 20) / (weights * 2) + 1);
  // 0x3C3C is a normal bf16 value; the time does not depend on the values.
  DeviceArray<uint16_t> w(weights * copies, 0x3C);
  DeviceArray<uint16_t> x(static_cast<size_t>(tokens) * heads * k, 0x3C);
  DeviceArray<uint16_t> y(static_cast<size_t>(tokens) * heads * n);
  HeadProjectionParams params;
  params.num_tokens = tokens;
  params.heads = heads;
  params.k = k;
  params.n = n;
  params.x = x.data();
  params.x_head_stride = k;
  params.x_token_stride = static_cast<int64_t>(heads) * k;
  params.y = y.data();
  params.y_head_stride = n;
  params.y_token_stride = static_cast<int64_t>(heads) * n;
  cudaEvent_t begin, end;
  CudaOk(cudaEventCreate(&begin), "event");
  CudaOk(cudaEventCreate(&end), "event");
  std::vector<cudaGraphExec_t> graphs;
  for (size_t copy = 0; copy < copies; ++copy) {
    params.w = w.data() + copy * weights;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CudaOk(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    CudaOk(ProjectHeads(params, stream), "ProjectHeads");
    CudaOk(cudaStreamEndCapture(stream, &graph), "end capture");
    CudaOk(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
    CudaOk(cudaGraphDestroy(graph), "destroy");
    graphs.push_back(executable);
  }
  std::vector<float> times;
  for (int i = 0; i < 45; ++i) {
    CudaOk(cudaEventRecord(begin, stream), "record");
    CudaOk(cudaGraphLaunch(graphs[i % copies], stream), "launch");
    CudaOk(cudaEventRecord(end, stream), "record");
    CudaOk(cudaEventSynchronize(end), "synchronize");
    float ms = 0;
    CudaOk(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    if (i >= 5) times.push_back(ms * 1000);
  }
  std::sort(times.begin(), times.end());
  const double bytes =
      2.0 * (static_cast<double>(weights) + static_cast<double>(tokens) * heads * (k + n));
  std::printf("heads %3d  %3d -> %3d  tokens %4d  %7.1f us  bytes take %6.1f us  %6.1f TFLOP/s\n",
              heads, k, n, tokens, times[times.size() / 2], bytes / 4.3e6,
              2.0 * tokens * heads * k * n / times[times.size() / 2] / 1e6);
  for (cudaGraphExec_t graph : graphs) cudaGraphExecDestroy(graph);
}

int Main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "head_projection_bench: no GPU here\n");
    return 2;
  }
  cudaStream_t stream;
  CudaOk(cudaStreamCreate(&stream), "stream");
  for (int heads : {16, 128}) {
    for (int tokens : {1, 16, 64, 128, 512}) {
      RunCase(heads, 128, 512, tokens, stream);
      RunCase(heads, 512, 128, tokens, stream);
    }
  }
  return 0;
}

}  // namespace
}  // namespace outrider::cuda

int main() { return outrider::cuda::Main(); }
