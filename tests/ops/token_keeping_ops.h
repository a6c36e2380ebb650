// The processor's operations, but with tokens that stay on the device, as a GPU's do
// (tokens_on_device.h): a token that is used without having been read is found on any machine.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/cpu/cpu_step_inputs.h"
#include "outrider/ops/tokens_on_device.h"

namespace outrider {

/// Of one engine at a time.
class TokenKeepingOps : public cpu::CpuOps {
 public:
  using CpuOps::CpuOps;

  void KeepTokens(int32_t count) const override {
    on_device_.resize(std::max(on_device_.size(), static_cast<size_t>(count)));
  }
  void ReadTokens() const override { on_host_ = on_device_; }
  int32_t ReadToken(int32_t token) const override { return Resolve(on_host_, token); }

  /// Drafts that stayed so far.
  int64_t num_kept() const { return num_kept_; }
  /// Steps whose tokens stayed.
  int64_t num_later() const { return num_later_; }

  std::unique_ptr<StepSampler> MakeSampler(const Device& device,
                                           const Verifier& verifier) const override {
    return std::make_unique<KeepingSampler>(*this, CpuOps::MakeSampler(device, verifier));
  }

  void Embed(const Context& context, const TokenTable& table, const StepInputs& inputs,
             bool zero_first, Tensor x) const override {
    std::vector<int32_t> tokens;
    for (const int32_t token : cpu::Cast(inputs).token_ids()) {
      tokens.push_back(Resolve(on_device_, token));
    }
    EmbedTokens(context, table, tokens, x);
    for (int64_t r = 0; zero_first && r < x.rows; ++r) {
      if (cpu::Cast(inputs).positions()[static_cast<size_t>(r)] == 0) {
        SetZero(context, x.Rows(r, 1));
      }
    }
  }

 private:
  /// Where the tokens behind a host that has not read them would be wrong.
  static constexpr int32_t kUnread = -1'000'000;

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
        for (const int32_t draft : request.input.drafts) tokens.push_back(ops_.ReadToken(draft));
        request.input.drafts = tokens;
      }
      inner_->Verify(context, rows, known);
      head_seconds_ = inner_->head_seconds();
    }

    bool VerifyLater(const Context& context, const HeadRows& rows,
                     std::span<const VerifyRequest> requests) override {
      std::vector<VerifiedTokens>& drawn = later_.emplace_back(requests.size());
      std::vector<VerifyRequest> now(requests.begin(), requests.end());
      for (size_t i = 0; i < now.size(); ++i) {
        OUTRIDER_CHECK(now[i].input.drafts.empty());
        now[i].result = &drawn[i];
      }
      inner_->Verify(context, rows, now);
      head_seconds_ = inner_->head_seconds();
      for (size_t i = 0; i < now.size(); ++i) {
        const int32_t token = drawn[i].dead_end ? 0 : drawn[i].tokens.back();
        ops_.on_device_.at(static_cast<size_t>(now[i].place)) = token;
      }
      to_collect_.emplace_back(requests.begin(), requests.end());
      ++ops_.num_later_;
      return true;
    }
    bool CanCollect() const override { return false; }
    void Collect() override {
      for (size_t i = 0; i < later_.front().size(); ++i) {
        const VerifyRequest& request = to_collect_.front()[i];
        OUTRIDER_CHECK(request.input.params->max_tokens > 0);  // it is still there
        *request.result = later_.front()[i];
      }
      to_collect_.pop_front();
      later_.pop_front();
    }

    void Draw(const Context& context, const HeadRows& rows, std::span<const DrawRequest> requests,
              const DraftTokens& among, std::span<int32_t> tokens) override {
      inner_->Draw(context, rows, requests, among, tokens);
      head_seconds_ = inner_->head_seconds();
      for (size_t i = 0; i < requests.size(); ++i) {
        if (!requests[i].draw.probs.empty()) continue;
        const auto place = static_cast<size_t>(requests[i].place);
        ops_.on_device_.at(place) = std::exchange(tokens[i], TokenOfPlace(requests[i].place));
        ops_.on_host_.resize(ops_.on_device_.size());
        ops_.on_host_[place] = kUnread;
        ++ops_.num_kept_;
      }
    }

    void DrawFrom(const Context& context, Tensor logits, std::span<const DrawRequest> requests,
                  std::span<int32_t> tokens) override {
      inner_->DrawFrom(context, logits, requests, tokens);
    }

    void Score(const Context& context, const HeadRows& rows,
               std::span<const ScoreRequest> requests) override {
      inner_->Score(context, rows, requests);
      head_seconds_ = inner_->head_seconds();
    }

   private:
    const TokenKeepingOps& ops_;
    std::unique_ptr<StepSampler> inner_;
    std::deque<std::vector<VerifiedTokens>> later_;
    std::deque<std::vector<VerifyRequest>> to_collect_;
  };

  static int32_t Resolve(const std::vector<int32_t>& drafts, int32_t token) {
    if (!IsOnDevice(token)) return token;
    const int32_t known = drafts.at(static_cast<size_t>(PlaceOfToken(token)));
    OUTRIDER_CHECK(known != kUnread, "a draft that the host has not read");
    return known;
  }

  mutable std::vector<int32_t> on_device_;
  mutable std::vector<int32_t> on_host_;
  mutable int64_t num_kept_ = 0;
  mutable int64_t num_later_ = 0;
};

}  // namespace outrider
