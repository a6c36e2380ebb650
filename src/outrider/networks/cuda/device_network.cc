#include "outrider/networks/cuda/device_network.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/kernels/cuda/expert_router.h"
#include "outrider/layers/rotary.h"
#include "outrider/ops/rotary_angles.h"

namespace outrider::cuda {

namespace {

constexpr int kLatent = kMlaValueDim;
constexpr int kRope = kMlaKeyDim - kMlaValueDim;
constexpr int kMaxRows = 16384;  // RouteExperts'
constexpr int kSmallestTile = 8;

/// PromptAttention reads and writes rows of a prompt up to a power of two, from 128 on.
int64_t RowsWithPadding(int64_t rows) { return rows + std::max<int64_t>(rows, 128); }

/// Experts of a row, and of a layer, with the shared ones; the columns inside them.
int Choices(const MoeSpec& moe) { return static_cast<int>(moe.router.top_k) + SharedExperts(moe); }
int NumExperts(const MoeSpec& moe) {
  return static_cast<int>(moe.router.experts) + SharedExperts(moe);
}

/// The largest of all layers.
struct Widths {
  int64_t inner = 0;  // values of a row inside the MLP
  int64_t choices = 0;
  int64_t experts = 0;  // with the shared ones
  int64_t routed = 0;
};

Widths WidthsOf(const ModelConfig& c, int num_mtp_modules) {
  Widths widths;
  const int64_t layers = c.num_hidden_layers() + num_mtp_modules;
  for (int64_t i = 0; i < layers; ++i) {
    if (const MoeSpec* moe = c.layer(i).moe()) {
      widths.inner = std::max(widths.inner, Choices(*moe) * moe->width);
      widths.choices = std::max<int64_t>(widths.choices, Choices(*moe));
      widths.experts = std::max<int64_t>(widths.experts, NumExperts(*moe));
      widths.routed = std::max(widths.routed, moe->router.experts);
    } else {
      widths.inner = std::max(widths.inner, c.layer(i).dense()->width);
    }
  }
  return widths;
}

/// Columns of q_kv_a.
int64_t FusedColumns(const MlaSpec& a) {
  return (a.q_lora > 0 ? a.q_lora : a.heads * a.query_width()) + kMlaKeyDim;
}

PromptAttentionShape ShapeOf(const MlaSpec& a, const DeviceNetworkLimits& limits) {
  return {.heads = static_cast<int>(a.heads),
          .key_width = static_cast<int>(a.query_width()),
          .value_width = static_cast<int>(a.value),
          .scale = static_cast<float>(a.softmax_scale),
          .max_queries = std::min(limits.max_rows, limits.max_seq_len),
          .max_keys = limits.max_seq_len};
}

const DeviceNetworkLimits& Checked(const DeviceNetworkLimits& limits) {
  if (limits.max_rows < 1 || limits.max_rows > kMaxRows || limits.max_decode_rows < 0 ||
      limits.max_decode_rows > limits.max_rows || limits.max_requests < 1 ||
      limits.max_seq_len < 1 || limits.max_logits_rows < 0) {
    throw InvalidArgument(
        "a network on the GPU with {} rows, {} of them decoded, {} requests of {} tokens: a step "
        "has 1 to {} rows",
        limits.max_rows, limits.max_decode_rows, limits.max_requests, limits.max_seq_len, kMaxRows);
  }
  return limits;
}

}  // namespace

DeviceNetwork::DeviceNetwork(ModelConfig config, DeviceWeights weights,
                             const DeviceNetworkLimits& limits)
    : config_(std::move(config)),
      mla_(MlaOf(config_.layer(0))),
      angles_(config_.layer(0).rotary),
      weights_(std::move(weights)),
      limits_(Checked(limits)),
      decode_limits_{.max_tokens = std::max(limits.max_decode_rows, 1),
                     .max_requests = limits.max_requests,
                     .max_seq_len = limits.max_seq_len,
                     .heads = static_cast<int>(mla_.heads)},
      prompt_attention_(ShapeOf(mla_, limits)) {
  AllocateWork();
  MakeRotaryTable();
}

int DeviceNetwork::num_cache_layers() const {
  return static_cast<int>(config_.num_hidden_layers()) + num_mtp_modules();
}

int64_t DeviceNetwork::logits_stride() const { return (config_.vocab_size + 7) / 8 * 8; }

void DeviceNetwork::AllocateWork() {
  const MlaSpec& a = mla_;
  const Widths widths = WidthsOf(config_, num_mtp_modules());
  const int64_t rows = limits_.max_rows;
  const int64_t padded = RowsWithPadding(rows);
  const int64_t decode = limits_.max_decode_rows;
  const int64_t keys = prompt_attention_.PaddedKeys(limits_.max_seq_len);
  const int64_t hidden = config_.hidden_size;
  const int64_t pairs = rows * widths.choices;
  const bool moe = widths.choices > 0;
  const int64_t tiles = moe ? MaxExpertTiles(rows, static_cast<int>(widths.choices),
                                             static_cast<int>(widths.experts), kSmallestTile)
                            : 0;
  // Once to add up sizes, once to hand out places.
  size_t used = 0;
  std::byte* base = nullptr;
  const auto place = [&](auto*& pointer, int64_t count) {
    using T = std::remove_reference_t<decltype(*pointer)>;
    pointer = reinterpret_cast<T*>(base + used);
    used += (static_cast<size_t>(count) * sizeof(T) + 255) / 256 * 256;
  };
  auto* workspace = static_cast<uint8_t*>(nullptr);
  const auto place_all = [&] {
    used = 0;
    place(x_, rows * hidden);
    place(h_, rows * hidden);
    place(q_kv_, padded * FusedColumns(a));
    if (a.q_lora > 0) {
      place(q_latent_, rows * a.q_lora);
      place(q_, padded * a.heads * a.query_width());
    }
    place(absorbed_, decode * a.heads * kMlaKeyDim);
    place(attended_, decode * a.heads * kLatent);
    place(lse_, decode * a.heads);
    place(values_, padded * a.heads * a.value);
    place(inner_, rows * widths.inner);
    if (moe) {
      place(gathered_, pairs * hidden);
      place(terms_, pairs * hidden);
      place(router_logits_, rows * widths.routed);
      place(routing_.expert_ids, pairs);
      place(routing_.weights, pairs);
      place(routing_.offsets, widths.experts + 1);
      place(routing_.pairs, pairs);
      place(routing_.tiles, tiles);
      place(routing_.num_tiles, 1);
    }
    if (num_mtp_modules() > 0) place(pair_, rows * 2 * hidden);
    place(logit_hidden_, limits_.max_logits_rows * hidden);
    place(latent_, keys * kLatent);
    place(rope_, keys * kRope);
    place(kv_, keys * a.heads * (a.nope + a.value));
    place(keys_, keys * a.heads * a.query_width());
    place(workspace, static_cast<int64_t>(MlaDecodeWorkspaceBytes(decode_limits_)));
  };
  place_all();
  memory_ = DeviceMemory(used, "the work space of a step");
  base = memory_.As<std::byte>();
  place_all();
  decode_workspace_ = workspace;
  // Attention wants its own part so; the rest must be finite where padding is read.
  CheckCuda(cudaMemset(memory_.data(), 0, memory_.bytes()), "clearing the work space");
}

void DeviceNetwork::MakeRotaryTable() {
  const std::vector<float> frequencies = RotaryFrequencies(angles_);
  const size_t numbers = static_cast<size_t>(limits_.max_seq_len) * frequencies.size();
  std::vector<float> table(2 * numbers);
  for (int32_t position = 0; position < limits_.max_seq_len; ++position) {
    float* const cos = table.data() + static_cast<size_t>(position) * frequencies.size();
    FillAngles(position, frequencies, static_cast<float>(angles_.Magnitude()), cos, cos + numbers);
  }
  const size_t bytes = table.size() * sizeof(float);
  rotary_ = DeviceMemory(bytes, "angles of positions");
  CheckCuda(cudaMemcpy(rotary_.data(), table.data(), bytes, cudaMemcpyHostToDevice), "angles");
}

RotaryTable DeviceNetwork::Rotary(const DeviceStep& step, int first_row) const {
  const auto* cos = rotary_.As<float>();
  return {.cos = cos,
          .sin = cos + int64_t{limits_.max_seq_len} * (kRope / 2),
          .positions = step.inputs.positions + first_row,
          .interleaved = angles_.interleaved};
}

void DeviceNetwork::CheckStep(const DeviceStep& step) const {
  OUTRIDER_CHECK(step.num_rows <= limits_.max_rows &&
                     step.num_decode_rows <= limits_.max_decode_rows &&
                     step.num_decode_requests <= limits_.max_requests,
                 "{} rows, {} decoded of {} requests", step.num_rows, step.num_decode_rows,
                 step.num_decode_requests);
  OUTRIDER_CHECK(step.true_rows == nullptr || step.prompts.empty());
}

MlaDecodeParams DeviceNetwork::DecodeParams(const DeviceStep& step, const DeviceCache& cache,
                                            int layer) const {
  MlaDecodeParams params;
  params.num_requests = step.num_decode_requests;
  params.num_tokens = step.num_decode_rows;
  params.heads = static_cast<int>(mla_.heads);
  params.q = absorbed_;
  params.query_start_loc = step.inputs.query_start_loc;
  params.seq_lens = step.inputs.seq_lens;
  params.block_table = step.inputs.block_tables;
  params.block_table_stride = step.block_table_stride;
  params.cache = cache.layer(layer);
  params.cache_type = cache.type();
  params.cache_scale = cache.scale();
  params.num_blocks = cache.num_blocks();
  params.page_size = cache.block_size();
  params.softmax_scale = static_cast<float>(mla_.softmax_scale);
  params.output = attended_;
  params.lse = lse_;
  return params;
}

void DeviceNetwork::PlanDecode(const DeviceStep& step, const DeviceCache& cache,
                               cudaStream_t stream) {
  if (step.num_decode_rows == 0) return;
  CheckCuda(MlaDecodePlan(DecodeParams(step, cache, 0), decode_limits_, decode_workspace_, stream),
            "the plan of attention");
}

NormRowsParams DeviceNetwork::ResidualNorm(const DeviceStep& step, const float* weight, void* out) {
  NormRowsParams norm;
  norm.num_rows = step.num_rows;
  norm.true_rows = step.true_rows;
  norm.hidden = static_cast<int>(config_.hidden_size);
  norm.x = x_;
  norm.num_terms = std::exchange(pending_terms_, 0);
  if (norm.num_terms > 0) {
    norm.terms = terms_;
    norm.terms_dtype = DType::kF32;
    norm.term_weights = routing_.weights;
  }
  norm.norm_weight = weight;
  norm.epsilon = static_cast<float>(config_.rms_norm_eps);
  norm.out = out;
  return norm;
}

void DeviceNetwork::Norm(const NormRowsParams& params, cudaStream_t stream) {
  CheckCuda(NormRows(params, stream), "norm");
}

void DeviceNetwork::Product(const DeviceStep& step, const PackedWeight& w, const void* x,
                            int64_t x_stride, void* y, int64_t y_stride, OutputType type,
                            bool accumulate, cudaStream_t stream) {
  MatMulParams params;
  params.rows = step.num_rows;
  params.x = x;
  params.x_stride = x_stride;
  params.w = w;
  params.y = y;
  params.y_stride = y_stride;
  params.y_type = type;
  params.accumulate = accumulate;
  MatMul(params, stream);
}

void DeviceNetwork::Forward(const DeviceStep& step, const DeviceCache& cache, void* hidden,
                            cudaStream_t stream, const DeviceLayerObserver& observer) {
  CheckStep(step);
  if (step.num_rows == 0) return;
  PlanDecode(step, cache, stream);
  pending_terms_ = 0;
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    const DeviceLayerWeights& w = weights_.layers[i];
    NormRowsParams first = ResidualNorm(step, w.input_norm, h_);
    if (i == 0) {
      first.embedding = weights_.embedding;
      first.tokens = step.inputs.token_ids;
      first.vocab_size = static_cast<int>(config_.vocab_size);
    }
    Layer(w, first, step, cache, static_cast<int>(i), stream);
    if (observer) {
      if (pending_terms_ > 0) Norm(ResidualNorm(step, nullptr, nullptr), stream);
      observer(static_cast<int64_t>(i), x_);
    }
  }
  Norm(ResidualNorm(step, weights_.final_norm, hidden), stream);
}

void DeviceNetwork::ForwardMtp(int m, const DeviceStep& step, const DeviceCache& cache,
                               const void* previous, const int32_t* previous_rows, int num_previous,
                               void* hidden, cudaStream_t stream) {
  CheckStep(step);
  if (step.num_rows == 0) return;
  const DeviceMtpWeights& w = weights_.mtp.at(static_cast<size_t>(m));
  const int64_t width = config_.hidden_size;
  PlanDecode(step, cache, stream);
  pending_terms_ = 0;
  // Both halves of the pair are rows of a table: of the embedding, and of `previous`.
  NormRowsParams half = ResidualNorm(step, w.embedding_norm, pair_);
  half.out_stride = 2 * width;
  half.embedding = weights_.embedding;
  half.tokens = step.inputs.token_ids;
  half.vocab_size = static_cast<int>(config_.vocab_size);
  if (config_.mtp_zero_first_embedding) half.zero_at = step.inputs.positions;
  Norm(half, stream);
  half.norm_weight = w.hidden_norm;
  half.out = pair_ + width;
  half.embedding = previous;
  half.tokens = previous_rows;
  half.vocab_size = num_previous;
  half.zero_at = nullptr;
  Norm(half, stream);
  Product(step, w.projection, pair_, 2 * width, x_, width, OutputType::kF32, false, stream);
  Layer(w.layer, ResidualNorm(step, w.layer.input_norm, h_), step, cache,
        static_cast<int>(config_.num_hidden_layers()) + m, stream);
  Norm(ResidualNorm(step, w.output_norm, hidden), stream);
}

void DeviceNetwork::Logits(const void* hidden, const int32_t* rows, int num_rows, float* logits,
                           cudaStream_t stream) {
  OUTRIDER_CHECK(num_rows <= limits_.max_logits_rows, "{} rows of logits", num_rows);
  if (num_rows == 0) return;
  const auto width = static_cast<int>(config_.hidden_size);
  CheckCuda(GatherRows(hidden, rows, num_rows, width, logit_hidden_, stream), "rows of logits");
  MatMulParams params;
  params.rows = num_rows;
  params.x = logit_hidden_;
  params.x_stride = width;
  params.w = weights_.head;
  params.y = logits;
  params.y_stride = logits_stride();
  params.y_type = OutputType::kF32;
  MatMul(params, stream);
}

void DeviceNetwork::Layer(const DeviceLayerWeights& w, NormRowsParams first, const DeviceStep& step,
                          const DeviceCache& cache, int layer, cudaStream_t stream) {
  Norm(first, stream);
  Attention(w.attention, step, cache, layer, stream);
  Norm(ResidualNorm(step, w.post_attention_norm, h_), stream);
  if (const MoeSpec* moe = w.spec.moe()) {
    Experts(*moe, w, step, stream);
  } else {
    DenseMlp(w, step, stream);
  }
}

void DeviceNetwork::DenseMlp(const DeviceLayerWeights& w, const DeviceStep& step,
                             cudaStream_t stream) {
  const int64_t hidden = config_.hidden_size;
  const int64_t width = w.spec.dense()->width;
  Product(step, w.gate_up, h_, hidden, inner_, width, OutputType::kBf16, false, stream);
  Product(step, w.down, inner_, width, x_, hidden, OutputType::kF32, true, stream);
}

void DeviceNetwork::Experts(const MoeSpec& moe, const DeviceLayerWeights& w, const DeviceStep& step,
                            cudaStream_t stream) {
  const RouterSpec& spec = moe.router;
  const int64_t hidden = config_.hidden_size;
  const int choices = Choices(moe);
  Product(step, w.router, h_, hidden, router_logits_, spec.experts, OutputType::kF32, false,
          stream);
  const int tile_rows = ExpertTileRows(step.num_rows, choices, NumExperts(moe));
  ExpertRouterParams router;
  router.num_rows = step.num_rows;
  router.true_rows = step.true_rows;
  router.experts = static_cast<int>(spec.experts);
  router.top_k = static_cast<int>(spec.top_k);
  router.shared_experts = SharedExperts(moe);
  router.scores =
      spec.scoring == RouterScoring::kSigmoid ? ExpertScores::kSigmoid : ExpertScores::kSoftmax;
  if (spec.method != RouterMethod::kGreedy) {
    router.num_groups = static_cast<int>(spec.groups);
    router.top_groups = static_cast<int>(spec.top_groups);
  }
  router.group_rank =
      spec.method == RouterMethod::kNoAuxTc ? GroupRank::kBestTwo : GroupRank::kBest;
  router.normalise = spec.normalise;
  router.scaling_factor = static_cast<float>(spec.scaling_factor);
  router.tile_rows = tile_rows;
  router.logits = router_logits_;
  router.bias = w.router_bias;
  CheckCuda(RouteExperts(router, routing_, stream), "router");
  ExpertMatMulParams experts;
  experts.max_rows = step.num_rows;
  experts.choices = choices;
  experts.experts = NumExperts(moe);
  experts.routing = routing_;
  experts.tile_rows = tile_rows;
  experts.x = h_;
  experts.x_stride = hidden;
  experts.gathered = gathered_;
  experts.w = w.gate_up;
  experts.y = inner_;
  experts.y_stride = moe.width;
  ExpertMatMul(experts, stream);
  experts.x = inner_;
  experts.x_stride = moe.width;
  experts.w = w.down;
  experts.y = terms_;
  experts.y_stride = hidden;
  experts.y_type = OutputType::kF32;
  experts.routing_settled = true;
  ExpertMatMul(experts, stream);
  pending_terms_ = choices;
}

}  // namespace outrider::cuda
