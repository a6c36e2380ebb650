// What requests of outrider_exactness_fuzz give alone: one at a time, without drafts, prompts
// whole, nothing found from before.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/engine/fuzz_models.h"
#include "tests/engine/fuzz_options.h"
#include "tests/engine/random_requests.h"
#include "tests/grammar/bundled_grammars.h"

namespace outrider::fuzz {

/// Keeps them for as long as the requests are served in ever other ways.
class References {
 public:
  explicit References(Models& models) : models_(models) {}

  /// Forgets what the last requests gave; the engines stay.
  void BeginRequests() { known_.clear(); }

  /// Of request number `number`, over a cache in this form. Requests of one number differ in
  /// nothing that decides tokens but the prompt. Runs the request if it has not yet run.
  const Generated& Of(size_t number, GenerationRequest request, const ModelChoice& model,
                      KvCacheForm form, const Ops* ops) {
    const auto [known, is_new] =
        known_.try_emplace({number, form, request.prompt_token_ids}, Generated());
    if (is_new) Run(std::move(request), model, form, ops, known->second);
    return known->second;
  }

  /// As Of, run anew.
  Generated Again(GenerationRequest request, const ModelChoice& model, KvCacheForm form,
                  const Ops* ops) {
    Generated result;
    Run(std::move(request), model, form, ops, result);
    return result;
  }

  int64_t requests() const { return requests_; }
  int64_t steps() const { return steps_; }
  double seconds() const { return seconds_; }

 private:
  void Run(GenerationRequest request, const ModelChoice& model, KvCacheForm form, const Ops* ops,
           Generated& expected) {
    const auto begin = std::chrono::steady_clock::now();
    std::unique_ptr<Engine>& engine = engines_[{model.name, form}];
    if (!engine) {
      TestEngineOptions options = models_.Options(model, ops);
      options.drafter = DrafterKind::kNone;
      options.max_num_batched_tokens = 1024;
      options.max_model_len = kMaxModelLen;
      options.prefix_caching = false;
      options.cache_form = form;
      engine = MakeTestEngine(options, &BundledTokenizer());
    }
    request.num_speculative_tokens.reset();
    Submit(*engine, std::move(request), &expected);
    while (engine->Step()) ++steps_;
    ++requests_;
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  Models& models_;
  std::map<std::pair<std::string, KvCacheForm>, std::unique_ptr<Engine>> engines_;
  std::map<std::tuple<size_t, KvCacheForm, std::vector<int32_t>>, Generated> known_;
  int64_t requests_ = 0;
  int64_t steps_ = 0;
  double seconds_ = 0;
};

}  // namespace outrider::fuzz
