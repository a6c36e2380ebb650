// One request that is driven by hand through model and drafter, against a recomputation from
// scratch.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "outrider/draft/mtp_chain_drafter.h"
#include "outrider/draft/mtp_drafter.h"
#include "tests/networks/loaded_model.h"

namespace outrider {

/// What a simulation runs.
struct DrafterCase {
  bool chain = true;
  int32_t k = 3;
  DraftForm form = DraftForm::kCompacted;
  KvCacheForm cache_form = KvCacheForm::kLatent;
};

/// Positions of a slot below it are final in module m of the case's drafter.
inline int32_t FinalEndOf(const Drafter& drafter, const DrafterCase& drafter_case, int32_t slot,
                          int32_t m) {
  return drafter_case.chain ? dynamic_cast<const MtpChainDrafter&>(drafter).FinalEnd(slot, m)
                            : dynamic_cast<const MtpDrafter&>(drafter).FinalEnd(slot);
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
        cache_(Loaded().MakeCache(kBlocks, kBlockSize, DType::kBF16)),
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

  /// Positions below are final in module m, however many run.
  int32_t FinalEnd(int32_t m) const { return FinalEndOf(*drafter_, case_, kSlot, m); }

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
    const int64_t width = Loaded().model->hidden_size();
    std::vector<float> hidden(static_cast<size_t>(width));
    Loaded().model->Forward(layout, cache_, {hidden.data(), 1, width});
    const DraftRequest request{.slot = 0,
                               .tokens = tokens,
                               .prompt_length = prompt_length_,
                               .first_position = first,
                               .frontier = first,
                               .num_rows = 1,
                               .block_tables = {&blocks, 1}};
    drafter_->Propose({&request, 1}, depth_, MatrixView<float>(hidden.data(), 1, width), {});
  }

  /// Verifies the drafts; the first `accepted` turn out right, then `next` was sampled. Asks for
  /// `wanted` drafts after it.
  void Decode(int32_t accepted, int32_t next, int32_t wanted) {
    const int32_t first = computed_;
    drafts_.resize(static_cast<size_t>(num_drafts_));
    Forward(cache_, hidden_, first, first + 1, drafts_);
    tokens_.insert(tokens_.end(), drafts_.begin(), drafts_.begin() + accepted);
    if (accepted < num_drafts_ && next == drafts_[static_cast<size_t>(accepted)])
      next = (next + 1) % 1500;
    tokens_.push_back(next);
    computed_ += 1 + accepted;
    num_drafts_ = wanted;
    Propose(*drafter_, hidden_, first, wanted, drafts_);
  }

  void ExpectEqualsRecomputation() {
    KvCache fresh = Loaded().MakeCache(kBlocks, kBlockSize, DType::kBF16);
    std::vector<float> hidden;
    const int32_t prompt_end = std::min(prompt_length_, computed_);
    Forward(fresh, hidden, 0, prompt_end, {});
    if (computed_ > prompt_end) {
      std::vector<float> rest;
      Forward(fresh, rest, prompt_end, computed_, {});
      hidden.insert(hidden.end(), rest.begin(), rest.end());
    }
    const auto drafter = MakeDrafter(DraftForm::kCompacted, fresh);
    std::vector<int32_t> drafts;
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

  std::unique_ptr<Drafter> MakeDrafter(DraftForm form, KvCache& cache) const {
    Network& model = *Loaded().model;
    if (case_.chain) {
      return std::make_unique<MtpChainDrafter>(model, cache, case_.k, kSlot + 1, form, kept_rows_);
    }
    return std::make_unique<MtpDrafter>(model, cache, case_.k, kSlot + 1, form, kept_rows_);
  }

  RequestWork Work(int32_t first, int32_t end, const std::vector<int32_t>& drafts) const {
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
               const std::vector<int32_t>& drafts) const {
    BatchLayout layout(kBlockSize);
    layout.Assign(std::vector{Work(first, end, drafts)});
    hidden.resize(static_cast<size_t>(layout.num_rows() * Loaded().model->hidden_size()));
    Loaded().model->Forward(layout, cache,
                            {hidden.data(), layout.num_rows(), Loaded().model->hidden_size()});
  }

  void Propose(Drafter& drafter, const std::vector<float>& hidden, int32_t first, int32_t n,
               std::vector<int32_t>& drafts) {
    const int64_t width = Loaded().model->hidden_size();
    drafts.assign(static_cast<size_t>(case_.k), -1);
    const DraftRequest request{
        .slot = kSlot,
        .tokens = tokens_,
        .prompt_length = prompt_length_,
        .first_position = first,
        .frontier = computed_ - 1,
        .first_row = 0,
        .num_rows = static_cast<int32_t>(static_cast<int64_t>(hidden.size()) / width),
        .num_drafts = n,
        .block_tables = {&blocks_, 1}};
    drafter.Propose(
        {&request, 1}, depth_,
        {const_cast<float*>(hidden.data()), static_cast<int64_t>(hidden.size()) / width, width},
        {drafts.data(), 1, case_.k});
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
  std::unique_ptr<Drafter> drafter_;
  std::vector<float> hidden_;
  std::vector<int32_t> drafts_;
  int32_t computed_ = 0;
  int32_t num_drafts_ = 0;  // the last ones proposed
  int32_t depth_ = case_.k;
};

}  // namespace outrider
