// Runs the layers of DeepSeek-V4: those of the target, of an MTP module, of a drafter's stages.
#pragma once

#include <cstdint>
#include <vector>

#include "outrider/layers/rotary.h"
#include "outrider/networks/deepseek_v4_weights.h"
#include "outrider/ops/hyper.h"
#include "outrider/ops/kv_cache.h"

namespace outrider {

class DeepSeekV4Layers {
 public:
  /// What all layers get of a step.
  struct Step {
    const StepInputs& inputs;
    KvCache& cache;
    std::span<const Rotary> rotary;  // by kind, of inputs.attended()
    bool in_blocks = false;          // CompressedStep::in_blocks
    ChosenExperts chosen = {};       // of the layer to run, where somebody asks
    // Memory for what parts of layers read of the streams, and add to them.
    Tensor x = {};
    HyperAddArgs added = {};
    bool is_mixed = false;  // x is what the next layer's attention reads
  };

  explicit DeepSeekV4Layers(const ModelConfig& config);

  /// Adds a layer, of `config.layer(index)`, whose weights must outlive the object. Before the
  /// first step.
  void Add(const ModelConfig& config, int64_t index, const DeepSeekV4LayerWeights& weights);

  const HyperShape& streams() const { return streams_; }
  int64_t hidden_size() const { return hidden_size_; }
  int64_t width() const { return streams_.streams * hidden_size_; }

  /// Memory of it lives in the arena.
  Step MakeStep(const Context& context, const StepInputs& inputs, KvCache& cache,
                bool in_blocks = false) {
    return {inputs, cache, rotary_.Rows(context, inputs.attended()), in_blocks, {}, {}, {}, false};
  }

  /// Copies the first stream of every row to the others.
  void RepeatFirstStream(const Context& context, Tensor streams) const;

  /// Runs layer i of those that were added over streams [rows, S * hidden]. With `goes_on` layer
  /// i + 1 is the next that does anything with the streams: what it reads of them is made as what
  /// this one gives is added. The first time for a step takes memory of the arena that stays.
  void Run(const Context& context, size_t i, Step& step, Tensor streams, bool goes_on) const;

  /// Writes what the rows of streams [rows, S * hidden] leave in the cache of layer i, which has
  /// a window alone.
  void WriteEntries(const Context& context, size_t i, const Step& step, Tensor streams) const;

  /// Writes entries of what the layer's attention would read: x [rows, hidden], already normalised.
  void WriteEntriesOf(const Context& context, size_t i, const Step& step, Tensor x) const;

 private:
  struct Layer {
    LayerSpec spec;
    const DeepSeekV4LayerWeights* weights = nullptr;
    int32_t forward = 0;  // its rotary embedding, in rotary_
    int32_t back = 0;
    int32_t first_cache_layer = 0;
    int32_t num_cache_layers = 0;

    const CompressedSpec& attention() const { return std::get<CompressedSpec>(spec.attention); }
  };

  /// attend(CompressedStep) with the caches of a layer, of rows `inputs`.
  template <typename Attend>
  void WithAttention(const Layer& layer, const Step& step, const StepInputs& inputs,
                     Attend attend) const;

  /// [rows, (1 + S) * S] in the arena: by which an output is added.
  Tensor WeightsOfStreams(const Context& context, int64_t rows) const;

  HyperShape streams_;
  int64_t hidden_size_;
  RotaryKinds rotary_;
  std::vector<Layer> layers_;
};

}  // namespace outrider
