#include "outrider/engine/warm_up.h"

#include <algorithm>
#include <memory>
#include <variant>

#include "outrider/layers/mla_attention.h"
#include "outrider/ops/kv_cache.h"
#include "outrider/ops/mla.h"
#include "outrider/ops/prompt_groups.h"

namespace outrider {

namespace {

/// A number of rows of a request behind its first `context` tokens.
struct RowsBehind {
  int32_t context;
  int32_t rows;
};

/// A pass's rows. All blocks and states of all requests are page 0.
class PassRows {
 public:
  PassRows(const CacheConfig& cache, Phase phase, const std::vector<RowsBehind>& requests)
      : state_(std::make_unique<StateTables>()), layout_(cache.groups) {
    int32_t longest = 0;
    int32_t most_rows = 0;
    for (const auto& [context, rows] : requests) {
      longest = std::max(longest, context + rows);
      most_rows = std::max(most_rows, rows);
    }
    const std::vector<int32_t> tokens(static_cast<size_t>(most_rows), 0);
    for (const CacheGroupSpec& group : cache.groups) {
      const int32_t blocks = (longest + group.tokens_per_block - 1) / group.tokens_per_block;
      tables_.emplace_back(static_cast<size_t>(blocks), 0);
    }
    state_->state.resize(static_cast<size_t>(cache.StatePages()));
    state_->rows.resize(static_cast<size_t>(cache.StateRowPages()));
    std::vector<RequestWork> work;
    work.reserve(requests.size());
    for (const auto& [context, rows] : requests) {
      work.push_back({.slot = static_cast<int32_t>(work.size()),
                      .phase = phase,
                      .context_length = context,
                      .tokens = std::span(tokens).first(static_cast<size_t>(rows)),
                      .draft_tokens = {},
                      .samples = false,
                      .block_tables = tables_,
                      .state = {.tables = state_.get(), .tokens = StateTokens(context)}});
    }
    layout_.Assign(work);
  }

  const BatchLayout& layout() const { return layout_; }

 private:
  std::vector<std::vector<int32_t>> tables_;  // the layout's, as the states
  std::unique_ptr<StateTables> state_;
  BatchLayout layout_;
};

/// Prompts of as many rows as a step may have: the last rows of as many of the longest as are taken
/// together, and beginnings of others. Rows that the others have no room for are the longest's,
/// too.
PassRows LargestPrompts(const KvCache& cache, const SchedulerConfig& scheduler) {
  const int64_t longest = scheduler.max_model_len;
  // Two where one request runs at a time: it may have all rows of a step and the greatest length.
  const int64_t most = std::max(scheduler.max_num_seqs, 2);
  const int64_t long_prompts = std::clamp<int64_t>(kMostGroupKeys / longest, 1, most - 1);
  int64_t left = std::min<int64_t>(scheduler.max_num_batched_tokens, most * longest);
  std::vector<RowsBehind> requests;
  while (left > 0) {
    const bool at_end = std::ssize(requests) < long_prompts;
    const int64_t later = most - 1 - std::ssize(requests);
    const int64_t rows =
        std::min({at_end ? std::max<int64_t>(left - later * longest, 16) : longest, longest, left});
    requests.push_back(
        {static_cast<int32_t>(at_end ? longest - rows : 0), static_cast<int32_t>(rows)});
    left -= rows;
  }
  return {cache.config(), Phase::kPromptChunk, requests};
}

/// `rows` rows of as many requests as there can be, one of which has the greatest length.
PassRows LargestDecode(const KvCache& cache, const SchedulerConfig& scheduler, int32_t rows) {
  std::vector<RowsBehind> requests(static_cast<size_t>(scheduler.max_num_seqs), {0, rows});
  requests.front().context = scheduler.max_model_len - rows;
  return {cache.config(), Phase::kDecode, requests};
}

/// The last row of as many of the longest prompts as are taken together, and of short ones.
PassRows LargestPromptEnds(const KvCache& cache, const SchedulerConfig& scheduler) {
  const int32_t longest = scheduler.max_model_len;
  std::vector<RowsBehind> requests(static_cast<size_t>(scheduler.max_num_seqs), {0, 1});
  const int32_t long_prompts = std::clamp(kMostGroupKeys / longest, 1, scheduler.max_num_seqs);
  for (int32_t i = 0; i < long_prompts; ++i) {
    requests[static_cast<size_t>(i)].context = longest - 1;
  }
  return {cache.config(), Phase::kPromptChunk, requests};
}

KvCache CacheOfOnePage(const Device& device, const SchedulerConfig& scheduler,
                       const std::vector<CacheLayerSpec>& layers, const CacheNumbers& numbers) {
  CacheConfig one_page = scheduler.cache;
  one_page.num_pages = 1;
  return {device, one_page, layers, numbers};
}

}  // namespace

void PreparePrompts(const Ops& ops, const ModelConfig& config) {
  for (const LayerSpec& layer : config.layers) {
    const MlaSpec* mla = layer.mla_without_indexer();
    if (mla != nullptr) ops.mla()->PreparePrompts(ShapeOf(*mla));
  }
}

void WarmUp(Network& network, const SchedulerConfig& scheduler, int32_t drafts, bool modules,
            const std::vector<CacheLayerSpec>& layers, const CacheNumbers& numbers) {
  const Ops& ops = network.device().ops;
  KvCache cache = CacheOfOnePage(network.device(), scheduler, layers, numbers);
  const auto run = [&](const PassRows& pass) {
    const BatchLayout& rows = pass.layout();
    const auto hidden = ops.MakeRows(rows.num_rows(), network.output_width());
    network.Forward(rows, cache, hidden->rows());
    if (!modules) return;
    network.ForwardMtp(0, rows, cache, hidden->rows(), hidden->rows());
  };
  run(LargestPrompts(cache, scheduler));
  run(LargestDecode(cache, scheduler, std::min(1 + drafts, scheduler.max_model_len)));
  network.FitWorkSpace();
}

void WarmUp(DraftModel& draft, int64_t target_width, int32_t rows, const SchedulerConfig& scheduler,
            const std::vector<CacheLayerSpec>& layers, const CacheNumbers& numbers) {
  const Ops& ops = draft.device().ops;
  KvCache cache = CacheOfOnePage(draft.device(), scheduler, layers, numbers);
  const PassRows prompts = LargestPrompts(cache, scheduler);
  const PassRows decodes = LargestDecode(cache, scheduler, std::min(rows, scheduler.max_model_len));
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
  const int64_t all_rows = int64_t{entries->num_rows()} + outputs->num_rows();
  const auto previous = ops.MakeRows(all_rows, draft.input_width());
  const auto hidden = ops.MakeRows(all_rows, draft.width());
  draft.Forward({0, *entries, *outputs, previous->rows(), hidden->rows()}, cache);
  if (draft.attention().paths().ByRole()) {
    // A prompt's last row is an output: keys and values of the whole prompt are made for it.
    const PassRows ends = LargestPromptEnds(cache, scheduler);
    const auto none = ops.MakeStepInputs();
    output_plan.Assign(ends.layout());
    outputs->Assign(ends.layout(), output_plan, RowCount::kExact);
    draft.Forward({0, *none, *outputs, previous->rows(), hidden->rows()}, cache);
  }
  draft.FitWorkSpace();
}

}  // namespace outrider
