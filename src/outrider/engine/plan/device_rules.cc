#include "outrider/engine/plan/device_rules.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <string_view>
#include <variant>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/ops/cuda/hopper_support.h"

namespace outrider {

namespace {

/// Whether `is` holds for a layer of the target or of a module that is used. Layers of one network
/// may have attention of several kinds.
template <typename Is>
bool AnyLayer(const AskedOptions& asked, const Is& is) {
  const int64_t layers = asked.config.num_hidden_layers() + asked.plan.drafts.modules;
  for (int64_t i = 0; i < layers; ++i) {
    if (is(asked.config.layer(i))) return true;
  }
  return false;
}

template <typename Attention>
bool Has(const AskedOptions& asked) {
  return AnyLayer(asked, [](const LayerSpec& layer) {
    return std::holds_alternative<Attention>(layer.attention);
  });
}

/// Whether the form of the cache is that of some layer's entries: of latent attention, which an
/// EAGLE-3 drafter has, too.
bool HasLatents(const AskedOptions& asked) {
  return asked.plan.drafts.own_checkpoint || Has<MlaSpec>(asked);
}

bool IsCompressed(const AskedOptions& asked) { return Has<CompressedSpec>(asked); }

std::optional<Asked> Name(std::string_view name) { return Asked(name); }

std::vector<int64_t> PageTokens() {
  return {cuda::kHopperPageTokens.begin(), cuda::kHopperPageTokens.end()};
}

/// Tokens a page of the first cache group where they are no multiple of 8.
std::optional<Asked> OddTokensPerPage(const AskedOptions& asked) {
  if (!Has<GqaSpec>(asked)) return std::nullopt;
  for (const CacheGroupSpec& group : asked.plan.cache.config.groups) {
    if (group.tokens_per_block % 8 != 0) return Asked(int64_t{group.tokens_per_block});
  }
  return std::nullopt;
}

/// Tokens a page of a cache group that are no power of two, or of the first group.
std::optional<Asked> UnevenTokensPerPage(const AskedOptions& asked) {
  const std::vector<CacheGroupSpec>& groups = asked.plan.cache.config.groups;
  if (!IsCompressed(asked) || groups.empty()) return std::nullopt;
  for (const CacheGroupSpec& group : groups) {
    if (!std::has_single_bit(static_cast<uint32_t>(group.tokens_per_block))) {
      return Asked(int64_t{group.tokens_per_block});
    }
  }
  return Asked(int64_t{groups.front().tokens_per_block});
}

/// Tokens a page that latent attention without an indexer reads. They may be more than were asked
/// for: pages also hold pieces of running states, or blocks of windows.
std::optional<Asked> TokensPerLatentPage(const AskedOptions& asked) {
  const bool reads =
      asked.plan.drafts.own_checkpoint || AnyLayer(asked, [](const LayerSpec& layer) {
        return layer.mla_without_indexer() != nullptr;
      });
  if (!reads) return std::nullopt;
  for (const CacheGroupSpec& group : asked.plan.cache.config.groups) {
    if (group.kind != CacheGroupKind::kSlidingWindow) return Asked(int64_t{group.tokens_per_block});
  }
  return std::nullopt;
}

/// The fewest index keys of a page.
std::optional<Asked> IndexKeysPerPage(const AskedOptions& asked) {
  if (!IsCompressed(asked)) return std::nullopt;
  std::optional<int64_t> fewest;
  for (const CacheLayerSpec& layer : asked.plan.cache.layers) {
    if (layer.use != CacheUse::kIndexKeys) continue;
    const CacheGroupSpec& group = asked.plan.cache.config.groups[static_cast<size_t>(layer.group)];
    const int64_t keys = group.tokens_per_block / layer.ratio;
    fewest = std::min(fewest.value_or(keys), keys);
  }
  return fewest ? std::optional<Asked>(*fewest) : std::nullopt;
}

/// The type of the cache as the flag names it.
std::string_view CacheTypeName(const AskedOptions& asked) {
  return asked.plan.numbers.kv_dtype == DType::kF8E4M3 ? "fp8"
                                                       : DTypeName(asked.plan.numbers.kv_dtype);
}

std::vector<Rule<AskedOptions>> MakeOptionRules() {
  return {
      {"--dtype", [](const AskedOptions& a) { return Name(DTypeName(a.plan.numbers.dtype)); },
       Taken::Names({"bfloat16"})},
      {"--kv-cache-dtype", [](const AskedOptions& a) { return Name(CacheTypeName(a)); },
       Taken::Names({"bfloat16", "fp8"})},
      {"--kv-cache-form",
       [](const AskedOptions& a) {
         return HasLatents(a) ? Name(KvCacheFormName(a.plan.form.cache)) : std::nullopt;
       },
       Taken::Names({"latent"}), "of latent attention"},
      {"--quantization",
       [](const AskedOptions& a) {
         return Name(a.options.quantization == WeightQuantization::kInt8 ? "int8" : "none");
       },
       Taken::Names({"none"})},
      {"--attention-backend",
       [](const AskedOptions& a) {
         return Name(AttentionBackendName(a.options.attention_backend));
       },
       Taken::Names({"ragged"})},
      {"--block-size",
       [](const AskedOptions& a) { return std::optional<Asked>(int64_t{a.options.block_size}); },
       Taken::Numbers(PageTokens())},
      {"tokens a page of a cache group (--block-size)", OddTokensPerPage, Taken::Multiples(8),
       "of grouped-query attention"},
      {"tokens a page of a cache group (--block-size)", UnevenTokensPerPage,
       Taken::Numbers({1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024}), "of compressed attention"},
      {"tokens a page (--block-size)", TokensPerLatentPage, Taken::Numbers(PageTokens()),
       "of latent attention"},
      {"index keys a page (--block-size)", IndexKeysPerPage,
       Taken::Numbers({8, 16, 32, 64, 128, 256, 512, 1024}), "of compressed attention"},
      {"--max-num-seqs",
       [](const AskedOptions& a) { return std::optional<Asked>(int64_t{a.options.max_num_seqs}); },
       Taken::UpTo(cuda::kMostRequests)},
      {"rows of a step (--max-num-batched-tokens, --max-num-seqs times 1 + drafts)",
       [](const AskedOptions& a) {
         const int64_t seqs = a.options.max_num_seqs;
         return std::optional<Asked>(
             std::max<int64_t>(a.plan.max_num_batched_tokens, seqs * (1 + a.plan.drafts.k)));
       },
       Taken::UpTo(cuda::kMostRows)},
      {"bytes of a page of the cache (--block-size)",
       [](const AskedOptions& a) -> std::optional<Asked> {
         if (!IsCompressed(a)) return std::nullopt;
         return a.plan.cache.config.PageBytes();
       },
       Taken::Multiples(128), "of compressed attention"},
  };
}

cuda::AskedNetwork NetworkOf(const ModelFacts& model, const EnginePlan& plan) {
  return {.config = model.config,
          .num_mtp_modules = plan.drafts.modules,
          .drafter = model.drafter ? &model.drafter->config : nullptr};
}

}  // namespace

std::span<const Rule<AskedOptions>> GpuOptionRules() {
  static const std::vector<Rule<AskedOptions>> rules = MakeOptionRules();
  return rules;
}

std::string GpuSupportTable() {
  return "| asked for | on the GPU |\n|---|---|\n" + SupportTable(cuda::HopperLayerRules()) +
         SupportTable(cuda::HopperNetworkRules()) + SupportTable(cuda::HopperModelRules()) +
         SupportTable(GpuOptionRules());
}

void CheckRunsOnDevice(const EngineOptions& options, const ModelFacts& model,
                       const EnginePlan& plan) {
  if (plan.device == DeviceKind::kCpu) return;
  cuda::CheckRunsOnHopper(NetworkOf(model, plan));
  const AskedOptions asked = {options, model.config, plan};
  if (const std::optional<Lack> lack = Supports(GpuOptionRules(), asked)) {
    throw InvalidArgument("the GPU does not run {}: {}--device cpu", lack->what,
                          lack->takes.empty() ? "use " : fmt::format("use {}, or ", lack->takes));
  }
}

void DescribeGpu(const ModelFacts& model, const EnginePlan& plan, Decisions& decisions) {
  const std::vector<std::string> ways = cuda::OwnWaysOfHopper(NetworkOf(model, plan));
  if (plan.device != DeviceKind::kCpu) {
    for (const std::string& way : ways) {
      decisions.push_back({"on the GPU", way, "a processor does not round them"});
    }
    return;
  }
  constexpr const char* kWhat = "on a Hopper GPU";
  const std::optional<Lack> lack = cuda::LackOnHopper(NetworkOf(model, plan));
  if (!lack) {
    const std::string takes = "it takes all that the network asks for";
    decisions.push_back(
        {kWhat, "runs",
         ways.empty() ? takes : fmt::format("{}, {}", takes, fmt::join(ways, ", "))});
  } else if (lack->takes.empty()) {
    decisions.push_back({kWhat, "does not run", fmt::format("it lacks {}", lack->what)});
  } else {
    decisions.push_back(
        {kWhat, "does not run", fmt::format("{}: it takes {}", lack->what, lack->takes)});
  }
}

}  // namespace outrider
