// The DSpark drafter of a DeepSeek-V4: its stages attend to what main_proj makes of three of the
// target's layers, for the last positions of the window, and to the rows of the block. A draft's
// logits are those of the target's head and a bias of low rank by the token before it.
#pragma once

#include <memory>
#include <vector>

#include "outrider/networks/block_draft_model.h"
#include "outrider/networks/deepseek_v4_layers.h"
#include "outrider/networks/deepseek_v4_network.h"

namespace outrider {

class DSparkDraftModel : public BlockDraftModel {
 public:
  /// The network, which must have loaded the drafter, must outlive it.
  explicit DSparkDraftModel(DeepSeekV4Network& network);

  std::span<const int32_t> taps() const override { return spec_.taps; }
  int32_t width() const override { return network_.hidden_size(); }
  int32_t input_width() const override { return static_cast<int32_t>(taps().size()) * width(); }
  int32_t vocab_size() const override { return network_.vocab_size(); }
  int32_t num_modules() const override { return 1; }
  int32_t first_cache_layer() const override {
    return FirstCacheLayer(network_.config(), network_.config().num_hidden_layers());
  }
  int32_t block_size() const override { return static_cast<int32_t>(spec_.block_size); }
  int32_t noise_token() const override { return spec_.noise_token; }

  Tensor ReadTarget(Tensor target) override { return target; }
  void Forward(const ModulePass& pass, KvCache& cache) override;
  void DrawBlocks(Tensor hidden, const BlockDraws& draws, std::span<TokenRef> tokens) override;
  void ForwardAndDraw(const ModulePass& pass, KvCache& cache, const BlockDraws& draws,
                      std::span<TokenRef> tokens) override;
  void ReadConfidences(std::span<float> chances) override;
  double busy_seconds() const override { return busy_seconds_; }
  ReplayCounts replay_counts() const override { return replayer_->counts(); }

  /// main [rows, width] = what the stages read of the target, taps [rows, input_width].
  void Project(Tensor taps, Tensor main);

  /// logits [rows.size(), vocab_size()] = the head's of hidden.row(rows[i]), without a bias.
  void BaseLogits(Tensor hidden, std::span<const int32_t> rows, Tensor logits);

 private:
  /// Memory for the draws of a call; rows are the sampler's. It grows between runs.
  struct DrawMemory {
    Tensor pairs;    // [rows, hidden + rank]: the hidden row, and what the token before is
    Tensor logits;   // [rows, vocab], float32
    Tensor chances;  // [rows, 1], float32: logits of confidences
  };
  DrawMemory MemoryFor(int64_t rows);

  Context MakeOwnContext() { return MakeContext(network_.operand_dtype()); }
  /// x [rows, hidden], all of them in order.
  void HeadOf(const Context& context, Tensor x, Tensor logits);
  void RunProject(const Context& context, Tensor taps, Tensor main);
  void RunForward(const Context& context, const ModulePass& pass, KvCache& cache);
  void RunDraws(const Context& context, Tensor hidden, const DrawMemory& memory);
  /// Notes where the draws' confidences are.
  void KeepRows(const BlockDraws& draws);
  void AddTo(RunKey& key, const ModulePass& pass, KvCache& cache) const;

  DeepSeekV4Network& network_;
  const DSparkSpec& spec_;
  const DSparkWeights& weights_;
  DeepSeekV4Layers layers_;  // the stages
  std::unique_ptr<Replayer> replayer_;
  std::unique_ptr<BlockSampler> sampler_;
  // Kept between calls; they grow.
  std::unique_ptr<RowMemory> pairs_;
  std::unique_ptr<RowMemory> logits_;
  std::unique_ptr<RowMemory> chances_;
  std::vector<int32_t> draw_rows_;   // of the last draws, by draw
  std::vector<int32_t> head_rows_;   // 0, 1, ...
  std::vector<float> host_chances_;  // by row
  double busy_seconds_ = 0;
};

}  // namespace outrider
