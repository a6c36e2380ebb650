// What holds of the drafts of blocks on every device: the rows of draws, those of the tokens before
// them, tokens and distributions, beside what sampling draws from each row of logits by itself.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "outrider/base/arg_max.h"
#include "outrider/ops/block_drafts.h"
#include "outrider/ops/cpu/cpu_ops.h"
#include "outrider/ops/ops.h"
#include "outrider/sampling/draw_draft.h"
#include "tests/kernels/kernel_fixture.h"
#include "tests/sampling/random_params.h"

namespace outrider::block_draft_test {

inline constexpr int64_t kRank = 24;
inline constexpr int64_t kHidden = 64;
inline constexpr int64_t kHiddenRows = 9;
inline constexpr std::array<int32_t, 3> kSteps = {11, 11, 4};
inline constexpr int32_t kMoves = 4;  // numbers that positions are moved by

/// What a drafter embeds the tokens before its draws by.
struct BlockTable {
  explicit BlockTable(const Device& device) {
    const auto source = MakeDummyWeights(ModelConfig{}, 6);
    const auto loader = device.ops.MakeWeightLoader(*source, {.compute_dtype = DType::kBF16});
    loader->Table(&table, "markov", kVocab, kRank);
    memory = loader->Load(device, nullptr);
  }

  TokenTable table;
  std::unique_ptr<WeightMemory> memory;
};

/// Draws of kSteps from random logits, some of them greedy. With `distributions` all others give
/// theirs. on_device: the device draws by itself where no distribution is wanted. keep: puts a
/// number where the device keeps it; with it positions of draws are moved.
class BlockDraftMachine {
 public:
  using Keep = std::function<void(int32_t place, int32_t number)>;

  BlockDraftMachine(const Ops& ops, bool on_device, Keep keep = {})
      : ops_(ops),
        on_device_(on_device),
        keep_(std::move(keep)),
        arena_(ops.MakeArena()),
        table_({ops, &pool_}),
        host_table_({cpu::GetCpuOps(Isa::kReference), &pool_}) {
    for (const int32_t count : kSteps) num_draws_ += static_cast<size_t>(count);
    ops.KeepTokens(FirstMove() + kMoves);
  }

  void Check(bool distributions) {
    std::vector<int32_t> rows;
    std::vector<TokenBefore> before;
    std::vector<SamplingParams> params(num_draws_);
    std::vector<std::vector<float>> probs(num_draws_);
    std::vector<DrawRequest> requests;
    std::vector<int32_t> moves(num_draws_, 0);
    std::vector<int32_t> moved_places;
    if (keep_) ChooseMoves(moves, moved_places);
    for (size_t i = 0; i < num_draws_; ++i) {
      rows.push_back(static_cast<int32_t>(random_() % kHiddenRows));
      const auto draw = static_cast<int32_t>(i);
      before.push_back({.token = static_cast<int32_t>(random_() % kVocab),
                        .draw = std::max(draw - kSteps[0], -1)});
      DrawRequest request;
      request.place = static_cast<int32_t>(num_draws_ - i) + 2;
      if (random_() % 3 != 0) {
        params[i] = RandomParams(random_);
        params[i].temperature = std::max(params[i].temperature, 0.3F);
        request.sampling = &params[i];
        request.draw = {.seed = random_(), .position = static_cast<int64_t>(random_() % 5000)};
        if (distributions) {
          probs[i].resize(kVocab);
          request.draw.probs = probs[i];
        }
      }
      requests.push_back(request);
    }
    const auto sampler = ops_.block_drafts()->MakeBlockSampler({ops_, &pool_});
    sampler->Assign({rows, before, requests, kSteps, moved_places});
    EXPECT_EQ(sampler->launches_only(), on_device_ && !distributions);
    const Context c({ops_, &pool_}, *arena_, DType::kBF16);
    const Scratch::Frame frame(c.arena);

    const TestMatrix hidden = TestMatrix::Random(kHiddenRows, kHidden, random_);
    const Tensor x = c.Rows(sampler->num_rows(), kHidden);
    sampler->ReadRows(c, Put(c, hidden), x);
    const TestMatrix read = Get(c, x);
    std::vector<int32_t> tokens;  // that must be drawn
    Sampler drawer;
    std::vector<float> of_draw(kVocab);
    for (size_t step = 0, first = 0; step < kSteps.size(); ++step) {
      const RowRange room = sampler->rows_of(step);
      const int32_t count = kSteps[step];
      ASSERT_GE(room.count, count);
      const Tensor embedded = c.Rows(room.count, kRank);
      sampler->EmbedBefore(c, table_.table, step, embedded);
      const TestMatrix got = Get(c, embedded);
      TestMatrix logits(room.count, kVocab);
      for (float& v : logits.values) v = std::normal_distribution<float>()(random_);
      for (int32_t i = 0; i < count; ++i) {
        const size_t draw = first + static_cast<size_t>(i);
        const TokenRef token = before[draw].draw < 0
                                   ? before[draw].token
                                   : tokens[static_cast<size_t>(before[draw].draw)];
        TestMatrix want(1, kRank);
        cpu::CpuOps::EmbedTokens(host_table_.table, {&token, 1}, want.view());
        EXPECT_TRUE(SameBits(got.view().row(i), want.view().row(0), kRank))
            << "token before draw " << draw;
        EXPECT_TRUE(
            SameBits(read.view().row(room.first + i), hidden.view().row(rows[draw]), kHidden))
            << "row of draw " << draw;
        const DrawRequest& request = requests[draw];
        const std::span<const float> row(logits.view().row(i), kVocab);
        DraftDraw own = request.draw;
        if (!own.probs.empty()) own.probs = of_draw;
        own.position -= moves[draw];
        tokens.push_back(request.sampling == nullptr
                             ? static_cast<int32_t>(ArgMax(row))
                             : DrawDraft(drawer, *request.sampling, own, row));
        if (!own.probs.empty()) wanted_probs_.push_back(of_draw);
      }
      sampler->Draw(c, step, Put(c, logits));
      first += static_cast<size_t>(count);
    }
    std::vector<TokenRef> drawn(num_draws_);
    sampler->TakeTokens(drawn);
    ops_.ReadTokens();
    std::vector<int32_t> got_tokens;
    for (const TokenRef token : drawn) {
      EXPECT_EQ(token.on_device(), on_device_ && !distributions);
      got_tokens.push_back(ops_.ReadToken(token));
    }
    EXPECT_EQ(got_tokens, tokens);
    std::erase_if(probs, [](const std::vector<float>& p) { return p.empty(); });
    EXPECT_EQ(probs, wanted_probs_);
    EXPECT_EQ(probs.empty(), !distributions);
    wanted_probs_.clear();
  }

 private:
  /// The first place of the numbers that positions are moved by, behind those of drafts.
  int32_t FirstMove() const { return static_cast<int32_t>(num_draws_) + 5; }

  /// By draw: by how much its position moves, and where that number is.
  void ChooseMoves(std::vector<int32_t>& moves, std::vector<int32_t>& places) {
    std::array<int32_t, kMoves> numbers = {};
    for (int32_t m = 0; m < kMoves; ++m) {
      numbers[static_cast<size_t>(m)] = static_cast<int32_t>(random_() % 6);
      keep_(FirstMove() + m, numbers[static_cast<size_t>(m)]);
    }
    for (int32_t& move : moves) {
      const size_t m = random_() % (kMoves + 1);
      if (m < kMoves) move = numbers[m];
      places.push_back(m < kMoves ? FirstMove() + static_cast<int32_t>(m) : -1);
    }
  }

  Tensor Put(const Context& c, const TestMatrix& m) const {
    const Tensor to = c.Rows(m.view_rows, m.view_cols);
    ops_.CopyFromHost(std::as_bytes(std::span(m.values)), static_cast<std::byte*>(to.data));
    return to;
  }
  TestMatrix Get(const Context& c, Tensor x) const {
    TestMatrix m(x.rows, x.cols);
    ops_.ToHost(c, x, m.values);
    return m;
  }

  const Ops& ops_;
  const bool on_device_;
  const Keep keep_;
  std::mt19937 random_{17};
  ThreadPool pool_{2};
  std::unique_ptr<Arena> arena_;
  BlockTable table_;
  BlockTable host_table_;
  size_t num_draws_ = 0;
  std::vector<std::vector<float>> wanted_probs_;
};

}  // namespace outrider::block_draft_test
