// The requests of a round of outrider_exactness_fuzz, and the order in which an engine gets them.
#pragma once

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "tests/engine/fuzz_models.h"
#include "tests/engine/random_grammars.h"
#include "tests/engine/random_requests.h"

namespace outrider::fuzz {

/// A round's requests: some go on, after their answer, with a second turn of these tokens.
struct RequestSet {
  std::vector<GenerationRequest> requests;
  std::vector<std::optional<std::vector<int32_t>>> second_turns;  // one for each
};

/// Order in which requests come to a server, and how many steps are made between two.
struct Arrivals {
  std::vector<size_t> order;  // numbers of requests
  int most_steps = 0;
};

class DrawRequests {
 public:
  explicit DrawRequests(Random& random) : random_(random) {}

  RequestSet Draw(uint32_t seed, int count, const ModelChoice& model, int32_t vocab_size) {
    RequestSet set = {.requests = RandomRequests(seed, count), .second_turns = {}};
    if (IsV4(model) || HasState(model)) LengthenPrompts(set.requests);
    for (size_t i = 1; i < set.requests.size(); ++i) ShareBeginnings(set.requests, i);
    AddGrammars(seed, vocab_size, set.requests);
    for (const GenerationRequest& request : set.requests) {
      std::optional<std::vector<int32_t>>& turn = set.second_turns.emplace_back();
      if (request.grammar.grammar || Uniform(0, 2) > 0) continue;
      turn.emplace();
      for (int n = Uniform(1, 9); n > 0; --n) turn->push_back(Uniform(6, 1548));
    }
    return set;
  }

  /// Any order of so many of them as take about kMostSteps steps, at least two: an engine of a row
  /// a step or of one request at a time would take most of the time.
  Arrivals DrawArrivals(const RequestSet& set, const TestEngineOptions& options) {
    Arrivals arrivals;
    std::vector<size_t> order(set.requests.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), random_.numbers);
    const double rows = options.max_num_batched_tokens;
    const double at_once = std::min<double>(options.max_num_seqs, rows);
    double steps = 0;
    for (const size_t i : order) {
      const GenerationRequest& request = set.requests[i];
      steps += static_cast<double>(request.prompt_token_ids.size()) / rows +
               request.sampling.max_tokens / at_once;
      if (steps > kMostSteps && arrivals.order.size() >= 2) break;
      arrivals.order.push_back(i);
    }
    constexpr std::array kPaces = {0, 1, 3};
    arrivals.most_steps = kPaces.at(static_cast<size_t>(Uniform(0, kPaces.size() - 1)));
    return arrivals;
  }

  /// What may be another in each serving: priority, salt, fewer drafts.
  GenerationRequest Vary(GenerationRequest request, const TestEngineOptions& options,
                         const std::string& salt) {
    request.cache_salt = salt;
    if (Uniform(0, 3) == 0) request.priority = Uniform(-2, 2);
    if (Uniform(0, 9) == 0) request.cache_salt += "salt";
    if (Uniform(0, 4) == 0 && options.drafter != DrafterKind::kNone) {
      request.num_speculative_tokens = Uniform(0, options.k);
    }
    return request;
  }

 private:
  static constexpr double kMostSteps = 100;

  /// Half of them begin with up to 270 tokens of one text: windows and compressed entries are cut
  /// and found again.
  void LengthenPrompts(std::vector<GenerationRequest>& requests) {
    std::vector<int32_t> text(270);
    for (int32_t& token : text) token = Uniform(6, 1548);
    for (GenerationRequest& request : requests) {
      if (Uniform(0, 1) == 0) continue;
      auto& prompt = request.prompt_token_ids;
      prompt.resize(std::min<size_t>(prompt.size(), 60));
      const int length = Uniform(0, 1) == 0 ? 270 : Uniform(1, 270);
      prompt.insert(prompt.begin(), text.begin(), text.begin() + length);
    }
  }

  /// Of half of them with an earlier one's; and texts to stop at.
  void ShareBeginnings(std::vector<GenerationRequest>& requests, size_t i) {
    GenerationRequest& request = requests[i];
    if (Uniform(0, 1) == 0) {
      const auto& other = requests[static_cast<size_t>(Uniform(0, static_cast<int>(i) - 1))];
      const auto& source = other.prompt_token_ids;
      const auto shared = static_cast<size_t>(Uniform(1, static_cast<int>(source.size())));
      auto& prompt = request.prompt_token_ids;
      prompt.resize(std::max(prompt.size(), shared), 7);
      std::copy_n(source.begin(), shared, prompt.begin());
    }
    if (Uniform(0, 3) == 0) {
      constexpr std::array kStops = {"e", "a", "th", " s", "in", "."};
      for (int n = Uniform(1, 2); n > 0; --n) {
        request.sampling.stop.emplace_back(
            kStops.at(static_cast<size_t>(Uniform(0, kStops.size() - 1))));
      }
    }
  }

  int Uniform(int low, int high) { return random_.Uniform(low, high); }

  Random& random_;
};

}  // namespace outrider::fuzz
