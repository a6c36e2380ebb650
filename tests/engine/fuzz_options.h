// Random options of an engine, for outrider_exactness_fuzz.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "outrider/checkpoint/rank_config.h"
#include "tests/engine/fuzz_models.h"
#include "tests/temporary_directory.h"

namespace outrider::fuzz {

constexpr int32_t kMaxModelLen = 400;

class RandomOptions {
 public:
  RandomOptions(const Arguments& arguments, Models& models, Random& random)
      : arguments_(arguments), models_(models), random_(random) {}

  /// Draws options of an engine over the model, with these operations; none if the ranks cannot
  /// share it.
  std::optional<TestEngineOptions> Draw(const ModelChoice& model, const Ops* ops) {
    TestEngineOptions o = models_.Options(model, ops);
    o.ranks = arguments_.ranks;
    o.divides_requests = arguments_.divided;
    using enum DrafterKind;
    constexpr std::array kDrafters = {kNone,  kChain,  kChain,  kRepeated,
                                      kNgram, kEagle3, kEagle3, kFake};
    // The last does not run on a GPU.
    o.drafter = kDrafters.at(
        static_cast<size_t>(Uniform(0, kDrafters.size() - (models_.on_gpu() ? 2 : 1))));
    // That one knows the pages of one rank.
    if (arguments_.divided && o.drafter == kFake) o.drafter = kChain;
    if (arguments_.eagle3) o.drafter = kEagle3;
    if (model.shape == Shape::kSparse || model.shape == Shape::kGlm5) {  // it has one module
      constexpr std::array kOfSparse = {kNone, kRepeated, kRepeated, kNgram, kEagle3, kEagle3};
      const DrafterKind any = kOfSparse.at(static_cast<size_t>(Uniform(0, kOfSparse.size() - 1)));
      o.drafter = arguments_.eagle3 ? kEagle3 : any;
      // Its entries are not of 8 bits on a processor.
      if (o.drafter == kEagle3 && model.rounded_cache && !models_.on_gpu()) o.drafter = kRepeated;
    }
    if (IsV4(model)) {
      const int kind = Uniform(0, 5);
      const DrafterKind own = model.shape == Shape::kV4 ? kRepeated : kBlock;
      o.drafter = kind == 0 ? kNone : kind == 1 ? kNgram : own;
    }
    if (HasState(model)) {  // Ling-3.0 has one module
      const DrafterKind own = IsLing(model) ? kRepeated : kNgram;
      constexpr std::array kShares = {kNone, kNgram};
      const auto kind = static_cast<size_t>(Uniform(0, 3));
      o.drafter = kind < kShares.size() ? kShares.at(kind) : own;
    }
    const auto modules = static_cast<int>(ReadModelConfig(o.checkpoint).num_nextn_predict_layers);
    if (modules == 0 && (o.drafter == kChain || o.drafter == kRepeated)) o.drafter = kNgram;
    o.k = Uniform(1, o.drafter == kChain ? modules : o.drafter == kBlock ? 5 : 6);
    if (HasState(model) && Uniform(0, 3) == 0) o.k = Uniform(7, kMostStateDrafts);
    RandomDraftLengths(o);
    o.draft_form = Uniform(0, 1) == 0 ? DraftForm::kCompacted : DraftForm::kPadded;
    o.probabilistic_drafts = Uniform(0, 1) == 0;
    o.block_size = models_.on_gpu() ? 16 << Uniform(0, 2) : Uniform(1, 40);
    if (HasState(model) && models_.on_gpu()) o.block_size = kStatePageTokens;
    o.max_model_len = kMaxModelLen;
    o.max_num_batched_tokens = Uniform(0, 1) == 0 ? Uniform(1, 64) : 512;
    if (IsV3(model) && !models_.on_gpu()) RandomForm(o);
    if (o.drafter == kEagle3 && !HasLatentDrafter(o)) {
      o.attention_backend = AttentionBackend::kRagged;
    }
    if (!IsShared(o)) return std::nullopt;
    const int32_t least = LeastPages(o);
    o.num_blocks = least + (Uniform(0, 2) == 0 ? Uniform(0, 4) : least * 8);
    o.max_num_seqs = Uniform(1, 32);
    o.threads = Uniform(1, 2);
    o.prefix_caching = Uniform(0, 3) > 0;
    o.fast_prefix = Uniform(0, 3) == 0;
    // Of some rounds, so that the others have the pages that they would have without it.
    if (o.prefix_caching && Uniform(0, 1) == 0) RandomHostCache(o, least);
    return o;
  }

  static std::string Describe(const TestEngineOptions& o) {
    return fmt::format(
        "drafter {} k {} ranges {} adaptive {} form {} drawn {} block {} blocks {} seqs {} tokens "
        "{} "
        "threads {} prefix "
        "{} "
        "fast {} host pages {}{} backend {} cache {}",
        static_cast<int>(o.drafter), o.k, o.draft_ranges.size(), o.adaptive,
        static_cast<int>(o.draft_form), o.probabilistic_drafts, o.block_size, o.num_blocks,
        o.max_num_seqs, o.max_num_batched_tokens, o.threads, o.prefix_caching, o.fast_prefix,
        o.host_pages, o.host_directory.empty() ? "" : " in a file",
        AttentionBackendName(o.attention_backend), KvCacheFormName(o.cache_form));
  }

 private:
  /// From one that forgets nearly all to one that keeps all, in a file or in memory, mostly behind
  /// a pool that gives pages up.
  void RandomHostCache(TestEngineOptions& o, int32_t least) {
    if (Uniform(0, 2) > 0) o.num_blocks = least + Uniform(0, 4);
    o.host_pages = Uniform(0, 2) == 0 ? Uniform(1, 8) : Uniform(1, 8 * least);
    if (Uniform(0, 3) == 0) o.host_directory = host_directory_.path();
  }

  static bool HasLatentDrafter(const TestEngineOptions& o) {
    const ModelConfig drafter = ReadModelConfig(o.drafter_checkpoint);
    return std::holds_alternative<MlaSpec>(drafter.layers.front().attention);
  }

  void RandomForm(TestEngineOptions& o) {
    if (Uniform(0, 1) == 0) {
      o.cache_form = KvCacheForm::kHeads;
    } else if (Uniform(0, 1) == 0) {
      o.attention_backend = AttentionBackend::kUniformPad;
    }
  }

  /// Whether the ranks can share the models.
  static bool IsShared(const TestEngineOptions& options) {
    try {
      const bool divided = options.divides_requests;
      const ModelConfig config = ReadModelConfig(options.checkpoint);
      CheckRanks(config, options.ranks, "--ranks", divided);
      if (options.drafter == DrafterKind::kEagle3) {
        CheckRanks(ReadModelConfig(options.drafter_checkpoint), options.ranks, "--ranks", divided);
      }
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  /// Pages that a request of the greatest length needs, so that it can run alone.
  static int32_t LeastPages(const TestEngineOptions& o) {
    CacheConfig cache = TestCacheConfig(o);
    cache.rerun_tokens = o.k;
    const int32_t lookahead = o.drafter == DrafterKind::kBlock ? 5 : o.k;
    const int32_t rows = std::max(o.max_num_batched_tokens, 1 + o.k) + 1 + lookahead;
    return static_cast<int32_t>(cache.MostPages(o.max_model_len, rows));
  }

  /// Always k; or by the number of requests, up and down as they come and go; or as times say.
  void RandomDraftLengths(TestEngineOptions& o) {
    switch (o.drafter == DrafterKind::kNone ? 0 : Uniform(0, 3)) {
      case 0:
        return;
      case 1:
        o.adaptive = true;
        return;
      default:
        for (int32_t low = 1; low <= 32;) {
          const int32_t high = low + (Uniform(0, 1) == 0 ? 0 : Uniform(0, 4));
          o.draft_ranges.push_back({low, high, Uniform(0, 1) == 0 ? 0 : Uniform(0, o.k)});
          low = high + 1;
        }
    }
  }

  int Uniform(int low, int high) { return random_.Uniform(low, high); }

  const Arguments& arguments_;
  Models& models_;
  Random& random_;
  const TemporaryDirectory host_directory_;
};

}  // namespace outrider::fuzz
