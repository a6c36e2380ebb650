#include "outrider/engine/plan/check_options.h"

#include "outrider/base/error.h"
#include "outrider/engine/page_offload.h"

namespace outrider {

namespace {

template <typename T>
void CheckPositive(const char* flag, T value) {
  if (value <= 0) throw InvalidArgument("{} is {}: it must be at least 1", flag, value);
}

template <typename T>
void CheckPositive(const char* flag, std::optional<T> value) {
  if (value) CheckPositive(flag, *value);
}

void CheckDType(const char* flag, std::optional<DType> dtype) {
  if (dtype && *dtype != DType::kF32 && *dtype != DType::kBF16) {
    throw InvalidArgument("{} is {}: use float32 or bfloat16", flag, DTypeName(*dtype));
  }
}

void CheckDrafter(const SpeculationOptions& o) {
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
  if (o.prompt_lookup_min < 1 || o.prompt_lookup_min > o.prompt_lookup_max) {
    throw InvalidArgument("prompt_lookup_min is {} and prompt_lookup_max {}: use 1 <= min <= max",
                          o.prompt_lookup_min, o.prompt_lookup_max);
  }
  if (o.draft_vocab_size && o.method != DraftMethod::kMtp) {
    throw InvalidArgument("draft_vocab_size needs the method mtp");
  }
}

void CheckDraftLength(const SpeculationOptions& o) {
  const auto k = o.num_speculative_tokens;
  constexpr int32_t kMostDrafts = 32;
  if (k && (*k < 0 || *k > kMostDrafts)) {
    throw InvalidArgument("num_speculative_tokens is {}: it must be 0 to {}", *k, kMostDrafts);
  }
  if (o.IsAdaptive() && !o.num_speculative_tokens_per_batch_size.empty()) {
    throw InvalidArgument(
        "adaptive is true, but num_speculative_tokens_per_batch_size says how many tokens to "
        "draft: give one of them");
  }
}

void CheckAcceptance(const SpeculationOptions& o) {
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
}

}  // namespace

void CheckOptions(const EngineOptions& o) {
  CheckPositive("--block-size", o.block_size);
  CheckPositive("--max-num-seqs", o.max_num_seqs);
  CheckPositive("--max-num-batched-tokens", o.max_num_batched_tokens);
  CheckPositive("--kv-cache-memory-bytes", o.kv_cache_memory_bytes);
  CheckOffloadOptions(o);
  const bool is_share = o.gpu_memory_utilization > 0 && o.gpu_memory_utilization <= 1;
  if (!is_share) {
    throw InvalidArgument("--gpu-memory-utilization is {}: it must be above 0 and at most 1",
                          o.gpu_memory_utilization);
  }
  CheckPositive("--max-model-len", o.max_model_len);
  CheckPositive("--max-num-queued-reqs", o.max_num_queued_reqs);
  if (o.num_threads < 0) throw InvalidArgument("--num-threads is {}: use 0 for all", o.num_threads);
  CheckDType("--dtype", o.dtype);
  if (o.kv_cache_dtype != DType::kF8E4M3) CheckDType("--kv-cache-dtype", o.kv_cache_dtype);
  CheckAttentionOptions(o);
  CheckDrafter(o.speculation);
  CheckDraftLength(o.speculation);
  CheckAcceptance(o.speculation);
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

}  // namespace outrider
