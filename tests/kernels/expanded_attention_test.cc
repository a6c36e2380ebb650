// Expanded attention: against the definition and the reference, and the bits of every row however
// the prompt is cut into chunks, calls and tiles. Keys that a row must not see hold NaN.

#include <cmath>

#include "tests/kernels/kernel_fixture.h"
#include "tests/sanitized.h"

namespace outrider {
namespace {

struct PromptShape {
  int32_t heads, nope, rope, value;
};

/// Out, maximum and sum of some rows.
struct State {
  State(int64_t rows, const PromptShape& shape)
      : out(rows, shape.heads * shape.value, 1), max(rows, shape.heads), sum(rows, shape.heads, 2) {
    for (TestMatrix* m : {&out, &max, &sum}) m->values.assign(m->values.size(), kNaN);
  }
  TestMatrix out, max, sum;
};

class ExpandedAttentionTest : public KernelTest {
 protected:
  /// One prompt: keys, values and queries of its positions 0 .. length - 1.
  struct Prompt {
    Prompt(const PromptShape& prompt_shape, int64_t prompt_length, std::mt19937& random)
        : shape(prompt_shape),
          length(prompt_length),
          q(TestMatrix::Random(length, shape.heads * (shape.nope + shape.rope), random, 2)),
          kv(TestMatrix::Random(length, shape.heads * (shape.nope + shape.value), random, 1)),
          k_rope(TestMatrix::Random(length, shape.rope, random)) {}

    PromptShape shape;
    int64_t length;
    TestMatrix q, kv, k_rope;
  };

  /// The blocks of positions [0, end) for rows [first, end) of the prompt.
  static std::vector<ExpandedBlock> Blocks(int64_t first, int64_t end) {
    std::vector<ExpandedBlock> blocks;
    for (int64_t key = 0; key < end; key += kExpandedBlock) {
      blocks.push_back(
          {.request = {.first_row = 0,
                       .query_length = static_cast<int32_t>(end - first),
                       .context_length = static_cast<int32_t>(first)},
           .first_key = static_cast<int32_t>(key),
           .num_keys = static_cast<int32_t>(std::min<int64_t>(kExpandedBlock, end - key)),
           .kv_row = key});
    }
    return blocks;
  }

  static void Run(const KernelTable& table, ThreadPool& threads, const Prompt& prompt,
                  int64_t first, int64_t end, std::span<const ExpandedBlock> blocks, State& state) {
    const PromptShape& s = prompt.shape;
    table.expanded_attention(threads,
                             {.q = prompt.q.view().Rows(first, end - first),
                              .heads = s.heads,
                              .nope = s.nope,
                              .rope = s.rope,
                              .value = s.value,
                              .scale = 1.0f / std::sqrt(static_cast<float>(s.nope + s.rope)),
                              .kv = prompt.kv.view(),
                              .k_rope = prompt.k_rope.view(),
                              .blocks = blocks,
                              .out = state.out.view(),
                              .running_max = state.max.view(),
                              .running_sum = state.sum.view()});
  }

  /// Rows [first, end) of the prompt as one chunk, all blocks in one call.
  static State RunChunk(const KernelTable& table, ThreadPool& threads, const Prompt& prompt,
                        int64_t first, int64_t end) {
    State state(end - first, prompt.shape);
    Run(table, threads, prompt, first, end, Blocks(first, end), state);
    return state;
  }

  /// Row a of one state equals row b of the other.
  static void ExpectSameRow(const State& x, int64_t a, const State& y, int64_t b) {
    ASSERT_TRUE(SameBits(x.out.view().row(a), y.out.view().row(b), x.out.view_cols)) << a;
    ASSERT_TRUE(SameBits(x.max.view().row(a), y.max.view().row(b), x.max.view_cols)) << a;
    ASSERT_TRUE(SameBits(x.sum.view().row(a), y.sum.view().row(b), x.sum.view_cols)) << a;
  }

  PromptShape RandomShape() {
    const PromptShape shapes[] = {
        {1, 16, 8, 16}, {8, 12, 6, 10}, {3, 64, 64, 64}, {2, 128, 64, 128}};
    return shapes[Pick(0, GetParam() == Isa::kReference ? 1 : 3)];
  }
};

TEST_P(ExpandedAttentionTest, AgreesWithTheDefinitionInDouble) {
  const Prompt prompt({.heads = 2, .nope = 12, .rope = 6, .value = 10}, 520, random);
  const State state = RunChunk(kernels, pool, prompt, 500, 520);
  for (int64_t r = 0; r < 20; ++r) {
    for (int64_t h = 0; h < 2; ++h) {
      const float* q = prompt.q.view().row(500 + r) + h * 18;
      double total = 0;
      std::vector<double> sums(10);
      for (int64_t t = 0; t <= 500 + r; ++t) {
        const float* kv = prompt.kv.view().row(t) + h * 22;
        double dot = 0;
        for (int64_t i = 0; i < 12; ++i) dot += double{q[i]} * kv[i];
        for (int64_t i = 0; i < 6; ++i) dot += double{q[12 + i]} * prompt.k_rope.view().row(t)[i];
        const double p = std::exp(dot / std::sqrt(18.0));
        total += p;
        for (size_t i = 0; i < 10; ++i) sums[i] += p * kv[12 + i];
      }
      const double sum = state.sum.view().row(r)[h];
      for (size_t i = 0; i < 10; ++i) {
        EXPECT_NEAR(state.out.view().row(r)[h * 10 + static_cast<int64_t>(i)] / sum,
                    sums[i] / total, 3e-6);
      }
    }
  }
}

TEST_P(ExpandedAttentionTest, AgreesWithTheReference) {
  for (int trial = 0; trial < 6; ++trial) {
    const int64_t length = Pick(1, 700);
    const int64_t first = Pick(0, static_cast<int>(length) - 1);
    const Prompt prompt(RandomShape(), length, random);
    const State got = RunChunk(kernels, pool, prompt, first, length);
    const State want = RunChunk(reference, pool, prompt, first, length);
    for (int64_t r = 0; r < length - first; ++r) {
      for (int64_t h = 0; h < prompt.shape.heads; ++h) {
        ASSERT_NEAR(got.max.view().row(r)[h], want.max.view().row(r)[h], 1e-5);
        ASSERT_NEAR(got.sum.view().row(r)[h] / want.sum.view().row(r)[h], 1, 1e-5);
        for (int64_t i = h * prompt.shape.value; i < (h + 1) * prompt.shape.value; ++i) {
          ASSERT_NEAR(got.out.view().row(r)[i] / got.sum.view().row(r)[h],
                      want.out.view().row(r)[i] / want.sum.view().row(r)[h], 5e-6);
        }
      }
    }
  }
}

TEST_P(ExpandedAttentionTest, RowsHaveTheSameBitsHoweverThePromptIsCut) {
  ThreadPool five(5);
  for (int trial = 0; trial < 8; ++trial) {
    const int64_t length = Pick(1, 640);
    const Prompt prompt(RandomShape(), length, random);
    const State whole = RunChunk(kernels, pool, prompt, 0, length);
    for (int64_t first = 0; first < length;) {
      const int64_t end = std::min<int64_t>(length, first + Pick(1, 200));
      const State chunk = RunChunk(kernels, trial % 2 == 0 ? five : single, prompt, first, end);
      for (int64_t r = first; r < end; ++r) ExpectSameRow(chunk, r - first, whole, r);
      first = end;
    }
  }
}

// Ranks that share a model have some of its heads each.
TEST_P(ExpandedAttentionTest, HeadsHaveTheSameBitsOnRanksThatShareThem) {
  const PromptShape shape = {8, 32, 16, 24};
  const int64_t length = GetParam() == Isa::kReference ? 270 : 600;
  const Prompt prompt(shape, length, random);
  const State whole = RunChunk(kernels, pool, prompt, 0, length);
  for (const int32_t ranks : {2, 4, 8}) {
    const int32_t own = shape.heads / ranks;
    const auto columns = [&](const TestMatrix& all, int32_t rank) {
      const int64_t width = all.view_cols / ranks;
      TestMatrix part(all.view_rows, width);
      for (int64_t r = 0; r < all.view_rows; ++r) {
        std::copy_n(all.view().row(r) + rank * width, width, part.view().row(r));
      }
      return part;
    };
    for (int32_t rank = 0; rank < ranks; ++rank) {
      Prompt part = prompt;
      part.shape.heads = own;
      part.q = columns(prompt.q, rank);
      part.kv = columns(prompt.kv, rank);
      const State state = RunChunk(kernels, pool, part, 0, length);
      for (int64_t r = 0; r < length; ++r) {
        ASSERT_TRUE(SameBits(state.out.view().row(r),
                             whole.out.view().row(r) + int64_t{rank} * own * shape.value,
                             state.out.view_cols))
            << "row " << r << ", rank " << rank << " of " << ranks;
      }
    }
  }
}

TEST_P(ExpandedAttentionTest, ARowAloneSeesNothingPastItself) {
  for (const int64_t length : {33, 256, 300, 514}) {
    Prompt prompt(RandomShape(), length, random);
    const State whole = RunChunk(kernels, pool, prompt, 0, length);
    for (int64_t r = length - 1; r >= 0; r -= Pick(1, 9) * (kSanitized ? 8 : 1)) {
      for (TestMatrix* m : {&prompt.kv, &prompt.k_rope}) {
        for (int64_t later = r + 1; later < length; ++later) {
          std::fill_n(m->view().row(later), m->view_cols, kNaN);
        }
      }
      ExpectSameRow(RunChunk(kernels, single, prompt, r, r + 1), 0, whole, r);
      // Together with the rows after it, whose keys are NaN by now.
      const State rest = RunChunk(kernels, pool, prompt, std::max<int64_t>(0, r - 3), length);
      ExpectSameRow(rest, std::min<int64_t>(3, r), whole, r);
    }
  }
}

TEST_P(ExpandedAttentionTest, StateCarriesOverSeveralCalls) {
  const Prompt prompt(RandomShape(), 1100, random);
  const State whole = RunChunk(kernels, pool, prompt, 700, 1100);
  const std::vector<ExpandedBlock> blocks = Blocks(700, 1100);
  State state(400, prompt.shape);
  for (size_t b = 0; b < blocks.size();) {
    const size_t count = std::min(blocks.size() - b, static_cast<size_t>(Pick(1, 2)));
    Run(kernels, pool, prompt, 700, 1100, std::span(blocks).subspan(b, count), state);
    b += count;
  }
  for (int64_t r = 0; r < 400; ++r) ExpectSameRow(state, r, whole, r);
}

TEST_P(ExpandedAttentionTest, RequestsOfOneCallDoNotMix) {
  // Two chunks of the same prompt as two requests of one call; blocks interleaved.
  const Prompt prompt(RandomShape(), 600, random);
  const State whole = RunChunk(kernels, pool, prompt, 0, 600);
  std::vector<ExpandedBlock> blocks;
  for (const ExpandedBlock& block : Blocks(0, 290)) blocks.push_back(block);
  for (ExpandedBlock block : Blocks(290, 600)) {
    block.request.first_row = 290;
    blocks.insert(blocks.begin() + std::min<int64_t>(static_cast<int64_t>(blocks.size()),
                                                     block.first_key / kExpandedBlock * 2),
                  block);
  }
  State state(600, prompt.shape);
  Run(kernels, pool, prompt, 0, 600, blocks, state);
  for (int64_t r = 0; r < 600; ++r) ExpectSameRow(state, r, whole, r);
}

INSTANTIATE_TEST_SUITE_P(Isas, ExpandedAttentionTest, testing::ValuesIn(TestedIsas()), IsaTestName);

}  // namespace
}  // namespace outrider
