#include "outrider/networks/dspark_draft_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>

#include "outrider/base/error.h"
#include "outrider/base/stopwatch.h"

namespace outrider {

namespace {

/// The first rows of memory that grows. What they held is lost when there were fewer. Rows begin at
/// multiples of 8 numbers, as products write them.
Tensor GrownRows(const Ops& ops, std::unique_ptr<RowMemory>& memory, DType type, int64_t rows,
                 int64_t cols) {
  if (memory == nullptr || memory->rows().rows < rows) {
    const int64_t room = std::max(rows, memory == nullptr ? 1 : 2 * memory->rows().rows);
    const int64_t stride = (cols + 7) / 8 * 8;
    memory = nullptr;
    memory = std::make_unique<RowMemory>(
        ops.Allocate(static_cast<size_t>(room * stride) * DTypeSize(type)), type, room, stride);
  }
  return memory->rows().Rows(0, rows).Columns(0, cols);
}

}  // namespace

DSparkDraftModel::DSparkDraftModel(DeepSeekV4Network& network)
    : BlockDraftModel(network.device(), network.attention()),
      network_(network),
      spec_(*network.config().dspark),
      weights_(network.weights().dspark),
      layers_(network.config()),
      replayer_(device().ops.MakeReplayer(MakeContext())),
      sampler_(device().ops.block_drafts()->MakeBlockSampler(device())) {
  OUTRIDER_CHECK(!weights_.stages.empty());
  int64_t index = network.config().num_hidden_layers();
  for (const DeepSeekV4LayerWeights& w : weights_.stages) layers_.Add(network.config(), index++, w);
}

void DSparkDraftModel::Project(Tensor taps, Tensor main) {
  const Stopwatch watch(busy_seconds_);
  const Context context = MakeOwnContext();
  const Scratch::Frame frame(context.arena);
  RunProject(context, taps, main);
}

void DSparkDraftModel::RunProject(const Context& context, Tensor taps, Tensor main) {
  const Ops& ops = context.ops;
  ops.Multiply(context, std::array{Product{.x = taps, .w = &weights_.projection, .y = main}});
  ops.Norm(context, main, weights_.norm, layers_.streams().norm_eps, main);
}

void DSparkDraftModel::AddTo(RunKey& key, const ModulePass& pass, KvCache& cache) const {
  key.Add(cache.layer(0).data).Add(pass.previous).Add(pass.hidden);
}

void DSparkDraftModel::Forward(const ModulePass& pass, KvCache& cache) {
  const Stopwatch watch(busy_seconds_);
  RunKey key;
  AddTo(key, pass, cache);
  const auto run = [&](const Context& context) { RunForward(context, pass, cache); };
  replayer_->Run(MakeOwnContext(), key, std::array{&pass.entries, &pass.outputs}, std::ref(run));
}

void DSparkDraftModel::RunForward(const Context& context, const ModulePass& pass, KvCache& cache) {
  const Scratch::Frame frame(context.arena);
  const int64_t num_entries = pass.entries.num_rows();
  const int64_t num_outputs = pass.outputs.num_rows();
  if (num_entries > 0) {
    const Scratch::Frame of_entries(context.arena);
    const Tensor main = context.Activations(num_entries, width());
    RunProject(context, pass.previous.Rows(0, num_entries), main);
    const auto step = layers_.MakeStep(context, pass.entries, cache);
    for (size_t s = 0; s < weights_.stages.size(); ++s) {
      layers_.WriteEntriesOf(context, s, step, main);
    }
  }
  if (num_outputs == 0) return;
  auto step = layers_.MakeStep(context, pass.outputs, cache, /*in_blocks=*/true);
  const Tensor streams = context.Rows(num_outputs, layers_.width());
  context.ops.Embed(context, network_.weights().embedding, pass.outputs, false,
                    streams.Columns(0, layers_.hidden_size()));
  layers_.RepeatFirstStream(context, streams);
  for (size_t s = 0; s < weights_.stages.size(); ++s) {
    layers_.Run(context, s, step, streams, s + 1 < weights_.stages.size());
  }
  ContractStreams(context, layers_.streams(), weights_.before_head.streams, streams,
                  pass.hidden.Rows(0, num_outputs));
}

DSparkDraftModel::DrawMemory DSparkDraftModel::MemoryFor(int64_t rows) {
  const Ops& ops = device().ops;
  head_rows_.resize(static_cast<size_t>(rows));
  std::iota(head_rows_.begin(), head_rows_.end(), 0);
  return {.pairs = GrownRows(ops, pairs_, ops.activation_type(), rows, width() + spec_.markov_rank),
          .logits = GrownRows(ops, logits_, DType::kF32, rows, vocab_size()),
          .chances = GrownRows(ops, chances_, DType::kF32, rows, 1)};
}

void DSparkDraftModel::HeadOf(const Context& context, Tensor x, Tensor logits) {
  const Scratch::Frame frame(context.arena);
  const Tensor normed = context.Activations(x.rows, width());
  context.ops.Norm(context, x, weights_.before_head.norm, layers_.streams().norm_eps, normed);
  context.ops.Head(context, normed, std::span(head_rows_).first(static_cast<size_t>(x.rows)),
                   network_.weights().head, logits);
}

void DSparkDraftModel::BaseLogits(Tensor hidden, std::span<const int32_t> rows, Tensor logits) {
  const Stopwatch watch(busy_seconds_);
  const Context context = MakeOwnContext();
  const Scratch::Frame frame(context.arena);
  RowCopies copies;
  for (size_t i = 0; i < rows.size(); ++i) copies.Add(rows[i], static_cast<int64_t>(i));
  const Tensor x = MemoryFor(std::ssize(rows)).pairs.Columns(0, width());
  context.ops.CopyRows(context, hidden, x, copies);
  HeadOf(context, x, logits);
}

void DSparkDraftModel::RunDraws(const Context& context, Tensor hidden, const DrawMemory& memory) {
  const Scratch::Frame frame(context.arena);
  const Ops& ops = context.ops;
  const Tensor x = memory.pairs.Columns(0, width());
  const Tensor before = memory.pairs.Columns(width(), spec_.markov_rank);
  sampler_->ReadRows(context, hidden, x);
  HeadOf(context, x, memory.logits);
  int64_t row = 0;
  for (size_t step = 0; row < sampler_->num_rows(); ++step) {
    const RowRange rows = sampler_->rows_of(step);
    const Tensor of_step = before.Rows(rows.first, rows.count);
    const Tensor logits = memory.logits.Rows(rows.first, rows.count);
    sampler_->EmbedBefore(context, weights_.markov, step, of_step);
    ops.Multiply(context, std::array{Product{
                              .x = of_step, .w = &weights_.bias, .y = logits, .accumulate = true}});
    sampler_->Draw(context, step, logits);
    row = rows.first + rows.count;
  }
  ops.Multiply(
      context,
      std::array{Product{
          .x = memory.pairs, .w = &weights_.confidence, .y = memory.chances, .float32 = true}});
}

void DSparkDraftModel::DrawBlocks(Tensor hidden, const BlockDraws& draws,
                                  std::span<TokenRef> tokens) {
  const Stopwatch watch(busy_seconds_);
  sampler_->Assign(draws);
  const DrawMemory memory = MemoryFor(sampler_->num_rows());
  const Context own = MakeOwnContext();
  const auto run = [&](const Context& context) { RunDraws(context, hidden, memory); };
  if (sampler_->launches_only()) {
    RunKey key;
    key.Add(hidden).Add(memory.pairs).Add(memory.logits).Add(memory.chances);
    sampler_->AddTo(key);
    replayer_->Run(own, key, {}, std::ref(run));
  } else {
    run(own);
  }
  KeepRows(draws);
  sampler_->TakeTokens(tokens);
}

void DSparkDraftModel::ForwardAndDraw(const ModulePass& pass, KvCache& cache,
                                      const BlockDraws& draws, std::span<TokenRef> tokens) {
  const Tensor hidden = pass.hidden.Rows(0, pass.outputs.num_rows());
  // The sampler tells whether the draws can be part of a run once it has them.
  sampler_->Assign(draws);
  if (!sampler_->launches_only()) {
    Forward(pass, cache);
    return DrawBlocks(hidden, draws, tokens);
  }
  const Stopwatch watch(busy_seconds_);
  const DrawMemory memory = MemoryFor(sampler_->num_rows());
  RunKey key;
  AddTo(key, pass, cache);
  key.Add(memory.pairs).Add(memory.logits).Add(memory.chances);
  sampler_->AddTo(key);
  const auto run = [&](const Context& context) {
    RunForward(context, pass, cache);
    RunDraws(context, hidden, memory);
  };
  replayer_->Run(MakeOwnContext(), key, std::array{&pass.entries, &pass.outputs}, std::ref(run));
  KeepRows(draws);
  sampler_->TakeTokens(tokens);
}

void DSparkDraftModel::KeepRows(const BlockDraws& draws) {
  draw_rows_.clear();
  for (size_t step = 0; step < draws.steps.size(); ++step) {
    const RowRange rows = sampler_->rows_of(step);
    for (int32_t i = 0; i < draws.steps[step]; ++i) draw_rows_.push_back(rows.first + i);
  }
}

void DSparkDraftModel::ReadConfidences(std::span<float> chances) {
  const Stopwatch watch(busy_seconds_);
  OUTRIDER_CHECK(chances.size() == draw_rows_.size());
  if (chances.empty()) return;
  const Context context = MakeOwnContext();
  host_chances_.resize(static_cast<size_t>(draw_rows_.back()) + 1);
  const auto rows = static_cast<int64_t>(host_chances_.size());
  context.ops.ToHost(context, chances_->rows().Rows(0, rows).Columns(0, 1), host_chances_);
  for (size_t i = 0; i < chances.size(); ++i) {
    chances[i] = 1 / (1 + std::exp(-host_chances_[static_cast<size_t>(draw_rows_[i])]));
  }
}

}  // namespace outrider
