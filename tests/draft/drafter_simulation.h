// One request that is driven by hand through model and drafter, against a recomputation from
// scratch.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "outrider/networks/mtp_draft_model.h"
#include "tests/draft/fake_draft_model.h"
#include "tests/networks/loaded_model.h"

namespace outrider {

/// What a simulation runs.
struct DrafterCase {
  bool chain = true;
  int32_t k = 3;
  DraftForm form = DraftForm::kCompacted;
  KvCacheForm cache_form = KvCacheForm::kLatent;
  bool fake = false;  // a FakeDraftModel in place of MTP modules
};

inline std::unique_ptr<ModuleDrafter> MakeDrafterOf(const DrafterCase& drafter_case,
                                                    Network& network, KvCache& cache,
                                                    const ModuleDrafterOptions& options) {
  std::unique_ptr<DraftModel> model;
  if (drafter_case.fake) {
    model = std::make_unique<FakeDraftModel>(network);
  } else {
    model = std::make_unique<MtpDraftModel>(network);
  }
  if (drafter_case.chain) return std::make_unique<ChainDrafter>(std::move(model), cache, options);
  return std::make_unique<RepeatedDrafter>(std::move(model), cache, options);
}

inline LoadedModel& SharedModel(KvCacheForm form = KvCacheForm::kLatent) {
  static std::map<KvCacheForm, std::unique_ptr<LoadedModel>> models;
  std::unique_ptr<LoadedModel>& model = models[form];
  if (!model) {
    model = std::make_unique<LoadedModel>(TinyModelDirectory(), DType::kBF16, SelectIsa(), 1, form);
  }
  return *model;
}

/// The test decides how many drafts are "accepted" and what is sampled then.
class DrafterSimulation {
 public:
  /// With KeptRows::kLast SetDepth is not called.
  DrafterSimulation(const DrafterCase& drafter_case, std::vector<int32_t> prompt,
                    KeptRows kept_rows = KeptRows::kAll)
      : case_(drafter_case),
        kept_rows_(kept_rows),
        tokens_(std::move(prompt)),
        prompt_length_(static_cast<int32_t>(tokens_.size())),
        cache_(MakeCache()),
        drafter_(MakeDrafter(drafter_case.form, cache_)) {}

  /// How many modules run from now on (of one that is repeated: whether), and at most are drafted.
  void SetDepth(int32_t depth) { depth_ = depth; }

  /// Runs `count` prompt tokens; at the prompt's end `next` is what was sampled.
  void PromptChunk(int32_t count, int32_t next) {
    const int32_t first = computed_;
    Forward(cache_, hidden_, first, first + count, {});
    computed_ += count;
    const bool end = computed_ == prompt_length_;
    if (end) tokens_.push_back(next);
    num_drafts_ = end ? depth_ : 0;
    Propose(*drafter_, hidden_, first, num_drafts_, drafts_);
  }

  int32_t num_drafts() const { return num_drafts_; }
  int32_t num_computed() const { return computed_; }

  /// Positions below are final in module m, however many run; of one that is repeated in it.
  int32_t FinalEnd(int32_t m) const { return drafter_->FinalEnd(kSlot, case_.chain ? m : 0); }

  /// The request loses its slot and all blocks but the first `kept`, and computes the rest again.
  void Preempt(int32_t kept) {
    drafter_->Reset(kSlot, kept * kBlockSize);
    computed_ = kept * kBlockSize;
    const auto known = static_cast<int32_t>(tokens_.size());
    while (computed_ < known - 1) {
      const int32_t first = computed_;
      computed_ = first < prompt_length_ ? std::min(prompt_length_, known - 1) : known - 1;
      Forward(cache_, hidden_, first, computed_, {});
      num_drafts_ = 0;
      Propose(*drafter_, hidden_, first, 0, drafts_);
    }
  }

  /// Another request begins with the first `shared` blocks of this one, and with what their entries
  /// depend on; it computes one token more.
  void Visit(int32_t shared) {
    const int32_t first = shared * kBlockSize;
    std::vector<int32_t> blocks(blocks_.begin(), blocks_.begin() + shared);
    blocks.push_back(kBlocks - 1);
    drafter_->Reset(0, first);
    const std::vector<int32_t> tokens(tokens_.begin(), tokens_.begin() + first + 1 + case_.k);
    RequestWork work = Work(first, first + 1, {});
    work.slot = 0;
    work.block_tables = {&blocks, 1};
    BatchLayout layout(kBlockSize);
    layout.Assign(std::vector{work});
    std::vector<float> hidden = RunTarget(layout, cache_);
    const DraftRequest request{.slot = 0,
                               .tokens = tokens,
                               .prompt_length = prompt_length_,
                               .first_position = first,
                               .frontier = first,
                               .num_rows = 1,
                               .block_tables = {&blocks, 1}};
    drafter_->Propose({&request, 1}, depth_, Rows(hidden), {});
  }

  /// Verifies the drafts; the first `accepted` turn out right, then `next` was sampled. Asks for
  /// `wanted` drafts after it.
  void Decode(int32_t accepted, int32_t next, int32_t wanted) {
    const int32_t first = computed_;
    drafts_.resize(static_cast<size_t>(num_drafts_));
    Forward(cache_, hidden_, first, first + 1, drafts_);
    const auto right = KnownTokens(drafts_).first(static_cast<size_t>(accepted));
    tokens_.insert(tokens_.end(), right.begin(), right.end());
    if (accepted < num_drafts_ && next == drafts_[static_cast<size_t>(accepted)])
      next = (next + 1) % 1500;
    tokens_.push_back(next);
    computed_ += 1 + accepted;
    num_drafts_ = wanted;
    Propose(*drafter_, hidden_, first, wanted, drafts_);
  }

  void ExpectEqualsRecomputation() {
    KvCache fresh = MakeCache();
    std::vector<float> hidden;
    const int32_t prompt_end = std::min(prompt_length_, computed_);
    Forward(fresh, hidden, 0, prompt_end, {});
    if (computed_ > prompt_end) {
      std::vector<float> rest;
      Forward(fresh, rest, prompt_end, computed_, {});
      hidden.insert(hidden.end(), rest.begin(), rest.end());
    }
    const auto drafter = MakeDrafter(DraftForm::kCompacted, fresh);
    std::vector<TokenRef> drafts;
    const bool proposes = computed_ >= prompt_length_;
    const int32_t depth = std::exchange(depth_, case_.k);
    Propose(*drafter, hidden, 0, num_drafts_, drafts);
    depth_ = depth;
    if (proposes) {
      ASSERT_EQ(drafts_, drafts);
    }
    const auto known = static_cast<int32_t>(tokens_.size());
    const auto target_layers = static_cast<int32_t>(Loaded().model->config().num_hidden_layers());
    for (int32_t m = 0; m < (case_.chain ? case_.k : 1); ++m) {
      for (int32_t p = 0; p < computed_; ++p) {
        // Rows that read a draft are provisional: they must match too, but where there was no draft
        // they may hold anything.
        if (p + 1 + m >= known + num_drafts_) continue;
        if ((case_.chain ? m >= depth_ : depth_ == 0) && p >= FinalEnd(m)) continue;
        ExpectSameEntry(cache_.layer(target_layers + m), fresh.layer(target_layers + m), p);
      }
    }
  }

 private:
  LoadedModel& Loaded() const { return SharedModel(case_.cache_form); }

  static constexpr int32_t kBlockSize = 4;
  static constexpr int32_t kBlocks = 32;
  static constexpr int32_t kSlot = 1;

  KvCache MakeCache() const {
    const Network& model = *Loaded().model;
    const NetworkCache needs = case_.fake
                                   ? FakeDraftModel::CacheNeeds(model.config(), case_.cache_form)
                                   : model.cache_needs();
    return {model.device(), MakeCacheConfig(needs, DType::kBF16, kBlockSize, kBlocks), needs.layers,
            DType::kBF16};
  }

  std::unique_ptr<ModuleDrafter> MakeDrafter(DraftForm form, KvCache& cache) const {
    return MakeDrafterOf(
        case_, *Loaded().model, cache,
        {.k = case_.k, .num_slots = kSlot + 1, .form = form, .kept_rows = kept_rows_});
  }

  /// Runs the target over a layout: the rows that the drafter reads.
  std::vector<float> RunTarget(const BatchLayout& layout, KvCache& cache) const {
    Network& model = *Loaded().model;
    const int64_t width = model.hidden_size();
    const int64_t rows = layout.num_rows();
    std::vector<float> hidden(static_cast<size_t>(rows * width));
    std::vector<float> tapped(case_.fake ? 2 * hidden.size() : 0);
    std::vector<LayerTap> taps;
    if (case_.fake) {
      const Tensor all(tapped.data(), rows, 2 * width);
      const auto last = static_cast<int32_t>(model.config().num_hidden_layers()) - 1;
      taps = {{0, all.Columns(0, width)}, {last, all.Columns(width, width)}};
    }
    model.Forward(layout, cache, {hidden.data(), rows, width}, taps);
    return case_.fake ? tapped : hidden;
  }

  Tensor Rows(std::vector<float>& rows) const {
    const int64_t width = Loaded().model->hidden_size() * (case_.fake ? 2 : 1);
    return {rows.data(), static_cast<int64_t>(rows.size()) / width, width};
  }

  RequestWork Work(int32_t first, int32_t end, const std::vector<TokenRef>& drafts) const {
    const bool decode = first >= prompt_length_;
    return {.slot = kSlot,
            .phase = decode ? Phase::kDecode : Phase::kPromptChunk,
            .context_length = first,
            .tokens = std::span(tokens_).subspan(static_cast<size_t>(first),
                                                 static_cast<size_t>(end - first)),
            .draft_tokens = drafts,
            .samples = decode,
            .block_tables = {&blocks_, 1}};
  }

  void Forward(KvCache& cache, std::vector<float>& hidden, int32_t first, int32_t end,
               const std::vector<TokenRef>& drafts) const {
    BatchLayout layout(kBlockSize);
    layout.Assign(std::vector{Work(first, end, drafts)});
    hidden = RunTarget(layout, cache);
  }

  void Propose(Drafter& drafter, std::vector<float>& hidden, int32_t first, int32_t n,
               std::vector<TokenRef>& drafts) {
    drafts.assign(static_cast<size_t>(case_.k), -1);
    const DraftRequest request{.slot = kSlot,
                               .tokens = tokens_,
                               .prompt_length = prompt_length_,
                               .first_position = first,
                               .frontier = computed_ - 1,
                               .first_row = 0,
                               .num_rows = static_cast<int32_t>(Rows(hidden).rows),
                               .num_drafts = n,
                               .block_tables = {&blocks_, 1}};
    drafter.Propose({&request, 1}, depth_, Rows(hidden), {drafts.data(), 1, case_.k});
  }

  static void ExpectSameEntry(LayerCache a, LayerCache b, int32_t position) {
    const auto bytes = static_cast<size_t>(a.width) * DTypeSize(a.dtype);
    // The block table is the identity.
    const int64_t offset = a.SlotOffset(position) * static_cast<int64_t>(DTypeSize(a.dtype));
    ASSERT_EQ(std::memcmp(a.data + offset, b.data + offset, bytes), 0) << "position " << position;
  }

  DrafterCase case_;
  KeptRows kept_rows_;
  std::vector<int32_t> tokens_;
  int32_t prompt_length_;
  std::vector<int32_t> blocks_ = FirstBlocks(kBlocks);
  KvCache cache_;
  std::unique_ptr<ModuleDrafter> drafter_;
  std::vector<float> hidden_;
  std::vector<TokenRef> drafts_;
  int32_t computed_ = 0;
  int32_t num_drafts_ = 0;  // the last ones proposed
  int32_t depth_ = case_.k;
};

}  // namespace outrider
