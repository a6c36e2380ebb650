#include "outrider/draft/draft_cut.h"

#include <algorithm>
#include <cmath>

namespace outrider {

double DraftCut::Seconds(int32_t num_requests, double drafts_each) const {
  const auto most = static_cast<int32_t>(times_.batches.front().seconds.size()) - 1;
  // Blocks are drafted even if no draft is verified: so from what one draft takes, not from none.
  const int32_t low = std::clamp(static_cast<int32_t>(drafts_each), std::min(1, most), most);
  const int32_t high = std::min(low + 1, most);
  const double at_low = times_.Seconds(num_requests, low);
  const double at_high = times_.Seconds(num_requests, high);
  return at_low + (drafts_each - low) * std::max(0.0, at_high - at_low);
}

void DraftCut::Shorten(MatrixView<const float> confidences, std::span<int32_t> num_drafts) {
  if (!cuts() || num_drafts.empty()) return;
  drafts_.clear();
  for (size_t i = 0; i < num_drafts.size(); ++i) {
    const float* row = confidences.row(static_cast<int64_t>(i));
    float chance = 1;
    for (int32_t d = 0; d < num_drafts[i]; ++d) {
      chance *= row[d] > 0 ? std::min(row[d], 1.0F) : 0.0F;  // NaN is none, too
      drafts_.push_back({chance, static_cast<int32_t>(i)});
    }
  }
  // Chances do not rise within a request, so what is taken of it are its first drafts.
  std::ranges::sort(drafts_, [](const Draft& a, const Draft& b) {
    return a.chance != b.chance ? a.chance > b.chance : a.request < b.request;
  });
  const auto requests = static_cast<int32_t>(num_drafts.size());
  double tokens = requests;
  double best_rate = tokens / Seconds(requests, 0);
  size_t best = 0;
  for (size_t taken = 1; taken <= drafts_.size(); ++taken) {
    tokens += static_cast<double>(drafts_[taken - 1].chance);
    const double rate = tokens / Seconds(requests, static_cast<double>(taken) / requests);
    if (rate < best_rate) continue;
    best_rate = rate;
    best = taken;
  }
  std::ranges::fill(num_drafts, 0);
  for (size_t taken = 0; taken < best; ++taken) {
    ++num_drafts[static_cast<size_t>(drafts_[taken].request)];
  }
}

}  // namespace outrider
