// Several requests that share cache blocks and one drafter, driven by hand, each against a
// recomputation from scratch.
#pragma once

#include <algorithm>
#include <numeric>
#include <string>

#include "tests/draft/drafter_simulation.h"

namespace outrider {

class DrafterCrowd {
 public:
  static constexpr int32_t kCrowdBlockSize = 4;

  /// One request's part of a step.
  struct Part {
    size_t member = 0;
    int32_t count = 0;  // prompt tokens to compute; 0: decode, the first `accepted` drafts right,
    int32_t accepted = 0;  //
    int32_t next = 0;      // and this, or the token after it, sampled then
  };

  DrafterCrowd(const DrafterCase& drafter_case, int32_t num_slots, int32_t num_blocks)
      : case_(drafter_case),
        num_blocks_(num_blocks),
        references_(static_cast<size_t>(num_blocks), 0),
        cache_(Loaded().MakeCache(num_blocks, kCrowdBlockSize, DType::kBF16)),
        drafter_(MakeDrafter(drafter_case, num_slots, cache_)) {
    for (int32_t s = num_slots; s-- > 0;) free_slots_.push_back(s);
  }

  size_t size() const { return members_.size(); }
  bool running(size_t i) const { return members_[i].slot >= 0; }
  bool decodes(size_t i) const { return members_[i].computed >= members_[i].prompt_length; }
  int32_t num_drafts(size_t i) const { return members_[i].num_drafts; }
  int32_t num_computed(size_t i) const { return members_[i].computed; }
  int32_t prompt_left(size_t i) const { return members_[i].prompt_length - members_[i].computed; }
  /// Whether a step may need more room than the request has.
  bool full(size_t i) const {
    const Member& m = members_[i];
    return static_cast<int32_t>(m.blocks.size()) * kCrowdBlockSize < m.computed + 2 * case_.k + 1;
  }
  const std::vector<int32_t>& blocks(size_t i) const { return members_[i].blocks; }

  /// Blocks of member i that a prompt may begin with: they hold prompt tokens in one role, and what
  /// their entries depend on is the same.
  int32_t Shareable(size_t i, const std::vector<int32_t>& prompt) const {
    const Member& m = members_[i];
    const auto [a, b] =
        std::mismatch(m.tokens.begin(), m.tokens.end(), prompt.begin(), prompt.end());
    const int32_t same = std::min(static_cast<int32_t>(a - m.tokens.begin()), m.prompt_length);
    const int32_t end = std::min(same - case_.k, m.computed);
    return m.blocks.empty() ? 0 : std::max(end, 0) / kCrowdBlockSize;
  }

  /// A request with room for `room` tokens that found blocks; its number.
  size_t Join(std::vector<int32_t> prompt, const std::vector<int32_t>& found, int32_t room) {
    Member member{.slot = free_slots_.back(), .prompt_length = static_cast<int32_t>(prompt.size())};
    free_slots_.pop_back();
    member.tokens = std::move(prompt);
    member.blocks = found;
    member.computed = static_cast<int32_t>(found.size()) * kCrowdBlockSize;
    for (int32_t b = 0; static_cast<int32_t>(member.blocks.size()) * kCrowdBlockSize < room; ++b) {
      EXPECT_LT(b, num_blocks_);
      if (references_[static_cast<size_t>(b)] == 0) member.blocks.push_back(b);
    }
    for (const int32_t b : member.blocks) ++references_[static_cast<size_t>(b)];
    drafter_->Reset(member.slot, member.computed);
    members_.push_back(std::move(member));
    return members_.size() - 1;
  }

  /// The request ends; its blocks stay findable until they are dropped.
  void Finish(size_t i) {
    free_slots_.push_back(members_[i].slot);
    members_[i].slot = -1;
  }
  void Drop(size_t i) {
    for (const int32_t b : members_[i].blocks) --references_[static_cast<size_t>(b)];
    members_[i].blocks.clear();
  }

  /// One step of the requests named, in that order, after which `depth` modules run.
  void Step(const std::vector<Part>& parts, int32_t depth) {
    depth_ = depth;
    std::vector<RequestWork> work;
    for (const Part& part : parts) {
      Member& m = members_[part.member];
      m.drafts.resize(static_cast<size_t>(m.num_drafts));
      m.first = m.computed;
      work.push_back(Work(m, m.computed, m.computed + std::max(part.count, 1), m.blocks));
      if (part.count == 0) work.back().draft_tokens = m.drafts;
    }
    BatchLayout layout(kCrowdBlockSize);
    layout.Assign(work);
    const int64_t width = Loaded().model->hidden_size();
    std::vector<float> hidden(static_cast<size_t>(layout.num_rows() * width));
    const MatrixView<float> rows(hidden.data(), layout.num_rows(), width);
    Loaded().model->Forward(layout, cache_, rows);
    std::vector<RequestRows> where(parts.size());
    for (const RequestRows& r : layout.requests()) where[static_cast<size_t>(r.work_index)] = r;
    std::vector<DraftRequest> requests;
    for (size_t i = 0; i < parts.size(); ++i) requests.push_back(Take(parts[i], where[i]));
    std::vector<TokenRef> drafts(parts.size() * static_cast<size_t>(case_.k), -1);
    drafter_->Propose(requests, depth, rows,
                      {drafts.data(), static_cast<int64_t>(parts.size()), case_.k});
    for (size_t i = 0; i < parts.size(); ++i) {
      Member& m = members_[parts[i].member];
      m.drafts.assign(drafts.begin() + static_cast<int64_t>(i) * case_.k,
                      drafts.begin() + static_cast<int64_t>(i) * case_.k + m.num_drafts);
    }
  }

  /// Final entries of all modules, and the drafts, equal those of a request that is alone.
  void ExpectEqualsRecomputation(size_t i) const {
    const Member& m = members_[i];
    const int32_t blocks = BlocksFor(m.computed + case_.k + 1);
    KvCache fresh = Loaded().MakeCache(blocks, kCrowdBlockSize, DType::kBF16);
    const std::vector<int32_t> table = FirstBlocks(blocks);
    std::vector<float> hidden;
    const int32_t prompt_end = std::min(m.prompt_length, m.computed);
    Forward(fresh, m, 0, prompt_end, table, hidden);
    if (m.computed > prompt_end) Forward(fresh, m, prompt_end, m.computed, table, hidden);
    DrafterCase compacted = case_;
    compacted.form = DraftForm::kCompacted;
    const auto drafter = MakeDrafter(compacted, 1, fresh);
    std::vector<TokenRef> drafts(static_cast<size_t>(case_.k), -1);
    const int64_t width = Loaded().model->hidden_size();
    const DraftRequest request{.slot = 0,
                               .tokens = m.tokens,
                               .prompt_length = m.prompt_length,
                               .frontier = m.computed - 1,
                               .num_rows = m.computed,
                               .num_drafts = m.num_drafts,
                               .block_tables = {&table, 1}};
    drafter->Propose({&request, 1}, case_.k, MatrixView<float>(hidden.data(), m.computed, width),
                     {drafts.data(), 1, case_.k});
    drafts.resize(static_cast<size_t>(m.num_drafts));
    ASSERT_EQ(m.drafts, drafts);
    const auto known = static_cast<int32_t>(m.tokens.size());
    const auto layers = static_cast<int32_t>(Loaded().model->config().num_hidden_layers());
    for (int32_t module = 0; module < (case_.chain ? case_.k : 1); ++module) {
      const int32_t end = std::min(FinalEnd(m, module), known - 1 - module);
      const LayerCache ours = cache_.layer(layers + module);
      const LayerCache theirs = fresh.layer(layers + module);
      const auto bytes =
          static_cast<int64_t>(ours.width) * static_cast<int64_t>(DTypeSize(ours.dtype));
      for (int32_t p = 0; p < end; ++p) {
        const int64_t slot =
            int64_t{m.blocks[static_cast<size_t>(p / kCrowdBlockSize)]} * kCrowdBlockSize +
            p % kCrowdBlockSize;
        const auto element = static_cast<int64_t>(DTypeSize(ours.dtype));
        ASSERT_EQ(
            std::memcmp(ours.data + ours.SlotOffset(slot) * element,
                        theirs.data + theirs.SlotOffset(p) * element, static_cast<size_t>(bytes)),
            0)
            << "member " << i << " module " << module << " position " << p;
      }
    }
  }

  /// How far module `module` is at least.
  int32_t FinalEnd(size_t i, int32_t module) const { return FinalEnd(members_[i], module); }

 private:
  struct Member {
    int32_t slot = -1;  // -1: it has ended
    int32_t prompt_length = 0;
    std::vector<int32_t> tokens = {};
    std::vector<int32_t> blocks = {};
    int32_t computed = 0;
    int32_t first = 0;                  // of the last step
    std::vector<TokenRef> drafts = {};  // proposed last
    int32_t num_drafts = 0;
  };

  LoadedModel& Loaded() const { return SharedModel(case_.cache_form); }

  static int32_t BlocksFor(int32_t tokens) {
    return (tokens + kCrowdBlockSize - 1) / kCrowdBlockSize;
  }

  std::unique_ptr<ModuleDrafter> MakeDrafter(const DrafterCase& drafter_case, int32_t num_slots,
                                             KvCache& cache) const {
    return MakeDrafterOf(drafter_case, *Loaded().model, cache,
                         {.k = drafter_case.k, .num_slots = num_slots, .form = drafter_case.form});
  }

  int32_t FinalEnd(const Member& m, int32_t module) const {
    return drafter_->FinalEnd(m.slot, case_.chain ? module : 0);
  }

  static RequestWork Work(const Member& m, int32_t first, int32_t end,
                          const std::vector<int32_t>& table) {
    const bool decode = first >= m.prompt_length;
    return {.slot = std::max(m.slot, 0),
            .phase = decode ? Phase::kDecode : Phase::kPromptChunk,
            .context_length = first,
            .tokens = std::span(m.tokens).subspan(static_cast<size_t>(first),
                                                  static_cast<size_t>(end - first)),
            .draft_tokens = {},
            .samples = decode,
            .block_tables = {&table, 1}};
  }

  /// Appends the rows of [first, end).
  void Forward(KvCache& cache, const Member& m, int32_t first, int32_t end,
               const std::vector<int32_t>& table, std::vector<float>& hidden) const {
    BatchLayout layout(kCrowdBlockSize);
    layout.Assign(std::vector{Work(m, first, end, table)});
    const int64_t width = Loaded().model->hidden_size();
    const size_t before = hidden.size();
    hidden.resize(before + static_cast<size_t>((end - first) * width));
    Loaded().model->Forward(layout, cache, {hidden.data() + before, end - first, width});
  }

  /// What became of a member in the step, and what is asked for.
  DraftRequest Take(const Part& part, const RequestRows& rows) {
    Member& m = members_[part.member];
    const bool decode = part.count == 0;
    m.computed += decode ? 1 + part.accepted : part.count;
    if (decode) {
      const auto accepted = KnownTokens(m.drafts).first(static_cast<size_t>(part.accepted));
      m.tokens.insert(m.tokens.end(), accepted.begin(), accepted.end());
    }
    const bool samples = decode || m.computed == m.prompt_length;
    if (samples) {
      const bool right = decode && part.accepted < m.num_drafts &&
                         part.next == m.drafts[static_cast<size_t>(part.accepted)];
      m.tokens.push_back(right ? (part.next + 1) % 1500 : part.next);
    }
    m.num_drafts = samples ? depth_ : 0;
    return {.slot = m.slot,
            .tokens = m.tokens,
            .prompt_length = m.prompt_length,
            .first_position = m.first,
            .frontier = m.computed - 1,
            .first_row = rows.first_row,
            .num_rows = rows.query_length,
            .num_drafts = m.num_drafts,
            .block_tables = {&m.blocks, 1}};
  }

  DrafterCase case_;
  int32_t num_blocks_;
  std::vector<int32_t> references_;  // by block
  std::vector<int32_t> free_slots_;
  mutable KvCache cache_;
  std::unique_ptr<ModuleDrafter> drafter_;
  std::vector<Member> members_;
  int32_t depth_ = 0;
};

}  // namespace outrider
