// The choice of an indexer of the bundled model, whose rows are long enough to choose, by tables of
// operations: the highest of the scores that it was given make, and near-ties of the choice in
// float32. The same of a GPU: cuda/sparse_model_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/networks/cpu_network.h"
#include "tests/networks/golden_file.h"
#include "tests/networks/near_ties.h"
#include "tests/networks/recorded_choices.h"
#include "tests/networks/rounded_queries_ops.h"
#include "tests/networks/sparse_tiny_model.h"

namespace outrider {
namespace {

constexpr int32_t kBlock = 64;
constexpr int32_t kRows = 50;  // of a pass

/// The first `length` tokens of the longest of the golden texts.
KnownRequest LongRequest(int32_t length) {
  const GoldenFile golden(GoldenDirectory() / "tiny-v3-mtp3/golden.safetensors");
  KnownRequest request;
  for (int c = 0; golden.Has(fmt::format("case{}.ids", c)); ++c) {
    std::vector<int32_t> ids = golden.Read<int32_t>(fmt::format("case{}.ids", c));
    if (ids.size() > request.tokens.size()) request.tokens = std::move(ids);
  }
  OUTRIDER_CHECK(static_cast<int32_t>(request.tokens.size()) >= length);
  request.tokens.resize(static_cast<size_t>(length));
  request.length = length;
  request.prompt = length / 2 / kRows * kRows;
  request.tables = {FirstBlocks((length + kBlock - 1) / kBlock)};
  return request;
}

/// A model, a request, and what passes over it choose.
class ChoiceRun {
 public:
  ChoiceRun(int32_t top_k, int32_t length) : model_(top_k), request_(LongRequest(length)) {}

  /// By a table of operations that takes choices down in `log`.
  void Run(const cpu::CpuOps& ops, ChoiceLog& log, const CacheNumbers& cache, DType dtype) const {
    CpuNetwork network(config_, *source_, 0, dtype, static_cast<int32_t>(request_.tables[0].size()),
                       kBlock, ops, cache);
    BatchLayout layout(network.cache_config().groups);
    for (int32_t first = 0; first < request_.length; first += kRows) {
      log.BeginPass(first);
      layout.Assign(
          std::vector{request_.Work(0, first, std::min(kRows, request_.length - first), 0)});
      network.Forward(layout);
    }
  }
  /// What passes of bfloat16 numbers by `Table` choose.
  template <typename Table>
  ChoiceLog ChoicesOf(const CacheNumbers& cache = DType::kBF16) const {
    ChoiceLog log = EmptyLog();
    const RecordingOps<Table> ops(log);
    Run(ops, log, cache, DType::kBF16);
    return log;
  }
  ChoiceLog EmptyLog() const { return ChoiceLog(request_.tables[0]); }
  int64_t layers() const { return config_.num_hidden_layers(); }

 private:
  const SparseTinyModel model_;
  const ModelConfig config_ = ReadModelConfig(model_.directory());
  const std::unique_ptr<WeightSource> source_ = OpenCheckpoint(model_.directory(), config_);
  const KnownRequest request_;
};

// Rows of numbers as a GPU has them, beside float32 that reads the same entries: no row is exempt.
TEST(SparseChoiceTest, OfRoundedNumbersIsThatOfFloat32ButForNearTies) {
  for (const auto& [top_k, length] : {std::pair(768, 879), std::pair(64, 300)}) {
    const ChoiceRun run(top_k, length);
    ChoiceLog rounded = run.EmptyLog();
    const RecordingOps<RoundedQueriesOps> ops(rounded);
    run.Run(ops, rounded, DType::kBF16, DType::kBF16);
    ChoiceLog exact = run.EmptyLog();
    run.Run(FollowingOps<ExactOps>(exact, rounded), exact, DType::kF32, DType::kF32);

    const std::string what = fmt::format("top {} of {}", top_k, length);
    ASSERT_EQ(static_cast<int64_t>(rounded.layers().size()), run.layers());
    const ChoiceReport own = CheckHighestChosen(rounded, Float32DotBound);
    own.Print(what + ", rounded, by what it was given");
    EXPECT_EQ(own.problem, "") << what;
    const ChoiceReport of_exact = CheckHighestChosen(exact, Float32DotBound);
    of_exact.Print(what + ", float32, by what it was given");
    EXPECT_EQ(of_exact.problem, "") << what;
    const ChoiceReport both = CheckNearChoices(rounded, exact, Float32DotBound);
    both.Print(what + ", rounded beside float32");
    EXPECT_EQ(both.problem, "") << what;
    EXPECT_EQ(both.rows, (length - top_k) * run.layers()) << what;
    EXPECT_GT(both.differ, 0) << "the rounding changes nothing";
    EXPECT_LE(both.far_scores, both.scores / 100) << what;
  }
}

TEST(SparseChoiceTest, OfKeysInEightBitsIsByTheRoundedNumbers) {
  const ChoiceRun run(64, 300);
  const ChoiceReport own =
      CheckHighestChosen(run.ChoicesOf<RoundedQueriesOps>(DType::kF8E4M3), Float32DotBound);
  own.Print("keys in 8 bits, by what it was given");
  EXPECT_EQ(own.problem, "");
  EXPECT_EQ(own.rows, (300 - 64) * run.layers());
}

/// Chooses what the next best is in the place of one that was chosen, in every row.
class NextBestOps : public RoundedQueriesOps {
 public:
  SelectedEntries SelectEntries(const Context& context, const StepInputs& inputs,
                                const SelectEntriesArgs& args) const override {
    SelectEntriesArgs more = args;
    more.top_k = args.top_k + 1;
    const SelectedEntries best = RoundedQueriesOps::SelectEntries(context, inputs, args);
    const SelectedEntries next = RoundedQueriesOps::SelectEntries(context, inputs, more);
    auto* const entries = context.arena.Take<int32_t>(args.q.rows * best.stride);
    for (int64_t r = 0; r < args.q.rows; ++r) {
      int32_t* const to = entries + r * best.stride;
      std::copy_n(best.entries + r * best.stride, best.counts[r], to);
      if (next.counts[r] == best.counts[r]) continue;
      // The middle one goes, the one that the larger choice has comes.
      std::vector<int32_t> all(next.entries + r * next.stride,
                               next.entries + r * next.stride + next.counts[r]);
      all.erase(std::ranges::find(all, to[best.counts[r] / 2]));
      std::ranges::copy(all, to);
    }
    return {entries, best.counts, best.stride};
  }
};

/// Scores every head by its neighbour's query.
class OtherHeadsOps : public RoundedQueriesOps {
 public:
  SelectedEntries SelectEntries(const Context& context, const StepInputs& inputs,
                                const SelectEntriesArgs& args) const override {
    const Tensor q = context.Rows(args.q.rows, args.q.cols);
    for (int64_t r = 0; r < args.q.rows; ++r) {
      const float* const from = args.q.floats().row(r);
      std::rotate_copy(from, from + args.keys.width, from + args.q.cols, q.floats().row(r));
    }
    SelectEntriesArgs others = args;
    others.q = q;
    return RoundedQueriesOps::SelectEntries(context, inputs, others);
  }
};

/// Does not rotate the queries.
class UnrotatedOps : public RoundedQueriesOps {
 public:
  void Rotate(const Context& context, Tensor x, int32_t heads, int32_t offset,
              const Rotary& rotary) const override {
    if (heads == 1 || offset != 0) RoundedQueriesOps::Rotate(context, x, heads, offset, rotary);
  }
};

// The bounds of a GPU's sums find one wrong entry, too.
TEST(SparseChoiceTest, AnotherChoiceIsFound) {
  const ChoiceRun run(64, 200);
  const ChoiceLog next_best = run.ChoicesOf<NextBestOps>();
  EXPECT_NE(CheckHighestChosen(next_best, Float32DotBound).problem, "");
  EXPECT_NE(CheckHighestChosen(next_best, HopperBf16DotBound()).problem, "");
  const ChoiceLog codes = run.ChoicesOf<NextBestOps>(DType::kF8E4M3);
  EXPECT_NE(CheckHighestChosen(codes, HopperE4m3DotBound()).problem, "");
  EXPECT_NE(CheckHighestChosen(run.ChoicesOf<OtherHeadsOps>(), HopperBf16DotBound()).problem, "");
}

// A choice may be right by what it was given, which is wrong.
TEST(SparseChoiceTest, OtherScoresAreFound) {
  const ChoiceRun run(64, 200);
  const ChoiceLog unrotated = run.ChoicesOf<UnrotatedOps>();
  EXPECT_EQ(CheckHighestChosen(unrotated, Float32DotBound).problem, "");
  ChoiceLog exact = run.EmptyLog();
  run.Run(FollowingOps<ExactOps>(exact, unrotated), exact, DType::kF32, DType::kF32);
  const ChoiceReport both = CheckNearChoices(unrotated, exact, Float32DotBound);
  EXPECT_GT(both.far_scores, both.scores / 10);
}

}  // namespace
}  // namespace outrider
