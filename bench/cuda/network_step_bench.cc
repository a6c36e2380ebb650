// Steps of a network on a GPU, with random weights, as codes where the config says so (DeepSeek-V4
// as it is published), through the engine's own operations: requests of 1024 tokens that decode 1
// row or verify 4, and prompts; or the cases that are given. Prints milliseconds beside what the
// bytes that a step reads take at the card's bandwidth. Long because it has the models' configs.
//
//   network_step_bench [--relaxed] [--fp8-cache] [--fp4-experts] [--bandwidth TB/s]
//                      [--case REQUESTS,ROWS,CONTEXT]... [--prompts REQUESTS,LENGTH]... [--kernels]
//                      [v2-lite|glm-4.7-flash|step-12|v4-flash-16|ling-3.0-tiny|ling-3.0-flash-6|
//                       CONFIG.json]...
//
// --relaxed: bf16 products but the experts' and the head's are cuBLASLt's, whose bits depend on the
// number of rows, and decode attention is cut by the batch's load. Other kernels have one form.
// --fp4-experts: routed experts as codes of 4 bits beside bfloat16.
//
// "pass": the target's layers, a repeated graph, by events on the device. "step": the pass, the
// head, greedy draws and the host's wait for them, by the host's clock. Bytes: all weights, of
// experts those that the step's rows have, the cache, running states with the rows since then, and
// a sixteenth of the states, which are written every 16 tokens. Requests with states that decode
// stand at all places of a block of 16 in turn.
// --prompts: prompts of one length, in steps of 16384 rows; for networks with an indexer with the
// arithmetic that they need,
// by time. --kernels: instead, the kernels of one repeated pass of each case, or of one run of its
// prompts, as CUPTI records them, by kernel and grid (a pass is a little slower then).
//
// Longer than most files: configs of six networks stand here.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bench/cuda/kernel_times.h"
#include "bench/cuda/prompt_flops.h"
#include "bench/cuda/relaxed_ops.h"
#include "outrider/base/file.h"
#include "outrider/checkpoint/weight_source.h"
#include "outrider/kernels/cuda/matmul/load_weights.h"
#include "outrider/networks/network_loader.h"
#include "outrider/ops/cuda/cuda_ops.h"
#include "tests/networks/cuda/code_source.h"

namespace outrider::cuda {
namespace {

constexpr int32_t kBlock = 64;
constexpr int32_t kLargeBlock = 256;  // where a page of kBlock tokens holds no piece of a state
constexpr int32_t kPrompts = 8;
constexpr int32_t kPromptRows = 2048;
constexpr int kRounds = 15;

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

/// Step-3.5-Flash cut to 3 full layers, the first of them dense, and 9 with a window; FP8.
std::string Step12() {
  const std::string full = "\"full_attention\"", sliding = "\"sliding_attention\"";
  std::string types, thetas, factors, limits;
  for (int i = 0; i < 12; ++i) {
    const char* const comma = i == 0 ? "" : ", ";
    types += comma + (i % 4 == 0 ? full : sliding);
    thetas += comma + std::string(i % 4 == 0 ? "5000000" : "10000");
    factors += comma + std::string(i % 4 == 0 ? "0.5" : "1");
    limits += comma + std::string("0");
  }
  return R"({"architectures": ["Step3p5ForCausalLM"], "model_type": "step3p5",
  "hidden_size": 4096, "intermediate_size": 11264, "vocab_size": 128896,
  "num_hidden_layers": 12, "num_nextn_predict_layers": 0, "num_attention_heads": 64,
  "num_attention_groups": 8, "head_dim": 128,
  "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 96,
    "num_attention_groups": 8, "head_dim": 128, "true_head_dim": 128},
  "sliding_window": 512, "rope_scaling": {"rope_type": "llama3", "factor": 2.0,
    "original_max_position_embeddings": 131072, "low_freq_factor": 1.0, "high_freq_factor": 32.0},
  "yarn_only_types": ["full_attention"], "max_position_embeddings": 262144,
  "use_qk_norm": true, "use_head_wise_attn_gate": true, "sink": false, "use_rope_layers": [],
  "moe_layers_enum": "1,2,3,4,5,6,7,8,9,10,11", "moe_num_experts": 288, "moe_top_k": 8,
  "moe_intermediate_size": 1280, "share_expert_dim": 1280, "moe_router_activation": "sigmoid",
  "moe_router_scaling_factor": 3.0, "norm_expert_weight": true, "use_moe_router_bias": true,
  "need_fp32_gate": true, "zero_centered": true, "bos_token_id": 0, "eos_token_id": [1, 2],
  "torch_dtype": "bfloat16",
  "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
    "weight_block_size": [128, 128]},
  "layer_types": [)" +
         types + "], \"rope_theta\": [" + thetas + "], \"partial_rotary_factors\": [" + factors +
         "], \"swiglu_limits\": [" + limits + "], \"swiglu_limits_shared\": [" + limits + "]}";
}

/// DeepSeek-V4-Flash cut to 2 layers of a window, 7 of ratio 4 and 7 of ratio 128; FP8 and FP4.
constexpr const char* kV4Flash16 = R"({
  "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "vocab_size": 129280,
  "hidden_size": 4096, "moe_intermediate_size": 2048, "num_hidden_layers": 16,
  "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64,
  "q_lora_rank": 1024, "o_groups": 8, "o_lora_rank": 1024, "sliding_window": 128,
  "compress_ratios": [0, 0, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128],
  "num_hash_layers": 3, "index_n_heads": 64, "index_head_dim": 128, "index_topk": 512,
  "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 6,
  "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": true,
  "routed_scaling_factor": 1.5, "swiglu_limit": 10.0, "hc_mult": 4, "hc_sinkhorn_iters": 20,
  "hc_eps": 1e-06, "rms_norm_eps": 1e-06, "rope_theta": 10000, "compress_rope_theta": 160000,
  "rope_scaling": {"type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
                   "original_max_position_embeddings": 65536},
  "max_position_embeddings": 1048576, "num_nextn_predict_layers": 0, "hidden_act": "silu",
  "tie_word_embeddings": false, "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "bfloat16",
  "expert_dtype": "fp4",
  "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                          "scale_fmt": "ue8m0", "weight_block_size": [128, 128]}})";

/// Ling-3.0-tiny.
constexpr const char* kLing30Tiny = R"({
  "architectures": ["BailingMoeV3ForCausalLM"], "model_type": "bailing_hybrid",
  "vocab_size": 157184, "hidden_size": 1536, "intermediate_size": 4608, "num_hidden_layers": 24,
  "layer_group_size": 4, "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 128,
  "short_conv_kernel_size": 4, "no_kda_lora": true, "kda_safe_gate": true, "kda_lower_bound": -5,
  "q_lora_rank": 256, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
  "v_head_dim": 128, "rope_theta": 6000000, "rope_interleave": true, "partial_rotary_factor": 0.5,
  "gated_attention_proj_granularity_type": "head_wise", "first_k_dense_replace": 1,
  "moe_intermediate_size": 512, "num_experts": 128, "num_experts_per_tok": 8, "n_group": 8,
  "topk_group": 4, "num_shared_experts": 1, "score_function": "sigmoid", "router_dtype": "fp32",
  "norm_topk_prob": true, "routed_scaling_factor": 2.5, "num_nextn_predict_layers": 0,
  "rms_norm_eps": 1e-06, "max_position_embeddings": 131072, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "eos_token_id": 156895})";

/// Ling-3.0-flash cut to its first group of layers.
constexpr const char* kLing30Flash6 = R"({
  "architectures": ["BailingMoeV3ForCausalLM"], "model_type": "bailing_hybrid",
  "vocab_size": 157184, "hidden_size": 2560, "intermediate_size": 6144, "num_hidden_layers": 6,
  "layer_group_size": 6, "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128,
  "short_conv_kernel_size": 4, "no_kda_lora": true, "kda_safe_gate": true, "kda_lower_bound": -5,
  "q_lora_rank": null, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
  "v_head_dim": 128, "rope_theta": 6000000, "rope_interleave": true, "partial_rotary_factor": 0.5,
  "gated_attention_proj_granularity_type": "head_wise", "first_k_dense_replace": 2,
  "moe_intermediate_size": 768, "num_experts": 512, "num_experts_per_tok": 8, "n_group": 8,
  "topk_group": 4, "num_shared_experts": 1, "score_function": "sigmoid", "router_dtype": "fp32",
  "norm_topk_prob": true, "routed_scaling_factor": 2.5, "num_nextn_predict_layers": 0,
  "rms_norm_eps": 1e-06, "max_position_embeddings": 262144, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "eos_token_id": 156895})";

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

SamplingParams Greedy() {
  SamplingParams params;
  params.temperature = 0;
  return params;
}

struct Case {
  int32_t requests;
  int32_t rows;  // of each
  int32_t context;
};

struct PromptCase {
  int32_t requests;
  int32_t length;

  int32_t rows_of_step() const { return std::min(length, 16384 / requests); }  // of each
};

RowPaths PathsOf(const ModelConfig& config) { return RowPathsOf(config, KvCacheForm::kLatent); }

class StepBench {
 public:
  StepBench(std::unique_ptr<CudaOps> ops, std::string name, const std::string& config,
            std::vector<Case> cases, std::vector<PromptCase> prompts, DType cache_type,
            bool fp4_experts, double bytes_per_second, KernelTimes* kernels)
      : own_ops_(std::move(ops)),
        ops_(*own_ops_),
        name_(std::move(name)),
        cache_type_(cache_type),
        fp4_experts_(fp4_experts),
        bytes_per_second_(bytes_per_second),
        kernels_(kernels),
        cases_(std::move(cases)),
        prompts_(std::move(prompts)),
        config_(ParseModelConfig(config, std::nullopt, name_)),
        source_(MakeSource()),
        pool_(static_cast<int>(std::thread::hardware_concurrency())),
        device_{ops_, &pool_} {
    const double before = Seconds();
    const WeightForm form = {.compute_dtype = DType::kBF16};
    for (const auto& [type, bytes] : MeasureWeights(ops_, config_, 0, *source_, form).target) {
      weight_bytes_ += static_cast<double>(bytes);
    }
    if (cases_.empty() && prompts_.empty()) {
      prompts_.push_back({kPrompts, kPromptRows});
      for (const int32_t rows : {1, 4}) {
        for (const int32_t requests : {1, 2, 4, 8, 16, 32, 64, 128}) {
          cases_.push_back({requests, rows, 1024});
        }
      }
    }
    model_ = LoadNetwork(
        config_, 0, *source_, form,
        {device_, DType::kBF16, AttentionPlan(AttentionBackend::kRagged, 4, PathsOf(config_))});
    std::printf("%s: %.1f GB of random weights in %.2f s\n", name_.c_str(), weight_bytes_ / 1e9,
                Seconds() - before);
    const NetworkCache needs = model_->cache_needs();
    const CacheNumbers numbers(cache_type_, DType::kBF16, Fp8Form::kPerTensor);
    CacheConfig cache = MakeCacheConfig(needs, numbers, kBlock, 0);
    if (cache.state.heads > 0 && cache.groups.front().tokens_per_block != kBlock) {
      cache = MakeCacheConfig(needs, numbers, kLargeBlock, 0);
    }
    const auto reserve = [&](int32_t requests, int32_t rows, int32_t context) {
      int32_t pages = 0;
      for (const CacheGroupSpec& group : cache.groups) pages += PagesOf(group, rows, context);
      pages += cache.StatePages() + cache.StateRowPages();
      cache.num_pages = std::max(cache.num_pages, requests * pages);
    };
    for (const PromptCase& c : prompts_) reserve(c.requests, c.rows_of_step(), c.length);
    for (const Case& c : cases_) reserve(c.requests, c.rows, c.context);
    layout_ = BatchLayout(cache.groups);
    cache_ = std::make_unique<KvCache>(device_, cache, needs.layers, numbers);
    FillCache();
    sampler_ = ops_.MakeSampler(device_, Verifier());
  }

  void RunAll() {
    for (const Case& c : cases_) Decode(c);
    for (const PromptCase& c : prompts_) Prompts(c);
  }

 private:
  bool IsV4() const { return config_.family == ModelFamily::kDeepSeekV4; }

  std::unique_ptr<WeightSource> MakeSource() const {
    if (fp4_experts_) return std::make_unique<CodeSource>(config_, 1, Codes::kFp4);
    if (config_.quantization.method == "fp8" && !IsV4()) {
      return std::make_unique<CodeSource>(config_, 1, Codes::kBlocks);
    }
    return MakeDummyWeights(config_, 1);
  }

  void FillCache() {
    constexpr int64_t kColumns = 64;
    const LayerCache first = cache_->layer(0);
    const int64_t bytes = first.block_stride * static_cast<int64_t>(DTypeSize(first.dtype));
    const int64_t rows = first.num_blocks * bytes / 2 / kColumns;
    CheckCuda(FillDummyPart({.stream = {.key = 7, .half_width = 1.7F},
                             .tensor_cols = kColumns,
                             .rows = rows,
                             .cols = kColumns},
                            first.data, ops_.stream()),
              "random cache");
    ops_.Synchronize();
  }

  /// Pages of a request of a group: of a window those that rows still read.
  static int32_t PagesOf(const CacheGroupSpec& group, int32_t rows, int32_t context) {
    const int32_t all = group.BlocksBefore(context);
    if (group.kind == CacheGroupKind::kFullHistory) return all;
    return std::min(all, group.BlocksBefore(group.window + rows) + 1);
  }

  /// Of request i: of decode steps over states every place of a block.
  int32_t ContextOf(int32_t i, int32_t context, Phase phase) const {
    const bool spread = cache_->config().StatePages() > 0 && phase == Phase::kDecode;
    return spread ? std::max(1, context - (i + kStateBlock / 2) % kStateBlock) : context;
  }

  /// Requests of `rows` rows behind `context` tokens each.
  void LayOut(int32_t requests, int32_t rows, int32_t context, Phase phase) {
    tokens_.resize(static_cast<size_t>(requests * rows));
    for (size_t i = 0; i < tokens_.size(); ++i) {
      tokens_[i] = static_cast<int32_t>((i * 7919 + 11) % static_cast<size_t>(config_.vocab_size));
    }
    const std::vector<CacheGroupSpec>& groups = cache_->config().groups;
    tables_.assign(static_cast<size_t>(requests), {});
    states_.assign(static_cast<size_t>(requests), {});
    work_.clear();
    int32_t next_page = 0;
    for (int32_t i = 0; i < requests; ++i) {
      std::vector<std::vector<int32_t>>& tables = tables_[static_cast<size_t>(i)];
      for (const CacheGroupSpec& group : groups) {
        const int32_t pages = PagesOf(group, rows, context + rows);
        std::vector<int32_t>& table = tables.emplace_back();
        for (int32_t b = 0; b < group.BlocksBefore(context + rows); ++b) {
          table.push_back(next_page + b % pages);
        }
        next_page += pages;
      }
      StateTables& state = states_[static_cast<size_t>(i)];
      state.state.resize(static_cast<size_t>(cache_->config().StatePages()));
      state.rows.resize(static_cast<size_t>(cache_->config().StateRowPages()));
      for (std::vector<int32_t>* pages : {&state.state, &state.rows}) {
        for (int32_t& page : *pages) page = next_page++;
      }
      const auto tokens =
          std::span(tokens_).subspan(static_cast<size_t>(i * rows), static_cast<size_t>(rows));
      const bool decodes = phase == Phase::kDecode;
      const int32_t own_context = ContextOf(i, context, phase);
      work_.push_back({.slot = i,
                       .phase = phase,
                       .context_length = own_context,
                       .tokens = decodes ? tokens.first(1) : tokens,
                       .draft_tokens = decodes ? tokens.subspan(1) : std::span<const int32_t>(),
                       .block_tables = tables,
                       .state = {.tables = &state, .tokens = StateTokens(own_context)}});
    }
    layout_.Assign(work_);
    plan_.Assign(layout_);
  }

  /// Draws from all rows of logits, greedily, and waits.
  void Draw(Tensor hidden) {
    verify_.clear();
    verified_.resize(layout_.requests().size());
    for (size_t i = 0; i < verified_.size(); ++i) {
      const RequestRows& rows = layout_.requests()[i];
      verify_.push_back({.input = {.params = &greedy_,
                                   .tokens = work_[i].tokens,
                                   .prompt_length = 1,
                                   .drafts = work_[i].draft_tokens},
                         .first_row = rows.first_logits_row,
                         .result = &verified_[i]});
    }
    model_->Verify(*sampler_, hidden, layout_.logits_rows(), verify_);
  }

  /// Of rows of a window, index keys, and the entries that are chosen, which are mostly the same
  /// for a request's rows.
  double CacheBytes(const CompressedSpec& a, const Case& c) const {
    const bool codes = cache_type_ == DType::kF8E4M3;
    const double number = codes ? 1.0 : 2.0;
    const double key = number * static_cast<double>(a.index_dim) + (codes ? 4 : 0);
    const int64_t window = std::min<int64_t>(c.context, a.window + c.rows - 1);
    const int64_t entries = a.ratio > 0 ? c.context / a.ratio : 0;
    const int64_t read = a.index_heads > 0 ? std::min(entries, a.index_top_k) : entries;
    return number * static_cast<double>(a.head_dim * (window + read)) +
           (a.index_heads > 0 ? key * static_cast<double>(entries) : 0);
  }

  /// Of the state, of as many rows since then as there are on average, and of writing the state.
  static double StateBytes(const KdaSpec& a) {
    const auto written = static_cast<double>(a.head_dim) / kStateBlock;
    return 4.0 * static_cast<double>(a.width()) *
           (static_cast<double>(a.head_dim + kStateBlock / 2 * 3) + written);
  }

  /// Bytes of the cache that a layer reads and writes for a request.
  double CacheBytes(const LayerSpec& layer, const Case& c) const {
    if (const auto* kda = std::get_if<KdaSpec>(&layer.attention)) return StateBytes(*kda);
    if (const auto* compressed = std::get_if<CompressedSpec>(&layer.attention)) {
      return CacheBytes(*compressed, c);
    }
    const bool codes = cache_type_ == DType::kF8E4M3;
    const double number = codes ? 1.0 : 2.0;
    const auto* gqa = std::get_if<GqaSpec>(&layer.attention);
    if (gqa == nullptr) {
      const auto& indexer = std::get<MlaSpec>(layer.attention).indexer;
      if (!indexer) return number * 576 * c.context;
      // All index keys, and the entries that are chosen.
      const double key = number * static_cast<double>(indexer->dim) + (codes ? 4 : 0);
      return key * c.context +
             number * 576.0 * static_cast<double>(std::min<int64_t>(indexer->top_k, c.context));
    }
    const int64_t keys =
        gqa->window > 0 ? std::min<int64_t>(c.context, gqa->window + c.rows - 1) : c.context;
    return 2.0 * number * static_cast<double>(gqa->kv_heads * gqa->head_dim * keys);
  }

  double BytesOf(const Case& c) const {
    // Codes of experts of 4 bits have a byte of scale for 32.
    const double code_bytes = IsV4() || fp4_experts_                ? 17.0 / 32
                              : config_.quantization.method.empty() ? 2
                                                                    : 1;
    double bytes = weight_bytes_ - 2.0 * static_cast<double>(config_.vocab_size) *
                                       static_cast<double>(config_.hidden_size);  // embeddings
    for (size_t i = 0; i < config_.layers.size(); ++i) {
      const LayerSpec& layer = config_.layers[i];
      bytes += CacheBytes(layer, c) * c.requests;
      const MoeSpec* const moe = layer.moe();
      if (moe == nullptr) continue;
      const auto untouched = static_cast<double>(moe->router.experts - experts_read_[i]);
      bytes -= untouched * 3 * code_bytes * static_cast<double>(config_.hidden_size * moe->width);
    }
    return bytes;
  }

  /// Sets experts_read_ by a pass over the rows that are laid out.
  void CountExperts(const StepInputs& inputs, const Case& c, Tensor hidden) {
    const RoutedShape shape = RoutedShapeOf(config_);
    experts_read_.assign(config_.layers.size(), 0);
    if (shape.top_k == 0) return;
    std::vector<int16_t> ids(static_cast<size_t>(inputs.num_rows() * shape.RowSize()));
    Buffer on_device = ops_.Allocate(ids.size() * sizeof(int16_t));
    model_->Forward(inputs, *cache_, hidden,
                    TargetTaps{.experts = {on_device.as<int16_t>(), shape}});
    ops_.CopyToHost(on_device.data(), std::as_writable_bytes(std::span(ids)));
    double share = 0;
    int moe_layers = 0;
    for (size_t layer = 0; layer < config_.layers.size(); ++layer) {
      const MoeSpec* const moe = config_.layers[layer].moe();
      if (moe == nullptr) continue;
      std::vector<bool> read(static_cast<size_t>(moe->router.experts));
      for (int64_t row = 0; row < int64_t{c.requests} * c.rows; ++row) {
        const int64_t first = row * shape.RowSize() + static_cast<int64_t>(layer) * shape.top_k;
        for (int64_t i = first; i < first + moe->router.top_k; ++i) {
          read[static_cast<size_t>(ids[static_cast<size_t>(i)])] = true;
        }
      }
      experts_read_[layer] = std::ranges::count(read, true);
      share += static_cast<double>(experts_read_[layer]) / static_cast<double>(read.size());
      ++moe_layers;
    }
    std::printf("%s, %d rows have %.2f of the experts\n", name_.c_str(), c.requests * c.rows,
                share / moe_layers);
  }

  std::string TitleOf(const Case& c) const {
    return fmt::format("{}, {:3} requests, {} rows each, context {}", name_, c.requests, c.rows,
                       c.context);
  }

  void Decode(const Case& c) {
    LayOut(c.requests, c.rows, c.context - c.rows, Phase::kDecode);
    const auto inputs = ops_.MakeStepInputs();
    inputs->Assign(layout_, plan_, RowCount::kRounded);
    const auto hidden = ops_.MakeRows(inputs->num_rows(), model_->output_width());
    CountExperts(*inputs, c, hidden->rows());
    cudaEvent_t begin, end;
    CheckCuda(cudaEventCreate(&begin), "event");
    CheckCuda(cudaEventCreate(&end), "event");
    std::vector<double> passes, steps;
    for (int i = 0; i < (kernels_ != nullptr ? 4 : kRounds + 3); ++i) {
      const double before = Seconds();
      if (kernels_ != nullptr) kernels_->Take();
      inputs->Assign(layout_, plan_, RowCount::kRounded);
      CheckCuda(cudaEventRecord(begin, ops_.stream()), "event");
      model_->Forward(*inputs, *cache_, hidden->rows());
      CheckCuda(cudaEventRecord(end, ops_.stream()), "event");
      if (kernels_ != nullptr) {
        ops_.Synchronize();
        if (i == 3) PrintKernels(kernels_->Take(), TitleOf(c));
      }
      Draw(hidden->rows());
      float ms = 0;
      CheckCuda(cudaEventElapsedTime(&ms, begin, end), "time");
      if (i < 3) continue;  // launched, recorded, repeated for the first time
      passes.push_back(ms);
      steps.push_back((Seconds() - before) * 1e3);
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    if (kernels_ != nullptr) return;
    const double limit = BytesOf(c) / bytes_per_second_ * 1e3;
    std::printf("%s: pass %7.3f ms, step %7.3f ms, bytes %7.3f, %4.2f\n", TitleOf(c).c_str(),
                Median(passes), Median(steps), limit, limit / Median(steps));
    std::fflush(stdout);
  }

  /// 0: of other networks.
  double PromptFlops(int64_t length) const {
    if (IsV4()) return CompressedPromptFlops(config_, length);
    const auto* const mla = std::get_if<MlaSpec>(&config_.layers.back().attention);
    return mla != nullptr && mla->indexer ? SparsePromptFlops(config_, length) : 0;
  }

  void Prompts(const PromptCase& c) {
    const int32_t rows = c.rows_of_step();
    const auto inputs = ops_.MakeStepInputs();
    const auto hidden = ops_.MakeRows(c.requests * rows, model_->output_width());
    std::vector<double> seconds;
    for (int i = 0; i < 4; ++i) {
      const double before = Seconds();
      for (int32_t first = 0; first < c.length; first += rows) {
        LayOut(c.requests, std::min(rows, c.length - first), first, Phase::kPromptEnd);
        inputs->Assign(layout_, plan_, RowCount::kRounded);
        model_->Forward(*inputs, *cache_, hidden->rows());
      }
      ops_.Synchronize();
      if (i > 0) seconds.push_back(Seconds() - before);
      if (kernels_ == nullptr) continue;
      // Of the second run: in the first memory is made.
      const std::vector<TimedKernel> kernels = kernels_->Take();
      if (i < 1) continue;
      PrintKernels(kernels, fmt::format("{}, {} prompts of {}", name_, c.requests, c.length));
      return;
    }
    const double median = Median(seconds);
    const double tokens = static_cast<double>(c.requests) * c.length;
    std::printf("%s, %d prompts of %d: %.1f ms, %.0f tokens/s", name_.c_str(), c.requests, c.length,
                median * 1e3, tokens / median);
    if (const double flops = PromptFlops(c.length); flops > 0) {
      std::printf(", %.0f TFLOP/s", c.requests * flops / median / 1e12);
    }
    std::printf("\n");
    std::fflush(stdout);
  }

  std::unique_ptr<CudaOps> own_ops_;
  const CudaOps& ops_;
  std::string name_;
  DType cache_type_;
  bool fp4_experts_;
  double bytes_per_second_;
  KernelTimes* kernels_;  // null: nobody asks
  std::vector<Case> cases_;
  std::vector<PromptCase> prompts_;
  ModelConfig config_;
  std::unique_ptr<WeightSource> source_;
  ThreadPool pool_;
  Device device_;
  double weight_bytes_ = 0;
  std::unique_ptr<Network> model_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<StepSampler> sampler_;
  SamplingParams greedy_ = Greedy();
  std::vector<int64_t> experts_read_;  // by layer
  std::vector<int32_t> tokens_;
  std::vector<std::vector<std::vector<int32_t>>> tables_;  // by request, by group
  std::vector<StateTables> states_;                        // by request
  std::vector<RequestWork> work_;
  BatchLayout layout_{kBlock};
  AttentionPlan plan_{AttentionBackend::kRagged, 4, PathsOf(config_)};
  std::vector<VerifyRequest> verify_;
  std::vector<VerifiedTokens> verified_;
};

int Main(int argc, char** argv) {
  double bandwidth = 4.3;
  std::vector<Case> cases;
  std::vector<PromptCase> prompts;
  std::vector<std::string> names;
  bool right = true;
  bool relaxed = false;
  DType cache_type = DType::kBF16;
  bool fp4_experts = false;
  bool times_kernels = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--bandwidth") == 0 && i + 1 < argc) {
      bandwidth = std::atof(argv[++i]);
      right &= bandwidth > 0;
    } else if (std::strcmp(argv[i], "--relaxed") == 0) {
      relaxed = true;
    } else if (std::strcmp(argv[i], "--fp8-cache") == 0) {
      cache_type = DType::kF8E4M3;
    } else if (std::strcmp(argv[i], "--fp4-experts") == 0) {
      fp4_experts = true;
    } else if (std::strcmp(argv[i], "--kernels") == 0) {
      times_kernels = true;
    } else if (std::strcmp(argv[i], "--case") == 0 && i + 1 < argc) {
      Case c = {};
      right &= std::sscanf(argv[++i], "%d,%d,%d", &c.requests, &c.rows, &c.context) == 3 &&
               c.requests > 0 && c.rows > 0 && c.context > c.rows;
      cases.push_back(c);
    } else if (std::strcmp(argv[i], "--prompts") == 0 && i + 1 < argc) {
      PromptCase c = {};
      right &= std::sscanf(argv[++i], "%d,%d", &c.requests, &c.length) == 2 && c.requests > 0 &&
               c.requests <= 128 && c.length > 0;
      prompts.push_back(c);
    } else {
      names.emplace_back(argv[i]);
      right &= argv[i][0] != '-';
    }
  }
  if (!right) {
    std::fprintf(stderr,
                 "usage: network_step_bench [--relaxed] [--fp8-cache] [--fp4-experts] "
                 "[--bandwidth TB/s] [--case REQUESTS,ROWS,CONTEXT]... "
                 "[--prompts REQUESTS,LENGTH]... [--kernels] "
                 "[v2-lite|glm-4.7-flash|step-12|v4-flash-16|ling-3.0-tiny|ling-3.0-flash-6|"
                 "CONFIG.json]...\n");
    return 2;
  }
  if (names.empty()) names = {"v2-lite", "glm-4.7-flash"};
  try {
    std::optional<KernelTimes> kernels;
    if (times_kernels) kernels.emplace();
    for (const std::string& name : names) {
      const std::string config = name == "v2-lite"            ? kV2Lite
                                 : name == "glm-4.7-flash"    ? kGlm47Flash
                                 : name == "step-12"          ? Step12()
                                 : name == "v4-flash-16"      ? kV4Flash16
                                 : name == "ling-3.0-tiny"    ? kLing30Tiny
                                 : name == "ling-3.0-flash-6" ? kLing30Flash6
                                                              : ReadTextFile(name, 1 << 20);
      std::unique_ptr<CudaOps> ops =
          relaxed ? std::make_unique<RelaxedOps>() : std::make_unique<CudaOps>();
      StepBench(std::move(ops), relaxed ? name + " relaxed" : name, config, cases, prompts,
                cache_type, fp4_experts, bandwidth * 1e12, kernels ? &*kernels : nullptr)
          .RunAll();
    }
  } catch (const Error& error) {
    std::fprintf(stderr, "network_step_bench: error: %s\n", error.what());
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace outrider::cuda

int main(int argc, char** argv) { return outrider::cuda::Main(argc, argv); }
