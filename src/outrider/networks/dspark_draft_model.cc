#include "outrider/networks/dspark_draft_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "outrider/base/error.h"
#include "outrider/base/stopwatch.h"

namespace outrider {

namespace {

/// The first rows of memory that grows. What they held is lost when there were fewer.
Tensor GrownRows(const Ops& ops, std::unique_ptr<RowMemory>& memory, int64_t rows, int64_t cols) {
  if (memory == nullptr || memory->rows().rows < rows) {
    memory = ops.MakeRows(std::max(rows, memory == nullptr ? 0 : 2 * memory->rows().rows), cols);
  }
  return memory->rows().Rows(0, rows);
}

}  // namespace

DSparkDraftModel::DSparkDraftModel(DeepSeekV4Network& network)
    : BlockDraftModel(network.device(), network.attention()),
      network_(network),
      spec_(*network.config().dspark),
      weights_(network.weights().dspark),
      layers_(network.config()),
      sampler_(network.device().ops.block_drafts()->MakeLogitsSampler(network.device())) {
  OUTRIDER_CHECK(!weights_.stages.empty());
  int64_t index = network.config().num_hidden_layers();
  for (const DeepSeekV4LayerWeights& w : weights_.stages) layers_.Add(network.config(), index++, w);
}

Tensor DSparkDraftModel::ReadTarget(Tensor target) {
  const Stopwatch watch(busy_seconds_);
  const Context context = MakeContext(network_.operand_dtype());
  const Scratch::Frame frame(context.arena);
  const Tensor main = GrownRows(device().ops, main_, target.rows, width());
  context.ops.Multiply(context,
                       std::array{Product{.x = target, .w = &weights_.projection, .y = main}});
  context.ops.Norm(context, main, weights_.norm, layers_.streams().norm_eps, main);
  return main;
}

void DSparkDraftModel::Forward(const ModulePass& pass, KvCache& cache) {
  const Stopwatch watch(busy_seconds_);
  const Context context = MakeContext(network_.operand_dtype());
  const Scratch::Frame frame(context.arena);
  const int64_t num_entries = pass.entries.num_rows();
  const int64_t num_outputs = pass.outputs.num_rows();
  if (num_entries > 0) {
    const auto step = layers_.MakeStep(context, pass.entries, cache);
    for (size_t s = 0; s < weights_.stages.size(); ++s) {
      layers_.WriteEntriesOf(context, s, step, pass.previous.Rows(0, num_entries));
    }
  }
  if (num_outputs == 0) return;
  const auto step = layers_.MakeStep(context, pass.outputs, cache, /*in_blocks=*/true);
  const Tensor streams = context.Rows(num_outputs, layers_.width());
  context.ops.Embed(context, network_.weights().embedding, pass.outputs, false,
                    streams.Columns(0, layers_.hidden_size()));
  layers_.RepeatFirstStream(context, streams);
  for (size_t s = 0; s < weights_.stages.size(); ++s) layers_.Run(context, s, step, streams);
  ContractStreams(context, layers_.streams(), weights_.before_head.streams, streams,
                  pass.hidden.Rows(0, num_outputs));
}

Tensor DSparkDraftModel::StartDraws(Tensor hidden, std::span<const int32_t> rows) {
  const Stopwatch watch(busy_seconds_);
  const Context context = MakeContext(network_.operand_dtype());
  const Scratch::Frame frame(context.arena);
  num_draw_rows_ = static_cast<int64_t>(rows.size());
  copies_.clear();
  for (size_t i = 0; i < rows.size(); ++i) copies_.Add(rows[i], static_cast<int64_t>(i));
  const Tensor x = GrownRows(device().ops, hidden_, num_draw_rows_, width());
  context.ops.CopyRows(context, hidden, x, copies_);
  const Tensor normed = context.Rows(num_draw_rows_, width());
  context.ops.Norm(context, x, weights_.before_head.norm, layers_.streams().norm_eps, normed);
  first_rows_.resize(rows.size());
  std::iota(first_rows_.begin(), first_rows_.end(), 0);
  const Tensor logits = GrownRows(device().ops, logits_, num_draw_rows_, vocab_size());
  context.ops.Head(context, normed, first_rows_, network_.weights().head, logits);
  return logits;
}

void DSparkDraftModel::Draw(const DraftDraws& draws, std::span<int32_t> tokens) {
  const Stopwatch watch(busy_seconds_);
  const Context context = MakeContext(network_.operand_dtype());
  const Scratch::Frame frame(context.arena);
  const Ops& ops = context.ops;
  const auto count = static_cast<int64_t>(draws.rows.size());
  copies_.clear();
  for (size_t i = 0; i < draws.rows.size(); ++i) {
    OUTRIDER_CHECK(draws.rows[i] < num_draw_rows_);
    copies_.Add(draws.rows[i], static_cast<int64_t>(i));
  }
  // Side by side, as the confidence reads them: the row and what the token before it is.
  const Tensor pair = context.Rows(count, width() + spec_.markov_rank);
  const Tensor before = pair.Columns(width(), spec_.markov_rank);
  ops.CopyRows(context, hidden_->rows(), pair.Columns(0, width()), copies_);
  ops.block_drafts()->EmbedTokens(context, weights_.markov, draws.tokens_before, before);
  const Tensor logits = context.Rows(count, vocab_size());
  ops.CopyRows(context, logits_->rows(), logits, copies_);
  ops.Multiply(context, std::array{Product{
                            .x = before, .w = &weights_.bias, .y = logits, .accumulate = true}});
  sampler_->DrawFrom(context, logits, draws.requests, tokens);
  const Tensor chances = context.Rows(count, 1);
  ops.Multiply(context, std::array{Product{
                            .x = pair, .w = &weights_.confidence, .y = chances, .float32 = true}});
  confidences_.resize(draws.rows.size());
  ops.ToHost(context, chances, confidences_);
  for (float& chance : confidences_) chance = 1 / (1 + std::exp(-chance));
}

}  // namespace outrider
