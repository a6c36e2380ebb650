// The processor's operations, but with tokens that stay on the device, as a GPU's do
// (tokens_on_device.h): a token that is used without having been read is found on any machine.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/cpu/cpu_step_inputs.h"
#include "outrider/ops/tokens_on_device.h"

namespace outrider {

/// Serves one engine at a time.
class TokenKeepingOps : public cpu::CpuOps {
 public:
  using CpuOps::CpuOps;

  void KeepTokens(int32_t count) const override {
    on_device_.resize(std::max(on_device_.size(), static_cast<size_t>(count)));
  }
  void ReadTokens() const override {
    OUTRIDER_CHECK(num_unread_ == 0, "results of a step that nobody has waited for");
    on_host_ = on_device_;
    last_read_ = ++last_copied_;
  }
  int32_t ReadToken(TokenRef token) const override {
    OUTRIDER_CHECK(!token.on_device() || last_read_ >= copy_of_drafts_,
                   "drafts were drawn since the host read them");
    return Resolve(on_host_, token);
  }
  int32_t ReadVerifiedToken(TokenRef token) const override { return Resolve(on_host_, token); }

  /// Drafts that stayed so far.
  int64_t num_kept() const { return num_kept_; }
  /// Steps whose tokens stayed, and were read later.
  int64_t num_later() const { return num_later_; }
  /// The ones of these that were read while the next was being launched.
  int64_t num_read_while_launching() const { return num_read_while_launching_; }

  /// Requests whose rows went back, before the host knew how far.
  int64_t num_moved() const { return num_moved_; }

  void Multiply(const Context& context, std::span<const Product> products) const override {
    CpuOps::Multiply(context, products);
    if (context.between_launches == nullptr || !*context.between_launches) return;
    // In about every second step the results are there, somewhere in the middle of it.
    results_are_there_ = ++num_looks_ % 41 == 0;
    context.PauseLaunching();
    results_are_there_ = false;
  }

  std::unique_ptr<StepInputs> MakeStepInputs() const override {
    return std::make_unique<KeepingStepInputs>(*this);
  }

  void CopyRows(const Context& context, Tensor from, Tensor to,
                const RowCopies& copies) const override {
    RowCopies known;
    for (size_t i = 0; i < copies.from().size(); ++i) {
      const int32_t row = copies.from()[i];
      known.Add(row < -1 ? Resolve(on_device_, TokenRef::At(-2 - row)) : row, copies.to()[i]);
    }
    CpuOps::CopyRows(context, from, to, known);
  }

  std::unique_ptr<StepSampler> MakeSampler(const Device& device,
                                           const Verifier& verifier) const override {
    return std::make_unique<KeepingSampler>(*this, CpuOps::MakeSampler(device, verifier));
  }

  std::unique_ptr<BlockSampler> MakeBlockSampler(const Device& device) const override {
    return std::make_unique<KeepingBlockSampler>(*this, CpuOps::MakeBlockSampler(device));
  }

  const Routing& RouteByToken(const Context& context, const RouterSpec& spec,
                              const StepInputs& inputs, int32_t first_row,
                              const ExpertWeights& /*w*/, Tensor logits,
                              const int32_t* table) const override {
    const std::vector<TokenRef> tokens = TokensOf(inputs);
    return RouteTokens(
        context, spec,
        std::span(tokens).subspan(static_cast<size_t>(first_row), static_cast<size_t>(logits.rows)),
        logits, table);
  }

  void Embed(const Context& context, const TokenTable& table, const StepInputs& inputs,
             bool zero_first, Tensor x) const override {
    EmbedTokens(table, TokensOf(inputs), x);
    for (int64_t r = 0; zero_first && r < x.rows; ++r) {
      if (cpu::Cast(inputs).positions()[static_cast<size_t>(r)] == 0) {
        SetZero(context, x.Rows(r, 1));
      }
    }
  }

 private:
  /// Where the tokens behind a host that has not read them would be wrong.
  static constexpr int32_t kUnread = -1'000'000;

  /// Lays rows out where they have moved to.
  class KeepingStepInputs : public cpu::CpuStepInputs {
   public:
    explicit KeepingStepInputs(const TokenKeepingOps& ops) : ops_(ops) {}

   protected:
    void AssignRows(const BatchLayout& layout, const AttentionPlan& plan, RowCount count,
                    std::span<const int32_t> places) override {
      if (places.empty()) return CpuStepInputs::AssignRows(layout, plan, count, {});
      OUTRIDER_CHECK(std::cmp_equal(places.size(), layout.num_rows()));
      std::vector<RequestWork> work;
      for (const RequestRows& rows : layout.requests()) {
        const auto r = static_cast<size_t>(rows.first_row);
        const int32_t back = places[r] < 0 ? 0 : ops_.on_device_.at(static_cast<size_t>(places[r]));
        for (const int32_t place : places.subspan(r, static_cast<size_t>(rows.query_length))) {
          OUTRIDER_CHECK(place == places[r] && (place < 0 || rows.phase == Phase::kDecode));
        }
        if (back > 0) ++ops_.num_moved_;
        work.push_back(
            {.slot = rows.slot,
             .phase = rows.phase,
             .context_length = rows.context_length - back,
             .tokens = layout.tokens().subspan(r, static_cast<size_t>(rows.query_length)),
             .draft_tokens = {},
             .samples = false,
             .block_tables = {rows.block_tables, layout.groups().size()}});
      }
      layout_.emplace(std::vector(layout.groups().begin(), layout.groups().end()));
      layout_->Assign(work);
      plan_.emplace(plan);
      plan_->Assign(*layout_);
      CpuStepInputs::AssignRows(*layout_, *plan_, count, {});
    }

   private:
    const TokenKeepingOps& ops_;
    std::optional<BatchLayout> layout_;
    std::optional<AttentionPlan> plan_;
  };

  class KeepingSampler : public StepSampler {
   public:
    KeepingSampler(const TokenKeepingOps& ops, std::unique_ptr<StepSampler> inner)
        : ops_(ops), inner_(std::move(inner)) {}

    void Verify(const Context& context, const HeadRows& rows,
                std::span<const VerifyRequest> requests) override {
      ops_.ReadTokens();
      std::vector<VerifyRequest> known(requests.begin(), requests.end());
      std::vector<std::vector<int32_t>> drafts;
      for (VerifyRequest& request : known) {
        std::vector<int32_t>& tokens = drafts.emplace_back();
        for (const TokenRef draft : request.input.drafts) tokens.push_back(ops_.ReadToken(draft));
        request.input.drafts = tokens;
      }
      inner_->Verify(context, rows, known);
      head_seconds_ = inner_->head_seconds();
    }

    std::optional<Ticket> Launch(const Context& context, const HeadRows& rows,
                                 std::span<const VerifyRequest> requests) override {
      std::vector<VerifiedTokens>& drawn = later_.emplace_back(requests.size());
      std::vector<VerifyRequest> now(requests.begin(), requests.end());
      std::vector<std::vector<int32_t>> drafts;
      for (size_t i = 0; i < now.size(); ++i) {
        std::vector<int32_t>& tokens = drafts.emplace_back();
        for (const TokenRef draft : now[i].input.drafts) {
          tokens.push_back(Resolve(ops_.on_device_, draft));
        }
        now[i].input.drafts = tokens;
        now[i].result = &drawn[i];
      }
      inner_->Verify(context, rows, now);
      head_seconds_ = inner_->head_seconds();
      // On a GPU every rank draws by itself.
      gives_results_ = context.place().rank == 0;
      for (size_t i = 0; i < now.size() && gives_results_; ++i) Keep(now[i], rows);
      if (context.place().ranks > 1) {
        context.ranks->Broadcast(0, std::as_writable_bytes(std::span(ops_.on_device_)));
      }
      launched_.emplace_back(requests.begin(), requests.end());
      copies_.push_back(ops_.on_device_);
      ++ops_.last_copied_;
      ++ops_.num_later_;
      ++ops_.num_unread_;
      return ++last_launched_;
    }
    bool Ready(Ticket /*ticket*/) const override { return ops_.results_are_there_; }
    void Wait(Ticket ticket) override {
      OUTRIDER_CHECK(ticket == ++last_waited_ && ticket <= last_launched_);
      --ops_.num_unread_;
      if (ops_.results_are_there_) ++ops_.num_read_while_launching_;
      for (size_t i = 0; i < later_.front().size() && gives_results_; ++i) {
        const VerifyRequest& request = launched_.front()[i];
        OUTRIDER_CHECK(request.input.params->max_tokens > 0);  // it is still there
        *request.result = later_.front()[i];
      }
      ops_.on_host_ = copies_.front();
      ++ops_.last_read_;
      copies_.pop_front();
      launched_.pop_front();
      later_.pop_front();
    }

    void Draw(const Context& context, const HeadRows& rows, std::span<const DrawRequest> requests,
              const DraftTokens& among, std::span<TokenRef> tokens) override {
      inner_->Draw(context, rows, requests, among, tokens);
      head_seconds_ = inner_->head_seconds();
      for (size_t i = 0; i < requests.size(); ++i) {
        if (!requests[i].draw.probs.empty()) continue;
        ops_.KeepDraft(requests[i].place, tokens[i]);
      }
    }

    void Score(const Context& context, const HeadRows& rows,
               std::span<const ScoreRequest> requests) override {
      inner_->Score(context, rows, requests);
      head_seconds_ = inner_->head_seconds();
    }

   private:
    /// As VerifyDrafts of a GPU.
    void Keep(const VerifyRequest& request, const HeadRows& rows) {
      std::vector<int32_t>& kept = ops_.on_device_;
      const VerifiedTokens& drawn = *request.result;
      const VerifyPlaces& places = request.places;
      const int32_t accepted = drawn.num_accepted;
      for (int32_t j = 0; j < request.num_rows(); ++j) {
        const auto known = static_cast<size_t>(j) < drawn.tokens.size();
        // A GPU draws behind wrong drafts, too: any token.
        kept.at(static_cast<size_t>(places.drawn + j)) =
            known ? drawn.tokens[static_cast<size_t>(j)] : j % 2;
      }
      kept.at(static_cast<size_t>(places.last_token)) = drawn.dead_end ? 0 : drawn.tokens.back();
      kept.at(static_cast<size_t>(places.rejected)) =
          static_cast<int32_t>(request.input.drafts.size()) - accepted;
      kept.at(static_cast<size_t>(places.last_row)) =
          rows.OutputRow(static_cast<size_t>(request.first_row + accepted));
    }

    const TokenKeepingOps& ops_;
    std::unique_ptr<StepSampler> inner_;
    std::deque<std::vector<VerifiedTokens>> later_;
    std::deque<std::vector<VerifyRequest>> launched_;
    Ticket last_launched_ = 0;
    Ticket last_waited_ = 0;
    bool gives_results_ = false;               // on the first rank
    std::deque<std::vector<int32_t>> copies_;  // of what was kept when these were drawn
  };

  class KeepingBlockSampler : public BlockSampler {
   public:
    KeepingBlockSampler(const TokenKeepingOps& ops, std::unique_ptr<BlockSampler> inner)
        : ops_(ops), inner_(std::move(inner)) {}

    void Assign(const BlockDraws& draws) override {
      requests_.assign(draws.requests.begin(), draws.requests.end());
      for (size_t i = 0; i < draws.moved_places.size(); ++i) {
        const int32_t place = draws.moved_places[i];
        if (place < 0) continue;
        requests_[i].draw.position -= ops_.on_device_.at(static_cast<size_t>(place));
      }
      before_.assign(draws.before.begin(), draws.before.end());
      for (TokenBefore& before : before_) {
        if (before.draw < 0) before.token = Resolve(ops_.on_device_, before.token);
      }
      BlockDraws known = draws;
      known.before = before_;
      known.requests = requests_;
      known.moved_places = {};
      inner_->Assign(known);
    }
    int64_t num_rows() const override { return inner_->num_rows(); }
    RowRange rows_of(size_t step) const override { return inner_->rows_of(step); }
    bool launches_only() const override { return inner_->launches_only(); }
    void AddTo(RunKey& key) const override { inner_->AddTo(key); }
    void ReadRows(const Context& context, Tensor hidden, Tensor x) const override {
      inner_->ReadRows(context, hidden, x);
    }
    void EmbedBefore(const Context& context, const TokenTable& table, size_t step,
                     Tensor x) const override {
      inner_->EmbedBefore(context, table, step, x);
    }
    void Draw(const Context& context, size_t step, Tensor logits) override {
      inner_->Draw(context, step, logits);
    }
    void TakeTokens(std::span<TokenRef> tokens) override {
      inner_->TakeTokens(tokens);
      for (size_t i = 0; i < tokens.size(); ++i) {
        if (requests_[i].draw.probs.empty()) ops_.KeepDraft(requests_[i].place, tokens[i]);
      }
    }

   private:
    const TokenKeepingOps& ops_;
    std::unique_ptr<BlockSampler> inner_;
    std::vector<DrawRequest> requests_;
    std::vector<TokenBefore> before_;
  };

  /// Leaves a token that was drawn at its place.
  void KeepDraft(int32_t place, TokenRef& token) const {
    const auto at = static_cast<size_t>(place);
    on_device_.at(at) = std::exchange(token, TokenRef::At(place)).token();
    on_host_.resize(on_device_.size());
    on_host_[at] = kUnread;
    copy_of_drafts_ = last_copied_ + 1;
    ++num_kept_;
  }

  std::vector<TokenRef> TokensOf(const StepInputs& inputs) const {
    std::vector<TokenRef> tokens;
    for (const TokenRef token : cpu::Cast(inputs).tokens()) {
      tokens.push_back(Resolve(on_device_, token));
    }
    return tokens;
  }

  static int32_t Resolve(const std::vector<int32_t>& drafts, TokenRef token) {
    if (!token.on_device()) return token.token();
    const int32_t known = drafts.at(static_cast<size_t>(token.place()));
    OUTRIDER_CHECK(known != kUnread, "a draft that the host has not read");
    return known;
  }

  mutable std::vector<int32_t> on_device_;
  mutable std::vector<int32_t> on_host_;
  // Copies to the host: begun, there, and the first that has the drafts drawn last.
  mutable int64_t last_copied_ = 0;
  mutable int64_t last_read_ = 0;
  mutable int64_t copy_of_drafts_ = 0;
  mutable int64_t num_kept_ = 0;
  mutable int64_t num_moved_ = 0;
  mutable int64_t num_later_ = 0;
  mutable int64_t num_unread_ = 0;
  mutable int64_t num_read_while_launching_ = 0;
  mutable int64_t num_looks_ = 0;
  mutable bool results_are_there_ = false;
};

}  // namespace outrider
