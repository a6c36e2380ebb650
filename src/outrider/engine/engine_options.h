// Everything that can be set about an engine, with the defaults that a user gets.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "outrider/attention/attention_backend.h"
#include "outrider/base/dtype.h"
#include "outrider/draft/draft_length_policy.h"
#include "outrider/draft/draft_schedule.h"
#include "outrider/draft/drafter.h"
#include "outrider/kv/cache_form.h"
#include "outrider/ops/weight_loader.h"
#include "outrider/sampling/acceptance.h"
#include "outrider/sampling/logprobs.h"

namespace outrider {

enum class LoadFormat { kAuto, kDummy };

enum class DraftMethod {
  kMtp,     // the checkpoint's multi-token prediction modules, or its DSpark drafter
  kEagle3,  // a drafter with a checkpoint of its own
  kNgram,   // prompt lookup
};

struct SpeculationOptions {
  DraftMethod method = DraftMethod::kMtp;
  std::string model;  // kEagle3: the drafter's directory
  /// kEagle3: the target's layers that it reads, in place of what its config says (Eagle3Taps).
  std::vector<int32_t> eagle_aux_hidden_state_layer_ids;
  /// 0 turns speculation off; unset: the number of chained MTP modules, the size of a DSpark
  /// drafter's blocks, else 3; none when the method is kMtp and the checkpoint has no MTP layers.
  std::optional<int32_t> num_speculative_tokens;
  std::vector<DraftRange> num_speculative_tokens_per_batch_size;  // see DraftSchedule
  /// Whether the number of drafts follows acceptance and the batch size (DraftLengthPolicy), up to
  /// num_speculative_tokens. With another rule than kMatch output then depends on the clock. Unset:
  /// with modules and kMatch, when neither a number nor a table is given (IsAdaptive).
  std::optional<bool> adaptive;
  /// kMtp, a DSpark drafter with an adaptive number of drafts: drafts that do not pay by its
  /// confidences and by the step times are not verified.
  bool enable_adaptive_verification = true;
  /// What the adaptive number of drafts is chosen by; unset: LoadEngine measures it.
  std::optional<StepTimes> step_times;
  int32_t prompt_lookup_min = 2;                 // kNgram: tokens that must match
  int32_t prompt_lookup_max = 5;                 // kNgram: tokens that are compared
  DraftForm draft_form = DraftForm::kCompacted;  // kMtp, kEagle3
  /// kMtp: drafts are chosen from the first draft_vocab_size tokens of the vocabulary; unset: from
  /// all of it.
  std::optional<int32_t> draft_vocab_size;
  RejectionMethod rejection_sample_method = RejectionMethod::kMatch;
  /// kMtp or kEagle3 with kMatch or kStandard: drafts of sampled requests are drawn from the
  /// drafter's distribution instead of being its most likely tokens; with kMatch by the target's
  /// own noise.
  bool probabilistic_drafts = false;
  std::vector<double> synthetic_acceptance_rates;     // kSynthetic: this,
  std::optional<double> synthetic_acceptance_length;  // or this

  bool IsAdaptive() const {
    return adaptive.value_or(
        !num_speculative_tokens && num_speculative_tokens_per_batch_size.empty() &&
        method != DraftMethod::kNgram && rejection_sample_method == RejectionMethod::kMatch);
  }

  /// Whether steps draft different numbers of tokens, num_speculative_tokens at most.
  bool DraftLengthVaries() const {
    return IsAdaptive() || !num_speculative_tokens_per_batch_size.empty();
  }
};

/// What an engine runs on.
enum class DeviceKind {
  kAuto,  // a GPU that can be used, else the processor
  kCpu,
  kCuda,  // a Hopper GPU
};

struct EngineOptions {
  std::string model = {};          // a Hugging Face checkpoint directory
  std::string tokenizer = {};      // a directory with a tokenizer; empty: the model's
  std::string chat_template = {};  // a Jinja file; empty: the model's
  LoadFormat load_format = LoadFormat::kAuto;
  DeviceKind device = DeviceKind::kAuto;
  /// kF32 or kBF16; unset: as the checkpoint says (float16: float32).
  std::optional<DType> dtype = {};
  WeightQuantization quantization = WeightQuantization::kNone;  // what is done to weights at load
  /// kF32, kBF16 or kF8E4M3 (CacheNumbers); unset: dtype.
  std::optional<DType> kv_cache_dtype = {};
  /// kF8E4M3: numbers are rounded as DeepSeek-V4's publishers round them on a GPU, too (Fp8Form).
  bool published_cache = false;
  /// Unset: ChooseKvCacheForm; kLatent with a backend other than kRagged, which needs it.
  std::optional<KvCacheForm> kv_cache_form = {};
  /// Unset: the checkpoint's, shrunk to what the cache holds.
  std::optional<int32_t> max_model_len = {};
  int32_t block_size = 64;  // KV cache page, in tokens
  int32_t max_num_seqs = 256;
  /// Rows of a step; decode rows may exceed it (Scheduler). Unset: 512 on a processor, 8192 on a
  /// GPU.
  std::optional<int32_t> max_num_batched_tokens = {};
  /// KV cache of all layers, MTP layers included. Unset: 1 GiB on a processor; on a GPU what
  /// gpu_memory_utilization leaves.
  std::optional<int64_t> kv_cache_memory_bytes = {};
  double gpu_memory_utilization = 0.9;  // (0, 1]: the share of the GPU's memory that may be used
  bool enable_prefix_caching = true;    // requests reuse the blocks of equal prompt beginnings
  /// Bytes for pages that leave the KV cache's memory. They come back when a prompt begins alike
  /// (HostCache). Unset: such pages are lost.
  std::optional<int64_t> kv_offload_memory_bytes = {};
  std::string kv_offload_dir = {};  // of a temporary file for them; empty: in the host's memory
  /// Over a latent cache, reuse the blocks of answers too: where a prompt repeats an earlier
  /// answer, results then depend on whether that is still cached, by rounding.
  bool fast_prefix = false;
  std::optional<int32_t> max_num_queued_reqs = {};  // unset: no limit
  int32_t max_logprobs = 20;
  LogprobsMode logprobs_mode = LogprobsMode::kRaw;
  /// Requests may ask for the experts of their tokens (GenerationRequest::experts_from); on a
  /// processor only.
  bool enable_return_routed_experts = false;
  std::string weight_version = {};  // a name for the weights, in answers; "": none
  uint64_t seed = 0;                // seeds requests that bring none
  int32_t num_threads = 0;          // 0: all processors this process may use; of all ranks together
  /// Ranks that share the model: threads of this process, on a GPU one for each, with their parts
  /// of the weights.
  int32_t tensor_parallel_size = 1;
  /// The GPU of each rank, by CUDA's numbers; empty: those of the first ones. Ranks may share one,
  /// which is slow: tests ask for it where there is one GPU, and no flag does.
  std::vector<int> rank_devices = {};
  /// Each rank has the KV cache of its own requests and runs their attention with all heads. The
  /// rest of the model is shared as without it. For two ranks or more.
  bool data_parallel_attention = false;
  bool pin_threads = true;  // bind compute threads when they are as many as those processors
  AttentionBackend attention_backend = AttentionBackend::kRagged;
  SpeculationOptions speculation = {};
};

}  // namespace outrider
