// Long because decisions depend on those before them: one constructor takes them in order.
// cache_plan.cc has what follows from them for the cache.
#include "outrider/engine/engine_plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <tuple>
#include <utility>

#include "outrider/base/cpu_features.h"
#include "outrider/base/error.h"
#include "outrider/base/logging.h"
#include "outrider/base/processors.h"
#include "outrider/checkpoint/hybrid_names.h"
#include "outrider/checkpoint/rank_config.h"
#include "outrider/engine/engine_device.h"
#include "outrider/engine/page_offload.h"
#include "outrider/kernels/kernel_table.h"
#include "outrider/networks/eagle3_draft_model.h"
#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/cuda/hopper_support.h"

namespace outrider {

namespace {

/// Drafts when neither the user nor a chain of modules says.
constexpr int32_t kDefaultDrafts = 3;

template <typename T>
void CheckPositive(const char* flag, T value) {
  if (value <= 0) throw InvalidArgument("{} is {}: it must be at least 1", flag, value);
}

void CheckDType(const char* flag, std::optional<DType> dtype) {
  if (dtype && *dtype != DType::kF32 && *dtype != DType::kBF16) {
    throw InvalidArgument("{} is {}: use float32 or bfloat16", flag, DTypeName(*dtype));
  }
}

void CheckOptions(const EngineOptions& o) {
  CheckPositive("--block-size", o.block_size);
  CheckPositive("--max-num-seqs", o.max_num_seqs);
  if (o.max_num_batched_tokens) {
    CheckPositive("--max-num-batched-tokens", *o.max_num_batched_tokens);
  }
  if (o.kv_cache_memory_bytes) CheckPositive("--kv-cache-memory-bytes", *o.kv_cache_memory_bytes);
  CheckOffloadOptions(o);
  const bool is_share = o.gpu_memory_utilization > 0 && o.gpu_memory_utilization <= 1;
  if (!is_share) {
    throw InvalidArgument("--gpu-memory-utilization is {}: it must be above 0 and at most 1",
                          o.gpu_memory_utilization);
  }
  if (o.max_model_len) CheckPositive("--max-model-len", *o.max_model_len);
  if (o.max_num_queued_reqs) CheckPositive("--max-num-queued-reqs", *o.max_num_queued_reqs);
  if (o.num_threads < 0) throw InvalidArgument("--num-threads is {}: use 0 for all", o.num_threads);
  CheckDType("--dtype", o.dtype);
  if (o.kv_cache_dtype != DType::kF8E4M3) CheckDType("--kv-cache-dtype", o.kv_cache_dtype);
  CheckAttentionOptions(o);
  const auto& [min, max] =
      std::tie(o.speculation.prompt_lookup_min, o.speculation.prompt_lookup_max);
  if (min < 1 || min > max) {
    throw InvalidArgument("prompt_lookup_min is {} and prompt_lookup_max {}: use 1 <= min <= max",
                          min, max);
  }
  const auto k = o.speculation.num_speculative_tokens;
  constexpr int32_t kMostDrafts = 32;
  if (k && (*k < 0 || *k > kMostDrafts)) {
    throw InvalidArgument("num_speculative_tokens is {}: it must be 0 to {}", *k, kMostDrafts);
  }
  if (o.speculation.IsAdaptive() && !o.speculation.num_speculative_tokens_per_batch_size.empty()) {
    throw InvalidArgument(
        "adaptive is true, but num_speculative_tokens_per_batch_size says how many tokens to "
        "draft: give one of them");
  }
}

}  // namespace

ComputeThreads ComputeThreadsOf(const EngineOptions& options) {
  ComputeThreads threads;
  threads.count = options.num_threads > 0 ? options.num_threads : AvailableProcessors();
  if (options.pin_threads) threads.processors = ProcessorsToPin(threads.count);
  return threads;
}

void CheckAttentionOptions(const EngineOptions& options) {
  if (options.kv_cache_form == KvCacheForm::kHeads &&
      options.attention_backend != AttentionBackend::kRagged) {
    throw InvalidArgument(
        "--attention-backend {} chooses a decode kernel over a latent cache, which --kv-cache-form "
        "heads does not have: use --kv-cache-form latent, or --attention-backend ragged",
        AttentionBackendName(options.attention_backend));
  }
}

EnginePlan::EnginePlan(const EngineOptions& options) : options_(options) {
  CheckOptions(options);
  device_ = ChooseDevice(options.device);
  own_ops_ = MakeDeviceOps(device_.kind);
  ops_ = own_ops_ ? own_ops_.get() : &cpu::GetCpuOps(SelectIsa());
  config_ = ReadModelConfig(options.model);
  if (config_.family == ModelFamily::kEagle3) {
    throw InvalidArgument(
        "{}: is a drafter: give the model that it was trained for, and --speculative-config "
        "'{{\"method\": \"eagle3\", \"model\": \"{}\"}}'",
        options.model, options.model);
  }
  source_ = options.load_format == LoadFormat::kDummy ? MakeDummyWeights(config_, options.seed)
                                                      : OpenCheckpoint(options.model, config_);
  Decide("model", fmt::format("{} ({})", options.model, ModelFamilyName(config_.family)),
         options.load_format == LoadFormat::kDummy
             ? "--load-format dummy: random weights"
             : fmt::format("model_type {}", config_.model_type));
  PlanNumbers();
  PlanCacheForm();
  PlanAttention();
  PlanDrafter();
  PlanRanks();
  PlanDraftVocabulary();
  PlanCacheGroups();
  PlanRunningState();
  PlanAcceptance();
  PlanDraftLength();
  PlanThreads();
  scheduler_.max_num_seqs = options.max_num_seqs;
  scheduler_.max_num_batched_tokens =
      options.max_num_batched_tokens.value_or(device() == DeviceKind::kCuda ? 8192 : 512);
  CheckRunsOnDevice(options, config_,
                    {.device = device(),
                     .modules = modules_used_,
                     .drafter = drafter_ ? &drafter_->config : nullptr,
                     .drafts = k_,
                     .batched_tokens = scheduler_.max_num_batched_tokens,
                     .dtype = dtype_,
                     .kv_dtype = kv_dtype_,
                     .form = form_,
                     .cache_groups = scheduler_.cache.groups});
  if (device() == DeviceKind::kCpu) PlanOtherDevice();
  std::tie(weight_sizes_, drafter_sizes_) = MeasureAllWeights(weight_form());
  MeasureRanks();
  PlanFirstCache();
  PlanHostMemory();
}

void EnginePlan::PlanOtherDevice() {
  const std::optional<Lack> lack =
      cuda::LackOnHopper({.config = config_,
                          .num_mtp_modules = modules_used_,
                          .drafter = drafter_ ? &drafter_->config : nullptr});
  if (!lack) {
    Decide("on a Hopper GPU", "runs", "it takes all that the network asks for");
  } else if (lack->takes.empty()) {
    Decide("on a Hopper GPU", "does not run", fmt::format("it lacks {}", lack->what));
  } else {
    Decide("on a Hopper GPU", "does not run",
           fmt::format("{}: it takes {}", lack->what, lack->takes));
  }
}

std::pair<NetworkWeightSizes, NetworkWeightSizes> EnginePlan::MeasureAllWeights(
    const WeightForm& form, int32_t rank) const {
  WeightForm own = form;
  own.place = {rank, ranks()};
  NetworkWeightSizes drafter;
  if (drafter_) drafter = MeasureEagle3(ops(), drafter_->config, *drafter_->source, own);
  return {MeasureWeights(ops(), config_, modules_used_, source(), own), std::move(drafter)};
}

void EnginePlan::PlanRanks() {
  constexpr const char* kFlag = "--tensor-parallel-size";
  if (device() != DeviceKind::kCpu && ranks() != 1) {
    throw InvalidArgument(
        "{} is {}, but several GPUs are not supported yet: use 1, or --device cpu", kFlag, ranks());
  }
  CheckRanks(config_, ranks(), kFlag);
  if (drafter_) CheckRanks(drafter_->config, ranks(), kFlag);
  if (ranks() == 1) return;
  if (options_.num_threads > 0 && options_.num_threads < ranks()) {
    throw InvalidArgument("--num-threads is {}, but {} ranks need a thread each: use {} or more",
                          options_.num_threads, ranks(), ranks());
  }
  Decide("ranks", fmt::format("{}, threads of this process", ranks()),
         fmt::format("{}: each has its part of the weights and of the heads", kFlag));
}

ComputeThreads EnginePlan::ThreadsOf(const RankPlace& place) const {
  const auto begin = [&](int32_t rank) { return threads_.count * rank / place.ranks; };
  const int first = begin(place.rank);
  ComputeThreads own;
  own.count = std::max(1, begin(place.rank + 1) - first);
  if (!threads_.processors.empty() && threads_.count >= place.ranks) {
    own.processors.assign(threads_.processors.begin() + first,
                          threads_.processors.begin() + first + own.count);
  }
  return own;
}

const Ops& EnginePlan::ops() const { return *ops_; }

void EnginePlan::CloseCheckpoints() {
  source_.reset();
  if (drafter_) drafter_->source.reset();
}

WeightForm EnginePlan::weight_form() const {
  return {.compute_dtype = dtype_,
          .quantization = options_.quantization,
          .max_fp8_weights_as_bf16 = GetKernels(SelectIsa()).max_fp8_weights_as_bf16};
}

void EnginePlan::PlanNumbers() {
  dtype_ = options_.dtype.value_or(config_.dtype == DType::kBF16 ? DType::kBF16 : DType::kF32);
  kv_dtype_ = options_.kv_cache_dtype.value_or(dtype_);
  if (kv_dtype_ == DType::kF8E4M3) CheckFp8Cache();
  Decide(
      "dtype", std::string(DTypeName(dtype_)),
      options_.dtype ? "--dtype" : fmt::format("the checkpoint says {}", DTypeName(config_.dtype)));
  const bool int8 = options_.quantization == WeightQuantization::kInt8;
  const bool is_cpu = device() == DeviceKind::kCpu;
  const int64_t few = is_cpu ? weight_form().max_fp8_weights_as_bf16 : 0;
  Decide("quantization", int8 ? "int8" : "none",
         int8 ? "--quantization: matrices are rounded to 8 bits, with a scale per output"
              : fmt::format("FP8 matrices{} stay 8 bits in memory, others as dtype says",
                            few > 0 ? fmt::format(" of more than {} weights", few) : ""));
  Decide("device", is_cpu ? "processor" : "GPU", device_.why);
  if (is_cpu) {
    Decide("kernels", std::string(GetKernels(SelectIsa()).name),
           fmt::format("best instruction set of this machine: {}", IsaName(DetectIsa())));
  }
}

void EnginePlan::CheckFp8Cache() const {
  if (device() == DeviceKind::kCuda) return;
  if (config_.family != ModelFamily::kDeepSeekV4) {
    throw InvalidArgument(
        "--kv-cache-dtype fp8 is for a GPU or DeepSeek-V4, and {} is a {} on the processor ({}): "
        "use float32 or bfloat16",
        options_.model, ModelFamilyName(config_.family), device_.why);
  }
  for (const LayerSpec& layer : config_.layers) {
    const int64_t dim = std::get<CompressedSpec>(layer.attention).index_dim;
    if (std::has_single_bit(static_cast<uint64_t>(dim)) || dim == 0) continue;
    throw InvalidArgument(
        "--kv-cache-dtype fp8 needs an \"index_head_dim\" that is a power of two, and that of {} "
        "is {}: use float32 or bfloat16",
        options_.model, dim);
  }
}

void EnginePlan::PlanOneCacheForm(std::string why) {
  form_ = KvCacheForm::kHeads;
  if (options_.kv_cache_form == KvCacheForm::kLatent) {
    throw InvalidArgument(
        "--kv-cache-form latent needs latent attention, which {} does not have: "
        "use heads, or leave it out",
        ModelFamilyName(config_.family));
  }
  if (options_.attention_backend != AttentionBackend::kRagged) {
    throw InvalidArgument(
        "--attention-backend {} chooses a decode kernel over a latent cache, "
        "which {} does not have: use ragged",
        AttentionBackendName(options_.attention_backend), ModelFamilyName(config_.family));
  }
  Decide("KV cache form", "heads", std::move(why));
}

void EnginePlan::PlanCacheForm() {
  const AttentionSpec& attention = config_.first_cached_layer().attention;
  if (const auto* gqa = std::get_if<GqaSpec>(&attention)) {
    PlanOneCacheForm(fmt::format("keys and values of {} heads, which groups of query heads share",
                                 gqa->kv_heads));
    return;
  }
  if (const auto* compressed = std::get_if<CompressedSpec>(&attention)) {
    PlanOneCacheForm(fmt::format("rows of {} numbers that are key and value of all {} heads",
                                 compressed->head_dim, compressed->heads));
    return;
  }
  const AttentionBackend backend = options_.attention_backend;
  const auto& mla = std::get<MlaSpec>(attention);
  if (mla.indexer) {
    if (options_.kv_cache_form == KvCacheForm::kHeads || backend != AttentionBackend::kRagged) {
      throw InvalidArgument(
          "{}: rows that an indexer chooses tokens for read latent entries in one way: leave "
          "--kv-cache-form and --attention-backend out",
          options_.model);
    }
    form_ = KvCacheForm::kLatent;
    Decide("KV cache form", "latent",
           fmt::format("entries of {} numbers, and an index key of {}", mla.latent + mla.rope,
                       mla.indexer->dim));
    return;
  }
  const CacheShape shape = CacheShapeOf(mla);
  const auto cost = [&](KvCacheForm form) {
    return fmt::format("{}: {} bytes and {} multiply-adds per cached token and layer",
                       KvCacheFormName(form),
                       CacheWidth(form, shape) * static_cast<int64_t>(DTypeSize(kv_dtype_)),
                       MultiplyAddsPerKey(form, shape));
  };
  std::string why;
  if (options_.kv_cache_form) {
    form_ = *options_.kv_cache_form;
    why = "--kv-cache-form";
  } else if (device() == DeviceKind::kCuda) {
    form_ = KvCacheForm::kLatent;
    why = "the GPU runs it";
  } else if (backend != AttentionBackend::kRagged) {
    form_ = KvCacheForm::kLatent;
    why = fmt::format("--attention-backend {} needs it", AttentionBackendName(backend));
  } else {
    form_ = ChooseKvCacheForm(shape);
    why = form_ == KvCacheForm::kHeads ? "saves" : "heads would not save";
    why += fmt::format(" {} or more multiply-adds per number added", kMultiplyAddsPerNumber);
  }
  Decide("KV cache form", std::string(KvCacheFormName(form_)),
         fmt::format("{}; {}; {}", why, cost(KvCacheForm::kLatent), cost(KvCacheForm::kHeads)));
}

void EnginePlan::PlanAttention() {
  const auto* mla = std::get_if<MlaSpec>(&config_.first_cached_layer().attention);
  if (mla != nullptr && mla->indexer) {
    Decide("all tokens", "absorbed form",
           fmt::format("over the {} tokens that an indexer chooses for each row, or all while they "
                       "are no more",
                       mla->indexer->top_k));
  } else if (form_ == KvCacheForm::kHeads) {
    Decide("all tokens", "per-head form",
           "one attention over the cached keys and values of every head, read once for all "
           "verify rows");
  } else {
    Decide("prompt tokens", "expanded (MHA) form",
           "fewer operations per token; keys and values are made from the latent cache");
    Decide("generated tokens", "absorbed (MQA) form",
           "reads the latent cache once for all heads and verify rows");
  }
  const AttentionBackend backend = options_.attention_backend;
  Decide("attention backend", std::string(AttentionBackendName(backend)),
         fmt::format("{}; {}", AttentionBackendSummary(backend),
                     KeepsExactness(backend)
                         ? "output does not depend on batching or drafts, bit for bit"
                         : "NOT exact: output can depend on batching and drafts"));
}

void EnginePlan::PlanDrafter() {
  const SpeculationOptions& o = options_.speculation;
  const bool hybrid = IsHybrid(config_.family);
  modules_present_ = hybrid ? 0 : CountMtpLayers(*source_, config_);
  if (hybrid && o.method == DraftMethod::kEagle3) {
    throw InvalidArgument(
        "the method eagle3 is not supported yet for networks with linear attention, as {} is: use "
        "the method ngram",
        options_.model);
  }
  if (o.method == DraftMethod::kEagle3 && o.model.empty()) {
    throw InvalidArgument(
        "the method eagle3 needs a drafter: name its directory with the key model");
  }
  if (o.method != DraftMethod::kEagle3 && !o.model.empty()) {
    throw InvalidArgument("model is a drafter's directory: it needs the method eagle3");
  }
  if (!o.eagle_aux_hidden_state_layer_ids.empty() && o.method != DraftMethod::kEagle3) {
    throw InvalidArgument("eagle_aux_hidden_state_layer_ids needs the method eagle3");
  }
  const auto wanted = o.num_speculative_tokens;
  if (wanted.value_or(1) == 0) {
    Decide("drafter", "none", "num_speculative_tokens is 0");
    return;
  }
  if (o.method == DraftMethod::kNgram) {
    k_ = wanted.value_or(kDefaultDrafts);
    Decide("drafter", fmt::format("NgramDrafter, k = {}", k_), "prompt lookup");
    return;
  }
  if (o.method == DraftMethod::kEagle3) return PlanEagle3Drafter();
  if (config_.dspark && modules_present_ > 0) return PlanDSparkDrafter();
  PlanMtpDrafter();
}

void EnginePlan::PlanEagle3Drafter() {
  const SpeculationOptions& o = options_.speculation;
  DrafterCheckpoint drafter{.config = ReadModelConfig(o.model), .source = nullptr, .taps = {}};
  const ModelConfig& c = drafter.config;
  if (c.family != ModelFamily::kEagle3) {
    throw InvalidArgument(
        "{}: is no EAGLE-3 drafter with latent attention: its architecture is {}, not "
        "Eagle3DeepseekV2ForCausalLM or Eagle3DeepseekV3ForCausalLM",
        o.model, c.architecture.empty() ? "not given" : c.architecture);
  }
  const auto check = [&](std::string_view key, int64_t value, int64_t needed) {
    if (value == needed) return;
    throw InvalidArgument("{}: \"{}\" is {}: a drafter for {} needs {}", o.model, key, value,
                          options_.model, needed);
  };
  check("vocab_size", c.vocab_size, config_.vocab_size);
  check("target_hidden_size", c.eagle3->target_hidden_size, config_.hidden_size);
  drafter.source = options_.load_format == LoadFormat::kDummy
                       ? MakeDummyWeights(c, options_.seed + 1)
                       : OpenCheckpoint(o.model, c);
  if (!HasOwnEmbedding(*drafter.source)) check("hidden_size", c.hidden_size, config_.hidden_size);
  drafter.taps = Eagle3Taps(*c.eagle3, config_.num_hidden_layers(),
                            o.eagle_aux_hidden_state_layer_ids, o.model);
  k_ = o.num_speculative_tokens.value_or(kDefaultDrafts);
  Decide("drafter", fmt::format("RepeatedDrafter, k = {}", k_),
         fmt::format("one EAGLE-3 layer of {}, applied k times: it reads the outputs of layers {}",
                     o.model, fmt::join(drafter.taps, ", ")));
  Decide("draft vocabulary",
         fmt::format("{} of {} tokens", c.eagle3->draft_vocab_size, config_.vocab_size),
         "the drafter's own head");
  drafter_ = std::move(drafter);
}

void EnginePlan::PlanMtpDrafter() {
  const auto wanted = options_.speculation.num_speculative_tokens;
  if (modules_present_ == 0) {
    if (wanted) {
      throw InvalidArgument(
          "num_speculative_tokens is {}, but {} holds no MTP layer{}: use 0, or the method ngram",
          *wanted, options_.model, IsHybrid(config_.family) ? " that is supported" : "");
    }
    if (IsHybrid(config_.family) && config_.num_nextn_predict_layers > 0) {
      Decide("drafter", "none",
             "MTP modules of bailing_hybrid are not supported yet; the method ngram drafts");
      return;
    }
    // The config may name what the files do not hold.
    const int64_t declared =
        config_.dspark ? config_.dspark->stages : config_.num_nextn_predict_layers;
    if (declared > 0) {
      spdlog::warn("{}: config.json names {} {}, but the files hold none: nothing is drafted",
                   options_.model, declared,
                   config_.dspark ? "stages of a DSpark drafter" : "MTP modules");
    }
    Decide("drafter", "none", "the checkpoint has no MTP layer");
    return;
  }
  if (modules_present_ > 1) {
    k_ = wanted.value_or(modules_present_);
    if (k_ > modules_present_) {
      throw InvalidArgument(
          "num_speculative_tokens is {}, but {} has {} chained MTP modules: use 0 to {}", k_,
          options_.model, modules_present_, modules_present_);
    }
    modules_used_ = k_;
    Decide("drafter", fmt::format("ChainDrafter, k = {}", k_),
           fmt::format("{} MTP modules, each reads the one before", modules_present_));
  } else {
    k_ = wanted.value_or(kDefaultDrafts);
    modules_used_ = 1;
    Decide("drafter", fmt::format("RepeatedDrafter, k = {}", k_),
           "one MTP module, applied k times");
  }
}

void EnginePlan::PlanDSparkDrafter() {
  const SpeculationOptions& o = options_.speculation;
  const auto block = static_cast<int32_t>(config_.dspark->block_size);
  k_ = o.num_speculative_tokens.value_or(block);
  if (k_ > block) {
    throw InvalidArgument(
        "num_speculative_tokens is {}, but the DSpark drafter of {} drafts blocks of {}: use 0 to "
        "{}",
        k_, options_.model, block, block);
  }
  if (o.draft_vocab_size) {
    throw InvalidArgument(
        "draft_vocab_size needs MTP modules, but {} has a DSpark drafter: leave it out",
        options_.model);
  }
  modules_used_ = modules_present_;
  lookahead_ = block;
  Decide("drafter", fmt::format("BlockDrafter, k = {}", k_),
         fmt::format("a DSpark drafter of {} stages for blocks of {}: it reads the outputs of "
                     "layers {}",
                     config_.dspark->stages, block, fmt::join(config_.dspark->taps, ", ")));
}

void EnginePlan::PlanDraftVocabulary() {
  const SpeculationOptions& o = options_.speculation;
  if (!o.draft_vocab_size) return;
  const int64_t size = *o.draft_vocab_size;
  if (size < 1 || size > config_.vocab_size) {
    throw InvalidArgument("draft_vocab_size is {}: it must be 1 to {}, the vocabulary's size", size,
                          config_.vocab_size);
  }
  if (o.method != DraftMethod::kMtp) {
    throw InvalidArgument("draft_vocab_size needs the method mtp");
  }
  if (k_ == 0) return;
  Decide("draft vocabulary", fmt::format("the first {} of {} tokens", size, config_.vocab_size),
         "draft_vocab_size: drafters read so many rows of the head, other tokens are not drafted");
}

void EnginePlan::PlanAcceptance() {
  const SpeculationOptions& o = options_.speculation;
  acceptance_.method = o.rejection_sample_method;
  const bool synthetic = o.rejection_sample_method == RejectionMethod::kSynthetic;
  const int given =
      (o.synthetic_acceptance_rates.empty() ? 0 : 1) + (o.synthetic_acceptance_length ? 1 : 0);
  if (given != (synthetic ? 1 : 0)) {
    throw InvalidArgument(
        "give one of synthetic_acceptance_rates and synthetic_acceptance_length with "
        "rejection_sample_method synthetic, and none without");
  }
  if (o.probabilistic_drafts && (synthetic || o.method == DraftMethod::kNgram)) {
    throw InvalidArgument(
        "draft_sample_method probabilistic needs rejection_sample_method match or standard and the "
        "method mtp or eagle3");
  }
  if (k_ == 0) return;
  if (synthetic) {
    acceptance_.rates = o.synthetic_acceptance_length
                            ? RatesOfLength(*o.synthetic_acceptance_length, k_)
                            : o.synthetic_acceptance_rates;
    CheckRates(acceptance_.rates, k_);
    Decide("verification", "synthetic", "drafts are accepted at given rates: for benchmarks only");
  } else if (o.rejection_sample_method == RejectionMethod::kStandard) {
    Decide("verification", "standard",
           "rejection sampling: what is sampled depends on drafts and batches");
  } else {
    Decide("verification", "match", "a draft counts when the target draws the same token");
  }
}

void EnginePlan::PlanDraftLength() {
  const SpeculationOptions& o = options_.speculation;
  if (k_ == 0) {
    if (o.adaptive.value_or(false) && o.num_speculative_tokens != 0) {
      throw InvalidArgument("adaptive is true, but {} holds no MTP layer: use the method ngram",
                            options_.model);
    }
    return;
  }
  if (o.IsAdaptive()) {
    Decide(
        "draft length", fmt::format("adaptive, 0 to {}", k_),
        "chosen every step by acceptance and by the batch size; step times are measured at start");
    if (drafts_blocks()) {
      Decide("draft confidences", o.enable_adaptive_verification ? "used" : "not used",
             o.enable_adaptive_verification
                 ? "drafts that do not pay by them and by the step times are not verified"
                 : "enable_adaptive_verification is false");
    }
  } else if (!o.num_speculative_tokens_per_batch_size.empty()) {
    Decide("draft length", "by batch size", "num_speculative_tokens_per_batch_size");
  } else {
    Decide("draft length", fmt::format("always {}", k_),
           o.num_speculative_tokens ? "num_speculative_tokens"
           : o.adaptive             ? "adaptive is false"
                                    : "adaptive is the default with mtp or eagle3 and match only");
  }
}

void EnginePlan::PlanThreads() {
  threads_ = ComputeThreadsOf(options_);
  const size_t nodes = UsableMemoryNodes().size();
  Decide("compute threads",
         fmt::format("{}{}", threads_.count, threads_.processors.empty() ? "" : ", pinned"),
         fmt::format("{}{}",
                     options_.num_threads > 0 ? "--num-threads" : "all processors of this process",
                     nodes > 1 ? fmt::format("; memory on {} NUMA nodes in turn", nodes) : ""));
}

}  // namespace outrider
