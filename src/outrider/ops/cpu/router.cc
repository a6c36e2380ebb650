#include "outrider/ops/cpu/router.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "outrider/base/rounded_exp.h"

namespace outrider::cpu {

namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// What NaN counts as when experts are chosen: less than any score with its bias, more than an
/// expert that is out of the choice. Two of them have a finite sum.
constexpr float kLeastChoice = -1e38F;

void Score(RouterScoring scoring, float* row, int64_t n) {
  if (scoring == RouterScoring::kSigmoid) {
    for (int64_t i = 0; i < n; ++i) row[i] = Sigmoid(row[i]);
    return;
  }
  if (scoring == RouterScoring::kSqrtSoftplus) {
    for (int64_t i = 0; i < n; ++i) row[i] = RootOfSoftplus(row[i]);
    return;
  }
  const float max = *std::max_element(row, row + n);
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    row[i] = RoundedExp(row[i] - max);
    sum += row[i];
  }
  for (int64_t i = 0; i < n; ++i) row[i] /= sum;
}

/// The index of the largest value, the lowest index among equals.
int64_t ArgMax(const float* values, int64_t n) {
  return std::max_element(values, values + n) - values;
}

/// How good a group is: its best choice, or the sum of its best two (kNoAuxTc).
float GroupScore(RouterMethod method, const float* choice, int64_t size) {
  float first = kMinusInfinity;
  float second = kMinusInfinity;
  for (int64_t i = 0; i < size; ++i) {
    if (choice[i] > first) {
      second = first;
      first = choice[i];
    } else if (choice[i] > second) {
      second = choice[i];
    }
  }
  return method == RouterMethod::kNoAuxTc && size > 1 ? first + second : first;
}

/// Memory that RouteRows reuses from call to call.
struct RouterScratch {
  std::vector<float> choice;        // [experts]
  std::vector<float> group_scores;  // [groups]
  std::vector<bool> keep_group;     // [groups]
};

/// Sets the choices of all but the best top_groups groups to -infinity.
void DropGroups(const RouterSpec& spec, RouterScratch& scratch) {
  const int64_t size = spec.experts / spec.groups;
  float* choice = scratch.choice.data();
  float* scores = scratch.group_scores.data();
  for (int64_t g = 0; g < spec.groups; ++g) {
    scores[g] = GroupScore(spec.method, choice + g * size, size);
  }
  scratch.keep_group.assign(static_cast<size_t>(spec.groups), false);
  for (int64_t i = 0; i < spec.top_groups; ++i) {
    const int64_t best = ArgMax(scores, spec.groups);
    scratch.keep_group[static_cast<size_t>(best)] = true;
    scores[best] = kMinusInfinity;
  }
  for (int64_t g = 0; g < spec.groups; ++g) {
    if (!scratch.keep_group[static_cast<size_t>(g)]) {
      std::fill_n(choice + g * size, size, kMinusInfinity);
    }
  }
}

/// The weights of a row's experts: their scores, over their sum if normalised, scaled.
void WeighChoices(const RouterSpec& spec, const float* scores, const int32_t* ids, float* w) {
  float sum = 0;
  for (int64_t j = 0; j < spec.top_k; ++j) {
    w[j] = scores[ids[j]];
    sum += w[j];
  }
  const float norm = spec.normalise ? sum + 1e-20F : 1.0F;
  for (int64_t j = 0; j < spec.top_k; ++j) {
    w[j] = w[j] / norm * static_cast<float>(spec.scaling_factor);
  }
}

}  // namespace

void WeighRows(const RouterSpec& spec, MatrixView<float> logits, const int32_t* expert_ids,
               float* weights) {
  for (int64_t r = 0; r < logits.rows; ++r) {
    Score(spec.scoring, logits.row(r), spec.experts);
    WeighChoices(spec, logits.row(r), expert_ids + r * spec.top_k, weights + r * spec.top_k);
  }
}

void RouteRows(const RouterSpec& spec, MatrixView<float> logits, const float* bias,
               int32_t* expert_ids, float* weights) {
  const int64_t experts = spec.experts;
  const int64_t top_k = spec.top_k;
  thread_local RouterScratch scratch;
  scratch.choice.resize(static_cast<size_t>(experts));
  scratch.group_scores.resize(static_cast<size_t>(spec.groups));
  float* choice = scratch.choice.data();
  for (int64_t r = 0; r < logits.rows; ++r) {
    float* scores = logits.row(r);
    Score(spec.scoring, scores, experts);
    for (int64_t e = 0; e < experts; ++e) {
      const float value = bias != nullptr ? scores[e] + bias[e] : scores[e];
      choice[e] = value > kLeastChoice ? value : kLeastChoice;
    }
    if (spec.method != RouterMethod::kGreedy && spec.groups > 1) {
      DropGroups(spec, scratch);
    }
    int32_t* ids = expert_ids + r * top_k;
    for (int64_t j = 0; j < top_k; ++j) {
      const int64_t best = ArgMax(choice, experts);
      choice[best] = kMinusInfinity;
      ids[j] = static_cast<int32_t>(best);
    }
    WeighChoices(spec, scores, ids, weights + r * top_k);
  }
}

}  // namespace outrider::cpu
