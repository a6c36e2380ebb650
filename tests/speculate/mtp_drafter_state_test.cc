// After every step each drafter's cache equals a recomputation from scratch, bit for bit, whatever
// was accepted before, and so do its drafts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "outrider/speculate/mtp_chain_drafter.h"
#include "outrider/speculate/mtp_drafter.h"
#include "tests/model/loaded_model.h"

namespace outrider {
namespace {

constexpr int32_t kBlockSize = 4;
constexpr int32_t kBlocks = 32;
constexpr int32_t kSlot = 1;

LoadedModel& Model() {
  static LoadedModel* model = new LoadedModel(TinyModelDirectory(), DType::kBF16);
  return *model;
}

std::unique_ptr<Drafter> MakeDrafter(bool chain, DraftForm form, KvCache& cache, int32_t k) {
  if (chain) return std::make_unique<MtpChainDrafter>(*Model().model, cache, k, 2, form);
  return std::make_unique<MtpDrafter>(*Model().model, cache, k, 2, form);
}

/// One request that is driven by hand: the test decides how many drafts are "accepted".
class Simulation {
 public:
  Simulation(bool chain, DraftForm form, int32_t k, std::vector<int32_t> prompt)
      : chain_(chain),
        k_(k),
        tokens_(std::move(prompt)),
        prompt_length_(static_cast<int32_t>(tokens_.size())),
        cache_(Model().MakeCache(kBlocks, kBlockSize, DType::kBF16)),
        drafter_(MakeDrafter(chain, form, cache_, k)) {}

  /// Runs `count` prompt tokens; at the prompt's end `next` is what was sampled.
  void PromptChunk(int32_t count, int32_t next) {
    const int32_t first = computed_;
    Forward(cache_, hidden_, first, first + count, {});
    computed_ += count;
    const bool end = computed_ == prompt_length_;
    if (end) tokens_.push_back(next);
    num_drafts_ = end ? k_ : 0;
    Propose(*drafter_, hidden_, first, num_drafts_, drafts_);
  }

  int32_t num_drafts() const { return num_drafts_; }

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
    KvCache fresh = Model().MakeCache(kBlocks, kBlockSize, DType::kBF16);
    std::vector<float> hidden;
    const int32_t prompt_end = std::min(prompt_length_, computed_);
    Forward(fresh, hidden, 0, prompt_end, {});
    if (computed_ > prompt_end) {
      std::vector<float> rest;
      Forward(fresh, rest, prompt_end, computed_, {});
      hidden.insert(hidden.end(), rest.begin(), rest.end());
    }
    const auto drafter = MakeDrafter(chain_, DraftForm::kCompacted, fresh, k_);
    std::vector<int32_t> drafts;
    const bool proposes = computed_ >= prompt_length_;
    Propose(*drafter, hidden, 0, num_drafts_, drafts);
    if (proposes) {
      ASSERT_EQ(drafts_, drafts);
    }
    const auto known = static_cast<int32_t>(tokens_.size());
    const auto target_layers = static_cast<int32_t>(Model().model->config().num_hidden_layers);
    for (int32_t m = 0; m < (chain_ ? k_ : 1); ++m) {
      for (int32_t p = 0; p < computed_; ++p) {
        // Rows that read a draft are provisional: they must match too, but where there was no draft
        // they may hold anything.
        if (p + 1 + m >= known + num_drafts_) continue;
        ExpectSameEntry(cache_.layer(target_layers + m), fresh.layer(target_layers + m), p);
      }
    }
  }

 private:
  RequestWork Work(int32_t first, int32_t end, const std::vector<int32_t>& drafts) const {
    const bool decode = first >= prompt_length_;
    return {.slot = kSlot,
            .phase = decode ? Phase::kDecode : Phase::kPromptChunk,
            .context_length = first,
            .tokens = std::span(tokens_).subspan(static_cast<size_t>(first),
                                                 static_cast<size_t>(end - first)),
            .draft_tokens = drafts,
            .samples = decode,
            .block_table = blocks_};
  }

  void Forward(KvCache& cache, std::vector<float>& hidden, int32_t first, int32_t end,
               const std::vector<int32_t>& drafts) const {
    BatchLayout layout(kBlockSize);
    layout.Assign(std::vector{Work(first, end, drafts)});
    hidden.resize(static_cast<size_t>(layout.num_rows() * Model().model->hidden_size()));
    Model().model->Forward(layout, cache,
                           {hidden.data(), layout.num_rows(), Model().model->hidden_size()});
  }

  void Propose(Drafter& drafter, const std::vector<float>& hidden, int32_t first, int32_t n,
               std::vector<int32_t>& drafts) const {
    const int64_t width = Model().model->hidden_size();
    drafts.assign(static_cast<size_t>(k_), -1);
    const DraftRequest request{
        .slot = kSlot,
        .tokens = tokens_,
        .prompt_length = prompt_length_,
        .first_position = first,
        .frontier = computed_ - 1,
        .first_row = 0,
        .num_rows = static_cast<int32_t>(static_cast<int64_t>(hidden.size()) / width),
        .num_drafts = n,
        .block_table = blocks_};
    drafter.Propose(
        {&request, 1},
        {const_cast<float*>(hidden.data()), static_cast<int64_t>(hidden.size()) / width, width},
        {drafts.data(), 1, k_});
  }

  static void ExpectSameEntry(LatentCache a, LatentCache b, int32_t position) {
    const auto bytes = static_cast<size_t>(a.width) * DTypeSize(a.dtype);
    const auto offset = static_cast<size_t>(position) * bytes;  // the block table is the identity
    ASSERT_EQ(std::memcmp(a.data + offset, b.data + offset, bytes), 0) << "position " << position;
  }

  bool chain_;
  int32_t k_;
  std::vector<int32_t> tokens_;
  int32_t prompt_length_;
  std::vector<int32_t> blocks_ = FirstBlocks(kBlocks);
  KvCache cache_;
  std::unique_ptr<Drafter> drafter_;
  std::vector<float> hidden_;
  std::vector<int32_t> drafts_;
  int32_t computed_ = 0;
  int32_t num_drafts_ = 0;  // the last ones proposed
};

struct Case {
  bool chain;
  int32_t k;
  DraftForm form = DraftForm::kCompacted;
};

class DrafterStateTest : public testing::TestWithParam<Case> {};

TEST_P(DrafterStateTest, EqualsRecomputationAfterEveryStep) {
  const auto [chain, k, form] = GetParam();
  std::mt19937 random(static_cast<uint32_t>(17 * k + (chain ? 1 : 0)));
  const auto token = [&] { return static_cast<int32_t>(6 + random() % 1500); };
  for (const int32_t prompt_length : {1, 2, 3, 4, 5, 13}) {
    for (int round = 0; round < 3; ++round) {
      std::vector<int32_t> prompt;
      for (int32_t i = 0; i < prompt_length; ++i) prompt.push_back(token());
      Simulation simulation(chain, form, k, prompt);
      for (int32_t left = prompt_length; left > 0;) {
        const int32_t chunk =
            round == 0 ? left : 1 + static_cast<int32_t>(random() % static_cast<uint32_t>(left));
        simulation.PromptChunk(chunk, token());
        left -= chunk;
        simulation.ExpectEqualsRecomputation();
        if (HasFatalFailure()) return;
      }
      // Round 0 rejects everything right after the prompt, as often as there are modules.
      for (int step = 0; step < k + 3; ++step) {
        const int32_t accepted =
            round == 0 ? 0
                       : static_cast<int32_t>(random() %
                                              static_cast<uint32_t>(simulation.num_drafts() + 1));
        // Round 2 changes the number of drafts as it goes, down to none and back.
        const int32_t wanted =
            round == 2 ? static_cast<int32_t>(random() % static_cast<uint32_t>(k + 1)) : k;
        simulation.Decode(accepted, token(), wanted);
        simulation.ExpectEqualsRecomputation();
        ASSERT_FALSE(HasFatalFailure())
            << "prompt " << prompt_length << " round " << round << " step " << step;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Drafters, DrafterStateTest,
    testing::Values(Case{true, 1}, Case{true, 2}, Case{true, 3}, Case{false, 1}, Case{false, 2},
                    Case{false, 3}, Case{true, 1, DraftForm::kPadded},
                    Case{true, 2, DraftForm::kPadded}, Case{true, 3, DraftForm::kPadded},
                    Case{false, 1, DraftForm::kPadded}, Case{false, 3, DraftForm::kPadded}),
    [](const auto& test) {
      return fmt::format("{}{}{}", test.param.chain ? "Chain" : "Repeated", test.param.k,
                         test.param.form == DraftForm::kPadded ? "Padded" : "");
    });

}  // namespace
}  // namespace outrider
