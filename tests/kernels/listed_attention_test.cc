// Attention over listed entries: every table against the definition and the reference, and every
// row alone with all rows together.
#include <algorithm>
#include <cmath>

#include "tests/kernels/kernel_fixture.h"

namespace outrider {
namespace {

struct ListedCase {
  int32_t heads = 1;
  int32_t width = 32;
  int32_t value_width = 32;
  DType dtype = DType::kF32;
  std::vector<std::vector<int>> lists = {};  // of each row
};

class ListedAttentionTest : public KernelTest {
 protected:
  static constexpr int kEntries = 700;

  /// Entries of one width, behind each other with garbage between them.
  struct Entries {
    Entries(const ListedCase& c, std::mt19937& random)
        : rows(TestMatrix::Random(kEntries, c.width, random)),
          size(DTypeSize(c.dtype)),
          step(static_cast<size_t>(c.width + 5)),
          bytes(kEntries * step * size, std::byte{0xff}) {
      for (float& v : rows.values) v = RoundToBFloat16(v);
      for (int e = 0; e < kEntries; ++e) {
        for (int32_t i = 0; i < c.width; ++i) {
          const float value = rows.view().row(e)[i];
          const size_t at = static_cast<size_t>(e) * step + static_cast<size_t>(i);
          if (c.dtype == DType::kF32) {
            std::memcpy(bytes.data() + at * size, &value, size);
          } else {
            const BFloat16 narrow = ToBFloat16(value);
            std::memcpy(bytes.data() + at * size, &narrow, size);
          }
        }
      }
    }
    const std::byte* At(int e) const { return bytes.data() + static_cast<size_t>(e) * step * size; }

    TestMatrix rows;
    size_t size;
    size_t step;
    std::vector<std::byte> bytes;
  };

  ListedCase RandomCase(int rows, DType dtype) {
    // More heads than AMX takes at a time, now and then.
    ListedCase c{.heads = Pick(0, 2) == 0 ? Pick(60, 130) : Pick(1, 20),
                 .width = Pick(1, 3) * 32 - Pick(0, 1) * 7,
                 .dtype = dtype};
    c.value_width = Pick(0, 1) == 0 ? c.width : Pick(1, c.width);
    for (int r = 0; r < rows; ++r) {
      std::vector<int>& list = c.lists.emplace_back(
          static_cast<size_t>(Pick(0, 3) == 0 ? Pick(1, 600) : 256 * Pick(1, 2) + Pick(-1, 1)));
      for (int& e : list) e = Pick(0, kEntries - 1);
    }
    return c;
  }

  void Run(const KernelTable& table, ThreadPool& threads, const ListedCase& c,
           const Entries& entries, const std::vector<float>& sinks, MatrixView<const float> q,
           MatrixView<float> out, int64_t first_row = 0) {
    size_t most = 0;
    for (const auto& list : c.lists) most = std::max(most, list.size());
    const auto list = [&](int64_t row, const std::byte** to) {
      const auto& of_row = c.lists[static_cast<size_t>(first_row + row)];
      for (const int e : of_row) *to++ = entries.At(e);
      return static_cast<int64_t>(of_row.size());
    };
    table.listed_attention(threads, {.q = q,
                                     .heads = c.heads,
                                     .width = c.width,
                                     .value_width = c.value_width,
                                     .scale = 0.2F,
                                     .sinks = sinks.empty() ? nullptr : sinks.data(),
                                     .dtype = c.dtype,
                                     .most_entries = static_cast<int64_t>(most),
                                     .out = out,
                                     .list = list});
  }

  std::vector<float> Sinks(int32_t heads) {
    std::vector<float> sinks(static_cast<size_t>(heads));
    for (float& sink : sinks) sink = static_cast<float>(Pick(-30, 30)) / 10;
    return sinks;
  }
};

TEST_P(ListedAttentionTest, AgreesWithTheDefinition) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (int round = 0; round < 6; ++round) {
      const ListedCase c = RandomCase(Pick(1, 4), dtype);
      const Entries entries(c, random);
      const std::vector<float> sinks = round % 2 == 0 ? Sinks(c.heads) : std::vector<float>();
      const auto rows = static_cast<int64_t>(c.lists.size());
      const TestMatrix q = TestMatrix::Random(rows, int64_t{c.heads} * c.width, random, 3);
      TestMatrix out(rows, int64_t{c.heads} * c.value_width, 5);
      Run(kernels, pool, c, entries, sinks, q.view(), out.view());
      for (int64_t r = 0; r < rows; ++r) {
        for (int32_t h = 0; h < c.heads; ++h) {
          const float* head = q.view().row(r) + int64_t{h} * c.width;
          double sum = sinks.empty() ? 0 : std::exp(double{sinks[static_cast<size_t>(h)]});
          std::vector<double> want(static_cast<size_t>(c.value_width));
          for (const int e : c.lists[static_cast<size_t>(r)]) {
            const float* entry = entries.rows.view().row(e);
            double dot = 0;
            for (int32_t i = 0; i < c.width; ++i) {
              dot += double{dtype == DType::kF32 ? head[i] : RoundToBFloat16(head[i])} * entry[i];
            }
            const double weight = std::exp(0.2F * dot);
            sum += weight;
            for (int32_t i = 0; i < c.value_width; ++i)
              want[static_cast<size_t>(i)] += weight * entry[i];
          }
          for (int32_t i = 0; i < c.value_width; ++i) {
            // bfloat16 weights are off by 2^-9, in any direction.
            EXPECT_NEAR(out.view().row(r)[int64_t{h} * c.value_width + i],
                        want[static_cast<size_t>(i)] / sum, dtype == DType::kF32 ? 2e-6 : 4e-3);
          }
        }
      }
    }
  }
}

TEST_P(ListedAttentionTest, AgreesWithTheReference) {
  for (const auto& [dtype, with_sinks] :
       {std::pair{DType::kF32, true}, {DType::kBF16, true}, {DType::kBF16, false}}) {
    const ListedCase c = RandomCase(3, dtype);
    const Entries entries(c, random);
    const std::vector<float> sinks = with_sinks ? Sinks(c.heads) : std::vector<float>();
    const TestMatrix q = TestMatrix::Random(3, int64_t{c.heads} * c.width, random);
    TestMatrix out(3, int64_t{c.heads} * c.value_width);
    TestMatrix want(3, int64_t{c.heads} * c.value_width);
    Run(kernels, pool, c, entries, sinks, q.view(), out.view());
    Run(reference, pool, c, entries, sinks, q.view(), want.view());
    // A weight may be rounded to the other side: of one entry among hundreds.
    for (size_t i = 0; i < out.values.size(); ++i) {
      EXPECT_NEAR(out.values[i], want.values[i], dtype == DType::kF32 ? 1e-6 : 2e-4);
    }
  }
}

TEST_P(ListedAttentionTest, RowsHaveTheSameBitsAloneOnAnyNumberOfThreads) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (int round = 0; round < 10; ++round) {
      const ListedCase c = RandomCase(Pick(2, 9), dtype);
      const Entries entries(c, random);
      const std::vector<float> sinks = Sinks(c.heads);
      const auto rows = static_cast<int64_t>(c.lists.size());
      const TestMatrix q = TestMatrix::Random(rows, int64_t{c.heads} * c.width, random);
      TestMatrix out(rows, int64_t{c.heads} * c.value_width);
      Run(kernels, pool, c, entries, sinks, q.view(), out.view());
      TestMatrix alone(1, int64_t{c.heads} * c.value_width);
      for (int64_t r = 0; r < rows; ++r) {
        Run(kernels, r % 2 == 0 ? single : pool, c, entries, sinks, q.view().Rows(r, 1),
            alone.view(), r);
        EXPECT_TRUE(SameBits(alone.values.data(), out.view().row(r), out.view_cols));
      }
    }
  }
}

TEST_P(ListedAttentionTest, LargeScoresAndSinksDoNotOverflow) {
  const ListedCase c{.heads = 1, .width = 32, .dtype = DType::kF32, .lists = {{0, 1}}};
  Entries entries(c, random);
  TestMatrix q(1, 32);
  std::fill(q.values.begin(), q.values.end(), 1e4F);
  TestMatrix out(1, 32);
  Run(kernels, pool, c, entries, {1e6F}, q.view(), out.view());
  for (const float x : out.values) EXPECT_EQ(x, 0);  // the sink takes all
  Run(kernels, pool, c, entries, {-1e6F}, q.view(), out.view());
  for (const float x : out.values) EXPECT_TRUE(std::isfinite(x));
}

INSTANTIATE_TEST_SUITE_P(Isas, ListedAttentionTest, testing::ValuesIn(TestedIsas()), IsaTestName);

}  // namespace
}  // namespace outrider
