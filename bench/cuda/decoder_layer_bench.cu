// One MoE layer of DeepSeek-V2-Lite from the device's kernels alone, as a decode step runs it: one
// row per request, context 1024, random bf16 weights. Every launch may start beside the end of the
// one before it; layers follow each other in one graph, with weights and caches of their own, so
// that all is cold. Prints microseconds per layer beside what its bytes take at the rate of reads,
// and checks that a request's rows have the same bits alone as in a batch. Longer than most files:
// one layer is one list of launches over one set of buffers.
//
//   decoder_layer_bench [--apart] [rows...]
//
// --apart: what the layer takes without each of its launches. (Without the router the experts read
// the routing that the step before has left.)
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <vector>

#include "bench/cuda/goal_figures.h"
#include "bench/cuda/graph_timer.h"
#include "outrider/kernels/cuda/matmul/matmul.h"
#include "outrider/kernels/cuda/mla_decode/head_projection.h"
#include "outrider/kernels/cuda/mla_decode/mla_decode.h"
#include "outrider/kernels/cuda/moe/expert_router.h"
#include "outrider/kernels/cuda/rows/norm_rows.h"
#include "outrider/kernels/cuda/rows/step_rows.h"

namespace outrider::cuda {
namespace {

constexpr int kHidden = 2048, kHeads = 16, kNope = 128, kRope = 64, kValue = 128, kLatent = 512;
constexpr int kQuery = kHeads * (kNope + kRope);
constexpr int kQueryKv = kQuery + kLatent + kRope;
constexpr int kRouted = 64, kShared = 2, kExperts = kRouted + kShared;
constexpr int kTopK = 6, kChoices = kTopK + kShared, kWidth = 1408;
constexpr int kContext = 1024, kPage = 64, kPages = kContext / kPage;
constexpr int kMaxRows = 128, kLayers = 4;

// The launches of a layer, in order.
constexpr const char* kLaunches[] = {"norm and experts' sum",
                                     "q and kv product",
                                     "cache write",
                                     "absorption",
                                     "attention",
                                     "un-absorption",
                                     "output product",
                                     "norm",
                                     "router's product",
                                     "router",
                                     "gate and up",
                                     "down"};
constexpr int kGateUp = 10;

DeviceArray<uint16_t> RandomBf16(size_t count, uint32_t seed, float scale) {
  DeviceArray<uint16_t> values(count);
  FillBf16<<<1024, 256>>>(values.data(), count, seed, scale);
  return values;
}

/// A packed bf16 weight of random values, or `experts` of them.
struct Weight {
  PackedWeight packed;
  DeviceArray<uint8_t> memory;

  Weight(int n, int k, bool gate_up, int experts, uint32_t seed) {
    packed.n = n;
    packed.k = k;
    packed.gate_up = gate_up;
    const size_t bytes = PackedWeightBytes(packed.format, n, k);
    memory = DeviceArray<uint8_t>(bytes * experts);
    for (int expert = 0; expert < experts; ++expert) {
      const size_t count = static_cast<size_t>(n) * k;
      const DeviceArray<uint16_t> plain = RandomBf16(count, seed * 1000 + expert, 0.04F);
      packed.data = memory.data() + bytes * expert;
      UnpackedWeight source;
      source.w = plain.data();
      if (gate_up) source.up = plain.data() + count / 2;
      PackWeight(source, packed, nullptr);
      CudaOk(cudaDeviceSynchronize(), "packing");
    }
    packed.data = memory.data();
  }
};

struct Layer {
  Weight query_kv, output, router, gate_up, down;
  DeviceArray<uint16_t> absorb, unabsorb, cache;

  explicit Layer(uint32_t seed)
      : query_kv(kQueryKv, kHidden, false, 1, seed + 1),
        output(kHidden, kHeads * kValue, false, 1, seed + 2),
        router(kRouted, kHidden, false, 1, seed + 3),
        gate_up(2 * kWidth, kHidden, true, kExperts, seed + 4),
        down(kHidden, kWidth, false, kExperts, seed + 5),
        absorb(RandomBf16(static_cast<size_t>(kHeads) * kLatent * kNope, seed + 6, 0.1F)),
        unabsorb(RandomBf16(static_cast<size_t>(kHeads) * kValue * kLatent, seed + 7, 0.1F)),
        cache(RandomBf16(static_cast<size_t>(kMaxRows) * kContext * kMlaKeyDim, seed + 8, 1.0F)) {}
};

void Launched(cudaError_t error) { CudaOk(error, "launch"); }

/// Buffers of a step of `rows` requests; request i is number first + i of those that have a cache.
class Step {
 public:
  Step(int rows, int first)
      : rows_(rows),
        limits_{.max_tokens = rows, .max_requests = rows, .max_seq_len = kContext, .heads = kHeads},
        x_(static_cast<size_t>(rows) * kHidden),
        terms_(static_cast<size_t>(rows) * kChoices * kHidden, 0),
        weights_(static_cast<size_t>(rows) * kChoices, 0),
        ones_(std::vector<float>(kHidden, 1.0F)),
        h_(static_cast<size_t>(rows) * kHidden),
        query_kv_(static_cast<size_t>(rows) * kQueryKv),
        q_(static_cast<size_t>(rows) * kHeads * kMlaKeyDim),
        attention_(static_cast<size_t>(rows) * kHeads * kLatent),
        values_(static_cast<size_t>(rows) * kHeads * kValue),
        lse_(static_cast<size_t>(rows) * kHeads),
        logits_(static_cast<size_t>(rows) * kRouted),
        inner_(static_cast<size_t>(rows) * kChoices * kWidth),
        gathered_(static_cast<size_t>(rows) * kChoices * kHidden),
        workspace_(MlaDecodeWorkspaceBytes(limits_), 0),
        tile_rows_(ExpertTileRows(WeightFormat::kBf16, rows, kChoices, kExperts)),
        ids_(static_cast<size_t>(rows) * kChoices),
        offsets_(kExperts + 1),
        pairs_(static_cast<size_t>(rows) * kChoices),
        places_(static_cast<size_t>(rows) * kChoices),
        tiles_(static_cast<size_t>(MaxExpertTiles(rows, kChoices, kExperts, tile_rows_))),
        num_tiles_(1) {
    std::vector<float> x(static_cast<size_t>(rows) * kHidden), cosines(kContext * 32),
        sines(kContext * 32);
    for (int row = 0; row < rows; ++row) {
      uint32_t state = 77u + first + row;
      for (int i = 0; i < kHidden; ++i) {
        state = state * 1664525u + 1013904223u;
        x[static_cast<size_t>(row) * kHidden + i] =
            static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31F;
      }
    }
    for (size_t i = 0; i < cosines.size(); ++i) {
      const float angle =
          static_cast<float>(i / 32) * std::pow(1e-4F, static_cast<float>(i % 32) / 32);
      cosines[i] = std::cos(angle);
      sines[i] = std::sin(angle);
    }
    std::vector<int32_t> positions(rows, kContext - 1), starts(rows + 1), lengths(rows, kContext);
    std::vector<int64_t> slots(rows);
    std::vector<int32_t> table(static_cast<size_t>(rows) * kPages);
    for (int row = 0; row <= rows; ++row) starts[row] = row;
    for (int row = 0; row < rows; ++row) {
      slots[row] = static_cast<int64_t>(first + row) * kContext + kContext - 1;
      for (int page = 0; page < kPages; ++page)
        table[row * kPages + page] = (first + row) * kPages + page;
    }
    start_x_ = DeviceArray<float>(x);
    cosines_ = DeviceArray<float>(cosines);
    sines_ = DeviceArray<float>(sines);
    positions_ = DeviceArray<int32_t>(positions);
    starts_ = DeviceArray<int32_t>(starts);
    lengths_ = DeviceArray<int32_t>(lengths);
    slots_ = DeviceArray<int64_t>(slots);
    table_ = DeviceArray<int32_t>(table);
    routing_.expert_ids = ids_.data();
    routing_.weights = weights_.data();
    routing_.offsets = offsets_.data();
    routing_.pairs = pairs_.data();
    routing_.places = places_.data();
    routing_.tiles = tiles_.data();
    routing_.num_tiles = num_tiles_.data();
  }

  /// Starts with the tokens' rows, no terms, and the step's attention plan.
  void Begin(cudaStream_t stream) {
    CudaOk(cudaMemcpyAsync(x_.data(), start_x_.data(), x_.size() * 4, cudaMemcpyDeviceToDevice,
                           stream),
           "x");
    CudaOk(cudaMemsetAsync(terms_.data(), 0, terms_.size() * 4, stream), "terms");
    CudaOk(cudaMemsetAsync(weights_.data(), 0, weights_.size() * 4, stream), "weights");
    Launched(MlaDecodePlan(Attention(nullptr), limits_, workspace_.data(), stream));
    plan_settled_ = false;
  }

  /// All launches but number `without`.
  void Run(const Layer& layer, cudaStream_t stream, int without = -1) {
    int number = 0;
    const auto skip = [&] { return number++ == without; };
    if (!skip()) Norm(true, stream);
    if (!skip()) {
      Product(layer.query_kv, h_.data(), kHidden, query_kv_.data(), kQueryKv, OutputType::kBf16,
              false, stream);
    }
    const RotaryTable rotary = {
        .cos = cosines_.data(), .sin = sines_.data(), .positions = positions_.data()};
    LatentWriteParams write;
    write.num_rows = rows_;
    write.row_stride = kQueryKv;
    write.kv = query_kv_.data() + kQuery;
    write.weight = ones_.data();
    write.rotary = rotary;
    write.slot_mapping = slots_.data();
    write.cache = layer.cache.data();
    if (!skip()) Launched(WriteLatentRows(write, stream));
    HeadProjectionParams absorb;
    absorb.num_tokens = rows_;
    absorb.heads = kHeads;
    absorb.k = kNope;
    absorb.n = kLatent;
    absorb.x = query_kv_.data();
    absorb.x_token_stride = kQueryKv;
    absorb.x_head_stride = kNope + kRope;
    absorb.w = layer.absorb.data();
    absorb.y = q_.data();
    absorb.y_token_stride = kHeads * kMlaKeyDim;
    absorb.y_head_stride = kMlaKeyDim;
    absorb.rotary = &rotary;
    if (!skip()) Launched(ProjectHeads(absorb, stream));
    if (!skip()) {
      Launched(MlaDecode(Attention(layer.cache.data()), limits_, workspace_.data(), stream));
      plan_settled_ = true;
    }
    HeadProjectionParams unabsorb;
    unabsorb.num_tokens = rows_;
    unabsorb.heads = kHeads;
    unabsorb.k = kLatent;
    unabsorb.n = kValue;
    unabsorb.x = attention_.data();
    unabsorb.x_token_stride = kHeads * kLatent;
    unabsorb.x_head_stride = kLatent;
    unabsorb.w = layer.unabsorb.data();
    unabsorb.y = values_.data();
    unabsorb.y_token_stride = kHeads * kValue;
    unabsorb.y_head_stride = kValue;
    if (!skip()) Launched(ProjectHeads(unabsorb, stream));
    if (!skip()) {
      Product(layer.output, values_.data(), kHeads * kValue, x_.data(), kHidden, OutputType::kF32,
              true, stream);
    }
    if (!skip()) Norm(false, stream);
    ExpertRouterParams router;
    router.num_rows = rows_;
    router.experts = kRouted;
    router.top_k = kTopK;
    router.shared_experts = kShared;
    router.scores = ExpertScores::kSoftmax;
    router.normalise = false;
    router.tile_rows = tile_rows_;
    router.logits = logits_.data();
    if (!skip()) {
      Product(layer.router, h_.data(), kHidden, logits_.data(), kRouted, OutputType::kF32, false,
              stream);
    }
    if (!skip()) Launched(RouteExperts(router, routing_, stream));
    ExpertMatMulParams experts;
    experts.max_rows = rows_;
    experts.choices = kChoices;
    experts.experts = kExperts;
    experts.routing = routing_;
    experts.tile_rows = tile_rows_;
    experts.x = h_.data();
    experts.x_stride = kHidden;
    experts.gathered = gathered_.data();
    experts.w = layer.gate_up.packed;
    experts.y = inner_.data();
    experts.y_stride = kWidth;
    if (!skip()) ExpertMatMul(experts, stream);
    experts.x = inner_.data();
    experts.x_stride = kWidth;
    experts.w = layer.down.packed;
    experts.y = terms_.data();
    experts.y_stride = kHidden;
    experts.y_type = OutputType::kF32;
    experts.routing_settled = without != kGateUp;
    if (!skip()) ExpertMatMul(experts, stream);
  }

  /// The residual after the last layer's experts.
  std::vector<float> Finish(cudaStream_t stream) {
    Norm(true, stream);
    CudaOk(cudaStreamSynchronize(stream), "step");
    return x_.Download();
  }

  /// Experts that have rows.
  int Touched() const {
    const std::vector<int32_t> offsets = offsets_.Download();
    int touched = 0;
    for (int i = 0; i < kExperts; ++i) touched += offsets[i + 1] > offsets[i] ? 1 : 0;
    return touched;
  }

 private:
  void Norm(bool add_terms, cudaStream_t stream) {
    NormRowsParams norm;
    norm.num_rows = rows_;
    norm.hidden = kHidden;
    norm.x = x_.data();
    if (add_terms) {
      norm.terms = terms_.data();
      norm.terms_dtype = DType::kF32;
      norm.num_terms = kChoices;
      norm.term_weights = weights_.data();
    }
    norm.norm_weight = ones_.data();
    norm.out = h_.data();
    Launched(NormRows(norm, stream));
  }

  void Product(const Weight& w, const void* x, int x_stride, void* y, int y_stride, OutputType type,
               bool accumulate, cudaStream_t stream) {
    MatMulParams product;
    product.rows = rows_;
    product.x = x;
    product.x_stride = x_stride;
    product.w = w.packed;
    product.y = y;
    product.y_stride = y_stride;
    product.y_type = type;
    product.accumulate = accumulate;
    MatMul(product, stream);
  }

  MlaDecodeParams Attention(const void* cache) const {
    MlaDecodeParams params;
    params.num_requests = rows_;
    params.num_tokens = rows_;
    params.heads = kHeads;
    params.q = q_.data();
    params.query_start_loc = starts_.data();
    params.seq_lens = lengths_.data();
    params.block_table = table_.data();
    params.block_table_stride = kPages;
    params.cache = cache;
    params.num_blocks = kMaxRows * kPages;
    params.page_size = kPage;
    params.softmax_scale = 0.07F;
    params.output = attention_.data();
    params.lse = lse_.data();
    params.plan_settled = plan_settled_;
    return params;
  }

  int rows_;
  bool plan_settled_ = false;
  MlaDecodeLimits limits_;
  DeviceArray<float> start_x_, x_, terms_, weights_, ones_, cosines_, sines_;
  DeviceArray<uint16_t> h_, query_kv_, q_, attention_, values_;
  DeviceArray<float> lse_, logits_;
  DeviceArray<uint16_t> inner_, gathered_;
  DeviceArray<uint8_t> workspace_;
  int tile_rows_;
  DeviceArray<int32_t> ids_, offsets_, pairs_, places_;
  DeviceArray<ExpertTile> tiles_;
  DeviceArray<int32_t> num_tiles_, positions_, starts_, lengths_, table_;
  DeviceArray<int64_t> slots_;
  ExpertRouting routing_;
};

std::vector<float> RunLayers(Step& step, const std::vector<Layer>& layers, cudaStream_t stream) {
  step.Begin(stream);
  for (const Layer& layer : layers) step.Run(layer, stream);
  return step.Finish(stream);
}

}  // namespace

int RunDecoderLayerBench(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "decoder_layer_bench: no GPU here\n");
    return 2;
  }
  std::vector<int> all;
  bool apart = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--apart") == 0) {
      apart = true;
      continue;
    }
    all.push_back(std::atoi(argv[i]));
    if (all.back() < 1 || all.back() > kMaxRows) {
      std::fprintf(stderr, "decoder_layer_bench: rows must be 1 to %d\n", kMaxRows);
      return 2;
    }
  }
  if (all.empty()) all = {1, 2, 4, 8, 16, 32, 64, 128};
  cudaStream_t stream;
  CudaOk(cudaStreamCreate(&stream), "stream");
  std::vector<Layer> layers;
  for (int i = 0; i < kLayers; ++i) layers.emplace_back(10 * i + 1);
  int wrong = 0;
  std::vector<float> batch;
  {
    Step step(kMaxRows, 0);
    batch = RunLayers(step, layers, stream);
  }
  bool finite = true;
  for (const float value : batch) finite = finite && std::isfinite(value);
  if (!finite) std::printf("the residual is not finite\n");
  for (const int rows : {1, 3, 8, 17, 33, 100}) {
    for (const int first : {0, 11, kMaxRows - rows}) {
      if (first + rows > kMaxRows) continue;
      Step step(rows, first);
      const std::vector<float> some = RunLayers(step, layers, stream);
      if (std::memcmp(some.data(), batch.data() + static_cast<size_t>(first) * kHidden,
                      some.size() * 4) != 0) {
        std::printf("%d rows from %d differ from the batch of %d\n", rows, first, kMaxRows);
        ++wrong;
      }
    }
  }
  std::printf("bits of rows after %d layers: %s\n", kLayers,
              wrong == 0 && finite ? "equal in all batches" : "WRONG");
  for (const int rows : all) {
    Step step(rows, 0);
    RunLayers(step, layers, stream);
    const double us = MicrosecondsPerLaunch(
        16, 9, stream, [&](int i, cudaStream_t on) { step.Run(layers[i % kLayers], on); });
    CudaOk(cudaDeviceSynchronize(), "layers");
    const double weights =
        2.0 * (static_cast<double>(kHidden) * (kQueryKv + kHeads * kValue + kRouted) +
               static_cast<double>(kHeads) * kLatent * (kNope + kValue) +
               static_cast<double>(step.Touched()) * 3 * kWidth * kHidden);
    const double bytes = weights + 2.0 * rows * kContext * kMlaKeyDim;
    std::printf(
        "V2-Lite MoE layer, %3d rows, context %d: %8.2f us  bytes take %8.2f  %5.2f  (%d "
        "experts)\n",
        rows, kContext, us, bytes / BytesPerUs(), bytes / BytesPerUs() / us, step.Touched());
    if (rows == 1) RecordGoal(Goal::kLayerOneRow, "1 row", us);
    if (rows == 32) RecordGoal(Goal::kLayerThirtyTwoRows, "32 rows", us / (bytes / BytesPerUs()));
    if (apart) {
      for (int i = 0; i < static_cast<int>(std::size(kLaunches)); ++i) {
        const double less = MicrosecondsPerLaunch(
            16, 9, stream, [&](int j, cudaStream_t on) { step.Run(layers[j % kLayers], on, i); });
        std::printf("  without %-24s %8.2f us, %6.2f less\n", kLaunches[i], less, us - less);
      }
    }
    std::fflush(stdout);
  }
  return wrong == 0 && finite ? 0 : 1;
}

}  // namespace outrider::cuda

#ifndef OUTRIDER_GOALS
int main(int argc, char** argv) { return outrider::cuda::RunDecoderLayerBench(argc, argv); }
#endif
