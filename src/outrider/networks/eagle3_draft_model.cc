#include "outrider/networks/eagle3_draft_model.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/base/stopwatch.h"
#include "outrider/checkpoint/rank_config.h"
#include "outrider/layers/own_rows.h"

namespace outrider {

namespace {

// Rows of the target are wide where they are normalised: as many at a time.
constexpr int64_t kReadTile = 512;

/// Latent attention of a drafter has entries that hold every head where the target's do. Elsewhere
/// they are latent, whichever path the target's rows take.
AttentionPlan AttentionOf(const LayerSpec& layer, const AttentionPlan& target) {
  return target.Of(RowPathsOf(layer, target.paths().latent_form()));
}

/// How many ranks share the heads of attention.
int32_t HeadRanks(const Network& target) {
  return target.attention().cache_place().ranks > 1 ? 1 : target.device().place().ranks;
}

}  // namespace

NetworkWeightSizes MeasureEagle3(const Ops& ops, const ModelConfig& config,
                                 const WeightSource& source, const WeightForm& form) {
  const std::unique_ptr<WeightLoader> loader = ops.MakeWeightLoader(source, form);
  Eagle3Weights weights;
  weights.Declare(*loader, config);
  weights.ReadTokens(source, config);
  NetworkWeightSizes sizes{
      .target = {}, .modules = loader->PackedSizes(), .groups = loader->Groups()};
  for (WeightGroup& group : sizes.groups) group.name = "drafter's " + group.name;
  return sizes;
}

int64_t Eagle3StoredBytes(const Ops& ops, const ModelConfig& config, const WeightSource& source,
                          const WeightForm& form) {
  const std::unique_ptr<WeightLoader> loader = ops.MakeWeightLoader(source, form);
  Eagle3Weights weights;
  weights.Declare(*loader, config);
  return loader->StoredBytes();
}

Eagle3Weights LoadEagle3(const ModelConfig& config, const WeightSource& source,
                         const WeightForm& form, const Device& device,
                         const WeightLoader::Progress& progress) {
  WeightForm own_form = form;
  own_form.place = device.place();
  const std::unique_ptr<WeightLoader> loader = device.ops.MakeWeightLoader(source, own_form);
  Eagle3Weights weights;
  weights.Declare(*loader, config);
  weights.ReadTokens(source, config);
  weights.memory = loader->Load(device, progress);
  return weights;
}

NetworkCache Eagle3DraftModel::CacheNeeds(const ModelConfig& target, const ModelConfig& config,
                                          KvCacheForm form) {
  NetworkCache cache = NetworkCacheOf(target, 0, form);
  AddCacheLayers(config.layers.front(), RowPathsOf(target, form).latent_form(), &cache);
  return cache;
}

Eagle3DraftModel::Eagle3DraftModel(const ModelConfig& config, std::vector<int32_t> taps,
                                   Eagle3Weights weights, const Network& target)
    : DraftModel(target.device(), AttentionOf(config.layers.front(), target.attention())),
      spec_(*config.eagle3),
      taps_(std::move(taps)),
      weights_(std::move(weights)),
      embedding_(weights_.embedding.value_or(target.embedding())),
      hidden_(config.hidden_size),
      vocab_(target.vocab_size()),
      first_cache_layer_(FirstCacheLayer(target.config(), target.config().num_hidden_layers())),
      operand_dtype_(target.operand_dtype()),
      replayer_(device().ops.MakeReplayer(MakeContext())),
      sampler_(device().ops.MakeSampler(device(), Verifier())) {
  OUTRIDER_CHECK(target.num_mtp_modules() == 0 && embedding_.cols == hidden_);
  DecoderLayer& layer = weights_.layer;
  layer.spec = OfOneRank(layer.spec, HeadRanks(target));
  layer.rotary_kind = rotary_.Add(layer.spec.rotary);
}

Tensor Eagle3DraftModel::ReadTarget(Tensor target) {
  const Stopwatch watch(busy_seconds_);
  const Context context = MakeContext(operand_dtype_);
  OUTRIDER_CHECK(target.cols == weights_.fc.cols);
  if (read_ == nullptr || read_->rows().rows < target.rows) {
    read_ = context.ops.MakeRows(target.rows, hidden_);
  }
  for (int64_t first = 0; first < target.rows; first += kReadTile) {
    const Scratch::Frame frame(context.arena);
    Tensor tile = target.Rows(first, std::min(kReadTile, target.rows - first));
    if (!weights_.tap_norms.empty()) {
      const Tensor normed = context.Activations(tile.rows, tile.cols);
      int64_t column = 0;
      for (const float* norm : weights_.tap_norms) {
        context.ops.Norm(context, tile.Columns(column, spec_.target_hidden_size), norm,
                         weights_.layer.norm_eps, normed.Columns(column, spec_.target_hidden_size));
        column += spec_.target_hidden_size;
      }
      tile = normed;
    }
    context.ops.Multiply(
        context, std::array{Product{
                     .x = tile, .w = &weights_.fc, .y = read_->rows().Rows(first, tile.rows)}});
  }
  return read_->rows().Rows(0, target.rows);
}

void Eagle3DraftModel::Forward(const ModulePass& pass, KvCache& cache) {
  const Stopwatch watch(busy_seconds_);
  RunKey key;
  key.Add(cache.layer(0).data).Add(pass.previous).Add(pass.hidden);
  const auto run = [&](const Context& context) { Run(context, pass, cache); };
  replayer_->Run(MakeContext(operand_dtype_), key, std::array{&pass.entries, &pass.outputs},
                 std::ref(run));
}

void Eagle3DraftModel::Run(const Context& context, const ModulePass& pass, KvCache& cache) {
  const Scratch::Frame frame(context.arena);
  const Ops& ops = context.ops;
  const int64_t entries = pass.entries.num_rows();
  const int64_t outputs = pass.outputs.num_rows();
  const LayerCaches caches = {.entries = cache.layer(first_cache_layer_)};

  const Tensor pair = context.Activations(entries + outputs, 2 * hidden_);
  const Tensor embedding = context.Rows(entries + outputs, hidden_);
  ops.Embed(context, embedding_, pass.entries, false, embedding.Rows(0, entries));
  ops.Embed(context, embedding_, pass.outputs, false, embedding.Rows(entries, outputs));
  const DecoderLayer& layer = weights_.layer;
  ops.Norm(context, embedding, layer.weights.input_norm, weights_.layer.norm_eps,
           pair.Columns(0, hidden_));
  const Tensor previous = pass.previous.Rows(0, entries + outputs);
  ops.Norm(context, previous, weights_.hidden_norm, weights_.layer.norm_eps,
           pair.Columns(hidden_, hidden_));
  const auto step_of = [&](const StepInputs& inputs) {
    return LayerStep{.inputs = inputs, .rotary = rotary_.Rows(context, inputs.attended())};
  };
  if (entries > 0) {
    const LayerStep step = step_of(pass.entries);
    WriteOwnEntries(context, pass.entries, pair.Rows(0, entries),
                    [&](const Context& own, const StepInputs& inputs, Tensor rows) {
                      WriteAttentionEntries(own, layer, step, caches, inputs, rows);
                    });
  }
  if (outputs == 0) return;
  const Tensor x = context.Rows(outputs, hidden_);
  if (spec_.norms_residual) {
    ops.Norm(context, previous.Rows(entries, outputs), weights_.hidden_norm,
             weights_.layer.norm_eps, x);
  } else {
    ops.Copy(context, previous.Rows(entries, outputs), x);
  }
  const LayerStep step = step_of(pass.outputs);
  AttendToOwnRows(context, pass.outputs, pair.Rows(entries, outputs), x,
                  [&](const Context& own, const StepInputs& inputs, Tensor rows, Tensor own_x) {
                    AttentionForward(own, layer, step, caches, inputs, rows, own_x);
                  });
  const Tensor h = context.Activations(outputs, hidden_);
  ops.Norm(context, x, layer.weights.post_attention_norm, weights_.layer.norm_eps, h);
  DenseMlp(context, *layer.spec.dense(), std::get<MlpWeights>(layer.weights.mlp), h, x);
  const Tensor out = pass.hidden.Rows(0, outputs);
  if (spec_.norms_output) {
    ops.Norm(context, x, weights_.final_norm, weights_.layer.norm_eps, out);
  } else {
    ops.Copy(context, x, out);
  }
}

HeadRows Eagle3DraftModel::BeforeHead(const Context& context, Tensor hidden,
                                      std::span<const int32_t> rows) {
  if (spec_.norms_output) return {weights_.head, hidden, rows};
  const Tensor x = context.Rows(static_cast<int64_t>(rows.size()), hidden_);
  head_rows_.clear();
  copies_.clear();
  for (const int32_t row : rows) {
    const auto next = static_cast<int32_t>(head_rows_.size());
    copies_.Add(row, next);
    head_rows_.push_back(next);
  }
  context.ops.CopyRows(context, hidden, x, copies_);
  context.ops.Norm(context, x, weights_.final_norm, weights_.layer.norm_eps, x);
  return {weights_.head, x, head_rows_};
}

void Eagle3DraftModel::Draw(const DraftDraws& draws, std::span<TokenRef> tokens) {
  const Context context = MakeContext(operand_dtype_);
  const Scratch::Frame frame(context.arena);
  const double before = sampler_->head_seconds();
  sampler_->Draw(context, BeforeHead(context, draws.hidden, draws.rows), draws.requests,
                 {.rows = static_cast<int32_t>(weights_.head.rows),
                  .ids = weights_.tokens,
                  .vocab_size = vocab_},
                 tokens);
  busy_seconds_ += sampler_->head_seconds() - before;
}

void Eagle3DraftModel::Logits(Tensor hidden, std::span<const int32_t> rows, Tensor logits) {
  const Context context = MakeContext(operand_dtype_);
  const Scratch::Frame frame(context.arena);
  const HeadRows input = BeforeHead(context, hidden, rows);
  context.ops.Head(context, input.x, input.rows, input.head, logits);
}

}  // namespace outrider
