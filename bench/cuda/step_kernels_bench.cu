// Times of the small operations of a step, each in a chain of launches as it stands in a layer:
// graph replay, median, per launch. Weights rotate over more than 256 MB, so that they come from
// memory. "bytes": what is read and written at the rate of reads.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "bench/cuda/goal_figures.h"
#include "bench/cuda/graph_timer.h"
#include "outrider/kernels/cuda/matmul/matmul.h"
#include "outrider/kernels/cuda/mla_decode/head_projection.h"
#include "outrider/kernels/cuda/moe/expert_router.h"
#include "outrider/kernels/cuda/rows/norm_rows.h"
#include "outrider/kernels/cuda/rows/step_rows.h"
#include "outrider/kernels/cuda/sampling/draw.h"
#include "tests/kernels/cuda/device_array.h"

namespace outrider::cuda {
namespace {

__global__ void Empty() {}

/// Median microseconds of one of `launches` launches of `body(i, stream)` in a graph.
template <typename Body>
double ChainTime(int launches, cudaStream_t stream, Body body) {
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CudaOk(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < launches; ++i) body(i, stream);
  CudaOk(cudaStreamEndCapture(stream, &graph), "end capture");
  CudaOk(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
  CudaOk(cudaGraphDestroy(graph), "destroy");
  cudaEvent_t begin, end;
  CudaOk(cudaEventCreate(&begin), "event");
  CudaOk(cudaEventCreate(&end), "event");
  std::vector<float> times;
  for (int i = 0; i < 25; ++i) {
    CudaOk(cudaEventRecord(begin, stream), "record");
    CudaOk(cudaGraphLaunch(executable, stream), "launch");
    CudaOk(cudaEventRecord(end, stream), "record");
    CudaOk(cudaEventSynchronize(end), "run");
    float ms = 0;
    CudaOk(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    if (i >= 5) times.push_back(ms * 1000);
  }
  CudaOk(cudaGraphExecDestroy(executable), "destroy");
  CudaOk(cudaEventDestroy(begin), "destroy");
  CudaOk(cudaEventDestroy(end), "destroy");
  std::nth_element(times.begin(), times.begin() + 10, times.end());
  return times[10] / launches;
}

constexpr int kLaunches = 32;

template <typename Body>
void Report(const std::string& name, int rows, double bytes, cudaStream_t stream, Body body,
            bool counts = false) {
  const double chain = ChainTime(kLaunches, stream, body);
  const double alone = ChainTime(1, stream, body);
  std::printf("%-44s %5d rows  %7.2f us in a chain  %7.2f us alone  bytes %6.2f us\n", name.c_str(),
              rows, chain, alone, bytes / BytesPerUs());
  std::fflush(stdout);
  if (counts && rows <= 128) {
    RecordGoal(Goal::kSmallOperations, name + ", " + std::to_string(rows) + " rows", chain);
  }
}

// 0x3C3C3C3C is 0.0115 as float32 and 0.0115 as bf16: times do not depend on values here.
constexpr int kSome = 0x3C;

void Norms(cudaStream_t stream) {
  for (const int hidden : {2048, 7168}) {
    for (const int terms : {0, 5, 9}) {
      for (const int rows : {1, 32, 128, 512}) {
        const DeviceArray<float> x(size_t{1} * rows * hidden, kSome), weight(hidden, kSome);
        const DeviceArray<float> y(size_t{1} * rows * hidden * std::max(terms, 1), kSome),
            weights(size_t{1} * rows * std::max(terms, 1), 0);
        const DeviceArray<uint16_t> out(size_t{1} * rows * hidden);
        NormRowsParams params;
        params.num_rows = rows;
        params.hidden = hidden;
        params.x = x.data();
        params.terms = y.data();
        params.terms_dtype = DType::kF32;
        params.num_terms = terms;
        params.term_weights = weights.data();
        params.norm_weight = weight.data();
        params.out = out.data();
        Report(
            "norm " + std::to_string(hidden) + ", " + std::to_string(terms) + " terms", rows,
            rows * hidden * (4.0 * terms + (terms > 0 ? 10 : 6)), stream,
            [&](int, cudaStream_t s) { CudaOk(NormRows(params, s), "NormRows"); },
            /*counts=*/true);
      }
    }
  }
}

void Writes(cudaStream_t stream) {
  for (const int q : {0, 768, 1536}) {
    for (const int rows : {1, 32, 128, 512}) {
      const int stride = q + 576;
      const DeviceArray<float> input(size_t{1} * rows * stride, kSome), weight(512, kSome),
          q_weight(2048, kSome), angles(size_t{1} * rows * 32, kSome);
      const DeviceArray<uint16_t> cache(size_t{1} * rows * 576), q_out(size_t{1} * rows * 2048);
      std::vector<int64_t> slots(rows);
      for (int i = 0; i < rows; ++i) slots[i] = i;
      const DeviceArray<int64_t> d_slots(slots);
      LatentWriteParams params;
      params.num_rows = rows;
      params.input_dtype = DType::kF32;
      params.row_stride = stride;
      params.kv = input.data() + q;
      params.weight = weight.data();
      params.rotary = {.cos = angles.data(), .sin = angles.data()};
      params.slot_mapping = d_slots.data();
      params.cache = cache.data();
      params.q = q > 0 ? input.data() : nullptr;
      params.q_columns = q;
      params.q_weight = q_weight.data();
      params.q_out = q_out.data();
      Report(
          "cache write, query norm of " + std::to_string(q), rows,
          rows * (576 * 6.0 + q * 6.0 + 256), stream,
          [&](int, cudaStream_t s) { CudaOk(WriteLatentRows(params, s), "write"); },
          /*counts=*/true);
    }
  }
}

void Routers(cudaStream_t stream) {
  struct Shape {
    const char* name;
    int experts, top_k, groups, top_groups;
    ExpertScores scores;
  };
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const Shape& shape : {Shape{"V2-Lite", 64, 6, 1, 1, ExpertScores::kSoftmax},
                             Shape{"GLM-4.7-Flash", 64, 4, 1, 1, ExpertScores::kSigmoid},
                             Shape{"V3", 256, 8, 8, 4, ExpertScores::kSigmoid}}) {
    for (const int rows : {1, 8, 32, 128, 512, 4096}) {
      std::vector<float> values(size_t{1} * rows * shape.experts);
      for (float& value : values) value = normal(random);
      const int choices = shape.top_k + 1;
      const DeviceArray<float> logits(values), bias(shape.experts, kSome),
          weights(size_t{1} * rows * choices);
      const DeviceArray<int32_t> ids(size_t{1} * rows * choices), pairs(size_t{1} * rows * choices),
          offsets(shape.experts + 2), num_tiles(1);
      const DeviceArray<ExpertTile> tiles(MaxExpertTiles(rows, choices, shape.experts + 1, 16));
      const ExpertRouterParams params = {
          .num_rows = rows,
          .experts = shape.experts,
          .top_k = shape.top_k,
          .shared_experts = 1,
          .scores = shape.scores,
          .num_groups = shape.groups,
          .top_groups = shape.top_groups,
          .tile_rows = 16,
          .logits = logits.data(),
          .bias = shape.scores == ExpertScores::kSigmoid ? bias.data() : nullptr};
      const ExpertRouting routing = {.expert_ids = ids.data(),
                                     .weights = weights.data(),
                                     .offsets = offsets.data(),
                                     .pairs = pairs.data(),
                                     .tiles = tiles.data(),
                                     .num_tiles = num_tiles.data()};
      Report(
          std::string("router ") + shape.name, rows, rows * (shape.experts * 4.0 + 12 * choices),
          stream, [&](int, cudaStream_t s) { CudaOk(RouteExperts(params, routing, s), "router"); },
          /*counts=*/true);
    }
  }
}

void Projections(cudaStream_t stream) {
  struct Shape {
    int heads, k, n;
    bool rotates;
  };
  for (const Shape& shape :
       {Shape{16, 128, 512, true}, Shape{16, 512, 128, false}, Shape{20, 192, 512, true},
        Shape{20, 512, 256, false}, Shape{128, 128, 512, true}, Shape{128, 512, 128, false}}) {
    const size_t weights = size_t{1} * shape.heads * shape.k * shape.n;
    const size_t copies = std::min<size_t>(64, (size_t{512} << 20) / (weights * 2) + 1);
    const DeviceArray<uint16_t> w(weights * copies, kSome);
    const DeviceArray<float> angles(size_t{32} * 512, kSome);
    const RotaryTable rotary = {.cos = angles.data(), .sin = angles.data()};
    for (const int rows : {1, 4, 16, 64, 128, 512}) {
      const int spare = shape.rotates ? 64 : 0;
      const DeviceArray<uint16_t> x(size_t{1} * rows * shape.heads * (shape.k + spare), kSome);
      const DeviceArray<uint16_t> y(size_t{1} * rows * shape.heads * (shape.n + spare));
      HeadProjectionParams params;
      params.num_tokens = rows;
      params.heads = shape.heads;
      params.k = shape.k;
      params.n = shape.n;
      params.x = x.data();
      params.x_head_stride = shape.k + spare;
      params.x_token_stride = static_cast<int64_t>(shape.heads) * (shape.k + spare);
      params.y = y.data();
      params.y_head_stride = shape.n + spare;
      params.y_token_stride = static_cast<int64_t>(shape.heads) * (shape.n + spare);
      params.rotary = shape.rotates ? &rotary : nullptr;
      Report(std::to_string(shape.heads) + " heads, " + std::to_string(shape.k) + " to " +
                 std::to_string(shape.n) + (shape.rotates ? ", rotary" : ""),
             rows, 2.0 * weights + 2.0 * rows * shape.heads * (shape.k + shape.n + 2 * spare),
             stream, [&](int i, cudaStream_t s) {
               HeadProjectionParams each = params;
               each.w = w.data() + i % copies * weights;
               CudaOk(ProjectHeads(each, s), "ProjectHeads");
             });
    }
  }
}

void Draws(cudaStream_t stream) {
  constexpr int kVocab = 154880;
  constexpr int kMost = 128;
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0F, 2.5F);
  std::vector<float> values(size_t{kMost} * kVocab);
  for (float& value : values) value = normal(random);
  // As a language model's: a few tokens are far ahead.
  for (int row = 0; row < kMost; ++row) {
    for (int i = 0; i < 40; ++i) {
      values[static_cast<size_t>(row) * kVocab + random() % kVocab] =
          18.0F - 0.35F * static_cast<float>(i);
    }
  }
  const DeviceArray<float> logits(values);
  std::vector<int32_t> numbers(kMost + 1);
  for (int i = 0; i <= kMost; ++i) numbers[i] = i;
  const DeviceArray<int32_t> d_numbers(numbers);
  const DeviceArray<int32_t> tokens(kMost), ranks(kMost), top_tokens(kMost * 20);
  const DeviceArray<float> logprobs(kMost), top_logprobs(kMost * 20);
  struct Kind {
    const char* name;
    RequestSampling slot;
  };
  for (const Kind& kind :
       {Kind{"draw, greedy", {.temperature = 0}}, Kind{"draw, race", {}},
        Kind{"draw, top-k 50", {.top_k = 50}}, Kind{"draw, top-p 0.95", {.top_p = 0.95F}},
        Kind{"draw, top-k 50, top-p 0.95", {.top_k = 50, .top_p = 0.95F}},
        Kind{"draw, min-p 0.05", {.min_p = 0.05F}},
        Kind{"draw, race, 5 logprobs", {.top_logprobs = 5}}}) {
    const DeviceArray<RequestSampling> slots(std::vector<RequestSampling>(kMost, kind.slot));
    for (const int rows : {1, 8, 32, 64, 128}) {
      const DrawParams params = {.max_rows = rows,
                                 .vocab_size = kVocab,
                                 .logits = logits.data(),
                                 .logits_stride = kVocab,
                                 .token_ids = d_numbers.data(),
                                 .logit_rows = d_numbers.data(),
                                 .logit_positions = d_numbers.data(),
                                 .logit_requests = d_numbers.data(),
                                 .logit_start_loc = d_numbers.data(),
                                 .sampling = slots.data(),
                                 .max_top_logprobs = 20};
      const DrawResults results = {.tokens = tokens.data(),
                                   .logprobs = logprobs.data(),
                                   .ranks = ranks.data(),
                                   .top_tokens = top_tokens.data(),
                                   .top_logprobs = top_logprobs.data()};
      Report(kind.name, rows, 4.0 * rows * kVocab, stream,
             [&](int, cudaStream_t s) { CudaOk(DrawTokens(params, results, s), "DrawTokens"); });
    }
  }
}

/// The head's product and a draw from its logits.
void HeadAndDraw(cudaStream_t stream) {
  constexpr int kVocab = 154880;
  constexpr int kHidden = 2048;
  constexpr int kMost = 64;
  PackedWeight head = {.n = kVocab, .k = kHidden};
  const DeviceArray<uint8_t> packed(PackedWeightBytes(head.format, head.n, head.k));
  {
    const DeviceArray<uint16_t> plain(size_t{kVocab} * kHidden);
    FillBf16<<<1024, 256>>>(plain.data(), plain.size(), 3, 0.04F);
    head.data = packed.data();
    PackWeight({.w = plain.data()}, head, nullptr);
    CudaOk(cudaDeviceSynchronize(), "packing");
  }
  const DeviceArray<uint16_t> x(size_t{kMost} * kHidden);
  FillBf16<<<1024, 256>>>(x.data(), x.size(), 4, 1.0F);
  const DeviceArray<float> logits(size_t{kMost} * kVocab);
  const DeviceArray<int32_t> zeros(kMost, 0), tokens(kMost);
  for (const float temperature : {0.0F, 1.0F}) {
    const DeviceArray<RequestSampling> slots(
        std::vector<RequestSampling>(1, RequestSampling{.temperature = temperature}));
    for (const int rows : {1, 8, 32, 64}) {
      const auto body = [&](int, cudaStream_t s) {
        MatMulParams product;
        product.rows = rows;
        product.x = x.data();
        product.x_stride = kHidden;
        product.w = head;
        product.y = logits.data();
        product.y_stride = kVocab;
        product.y_type = OutputType::kF32;
        MatMul(product, s);
        CudaOk(DrawTokens({.max_rows = rows,
                           .vocab_size = kVocab,
                           .logits = logits.data(),
                           .logits_stride = kVocab,
                           .token_ids = zeros.data(),
                           .logit_rows = zeros.data(),
                           .logit_positions = zeros.data(),
                           .logit_requests = zeros.data(),
                           .logit_start_loc = zeros.data(),
                           .sampling = slots.data()},
                          {.tokens = tokens.data()}, s),
               "DrawTokens");
      };
      const double us = ChainTime(8, stream, body);
      const double bytes = 2.0 * kVocab * kHidden / BytesPerUs();
      const std::string name = temperature == 0 ? "greedy" : "race";
      std::printf("head and draw, %-6s %3d rows %8.2f us  its weights' bytes %8.2f  %4.2f\n",
                  name.c_str(), rows, us, bytes, bytes / us);
      RecordGoal(Goal::kHeadAndDraw, name + ", " + std::to_string(rows) + " rows", bytes / us);
    }
  }
}

}  // namespace

int RunStepKernelsBench() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "step_kernels_bench: no GPU here\n");
    return 2;
  }
  cudaStream_t stream;
  CudaOk(cudaStreamCreate(&stream), "stream");
  Report("empty kernel", 0, 0, stream, [](int, cudaStream_t s) { Empty<<<1, 32, 0, s>>>(); });
  Norms(stream);
  Writes(stream);
  Routers(stream);
  Projections(stream);
  Draws(stream);
  HeadAndDraw(stream);
  return 0;
}

}  // namespace outrider::cuda

#ifndef OUTRIDER_GOALS
int main() { return outrider::cuda::RunStepKernelsBench(); }
#endif
