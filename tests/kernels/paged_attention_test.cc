// Absorbed and per-head attention over the paged cache: against the reference, over bfloat16
// entries against the definition in double, and the bits of every row alone against batches. Slots
// that a row must not see hold NaN.
//
// Longer than most files: all properties hold for both forms of attention over the same caches.

#include <array>
#include <cmath>

#include "tests/kernels/paged_cache.h"
#include "tests/sanitized.h"

#ifdef OUTRIDER_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

namespace outrider {
namespace {

struct Request {
  int32_t context;
  int32_t length;
  std::vector<int32_t> table;
};

/// Entries hold [key and value of all heads | shared key], or [key of every head | shared key |
/// value of every head].
enum class Entries : uint8_t { kAbsorbed, kPerHead };
constexpr std::array kBothEntries = {Entries::kAbsorbed, Entries::kPerHead};

struct Shape {
  Entries entries;
  int32_t heads, own, shared, value, block_size;
  DType dtype;
  int32_t split = kPagedSplit;  // of absorbed attention
  int32_t heads_per_group = 1;  // of per-head attention
  int32_t window = 0;           // of per-head attention; 0: all keys

  int32_t kv_heads() const { return heads / heads_per_group; }
  int32_t width() const {
    return entries == Entries::kAbsorbed ? own + shared : kv_heads() * (own + value) + shared;
  }
  /// The first key that the row at `position` sees.
  int64_t FirstKey(int64_t position) const {
    return window > 0 ? std::max<int64_t>(0, position + 1 - window) : 0;
  }
  int32_t query_width() const { return own + shared; }
  /// Element i of head h's key, and of its value, in an entry.
  int32_t KeyElement(int32_t h, int32_t i) const {
    if (entries == Entries::kAbsorbed) return i;
    return i < own ? h / heads_per_group * own + i : kv_heads() * own + i - own;
  }
  int32_t ValueElement(int32_t h, int32_t i) const {
    if (entries == Entries::kAbsorbed) return i;
    return kv_heads() * own + shared + h / heads_per_group * value + i;
  }
};

/// Small, of this kind; absorbed values are the key's own part.
Shape SmallShape(Entries entries, int32_t heads, int32_t own, int32_t shared, int32_t value,
                 DType dtype = DType::kF32) {
  return {.entries = entries,
          .heads = heads,
          .own = own,
          .shared = shared,
          .value = entries == Entries::kAbsorbed ? own : value,
          .block_size = 16,
          .dtype = dtype};
}

/// exp(s_t - m) as it weighs a value.
struct Weight {
  double value = 0;
  // Half the distance of the two bfloat16 numbers that it may be rounded to: then `value` lies
  // between them, so near to their middle that the order of a score's sum decides. Else zero.
  double half_step = 0;
};

/// A score with how far its float32 sum is likely to be off.
struct Score {
  double value = 0;
  double deviation = 0;
};

/// The weight of a score beside the largest one of its split.
Weight WeightOf(const Score& score, const Score& max, bool is_bfloat16) {
  const double exact = std::exp(score.value - max.value);
  if (!is_bfloat16) return {exact, 0};
  int exponent = 0;
  const double fraction = std::frexp(exact, &exponent) * 256;  // in steps, 128 <= fraction < 256
  const double step = std::ldexp(1.0, exponent - 8);
  // Four standard deviations of both scores, and of the exponential, its argument and the scaled
  // scores a rounding each.
  const double error = 4 * std::hypot(score.deviation, max.deviation) +
                       std::ldexp(1 + std::abs(score.value) + std::abs(max.value), -23);
  const double middle = std::floor(fraction) + 0.5;
  if (std::abs(fraction - middle) <= error * fraction) return {middle * step, step / 2};
  return {std::nearbyint(fraction) * step, 0};
}

class PagedAttentionTest : public KernelTest {
 protected:
  /// Requests of these (context, query length), with their cache filled and random queries.
  struct Batch {
    Batch(const Shape& batch_shape, const std::vector<std::pair<int32_t, int32_t>>& lengths,
          std::mt19937& random)
        : shape(batch_shape),
          paged(shape.dtype, shape.block_size, shape.width(), Blocks(shape, lengths), random),
          q(Rows(lengths), shape.heads * shape.query_width()) {
      for (const auto& [context, length] : lengths) {
        requests.push_back({context, length, paged.Allocate(context + length)});
        paged.Fill(requests.back().table, 0, context + length, random);
      }
      q = TestMatrix::Random(q.view_rows, q.view_cols, random, 1);
    }

    static int32_t Blocks(const Shape& shape,
                          const std::vector<std::pair<int32_t, int32_t>>& lengths) {
      int32_t blocks = 3;
      for (const auto& [context, length] : lengths) {
        blocks += (context + length + shape.block_size - 1) / shape.block_size;
      }
      return blocks;
    }
    static int64_t Rows(const std::vector<std::pair<int32_t, int32_t>>& lengths) {
      int64_t rows = 0;
      for (const auto& [context, length] : lengths) rows += length;
      return rows;
    }

    TestMatrix Run(const KernelTable& kernels, ThreadPool& pool) {
      std::vector<AttentionSpan> spans;
      int32_t row = 0;
      for (const Request& r : requests) {
        spans.push_back({row, r.length, r.context, r.table.data()});
        row += r.length;
      }
      return RunSpans(kernels, pool, spans, q.view());
    }

    /// Absorbed attention of some heads, as a rank has them.
    TestMatrix RunHeads(const KernelTable& kernels, ThreadPool& pool, int32_t first,
                        int32_t count) {
      std::vector<AttentionSpan> spans;
      int32_t row = 0;
      for (const Request& r : requests) {
        spans.push_back({row, r.length, r.context, r.table.data()});
        row += r.length;
      }
      TestMatrix out(row, count * shape.value, 3);
      const int64_t width = shape.query_width();
      kernels.absorbed_attention(
          pool, {.q = MatrixView<const float>(q.view()).Columns(first * width, count * width),
                 .heads = count,
                 .model_heads = shape.heads,
                 .latent = shape.own,
                 .rope = shape.shared,
                 .scale = 1.0F / std::sqrt(static_cast<float>(width)),
                 .cache = paged.cache(),
                 .requests = spans,
                 .out = out.view(),
                 .split = shape.split});
      return out;
    }

    /// Row j of request i as the only row of a call.
    TestMatrix RunAlone(const KernelTable& kernels, ThreadPool& pool, size_t i, int32_t j) {
      int64_t row = j;
      for (size_t before = 0; before < i; ++before) row += requests[before].length;
      const AttentionSpan span = {0, 1, requests[i].context + j, requests[i].table.data()};
      return RunSpans(kernels, pool, {span}, q.view().Rows(row, 1));
    }

    TestMatrix RunSpans(const KernelTable& kernels, ThreadPool& pool,
                        const std::vector<AttentionSpan>& spans, MatrixView<const float> rows) {
      TestMatrix out(rows.rows, shape.heads * shape.value, 3);
      out.values.assign(out.values.size(), kNaN);
      const float scale = 1.0f / std::sqrt(static_cast<float>(shape.query_width()));
      if (shape.entries == Entries::kAbsorbed) {
        kernels.absorbed_attention(pool, {.q = rows,
                                          .heads = shape.heads,
                                          .latent = shape.own,
                                          .rope = shape.shared,
                                          .scale = scale,
                                          .cache = paged.cache(),
                                          .requests = spans,
                                          .out = out.view(),
                                          .split = shape.split});
      } else {
        kernels.per_head_attention(pool, {.q = rows,
                                          .heads = shape.heads,
                                          .kv_heads = shape.kv_heads(),
                                          .window = shape.window,
                                          .nope = shape.own,
                                          .rope = shape.shared,
                                          .value = shape.value,
                                          .scale = scale,
                                          .cache = paged.cache(),
                                          .requests = spans,
                                          .out = out.view()});
      }
      return out;
    }

    /// Queries and keys of the first request by which exp(s_t - m) is exact[t], for all heads,
    /// where a key of weight 1 is among those of every split.
    void SetWeights(const std::vector<double>& exact) {
      std::fill(q.values.begin(), q.values.end(), 0.0F);
      for (int64_t row = 0; row < q.view_rows; ++row) {
        for (int32_t i = 0; i < shape.heads * 3; ++i) {
          q.view().row(row)[i / 3 * shape.query_width() + shape.own + i % 3] = 1;
        }
      }
      for (size_t t = 0; t < exact.size(); ++t) {
        double left = std::log(exact[t]) * std::sqrt(shape.query_width());
        for (int32_t i = 0; i < 3; ++i) {
          const float part = RoundToBFloat16(static_cast<float>(left));
          left -= part;
          paged.Set(Entry(static_cast<int64_t>(t)) + shape.KeyElement(0, shape.own + i), part);
        }
      }
    }

    /// Element i of head h's value at a position of the first request.
    float Value(int64_t position, int32_t h, int32_t i) {
      return paged.Get(Entry(position) + shape.ValueElement(h, i));
    }
    void SetValue(int64_t position, int32_t h, int32_t i, float value) {
      paged.Set(Entry(position) + shape.ValueElement(h, i), value);
    }
    int64_t Entry(int64_t position) { return paged.Element(requests[0].table, position); }

    Shape shape;
    PagedCache paged;
    std::vector<Request> requests;
    TestMatrix q;
  };

  void ExpectRowsAlone(Batch& batch, const TestMatrix& together) {
    int64_t row = 0;
    for (size_t i = 0; i < batch.requests.size(); ++i) {
      for (int32_t j = 0; j < batch.requests[i].length; ++j, ++row) {
        const TestMatrix alone = batch.RunAlone(kernels, single, i, j);
        ASSERT_TRUE(SameBits(alone.values.data(), together.view().row(row), together.view_cols))
            << "row " << j << " of " << batch.requests[i].length << ", context "
            << batch.requests[i].context << ", heads " << batch.shape.heads;
      }
    }
  }

  void ExpectLikeReference(Batch& batch) {
    const TestMatrix got = batch.Run(kernels, pool);
    const TestMatrix want = batch.Run(reference, pool);
    for (int64_t r = 0; r < got.view_rows; ++r) {
      for (int64_t i = 0; i < got.view_cols; ++i) {
        ASSERT_NEAR(got.view().row(r)[i], want.view().row(r)[i], 5e-6);
      }
    }
  }

  /// One head of one row by the definition, in double.
  struct HeadOutput {
    std::vector<double> values;
    std::vector<double> allowance;  // by which weights near to a middle may change a value
    bool has_allowance = false;
  };

  /// `row` of the batch, which is the request's row at position keys - 1.
  static HeadOutput Define(Batch& batch, const Request& request, int64_t row, int32_t h,
                           int64_t keys) {
    const Shape& shape = batch.shape;
    const bool is_bfloat16 = shape.dtype == DType::kBF16;
    const double scale = 1.0F / std::sqrt(static_cast<float>(shape.query_width()));
    const float* query = batch.q.view().row(row) + h * shape.query_width();
    std::vector<Score> scores;
    const int64_t first_key = shape.FirstKey(keys - 1);
    for (int64_t t = first_key; t < keys; ++t) {
      const int64_t entry = batch.paged.Element(request.table, t);
      double dot = 0;
      double squares = 0;  // of the sums of a chain, which err by 2^-25 of themselves or so
      for (int32_t i = 0; i < shape.query_width(); ++i) {
        const float q = is_bfloat16 ? RoundToBFloat16(query[i]) : query[i];
        dot += double{q} * batch.paged.Get(entry + shape.KeyElement(h, i));
        squares += dot * dot;
      }
      scores.push_back({scale * dot, scale * std::ldexp(std::sqrt(squares), -25)});
    }
    // Splits have their own maxima, by which weights are rounded; then all meet the last one.
    double largest = scores[0].value;
    for (const Score& score : scores) largest = std::max(largest, score.value);
    const auto split = static_cast<size_t>(shape.split);
    const auto skipped = static_cast<size_t>(first_key) % split;  // of the first key's split
    std::vector<Weight> weights;
    for (size_t first = 0, end = 0; first < scores.size(); first = end) {
      end = std::min(scores.size(), ((first + skipped) / split + 1) * split - skipped);
      Score max = scores[first];
      for (size_t t = first; t < end; ++t) {
        if (scores[t].value > max.value) max = scores[t];
      }
      const double factor = std::exp(max.value - largest);
      for (size_t t = first; t < end; ++t) {
        const Weight weight = WeightOf(scores[t], max, is_bfloat16);
        weights.push_back({weight.value * factor, weight.half_step * factor});
      }
    }
    double sum = 0;
    double open = 0;
    for (const Weight& weight : weights) {
      sum += weight.value;
      open += weight.half_step;
    }
    HeadOutput out = {.values = std::vector<double>(static_cast<size_t>(shape.value)),
                      .allowance = std::vector<double>(static_cast<size_t>(shape.value)),
                      .has_allowance = open > 0};
    const auto each_value = [&](auto&& take) {
      for (size_t t = 0; t < weights.size(); ++t) {
        const int64_t entry =
            batch.paged.Element(request.table, first_key + static_cast<int64_t>(t));
        for (int32_t i = 0; i < shape.value; ++i) {
          take(weights[t], static_cast<size_t>(i),
               double{batch.paged.Get(entry + shape.ValueElement(h, i))});
        }
      }
    };
    each_value([&](const Weight& weight, size_t i, double value) {
      out.values[i] += weight.value * value / sum;
    });
    if (!out.has_allowance) return out;
    each_value([&](const Weight& weight, size_t i, double value) {
      out.allowance[i] += weight.half_step * std::abs(value - out.values[i]) / (sum - open);
    });
    return out;
  }

  /// Every output against the definition: within `tolerance`, and what the weights may change it by
  /// whose rounding the order of sums decides. Most rows have none of those.
  void ExpectLikeDefinition(Batch& batch, double tolerance) {
    const TestMatrix got = batch.Run(kernels, pool);
    int64_t row = 0;
    for (const Request& r : batch.requests) {
      for (int32_t j = 0; j < r.length; ++j, ++row) {
        for (int32_t h = 0; h < batch.shape.heads; ++h) {
          const HeadOutput want = Define(batch, r, row, h, r.context + j + 1);
          ++compared_rows;
          if (want.has_allowance) ++rows_with_allowance;
          for (size_t i = 0; i < want.values.size(); ++i) {
            const auto column = static_cast<size_t>(h * batch.shape.value) + i;
            ASSERT_NEAR(got.view().row(row)[column], want.values[i], tolerance + want.allowance[i])
                << "row " << j << " of " << r.length << ", context " << r.context << ", head " << h
                << " of " << batch.shape.heads;
          }
        }
      }
    }
  }

  /// The reference where its products are exact enough, else the definition.
  void ExpectAgreement(Batch& batch) {
    if (batch.shape.dtype == DType::kBF16) {
      ExpectLikeDefinition(batch, 5e-6);
    } else if (!IsReference()) {
      ExpectLikeReference(batch);
    }
  }

  int64_t compared_rows = 0;  // with the definition, heads counted apart
  int64_t rows_with_allowance = 0;

  Shape RandomShape(bool small) {
    const bool absorbed = Pick(0, 1) == 0;
    const int heads[] = {1, 8, 16, 68};
    const int windows[] = {1, 40, 256, 300, 512};
    // Own, shared and value widths; some are not whole vectors.
    const int absorbed_widths[][3] = {{64, 16, 64}, {20, 6, 20}, {512, 64, 512}};
    const int per_head_widths[][3] = {{64, 64, 64}, {12, 6, 20}, {192, 64, 256}};
    const int* width = (absorbed ? absorbed_widths : per_head_widths)[Pick(0, small ? 1 : 2)];
    Shape shape = {.entries = absorbed ? Entries::kAbsorbed : Entries::kPerHead,
                   .heads = heads[Pick(0, small ? 3 : 2)],
                   .own = width[0],
                   .shared = width[1],
                   .value = width[2],
                   .block_size = Pick(0, 1) == 0 ? 16 : 64,
                   .dtype = Pick(0, 1) == 0 ? DType::kBF16 : DType::kF32};
    if (!absorbed) {
      if (Pick(0, 1) == 0) shape.heads_per_group = shape.heads == 68 ? 17 : shape.heads;
      if (Pick(0, 1) == 0) shape.window = windows[Pick(0, 4)];
      if (Pick(0, 2) == 0) shape.shared = 0;
    }
    return shape;
  }

  bool IsReference() const { return GetParam() == Isa::kReference; }
};

TEST_P(PagedAttentionTest, AgreesWithTheDefinition) {
  for (const Entries entries : kBothEntries) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const Shape shape = SmallShape(entries, 2, 16, 8, 12, dtype);
      Batch batch(shape, {{0, 3}, {300, 2}, {511, 1}}, random);
      ExpectLikeDefinition(batch, 3e-6);
    }
  }
}

TEST_P(PagedAttentionTest, AgreesOnRandomBatches) {
  for (int trial = 0; trial < (kSanitized ? 4 : 20); ++trial) {
    std::vector<std::pair<int32_t, int32_t>> lengths;
    for (int i = Pick(1, 4); i > 0; --i) {
      lengths.emplace_back(Pick(0, 700),
                           trial % 5 == 0 ? Pick(50, kSanitized ? 60 : 150) : Pick(1, 9));
    }
    Batch batch(RandomShape(trial % 4 != 0), lengths, random);
    if (trial % 3 == 0 && batch.shape.entries == Entries::kAbsorbed) {
      batch.shape.split = Pick(1, 1000);
    }
    ExpectAgreement(batch);
    if (HasFatalFailure()) return;
  }
  // About a third.
  EXPECT_LT(rows_with_allowance, compared_rows * 2 / 5);
}

TEST_P(PagedAttentionTest, AgreesAtTheWidthsOfDeepSeekModels) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const int32_t heads : {16, 64, 68}) {
      Batch batch(SmallShape(Entries::kAbsorbed, heads, 512, 64, 512, dtype),
                  {{70, 4}, {255, 3}, {0, 1}}, random);
      ExpectAgreement(batch);
      if (HasFatalFailure()) return;
    }
  }
  // 228 of 1184.
  EXPECT_LT(rows_with_allowance, compared_rows / 4);
}

TEST_P(PagedAttentionTest, WeightsOverBFloat16EntriesAreRounded) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const int32_t heads : {1, 8, 68}) {
      for (const Entries entries : kBothEntries) {
        Batch batch(SmallShape(entries, heads, 20, 6, 20, dtype), {{400, 3}}, random);
        std::vector<double> exact;
        std::vector<double> weights;
        for (int t = 0; t < 403; ++t) {
          const double rounded = t % kPagedSplit == 0 ? 1.0 : Pick(129, 255) / 256.0;
          const double off = t % kPagedSplit == 0 ? 0.0 : (Pick(0, 1) == 0 ? 0.4 : -0.4) / 256;
          exact.push_back(rounded + off);
          weights.push_back(dtype == DType::kBF16 ? rounded : rounded + off);
        }
        batch.SetWeights(exact);
        const TestMatrix out = batch.Run(kernels, pool);
        for (int32_t i = 0; i < heads * batch.shape.value; ++i) {
          double weighted = 0;
          double sum = 0;
          for (int32_t t = 0; t < 403; ++t) {
            const int32_t h = i / batch.shape.value;
            const double value = batch.Value(t, h, i % batch.shape.value);
            weighted += weights[static_cast<size_t>(t)] * value;
            sum += weights[static_cast<size_t>(t)];
            if (t < 400) continue;
            ASSERT_NEAR(out.view().row(t - 400)[i], weighted / sum, 2e-6)
                << "heads " << heads << ", " << DTypeName(dtype);
          }
        }
      }
    }
  }
}

TEST_P(PagedAttentionTest, WeightsAddUpToOne) {
  for (const int32_t heads : {1, 8, 68}) {
    for (const Entries entries : kBothEntries) {
      Batch batch(SmallShape(entries, heads, 20, 6, 20, DType::kBF16), {{400, 3}}, random);
      std::vector<double> exact;
      for (int t = 0; t < 403; ++t) {
        // All are rounded to the same side.
        exact.push_back(t % kPagedSplit == 0 ? 1.0 : (Pick(129, 254) + 0.4) / 256);
        for (int32_t i = 0; i < heads * batch.shape.value; ++i) {
          batch.SetValue(t, i / batch.shape.value, i % batch.shape.value, 1);
        }
      }
      batch.SetWeights(exact);
      const TestMatrix out = batch.Run(kernels, pool);
      for (int64_t r = 0; r < 3; ++r) {
        for (int64_t i = 0; i < out.view_cols; ++i) ASSERT_NEAR(out.view().row(r)[i], 1, 1e-6);
      }
    }
  }
}

TEST_P(PagedAttentionTest, RowsHaveTheSameBitsAloneAtEveryQueryLength) {
  for (int32_t length = 1; length <= 33; ++length) {
    Batch batch(RandomShape(true), {{Pick(0, 300), length}}, random);
    ExpectRowsAlone(batch, batch.Run(kernels, pool));
  }
  // A prompt, longer than a tile and across an edge of the splits.
  const int32_t length = IsReference() ? 70 : 200;
  Batch batch(SmallShape(Entries::kPerHead, 3, 64, 64, 64, DType::kBF16), {{200, length}}, random);
  ExpectRowsAlone(batch, batch.Run(kernels, pool));
}

TEST_P(PagedAttentionTest, RowsHaveTheSameBitsAloneAroundEveryEdge) {
  const std::vector<int32_t> contexts = {0,   1,   15,  16,  17,  31,  32,  63,  64,
                                         253, 254, 255, 256, 257, 510, 511, 512, 513};
  for (size_t i = 0; i < contexts.size(); i += 3) {
    Batch batch(
        RandomShape(IsReference() || i % 2 == 0),
        {{contexts[i], Pick(1, 5)}, {contexts[i + 1], Pick(1, 5)}, {contexts[i + 2], Pick(1, 5)}},
        random);
    ExpectRowsAlone(batch, batch.Run(kernels, pool));
  }
}

TEST_P(PagedAttentionTest, RowsHaveTheSameBitsInRandomBatchesOnAnyNumberOfThreads) {
  ThreadPool seven(7);
  const int trials = IsReference() ? 2 : kSanitized ? 4 : 10;
  for (int trial = 0; trial < trials; ++trial) {
    std::vector<std::pair<int32_t, int32_t>> lengths;
    for (int i = Pick(1, 5); i > 0; --i) {
      lengths.emplace_back(Pick(0, trial % 3 == 0 ? 2000 : 300), Pick(1, 6));
    }
    Batch batch(RandomShape(IsReference() || trial % 3 != 0), lengths, random);
    const TestMatrix two = batch.Run(kernels, pool);
    const TestMatrix one = batch.Run(kernels, single);
    const TestMatrix many = batch.Run(kernels, seven);
    for (int64_t r = 0; r < two.view_rows; ++r) {
      ASSERT_TRUE(SameBits(two.view().row(r), one.view().row(r), two.view_cols));
      ASSERT_TRUE(SameBits(two.view().row(r), many.view().row(r), two.view_cols));
    }
    ExpectRowsAlone(batch, two);
  }
}

// Ranks that share a model have some of its heads each: how keys are split, and which kernel runs,
// follow from the heads of the model.
TEST_P(PagedAttentionTest, HeadsHaveTheSameBitsOnRanksThatShareThem) {
  for (const int32_t heads : {8, IsReference() ? 16 : 128}) {
    Shape shape = SmallShape(Entries::kAbsorbed, heads, 64, 16, 64, DType::kBF16);
    Batch batch(shape, {{700, 3}, {17, 1}, {300, 40}}, random);
    const TestMatrix whole = batch.Run(kernels, pool);
    for (const int32_t ranks : {2, 4, 8}) {
      const int32_t own = heads / ranks;
      for (int32_t rank = 0; rank < ranks; ++rank) {
        const TestMatrix part = batch.RunHeads(kernels, pool, rank * own, own);
        for (int64_t r = 0; r < part.view_rows; ++r) {
          ASSERT_TRUE(SameBits(part.view().row(r),
                               whole.view().row(r) + int64_t{rank} * own * shape.value,
                               part.view_cols))
              << "row " << r << ", rank " << rank << " of " << ranks << ", " << heads << " heads";
        }
      }
    }
  }
}

TEST_P(PagedAttentionTest, LaterKeysHaveNoInfluenceWhateverTheyHold) {
  for (const int32_t context : {0, 30, 250, 255, 256, 600}) {
    for (const int32_t heads : {1, 8, 64}) {
      for (const Entries entries : kBothEntries) {
        const Shape shape = SmallShape(entries, heads, 64, 16, 32, DType::kBF16);
        Batch batch(shape, {{context, 12}, {5, 2}}, random);
        const TestMatrix before = batch.Run(kernels, pool);
        const int32_t first_bad = Pick(1, 11);
        batch.paged.Poison(batch.requests[0].table, context + first_bad, context + 12);
        const TestMatrix after = batch.Run(kernels, pool);
        for (int64_t r = 0; r < 14; ++r) {
          const bool sees_nan = r >= first_bad && r < 12;
          if (sees_nan) {
            ASSERT_TRUE(std::isnan(after.view().row(r)[0])) << r;
          } else {
            ASSERT_TRUE(SameBits(before.view().row(r), after.view().row(r), before.view_cols)) << r;
          }
        }
      }
    }
  }
}

TEST_P(PagedAttentionTest, WindowsAndGroupsOfHeadsAgreeWithTheDefinition) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int32_t window : {1, 7, 256, 300, 1024}) {
      Shape shape = SmallShape(Entries::kPerHead, 12, 16, 0, 16, dtype);
      shape.heads_per_group = 3;
      shape.window = window;
      // Windows that begin at a split, one before and one after it; more than a group of splits.
      Batch batch(shape, {{0, 3}, {window + 254, 3}, {1400, 2}, {255, 1}}, random);
      ExpectLikeDefinition(batch, 3e-6);
      if (HasFatalFailure()) return;
      ExpectRowsAlone(batch, batch.Run(kernels, pool));
    }
  }
}

TEST_P(PagedAttentionTest, KeysBeforeTheWindowAreNotRead) {
  constexpr int32_t kWindow = 100;
  for (const int32_t context : {130, 512, 1500}) {
    Shape shape = SmallShape(Entries::kPerHead, 8, 64, 0, 32, DType::kBF16);
    shape.heads_per_group = 4;
    shape.window = kWindow;
    Batch batch(shape, {{context, 3}}, random);
    const TestMatrix before = batch.Run(kernels, pool);
    // The first row sees keys from context - 99 on: the blocks before are no longer the request's.
    const int32_t first = context + 1 - kWindow;
    batch.paged.Poison(batch.requests[0].table, 0, first);
    for (int32_t b = 0; b < first / shape.block_size; ++b) {
      batch.requests[0].table[static_cast<size_t>(b)] = -1;
    }
    const TestMatrix after = batch.Run(kernels, pool);
    ASSERT_TRUE(SameBits(before.values.data(), after.values.data(), before.values.size()));
    // The key at `first` is seen by the first row alone.
    batch.paged.Poison(batch.requests[0].table, first, first + 1);
    const TestMatrix seen = batch.Run(kernels, pool);
    EXPECT_TRUE(std::isnan(seen.view().row(0)[0]));
    EXPECT_TRUE(SameBits(seen.view().row(1), after.view().row(1), after.view_cols));
  }
}

#ifdef OUTRIDER_ADDRESS_SANITIZER
TEST_P(PagedAttentionTest, EntriesPastTheLastPositionAreNeverRead) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const int32_t heads : {4, 64}) {
      for (const Entries entries : kBothEntries) {
        Shape shape = SmallShape(entries, heads, 20, 6, 10, dtype);
        shape.block_size = 64;
        Batch batch(shape, {{259, 3}}, random);
        const LayerCache cache = batch.paged.cache();
        const int64_t entry_bytes = cache.width * static_cast<int64_t>(DTypeSize(dtype));
        std::byte* unread = cache.data + batch.paged.Element(batch.requests[0].table, 262) *
                                             static_cast<int64_t>(DTypeSize(dtype));
        const auto bytes = static_cast<size_t>((64 - 262 % 64) * entry_bytes);
        ASAN_POISON_MEMORY_REGION(unread, bytes);
        const TestMatrix out = batch.Run(kernels, pool);
        ASAN_UNPOISON_MEMORY_REGION(unread, bytes);
        EXPECT_FALSE(std::isnan(out.values[0]));
      }
    }
  }
}
#endif

TEST_P(PagedAttentionTest, LargeScoresDoNotOverflow) {
  for (const Entries entries : kBothEntries) {
    Batch batch(SmallShape(entries, 2, 16, 8, 16), {{600, 2}}, random);
    for (float& v : batch.q.values) v *= 1000;
    const TestMatrix out = batch.Run(kernels, pool);
    for (int64_t r = 0; r < 2; ++r) {
      for (int64_t i = 0; i < 32; ++i) EXPECT_TRUE(std::isfinite(out.view().row(r)[i]));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, PagedAttentionTest, testing::ValuesIn(TestedIsas()), IsaTestName);

}  // namespace
}  // namespace outrider
