// Whole steps of a network on the device, with random weights: from the slots' states to drawn
// tokens, as one graph, at 1 to 128 requests of 1024 tokens; and prompts. Prints milliseconds per
// step beside what the bytes that it reads take at 4.3 TB/s.
//
//   network_step_bench [v2-lite|glm-4.7-flash]...
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "outrider/kernels/cuda/draw.h"
#include "outrider/kernels/cuda/load_weights.h"
#include "outrider/kernels/cuda/verify_drafts.h"
#include "outrider/networks/cuda/device_network.h"
#include "tests/kernels/cuda/device_array.h"

namespace outrider::cuda {
namespace {

constexpr double kBytesPerSecond = 4.3e12;
constexpr int kContext = 1024;
constexpr int kBlock = 64;
constexpr int kBlocksEach = 2 * kContext / kBlock;
constexpr int kMostRequests = 128;
constexpr int kPrompts = 8;
constexpr int kPromptRows = 2048;

constexpr const char* kV2Lite = R"({
  "model_type": "deepseek_v2", "hidden_act": "silu", "vocab_size": 102400, "hidden_size": 2048,
  "num_hidden_layers": 27, "num_attention_heads": 16, "q_lora_rank": null, "kv_lora_rank": 512,
  "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
  "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 64,
  "n_shared_experts": 2, "num_experts_per_tok": 6, "n_group": 1, "topk_group": 1,
  "topk_method": "greedy", "scoring_func": "softmax", "norm_topk_prob": false,
  "routed_scaling_factor": 1.0, "first_k_dense_replace": 1, "moe_layer_freq": 1,
  "rms_norm_eps": 1e-06, "max_position_embeddings": 163840, "rope_theta": 10000,
  "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096,
                   "beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707},
  "torch_dtype": "bfloat16"})";

constexpr const char* kGlm47Flash = R"({
  "model_type": "glm4_moe_lite", "hidden_act": "silu", "vocab_size": 154880, "hidden_size": 2048,
  "num_hidden_layers": 47, "num_attention_heads": 20, "q_lora_rank": 768, "kv_lora_rank": 512,
  "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256,
  "intermediate_size": 10240, "moe_intermediate_size": 1536, "n_routed_experts": 64,
  "n_shared_experts": 1, "num_experts_per_tok": 4, "n_group": 1, "topk_group": 1,
  "topk_method": "noaux_tc", "norm_topk_prob": true, "routed_scaling_factor": 1.8,
  "first_k_dense_replace": 1, "num_nextn_predict_layers": 1, "rms_norm_eps": 1e-05,
  "max_position_embeddings": 202752, "partial_rotary_factor": 1.0, "rope_theta": 1000000,
  "rope_scaling": null, "dtype": "bfloat16"})";

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int NumExperts(const MoeSpec& moe) {
  return static_cast<int>(moe.router.experts) + SharedExperts(moe);
}

double WeightBytes(const PackedWeight& w) {
  return w.data == nullptr ? 0 : static_cast<double>(PackedWeightBytes(w.format, w.n, w.k));
}

DeviceArray<int32_t> Numbers(int count, int first = 0, int step = 1) {
  std::vector<int32_t> values(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) values[static_cast<size_t>(i)] = first + i * step;
  return DeviceArray<int32_t>(values);
}

/// Requests of one row each, and everything on the device that their steps need.
class Steps {
 public:
  Steps(DeviceNetwork& model, const DeviceCache& cache, int requests, cudaStream_t stream)
      : model_(model),
        cache_(cache),
        count_(requests),
        stream_(stream),
        tokens_(Numbers(requests, 17, 97)),
        drafts_(requests, 0),
        lengths_(std::vector<int32_t>(requests, kContext)),
        remaining_(std::vector<int32_t>(requests, 1 << 20)),
        tables_(Numbers(requests * kBlocksEach)),
        sampling_(std::vector<SlotSampling>(requests, SlotSampling{.temperature = 0})),
        token_ids_(requests),
        positions_(requests),
        starts_(requests + 1),
        lens_(requests),
        step_tables_(static_cast<size_t>(requests) * kBlocksEach),
        num_rows_(1),
        logit_rows_(requests),
        logit_positions_(requests),
        logit_requests_(requests),
        logit_starts_(requests + 1),
        mapping_(requests),
        hidden_(static_cast<size_t>(requests * model.config().hidden_size)),
        logits_(static_cast<size_t>(requests * model.logits_stride())),
        drawn_(requests),
        accepted_(requests),
        emitted_counts_(requests),
        emitted_(requests),
        endings_(requests) {
    std::vector<StepRequest> step(static_cast<size_t>(requests));
    for (int i = 0; i < requests; ++i) {
      step[static_cast<size_t>(i)] = {.slot = i, .max_rows = 1};
    }
    requests_ = DeviceArray<StepRequest>(step);
    slots_ = {.num_slots = requests,
              .max_drafts = 0,
              .tokens = tokens_.data(),
              .num_drafts = drafts_.data(),
              .lengths = lengths_.data(),
              .remaining = remaining_.data(),
              .block_tables = tables_.data(),
              .block_table_stride = kBlocksEach};
    step_.num_rows = step_.num_decode_rows = step_.num_decode_requests = requests;
    step_.num_logits_rows = requests;
    step_.true_rows = num_rows_.data();
    step_.block_table_stride = kBlocksEach;
    step_.requests = requests_.data();
    step_.inputs = {.token_ids = token_ids_.data(),
                    .positions = positions_.data(),
                    .slot_mapping = mapping_.data(),
                    .query_start_loc = starts_.data(),
                    .seq_lens = lens_.data(),
                    .block_tables = step_tables_.data(),
                    .num_rows = num_rows_.data(),
                    .logit_rows = logit_rows_.data(),
                    .logit_positions = logit_positions_.data(),
                    .logit_requests = logit_requests_.data(),
                    .logit_start_loc = logit_starts_.data()};
  }

  void Launch(const DeviceLayerObserver& observer = nullptr) {
    CheckCuda(MakeStepInputs({.num_requests = count_,
                              .requests = requests_.data(),
                              .slots = slots_,
                              .page_size = kBlock,
                              .num_pages = cache_.num_blocks(),
                              .max_rows = count_},
                             step_.inputs, stream_),
              "step inputs");
    model_.Forward(step_, cache_, hidden_.data(), stream_, observer);
    model_.Logits(hidden_.data(), logit_rows_.data(), count_, logits_.data(), stream_);
    const auto vocab = static_cast<int>(model_.config().vocab_size);
    CheckCuda(DrawTokens({.max_rows = count_,
                          .vocab_size = vocab,
                          .logits = logits_.data(),
                          .logits_stride = model_.logits_stride(),
                          .requests = requests_.data(),
                          .token_ids = token_ids_.data(),
                          .logit_rows = logit_rows_.data(),
                          .logit_positions = logit_positions_.data(),
                          .logit_requests = logit_requests_.data(),
                          .logit_start_loc = logit_starts_.data(),
                          .slots = sampling_.data()},
                         {.tokens = drawn_.data()}, stream_),
              "draw");
    CheckCuda(VerifyDrafts({.num_requests = count_,
                            .requests = requests_.data(),
                            .slots = slots_,
                            .sampling = sampling_.data(),
                            .token_ids = token_ids_.data(),
                            .logit_rows = logit_rows_.data(),
                            .logit_start_loc = logit_starts_.data(),
                            .drawn = drawn_.data(),
                            .vocab_size = vocab},
                           {.num_accepted = accepted_.data(),
                            .num_emitted = emitted_counts_.data(),
                            .emitted = emitted_.data(),
                            .endings = endings_.data()},
                           stream_),
              "verify");
  }

  std::vector<int32_t> Drawn() const { return drawn_.Download(); }
  std::vector<int32_t> Lengths() const { return lengths_.Download(); }

 private:
  DeviceNetwork& model_;
  const DeviceCache& cache_;
  int count_;
  cudaStream_t stream_;
  DeviceArray<int32_t> tokens_, drafts_, lengths_, remaining_, tables_;
  DeviceArray<SlotSampling> sampling_;
  DeviceArray<int32_t> token_ids_, positions_, starts_, lens_, step_tables_, num_rows_, logit_rows_,
      logit_positions_, logit_requests_, logit_starts_;
  DeviceArray<int64_t> mapping_;
  DeviceArray<uint16_t> hidden_;
  DeviceArray<float> logits_;
  DeviceArray<int32_t> drawn_, accepted_, emitted_counts_, emitted_, endings_;
  DeviceArray<StepRequest> requests_;
  SlotStates slots_;
  DeviceStep step_;
};

/// Bytes that a step reads: weights, of experts those that have rows, and the cache.
double BytesOf(const DeviceNetwork& model, double expert_share, int requests) {
  double bytes = WeightBytes(model.weights().head);
  for (const DeviceLayerWeights& w : model.weights().layers) {
    const DeviceMlaWeights& a = w.attention;
    bytes += WeightBytes(a.q_kv_a) + WeightBytes(a.q_b) + WeightBytes(a.o) + WeightBytes(a.kv_up) +
             WeightBytes(w.router) + 2.0 * kMlaKeyDim * kContext * requests;
    const double mlp = WeightBytes(w.gate_up) + WeightBytes(w.down);
    bytes += w.spec.moe() != nullptr ? mlp * NumExperts(*w.spec.moe()) * expert_share : mlp;
  }
  return bytes;
}

void RunDecode(DeviceNetwork& model, const DeviceCache& cache, const char* name,
               cudaStream_t stream) {
  const ModelConfig& c = model.config();
  const int experts = NumExperts(*c.layers.back().moe());
  for (const int requests : {1, 2, 4, 8, 16, 32, 64, 128}) {
    Steps steps(model, cache, requests, stream);
    double touched = 0;
    int layers = 0;
    steps.Launch([&](int64_t layer, const float*) {
      if (c.layer(layer).moe() == nullptr) return;
      std::vector<int32_t> offsets(static_cast<size_t>(experts) + 1);
      CheckCuda(cudaMemcpyAsync(offsets.data(), model.routing().offsets, offsets.size() * 4,
                                cudaMemcpyDeviceToHost, stream),
                "routing");
      CheckCuda(cudaStreamSynchronize(stream), "routing");
      for (size_t e = 0; e + 1 < offsets.size(); ++e) touched += offsets[e + 1] > offsets[e];
      ++layers;
    });
    CheckCuda(cudaStreamSynchronize(stream), "step");
    const double share = touched / (layers * experts);

    const double before_capture = Seconds();
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CheckCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    steps.Launch();
    CheckCuda(cudaStreamEndCapture(stream, &graph), "capture");
    CheckCuda(cudaGraphInstantiate(&executable, graph, 0), "graph");
    const double capture = Seconds() - before_capture;
    size_t nodes = 0;
    CheckCuda(cudaGraphGetNodes(graph, nullptr, &nodes), "nodes");
    cudaEvent_t begin, end;
    CheckCuda(cudaEventCreate(&begin), "event");
    CheckCuda(cudaEventCreate(&end), "event");
    std::vector<float> times;
    for (int i = 0; i < 15; ++i) {
      CheckCuda(cudaEventRecord(begin, stream), "event");
      CheckCuda(cudaGraphLaunch(executable, stream), "replay");
      CheckCuda(cudaEventRecord(end, stream), "event");
      CheckCuda(cudaEventSynchronize(end), "replay");
      float ms = 0;
      CheckCuda(cudaEventElapsedTime(&ms, begin, end), "time");
      if (i >= 2) times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    // The same without a graph, launched one by one.
    const double before = Seconds();
    constexpr int kEager = 3;
    for (int i = 0; i < kEager; ++i) {
      steps.Launch();
      CheckCuda(cudaStreamSynchronize(stream), "step");
    }
    const double eager = (Seconds() - before) / kEager;
    const double ms = times[times.size() / 2];
    const double roof = BytesOf(model, share, requests) / kBytesPerSecond * 1000;
    const bool moved = steps.Lengths()[0] == kContext + 1 + 15 + kEager;
    std::printf(
        "%s, %3d requests of %d: %7.3f ms a step, roof %7.3f, %4.2f; %4.1f of %d experts, %zu "
        "launches, capture %.0f ms; without a graph %7.3f ms%s\n",
        name, requests, kContext, ms, roof, roof / ms, share * experts, experts, nodes,
        capture * 1000, eager * 1000, moved ? "" : "  LENGTHS ARE WRONG");
    std::fflush(stdout);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
  }
}

void RunPrompts(DeviceNetwork& model, const DeviceCache& cache, const char* name,
                cudaStream_t stream) {
  std::vector<int32_t> tokens(kPromptRows);
  std::vector<std::vector<int32_t>> blocks(kPrompts);
  for (int i = 0; i < kPromptRows; ++i) {
    tokens[static_cast<size_t>(i)] = (i * 7919 + 11) % static_cast<int>(model.config().vocab_size);
  }
  std::vector<RequestWork> work;
  for (int i = 0; i < kPrompts; ++i) {
    for (int b = 0; b < kBlocksEach; ++b) {
      blocks[static_cast<size_t>(i)].push_back(i * kBlocksEach + b);
    }
    work.push_back({.slot = i,
                    .phase = Phase::kPromptEnd,
                    .tokens = tokens,
                    .draft_tokens = {},
                    .block_tables = {&blocks[static_cast<size_t>(i)], 1}});
  }
  BatchLayout layout(kBlock);
  layout.Assign(work);
  StepUpload upload(kPrompts * kPromptRows, kPrompts, kBlocksEach);
  const DeviceArray<uint16_t> hidden(static_cast<size_t>(kPrompts) * kPromptRows *
                                     static_cast<size_t>(model.config().hidden_size));
  std::vector<double> times;
  for (int i = 0; i < 4; ++i) {
    const double before = Seconds();
    model.Forward(upload.Upload(layout, stream), cache, hidden.data(), stream);
    CheckCuda(cudaStreamSynchronize(stream), "prompts");
    if (i > 0) times.push_back(Seconds() - before);
  }
  std::sort(times.begin(), times.end());
  std::printf("%s, %d prompts of %d in one step: %.1f ms, %.0f tokens/s\n", name, kPrompts,
              kPromptRows, times[1] * 1000, kPrompts * kPromptRows / times[1]);
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  for (const char* text : {kV2Lite, kGlm47Flash}) ParseModelConfig(text, std::nullopt, "config");
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "network_step_bench: no GPU here\n");
    return 2;
  }
  std::vector<std::string> names(argv + 1, argv + argc);
  if (names.empty()) names = {"v2-lite", "glm-4.7-flash"};
  cudaStream_t stream;
  CheckCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  for (const std::string& name : names) {
    const ModelConfig config =
        ParseModelConfig(name == "v2-lite" ? kV2Lite : kGlm47Flash, std::nullopt, name);
    const auto source = MakeDummyWeights(config, 1);
    ThreadPool pool(static_cast<int>(std::thread::hardware_concurrency()));
    const double before = Seconds();
    DeviceWeights weights =
        LoadDeviceWeights(config, CountMtpLayers(*source, config), *source, pool, nullptr);
    const double loaded = Seconds();
    const size_t bytes = weights.bytes();
    DeviceNetwork model(config, std::move(weights),
                        {.max_rows = kPrompts * kPromptRows,
                         .max_decode_rows = kMostRequests,
                         .max_requests = kMostRequests,
                         .max_seq_len = 2 * kContext,
                         .max_logits_rows = kMostRequests});
    std::printf(
        "%s: %.1f GB of random weights in %.2f s, work space %.1f GB and cuDNN's check in "
        "%.2f s\n",
        name.c_str(), static_cast<double>(bytes) / 1e9, loaded - before,
        static_cast<double>(model.work_bytes()) / 1e9, Seconds() - loaded);
    const DeviceCache cache(model.num_cache_layers(), kMostRequests * kBlocksEach, kBlock,
                            MlaCacheType::kBf16);
    for (int layer = 0; layer < cache.num_layers(); ++layer) {
      CheckCuda(FillDummyPart({.stream = {.key = static_cast<uint64_t>(layer), .half_width = 1.7F},
                               .tensor_cols = kMlaKeyDim,
                               .rows = int64_t{cache.num_blocks()} * kBlock,
                               .cols = kMlaKeyDim},
                              cache.layer(layer), stream),
                "random cache");
    }
    CheckCuda(cudaStreamSynchronize(stream), "random cache");
    RunDecode(model, cache, name.c_str(), stream);
    RunPrompts(model, cache, name.c_str(), stream);
  }
  return 0;
}

}  // namespace
}  // namespace outrider::cuda

int main(int argc, char** argv) { return outrider::cuda::Main(argc, argv); }
