#include "outrider/engine/plan/form_plan.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "outrider/base/error.h"
#include "outrider/networks/network.h"

namespace outrider {

namespace {

struct ChosenForm {
  KvCacheForm form = KvCacheForm::kHeads;
  std::string why;
};

/// The choice for attention whose cache has one form, which is not the latent one.
ChosenForm OneForm(const EngineOptions& options, ModelFamily family, std::string why) {
  if (options.kv_cache_form == KvCacheForm::kLatent) {
    throw InvalidArgument(
        "--kv-cache-form latent needs latent attention, which {} does not have: "
        "use heads, or leave it out",
        ModelFamilyName(family));
  }
  if (options.attention_backend != AttentionBackend::kRagged) {
    throw InvalidArgument(
        "--attention-backend {} chooses a decode kernel over a latent cache, "
        "which {} does not have: use ragged",
        AttentionBackendName(options.attention_backend), ModelFamilyName(family));
  }
  return {KvCacheForm::kHeads, std::move(why)};
}

ChosenForm IndexedForm(const EngineOptions& options, const MlaSpec& mla) {
  if (options.kv_cache_form == KvCacheForm::kHeads ||
      options.attention_backend != AttentionBackend::kRagged) {
    throw InvalidArgument(
        "{}: rows that an indexer chooses tokens for read latent entries in one way: leave "
        "--kv-cache-form and --attention-backend out",
        options.model);
  }
  return {KvCacheForm::kLatent, fmt::format("entries of {} numbers, and an index key of {}",
                                            mla.latent + mla.rope, mla.indexer->dim)};
}

ChosenForm LatentForm(const EngineOptions& options, const ModelConfig& config, const MlaSpec& mla,
                      DType kv_dtype, DeviceKind device) {
  const CacheShape shape = CacheShapeOf(mla);
  const AttentionBackend backend = options.attention_backend;
  if (RowPathsOf(config, KvCacheForm::kLatent).ForAll() && backend != AttentionBackend::kRagged) {
    throw InvalidArgument(
        "--attention-backend {} needs layers that all read latent entries without an indexer, "
        "which {} does not have: use ragged",
        AttentionBackendName(backend), options.model);
  }
  ChosenForm chosen = {KvCacheForm::kLatent, ""};
  if (options.kv_cache_form) {
    chosen = {*options.kv_cache_form, "--kv-cache-form"};
  } else if (device == DeviceKind::kCuda) {
    chosen.why = "the GPU runs it";
  } else if (backend != AttentionBackend::kRagged) {
    chosen.why = fmt::format("--attention-backend {} needs it", AttentionBackendName(backend));
  } else {
    chosen.form = ChooseKvCacheForm(shape);
    chosen.why = fmt::format("{} {} or more multiply-adds per number added",
                             chosen.form == KvCacheForm::kHeads ? "saves" : "heads would not save",
                             kMultiplyAddsPerNumber);
  }
  for (const KvCacheForm form : kAllKvCacheForms) {
    chosen.why += fmt::format("; {}: {} bytes and {} multiply-adds per cached token and layer",
                              KvCacheFormName(form),
                              CacheWidth(form, shape) * static_cast<int64_t>(DTypeSize(kv_dtype)),
                              MultiplyAddsPerKey(form, shape));
  }
  return chosen;
}

/// The layer whose attention decides: the first of latent attention without an indexer, whose cache
/// has two forms, else the first that keeps entries.
const LayerSpec& DecidingLayer(const ModelConfig& config) {
  const auto found = std::ranges::find_if(
      config.layers, [](const LayerSpec& layer) { return layer.mla_without_indexer() != nullptr; });
  return found == config.layers.end() ? config.first_cached_layer() : *found;
}

ChosenForm ChooseForm(const EngineOptions& options, const ModelConfig& config, DType kv_dtype,
                      DeviceKind device) {
  const AttentionSpec& attention = DecidingLayer(config).attention;
  if (const auto* gqa = std::get_if<GqaSpec>(&attention)) {
    return OneForm(options, config.family,
                   fmt::format("keys and values of {} heads, which groups of query heads share",
                               gqa->kv_heads));
  }
  if (const auto* compressed = std::get_if<CompressedSpec>(&attention)) {
    return OneForm(options, config.family,
                   fmt::format("rows of {} numbers that are key and value of all {} heads",
                               compressed->head_dim, compressed->heads));
  }
  const auto& mla = std::get<MlaSpec>(attention);
  return mla.indexer ? IndexedForm(options, mla)
                     : LatentForm(options, config, mla, kv_dtype, device);
}

void DescribePaths(const ModelConfig& config, KvCacheForm form, Decisions& decisions) {
  const auto indexed = std::ranges::find_if(
      config.layers, [](const LayerSpec& layer) { return layer.indexer() != nullptr; });
  if (indexed != config.layers.end()) {
    decisions.push_back(
        {"all tokens", "absorbed form",
         fmt::format("over the {} tokens that an indexer chooses for each row, or all while they "
                     "are no more",
                     indexed->indexer()->top_k)});
    if (RowPathsOf(config, form) == RowPaths(RowPath::kListed)) return;
    decisions.back().what = "all tokens, where there is an indexer";
  }
  if (form == KvCacheForm::kHeads) {
    decisions.push_back({"all tokens", "per-head form",
                         "one attention over the cached keys and values of every head, read once "
                         "for all verify rows"});
  } else {
    decisions.push_back(
        {"prompt tokens", "expanded (MHA) form",
         "fewer operations per token; keys and values are made from the latent cache"});
    decisions.push_back({"generated tokens", "absorbed (MQA) form",
                         "reads the latent cache once for all heads and verify rows"});
  }
}

}  // namespace

FormPlan PlanForm(const EngineOptions& options, const ModelConfig& config, DType kv_dtype,
                  DeviceKind device, Decisions& decisions) {
  ChosenForm chosen = ChooseForm(options, config, kv_dtype, device);
  decisions.push_back(
      {"KV cache form", std::string(KvCacheFormName(chosen.form)), std::move(chosen.why)});
  DescribePaths(config, chosen.form, decisions);
  const AttentionBackend backend = options.attention_backend;
  decisions.push_back({"attention backend", std::string(AttentionBackendName(backend)),
                       fmt::format("{}; {}", AttentionBackendSummary(backend),
                                   KeepsExactness(backend)
                                       ? "output does not depend on batching or drafts, bit for bit"
                                       : "NOT exact: output can depend on batching and drafts")});
  return {chosen.form, RowPathsOf(config, chosen.form)};
}

}  // namespace outrider
