// An executor for tests that compares, after a step, the cache entries of its requests with those
// that one pass over the same tokens makes in a cache of its own: bit for bit, of all layers of
// the target and of the drafter's modules, wherever a page is left.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "outrider/draft/block_drafter.h"
#include "outrider/draft/chain_drafter.h"
#include "outrider/draft/repeated_drafter.h"
#include "outrider/execute/step_runner.h"
#include "outrider/networks/dspark_draft_model.h"

namespace outrider {

/// What was compared; shared, since the engine owns the executor.
struct EntryCounts {
  int64_t target = 0;       // entries of the target's layers
  int64_t modules = 0;      // entries of modules whose tokens are known
  int64_t provisional = 0;  // entries of modules that read a draft
  int64_t lagging = 0;      // entries of modules that did not run, and will catch up
  int64_t freed = 0;        // entries whose page has left the window
  int64_t accepted = 0;     // drafts
  int64_t rejected = 0;
  int64_t shared = 0;  // tokens found in the prefix cache
};

class EntryCheckingExecutor : public Executor {
 public:
  enum class Strategy { kChain, kRepeated, kBlock };
  struct Options {
    std::function<std::unique_ptr<DraftModel>(Network&)> make_draft_model;  // as the executor's
    NetworkCache cache;  // what target and draft model keep in it
    Strategy strategy = Strategy::kChain;
    int32_t k = 3;
    uint32_t one_in = 2;  // so many steps of a request are checked
  };

  EntryCheckingExecutor(RankParts parts, const Options& options, EntryCounts* counts)
      : options_(options),
        counts_(counts),
        model_(*parts.model),
        cache_(*parts.cache),
        drafter_(*parts.drafter),
        slots_(static_cast<size_t>(parts.num_slots)),
        inner_(std::make_unique<StepRunner>(std::move(parts))) {}

  int32_t vocab_size() const override { return inner_->vocab_size(); }
  std::span<const int32_t> eos_token_ids() const override { return inner_->eos_token_ids(); }
  int32_t max_in_flight() const override { return inner_->max_in_flight(); }
  ExecutorSeconds seconds() const override { return inner_->seconds(); }
  ReplayCounts passes() const override { return inner_->passes(); }
  void Release(int32_t slot) override { inner_->Release(slot); }

  void Admit(const SlotAdmission& admission) override {
    slots_[static_cast<size_t>(admission.slot)] = {
        .tokens = {admission.tokens.begin(), admission.tokens.end()},
        .computed = admission.cached_tokens,
        .parameters = admission.parameters};
    counts_->shared += admission.cached_tokens;
    inner_->Admit(admission);
  }

  int64_t page_bytes() const override { return inner_->page_bytes(); }
  void ReadPage(int32_t page, std::span<std::byte> to) override { inner_->ReadPage(page, to); }
  void WritePage(int32_t page, std::span<const std::byte> from) override {
    inner_->WritePage(page, from);
  }
  Ticket Launch(const StepPlan& plan, int32_t num_drafts) override {
    plan_ = plan.requests;
    return inner_->Launch(plan, num_drafts);
  }

  std::span<const RequestResult> Wait(Ticket ticket) override {
    results_ = inner_->Wait(ticket);
    return results_;
  }

  std::span<const int32_t> WaitDrafts(Ticket ticket) override {
    const std::span<const int32_t> num_drafts = inner_->WaitDrafts(ticket);
    for (size_t i = 0; i < plan_.size(); ++i) {
      if (!results_[i].ran) continue;
      Slot& slot = slots_[static_cast<size_t>(plan_[i].slot)];
      Take(plan_[i], results_[i], slot);
      const bool ended = static_cast<int32_t>(slot.tokens.size()) >=
                         slot.parameters->prompt_length + slot.parameters->sampling.max_tokens;
      if (!ended && random_() % options_.one_in == 0 && !testing::Test::HasFatalFailure()) {
        Compare(plan_[i].slot, *plan_[i].tables, num_drafts[i]);
      }
    }
    return num_drafts;
  }

 private:
  struct Slot {
    std::vector<int32_t> tokens;  // known ones
    int32_t computed = 0;
    std::shared_ptr<const RequestParameters> parameters;
  };

  void Take(const PlannedRequest& planned, const RequestResult& result, Slot& slot) {
    slot.computed += planned.num_tokens;
    if (!planned.samples) return;
    const VerifiedTokens& verified = result.verified;
    slot.computed += verified.num_accepted;
    counts_->accepted += verified.num_accepted;
    counts_->rejected += static_cast<int64_t>(result.drafts.size()) - verified.num_accepted;
    slot.tokens.insert(slot.tokens.end(), verified.tokens.begin(), verified.tokens.end());
  }

  /// Runs positions [first, end) of the target over `cache`; adds what the drafter reads to `rows`.
  void Forward(KvCache& cache, const Slot& slot, std::span<const std::vector<int32_t>> tables,
               int32_t first, int32_t end, std::vector<float>& rows) {
    if (first >= end) return;
    BatchLayout layout(cache.config().groups);
    const bool prompt = first < slot.parameters->prompt_length;
    layout.Assign(std::vector{RequestWork{
        .phase = prompt ? Phase::kPromptChunk : Phase::kDecode,
        .context_length = first,
        .tokens = std::span(slot.tokens)
                      .subspan(static_cast<size_t>(first), static_cast<size_t>(end - first)),
        .draft_tokens = {},
        .samples = false,
        .block_tables = tables}});
    const size_t before = rows.size();
    rows.resize(static_cast<size_t>(end * TargetWidth()));
    const Tensor read(rows.data() + before, end - first, TargetWidth());
    if (drafter_.taps().empty()) return model_.Forward(layout, cache, read);
    std::vector<LayerTap> taps;
    for (const int32_t layer : drafter_.taps()) {
      const int64_t width = model_.hidden_size();
      taps.push_back({layer, read.Columns(static_cast<int64_t>(taps.size()) * width, width)});
    }
    std::vector<float> output(static_cast<size_t>((end - first) * model_.output_width()));
    model_.Forward(layout, cache, {output.data(), end - first, model_.output_width()}, taps);
  }

  /// Numbers of a row that the drafter reads.
  int64_t TargetWidth() const {
    const auto taps = static_cast<int64_t>(drafter_.taps().size());
    return taps == 0 ? model_.output_width() : taps * model_.hidden_size();
  }

  std::unique_ptr<Drafter> MakeDrafter(KvCache& cache) {
    if (options_.strategy == Strategy::kBlock) {
      return std::make_unique<BlockDrafter>(
          std::make_unique<DSparkDraftModel>(dynamic_cast<DeepSeekV4Network&>(model_)), cache,
          BlockDrafterOptions{.k = options_.k});
    }
    auto modules = options_.make_draft_model(model_);
    const ModuleDrafterOptions options = {.k = options_.k, .kept_rows = KeptRows::kLast};
    if (options_.strategy == Strategy::kChain)
      return std::make_unique<ChainDrafter>(std::move(modules), cache, options);
    return std::make_unique<RepeatedDrafter>(std::move(modules), cache, options);
  }

  /// Entries of module m before it are checked: all, or those that are final where it lags behind.
  int32_t CheckedEnd(int32_t slot_number, int32_t m, int32_t known, int32_t computed) {
    const auto* modules = dynamic_cast<const ModuleDrafter*>(&drafter_);
    if (modules == nullptr) return computed;
    const int32_t final_end = modules->FinalEnd(slot_number, m);
    if (final_end >= std::min(computed, known - 1 - m)) return computed;
    counts_->lagging += computed - final_end;
    return final_end;
  }

  void Compare(int32_t slot_number, const CacheTables& tables, int32_t num_drafts) {
    const Slot& slot = slots_[static_cast<size_t>(slot_number)];
    CacheConfig config = cache_.config();
    config.num_pages = 0;
    std::vector<std::vector<int32_t>> fresh_tables;
    for (const CacheGroupSpec& group : config.groups) {
      const int32_t blocks = group.BlocksBefore(slot.computed + drafter_.reach().lookahead);
      std::vector<int32_t>& table = fresh_tables.emplace_back(static_cast<size_t>(blocks));
      std::iota(table.begin(), table.end(), config.num_pages);
      config.num_pages += blocks;
    }
    KvCache fresh(model_.device(), config, options_.cache.layers, cache_.numbers());
    const int32_t prompt_end = std::min(slot.parameters->prompt_length, slot.computed);
    std::vector<float> rows;
    Forward(fresh, slot, fresh_tables, 0, prompt_end, rows);
    Forward(fresh, slot, fresh_tables, prompt_end, slot.computed, rows);
    std::vector<TokenRef> drafts(static_cast<size_t>(options_.k));
    const DraftRequest request{.tokens = slot.tokens,
                               .prompt_length = slot.parameters->prompt_length,
                               .frontier = slot.computed - 1,
                               .num_rows = slot.computed,
                               .num_drafts = num_drafts,
                               .block_tables = fresh_tables};
    const auto drafter = MakeDrafter(fresh);
    drafter->Propose({&request, 1}, options_.k,
                     MatrixView<float>(rows.data(), slot.computed, TargetWidth()),
                     {drafts.data(), 1, options_.k});
    const auto known = static_cast<int32_t>(slot.tokens.size());
    const int32_t target_layers =
        FirstCacheLayer(model_.config(), model_.config().num_hidden_layers());
    const int32_t modules = options_.strategy == Strategy::kChain      ? options_.k
                            : options_.strategy == Strategy::kRepeated ? 1
                                                                       : model_.num_mtp_modules();
    // An indexer's keys lie beside the entries.
    const int32_t of_module =
        FirstCacheLayer(model_.config(), model_.config().num_hidden_layers() + 1) - target_layers;
    for (int32_t layer = 0; layer < target_layers + modules * of_module; ++layer) {
      const int32_t m = layer < target_layers ? -1 : (layer - target_layers) / of_module;
      // The stages of a block's drafter read no tokens.
      const int32_t ahead = options_.strategy == Strategy::kBlock ? 0 : 1 + m;
      const int32_t ratio = options_.cache.layers[static_cast<size_t>(layer)].ratio;
      const int32_t g = cache_.group_of(layer);
      const CacheGroupSpec& group = config.groups[static_cast<size_t>(g)];
      const int32_t end = m < 0 ? slot.computed : CheckedEnd(slot_number, m, known, slot.computed);
      // Entries, by the last token that each stands for.
      for (int32_t p = ratio - 1; p < end; p += ratio) {
        // Without a draft for its last token a module's row may hold anything: it runs again.
        if (m >= 0 && p + ahead >= known + num_drafts) continue;
        const auto block = static_cast<size_t>(p / group.tokens_per_block);
        const int32_t page = tables.blocks(g)[block];
        if (page == CacheTables::kNoPage) {
          // No later row may read it, nor one that a drafter runs again.
          const int32_t first_row = std::max(0, slot.computed - drafter_.reach().rerun_tokens);
          ASSERT_LT(p, group.FirstTokenRead(first_row));
          ++counts_->freed;
          continue;
        }
        const int32_t fresh_page = fresh_tables[static_cast<size_t>(g)][block];
        const int32_t in_block = p % group.tokens_per_block / ratio;
        ASSERT_TRUE(SameEntry(cache_.layer(layer), page, fresh.layer(layer), fresh_page, in_block))
            << "layer " << layer << " position " << p << " of " << slot.computed << ", prompt "
            << slot.parameters->prompt_length;
        ++(m < 0 ? counts_->target : p + ahead < known ? counts_->modules : counts_->provisional);
      }
    }
  }

  static bool SameEntry(const LayerCache& a, int32_t page_a, const LayerCache& b, int32_t page_b,
                        int32_t in_block) {
    const size_t size = a.code_bytes > 0 ? 1 : DTypeSize(a.dtype);
    const auto at = [=](const LayerCache& cache, int32_t page) {
      return cache.data + cache.SlotOffset(int64_t{page} * cache.block_size + in_block) *
                              static_cast<int64_t>(size);
    };
    const int32_t elements = a.code_bytes > 0 ? a.code_bytes : a.width;
    return std::memcmp(at(a, page_a), at(b, page_b), static_cast<size_t>(elements) * size) == 0;
  }

  Options options_;
  EntryCounts* counts_;
  Network& model_;
  KvCache& cache_;
  const Drafter& drafter_;
  std::vector<Slot> slots_;
  std::unique_ptr<StepRunner> inner_;
  std::vector<PlannedRequest> plan_;
  std::span<const RequestResult> results_;
  std::mt19937 random_{7};
};

}  // namespace outrider
