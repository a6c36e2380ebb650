// A draft model of plain arithmetic that uses all that the interface has: it reads two of the
// target's layers, its modules look back over their cache entries, its drafts depend on the token
// before them and come from a small vocabulary of its own.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "outrider/draft/chain_drafter.h"
#include "outrider/draft/repeated_drafter.h"
#include "outrider/networks/draft_model.h"
#include "outrider/networks/network.h"
#include "outrider/ops/cpu/cpu_step_inputs.h"

namespace outrider {

class FakeDraftModel : public DraftModel {
 public:
  static constexpr int32_t kModules = 3;
  static constexpr int32_t kWidth = 8;
  static constexpr int32_t kDraftTokens = 90;

  /// The cache of `network` without its MTP modules, and with these.
  static NetworkCache CacheNeeds(const ModelConfig& config, KvCacheForm form) {
    NetworkCache needs = NetworkCacheOf(config, 0, form);
    const CacheLayerSpec last = needs.layers.back();
    needs.layers.insert(needs.layers.end(), kModules, last);
    return needs;
  }

  /// The token of the target's that draft token `id` stands for.
  static int32_t TokenOf(int32_t id) { return 6 + 17 * id; }

  /// Where each call's rows of the target are written, if set.
  std::vector<std::vector<float>>* seen = nullptr;

  explicit FakeDraftModel(Network& network)
      // One list of requests, whatever their role.
      : DraftModel(network.device(),
                   AttentionPlan(AttentionBackend::kRagged, 1, KvCacheForm::kHeads)),
        layers_(static_cast<int32_t>(network.config().num_hidden_layers())),
        taps_({0, layers_ - 1}),
        target_width_(network.hidden_size()),
        vocab_(network.vocab_size()) {}

  std::span<const int32_t> taps() const override { return taps_; }
  int32_t width() const override { return kWidth; }
  int32_t vocab_size() const override { return vocab_; }
  int32_t num_modules() const override { return kModules; }
  int32_t first_cache_layer() const override { return layers_; }

  Tensor ReadTarget(Tensor target) override {
    const MatrixView<float> in = target.floats();
    OUTRIDER_CHECK(in.cols == 2 * target_width_);
    if (seen != nullptr) seen->emplace_back(in.row(0), in.row(0) + in.rows * in.cols);
    input_.resize(static_cast<size_t>(in.rows * kWidth));
    const MatrixView<float> out(input_.data(), in.rows, kWidth);
    for (int64_t r = 0; r < in.rows; ++r) {
      for (int64_t j = 0; j < kWidth; ++j) {
        float sum = 0;
        for (int64_t c = j; c < in.cols; c += kWidth) sum += in.row(r)[c];
        out.row(r)[j] = sum;
      }
    }
    return out;
  }

  void Forward(const ModulePass& pass, KvCache& cache) override {
    OUTRIDER_CHECK(pass.m < kModules);
    const LayerCache layer = cache.layer(layers_ + pass.m);
    const int64_t num_entries = pass.entries.num_rows();
    const cpu::CpuStepInputs& outputs = cpu::Cast(pass.outputs);
    WriteEntries(cpu::Cast(pass.entries), pass.previous.floats(), layer);
    const int64_t num_outputs = pass.outputs.num_rows();
    if (num_outputs == 0) return;
    WriteEntries(outputs, pass.previous.Rows(num_entries, num_outputs).floats(), layer);
    const MatrixView<float> out = pass.hidden.floats();
    const CacheGroupSpec& group = cache.config().groups[static_cast<size_t>(layer.group)];
    for (const AttentionSpan& r : outputs.one_path(layer.group)) {
      for (int32_t i = 0; i < r.query_length; ++i) {
        const int32_t position = r.context_length + i;
        LookBack(r.block_table, group.FirstTokenRead(position), position, layer,
                 out.row(r.first_row + i));
      }
    }
  }

  void Draw(const DraftDraws& draws, std::span<TokenRef> tokens) override {
    Sampler sampler;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const float* row = draws.hidden.floats().row(draws.rows[i]);
      std::vector<float> logits(static_cast<size_t>(vocab_),
                                -std::numeric_limits<float>::infinity());
      for (int32_t id = 0; id < kDraftTokens; ++id) {
        float sum = std::sin(static_cast<float>(draws.tokens_before[i].token() * (id + 1)));
        for (int32_t j = 0; j < kWidth; ++j) {
          sum += row[j] * std::cos(static_cast<float>((j + 1) * (id + draws.m)));
        }
        logits[static_cast<size_t>(TokenOf(id))] = sum;
      }
      const DrawRequest& request = draws.requests[i];
      const auto likeliest = std::ranges::max_element(logits) - logits.begin();
      tokens[i] = request.sampling == nullptr
                      ? static_cast<int32_t>(likeliest)
                      : DrawDraft(sampler, *request.sampling, request.draw, logits);
    }
  }

 private:
  /// A number that stands for a token of which only the device knows what it is: drafts may be
  /// wrong.
  static int32_t NumberOf(TokenRef token) {
    return token.on_device() ? -2 - token.place() : token.token();
  }

  static float* EntryAt(const LayerCache& layer, int64_t slot) {
    OUTRIDER_CHECK(layer.width * static_cast<int64_t>(DTypeSize(layer.dtype)) >=
                   kWidth * static_cast<int64_t>(sizeof(float)));
    return reinterpret_cast<float*>(layer.data + layer.SlotOffset(slot) *
                                                     static_cast<int64_t>(DTypeSize(layer.dtype)));
  }

  static void WriteEntries(const cpu::CpuStepInputs& rows, MatrixView<float> previous,
                           const LayerCache& layer) {
    for (int32_t r = 0; r < rows.num_rows(); ++r) {
      std::array<float, kWidth> entry;
      for (int32_t j = 0; j < kWidth; ++j) {
        const auto token = static_cast<float>(NumberOf(rows.tokens()[static_cast<size_t>(r)]));
        entry[static_cast<size_t>(j)] =
            std::tanh(previous.row(r)[j]) + std::sin(token * static_cast<float>(j + 1));
      }
      const int64_t slot = rows.slots(layer.group)[r];
      std::memcpy(EntryAt(layer, slot), entry.data(), sizeof entry);
    }
  }

  static void LookBack(const int32_t* blocks, int32_t first, int32_t position,
                       const LayerCache& layer, float* out) {
    std::fill_n(out, kWidth, 0.0F);
    for (int32_t p = first; p <= position; ++p) {
      const int64_t slot =
          int64_t{blocks[p / layer.block_size]} * layer.block_size + p % layer.block_size;
      std::array<float, kWidth> entry;
      std::memcpy(entry.data(), EntryAt(layer, slot), sizeof entry);
      const float weight = 1.0F / static_cast<float>(1 + position - p);
      for (size_t j = 0; j < kWidth; ++j) out[j] += weight * entry[j];
    }
  }

  int32_t layers_;  // of the target
  std::vector<int32_t> taps_;
  int64_t target_width_;
  int32_t vocab_;
  std::vector<float> input_;
};

}  // namespace outrider
