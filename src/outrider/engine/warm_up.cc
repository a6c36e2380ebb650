#include "outrider/engine/warm_up.h"

#include <algorithm>

#include "outrider/ops/kv_cache.h"

namespace outrider {

namespace {

// A device that makes keys of prompts anew makes those of some prompts together, of fewer than this
// many or of one prompt.
constexpr int32_t kPromptKeys = 32768;

/// The rows of requests that have `rows` rows each behind `context` tokens. All blocks are page 0.
class PassRows {
 public:
  PassRows(const std::vector<CacheGroupSpec>& groups, Phase phase, int32_t requests,
           int32_t context, int32_t rows)
      : layout_(groups) {
    const std::vector<int32_t> tokens(static_cast<size_t>(rows), 0);
    for (const CacheGroupSpec& group : groups) {
      const int32_t blocks = (context + rows + group.tokens_per_block - 1) / group.tokens_per_block;
      tables_.emplace_back(static_cast<size_t>(blocks), 0);
    }
    std::vector<RequestWork> work;
    work.reserve(static_cast<size_t>(requests));
    for (int32_t i = 0; i < requests; ++i) {
      work.push_back({.slot = i,
                      .phase = phase,
                      .context_length = context,
                      .tokens = tokens,
                      .draft_tokens = {},
                      .samples = false,
                      .block_tables = tables_});
    }
    layout_.Assign(work);
  }

  const BatchLayout& layout() const { return layout_; }

 private:
  std::vector<std::vector<int32_t>> tables_;  // the layout's
  BatchLayout layout_;
};

void Run(Network& network, KvCache& cache, Phase phase, int32_t requests, int32_t context,
         int32_t rows) {
  const PassRows pass(cache.config().groups, phase, requests, context, rows);
  const BatchLayout& layout = pass.layout();
  const auto hidden = network.device().ops.MakeRows(layout.num_rows(), network.output_width());
  network.Forward(layout, cache, hidden->rows());
}

KvCache CacheOfOnePage(const Device& device, const SchedulerConfig& scheduler,
                       const std::vector<CacheLayerSpec>& layers, const CacheNumbers& numbers) {
  CacheConfig one_page = scheduler.cache;
  one_page.num_pages = 1;
  return {device, one_page, layers, numbers};
}

}  // namespace

void WarmUp(Network& network, const SchedulerConfig& scheduler, int32_t drafts,
            const std::vector<CacheLayerSpec>& layers, const CacheNumbers& numbers) {
  KvCache cache = CacheOfOnePage(network.device(), scheduler, layers, numbers);
  const int32_t longest = scheduler.max_model_len;
  const auto requests = [&](int32_t most) { return std::clamp(most, 1, scheduler.max_num_seqs); };
  const int32_t rows = std::min(scheduler.max_num_batched_tokens, longest);
  Run(network, cache, Phase::kPromptChunk, requests(scheduler.max_num_batched_tokens / rows), 0,
      rows);
  const int32_t last = std::min(rows, 16);
  Run(network, cache, Phase::kPromptChunk,
      requests(std::min(kPromptKeys / longest, scheduler.max_num_batched_tokens / last)),
      longest - last, last);
  const int32_t verified = std::min(1 + drafts, longest);
  Run(network, cache, Phase::kDecode, scheduler.max_num_seqs, longest - verified, verified);
}

void WarmUp(DraftModel& draft, int64_t target_width, const SchedulerConfig& scheduler,
            const std::vector<CacheLayerSpec>& layers, const CacheNumbers& numbers) {
  const Ops& ops = draft.device().ops;
  KvCache cache = CacheOfOnePage(draft.device(), scheduler, layers, numbers);
  const int32_t rows = std::min(scheduler.max_num_batched_tokens, scheduler.max_model_len);
  const int32_t requests =
      std::clamp(scheduler.max_num_batched_tokens / rows, 1, scheduler.max_num_seqs);
  const PassRows prompts(cache.config().groups, Phase::kPromptChunk, requests, 0, rows);
  const PassRows decodes(cache.config().groups, Phase::kDecode, scheduler.max_num_seqs,
                         scheduler.max_model_len - 1, 1);
  AttentionPlan entry_plan = draft.attention();
  AttentionPlan output_plan = draft.attention();
  entry_plan.Assign(prompts.layout());
  output_plan.Assign(decodes.layout());
  const auto entries = ops.MakeStepInputs();
  const auto outputs = ops.MakeStepInputs();
  entries->Assign(prompts.layout(), entry_plan, RowCount::kExact);
  outputs->Assign(decodes.layout(), output_plan, RowCount::kExact);
  const int64_t taps = std::max<int64_t>(std::ssize(draft.taps()), 1);
  draft.ReadTarget(ops.MakeRows(entries->num_rows(), taps * target_width)->rows());
  const auto hidden =
      ops.MakeRows(int64_t{entries->num_rows()} + outputs->num_rows(), draft.width());
  draft.Forward({0, *entries, *outputs, hidden->rows(), hidden->rows()}, cache);
}

}  // namespace outrider
