// DeepSeek-V4 and its MTP module against the golden file of the bundled checkpoint, and the
// target's rows in any batch, chunk and role.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tests/networks/golden_file.h"
#include "tests/networks/loaded_model.h"

namespace outrider {
namespace {

/// Which tokens of a case run in one step.
struct Piece {
  int golden_case = 0;
  int32_t count = 0;
  Phase phase = Phase::kPromptChunk;
  int32_t wrong_drafts = 0;  // rows behind the piece that are thrown away
};

class DeepSeekV4Golden : public ::testing::Test {
 protected:
  static constexpr int kCases = 5;
  static constexpr double kTolerance = 1e-3;
  /// The names of the golden file begin with what its caches are rounded by.
  struct Cache {
    const char* prefix;
    CacheNumbers numbers;
  };
  static inline const Cache kCaches[] = {{"", DType::kF32},
                                         {"cache.", {DType::kF8E4M3, DType::kF32}}};

  DeepSeekV4Golden() : DeepSeekV4Golden(SelectIsa()) {}
  explicit DeepSeekV4Golden(Isa isa)
      : golden_(GoldenDirectory() / "tiny-v4" / "golden.safetensors"),
        loaded_(TinyV4Directory(), DType::kF32, isa, 2, KvCacheForm::kHeads) {
    for (int c = 0; c < kCases; ++c) {
      ids_.push_back(golden_.Read<int32_t>(fmt::format("case{}.ids", c)));
    }
  }

  Network& network() { return *loaded_.model; }
  int32_t Length(int c) const { return static_cast<int32_t>(ids_[static_cast<size_t>(c)].size()); }

  /// Requests of all cases over one cache, whose groups have blocks of 16 to 256 tokens.
  class Requests {
   public:
    explicit Requests(DeepSeekV4Golden& test, const CacheNumbers& numbers = DType::kF32)
        : test_(test), config_(Config(test, numbers)) {
      for (int c = 0; c < kCases; ++c) {
        tables_.emplace_back();
        for (const CacheGroupSpec& group : config_.groups) {
          tables_.back().emplace_back();
          for (int32_t b = 0; b < group.BlocksBefore(test.Length(c) + kMostDrafts); ++b) {
            tables_.back().back().push_back(config_.num_pages++);
          }
        }
        hidden_.emplace_back(static_cast<size_t>(test.Length(c)) * Width());
        done_.push_back(0);
      }
      cache_ = std::make_unique<KvCache>(test.network().device(), config_,
                                         test.network().cache_needs().layers, numbers);
      layout_ = std::make_unique<BatchLayout>(config_.groups);
    }

    /// Runs pieces of different cases in one step.
    void Step(const std::vector<Piece>& pieces) {
      std::vector<RequestWork> work;
      for (const Piece& piece : pieces) {
        const auto c = static_cast<size_t>(piece.golden_case);
        work.push_back(
            {.slot = piece.golden_case,
             .phase = piece.phase,
             .context_length = done_[c],
             .tokens =
                 std::span(test_.ids_[c])
                     .subspan(static_cast<size_t>(done_[c]), static_cast<size_t>(piece.count)),
             .draft_tokens = std::span(kWrongDrafts).first(static_cast<size_t>(piece.wrong_drafts)),
             .samples = piece.phase == Phase::kDecode,
             .block_tables = tables_[c]});
      }
      layout_->Assign(work);
      std::vector<float> hidden(static_cast<size_t>(layout_->num_rows()) * Width());
      test_.network().Forward(
          *layout_, *cache_,
          Tensor(hidden.data(), layout_->num_rows(), test_.network().output_width()));
      for (const RequestRows& rows : layout_->requests()) {
        const auto c = static_cast<size_t>(rows.slot);
        const int32_t count = rows.query_length - rows.num_drafts;
        std::copy_n(hidden.begin() + rows.first_row * static_cast<int64_t>(Width()),
                    static_cast<size_t>(count) * Width(),
                    hidden_[c].begin() + done_[c] * static_cast<int64_t>(Width()));
        done_[c] += count;
      }
    }

    /// Runs the MTP module on a whole case, which the target has run: all positions but the last.
    /// hidden [tokens - 1, width].
    void RunModule(int c, std::vector<float>& hidden) {
      const std::vector<int32_t>& ids = test_.ids_[static_cast<size_t>(c)];
      layout_->Assign(std::vector{RequestWork{.phase = Phase::kPromptChunk,
                                              .context_length = 0,
                                              .tokens = std::span(ids).subspan(1),
                                              .draft_tokens = {},
                                              .samples = false,
                                              .block_tables = tables_[static_cast<size_t>(c)]}});
      const int64_t width = test_.network().output_width();
      hidden.resize(static_cast<size_t>((test_.Length(c) - 1) * width));
      test_.network().ForwardMtp(
          0, *layout_, *cache_,
          Tensor(hidden_[static_cast<size_t>(c)].data(), test_.Length(c) - 1, width),
          Tensor(hidden.data(), test_.Length(c) - 1, width));
    }

    int32_t Left(int c) const { return test_.Length(c) - done_[static_cast<size_t>(c)]; }
    std::vector<std::vector<float>>& hidden() { return hidden_; }
    size_t Width() const { return static_cast<size_t>(test_.network().output_width()); }

   private:
    static constexpr int32_t kMostDrafts = 5;
    static constexpr int32_t kWrongDrafts[kMostDrafts] = {7, 1500, 7, 3, 11};

    static CacheConfig Config(DeepSeekV4Golden& test, const CacheNumbers& numbers) {
      const NetworkCache needs = test.network().cache_needs();
      CacheConfig config{.groups = needs.groups, .num_pages = 0};
      SizeGroups(config.groups, needs.layers, numbers);
      ChooseBlockSizes(config.groups, 16);
      return config;
    }

    DeepSeekV4Golden& test_;
    CacheConfig config_;
    std::vector<std::vector<std::vector<int32_t>>> tables_;
    std::vector<std::vector<float>> hidden_;  // by case [tokens, hidden]
    std::vector<int32_t> done_;
    std::unique_ptr<KvCache> cache_;
    std::unique_ptr<BatchLayout> layout_;
  };

  /// The last `count` of `length` rows.
  static std::vector<int32_t> LastRows(int64_t length, int64_t count) {
    std::vector<int32_t> rows(static_cast<size_t>(count));
    std::iota(rows.begin(), rows.end(), static_cast<int32_t>(length - count));
    return rows;
  }

  /// The largest difference of a log-probability of a head in the rows that the golden file has,
  /// the last.
  double LargestDifference(const std::string& name, int32_t module, std::vector<float>& hidden) {
    const auto want = golden_.Read<float>(name);
    const int64_t rows = golden_.Shape(name)[0];
    const int64_t vocab = network().vocab_size();
    const int64_t width = network().output_width();
    const int64_t length = static_cast<int64_t>(hidden.size()) / width;
    std::vector<float> got(want.size());
    network().Logits(module, Tensor(hidden.data(), length, width), LastRows(length, rows),
                     Tensor(got.data(), rows, vocab));
    double worst = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const auto log_sum = [&](const std::vector<float>& logits) {
        double sum = 0;
        for (int64_t i = 0; i < vocab; ++i) {
          sum += std::exp(double{logits[static_cast<size_t>(r * vocab + i)]});
        }
        return std::log(sum);
      };
      const double shift = log_sum(got) - log_sum(want);
      for (int64_t i = 0; i < vocab; ++i) {
        const auto at = static_cast<size_t>(r * vocab + i);
        const double difference = std::fabs(got[at] - want[at] - shift);
        worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
      }
    }
    return worst;
  }

  GoldenFile golden_;
  LoadedModel loaded_;
  std::vector<std::vector<int32_t>> ids_;
};

TEST_F(DeepSeekV4Golden, LogProbabilitiesOfAllCases) {
  for (const auto& [prefix, numbers] : kCaches) {
    Requests requests(*this, numbers);
    for (int c = 0; c < kCases; ++c) {
      requests.Step({{.golden_case = c, .count = Length(c)}});
      const std::string name = fmt::format("{}case{}.logits", prefix, c);
      EXPECT_LT(
          LargestDifference(name, Network::kTarget, requests.hidden()[static_cast<size_t>(c)]),
          kTolerance)
          << name;
    }
  }
}

TEST_F(DeepSeekV4Golden, HiddenRowsAndLogProbabilitiesOfTheMtpModule) {
  ASSERT_EQ(network().num_mtp_modules(), 1);
  for (const auto& [prefix, numbers] : kCaches) {
    Requests requests(*this, numbers);
    for (int c = 0; c < kCases; ++c) {
      const std::string name = fmt::format("{}case{}.mtp0", prefix, c);
      SCOPED_TRACE(name);
      requests.Step({{.golden_case = c, .count = Length(c)}});
      std::vector<float> hidden;
      requests.RunModule(c, hidden);
      EXPECT_LT(LargestDifference(name + ".logits", 0, hidden), kTolerance);
      const auto want = golden_.Read<float>(name + ".hidden");
      const int64_t rows = golden_.Shape(name + ".hidden")[0];
      std::vector<float> got(want.size());
      network().HeadInput(0, Tensor(hidden.data(), Length(c) - 1, network().output_width()),
                          LastRows(Length(c) - 1, rows),
                          Tensor(got.data(), rows, network().hidden_size()));
      double worst = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        const double difference = std::fabs(got[i] - want[i]);
        worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
      }
      EXPECT_LT(worst, kTolerance);
    }
  }
}

TEST_F(DeepSeekV4Golden, RowsHaveTheSameBitsInAnyBatchChunkAndRoleAfterAnyDrafts) {
  const CacheNumbers per_tensor(DType::kF8E4M3, DType::kF32, Fp8Form::kPerTensor);
  for (const CacheNumbers& numbers : {CacheNumbers(DType::kF32), per_tensor}) {
    Requests alone(*this, numbers);
    for (int c = 0; c < kCases; ++c) alone.Step({{.golden_case = c, .count = Length(c)}});
    std::mt19937 random(11);
    const auto pick = [&](int32_t from, int32_t to) {
      return from + static_cast<int32_t>(random() % static_cast<uint32_t>(to - from + 1));
    };
    Requests mixed(*this, numbers);
    for (;;) {
      std::vector<Piece> pieces;
      for (int c = 0; c < kCases; ++c) {
        if (mixed.Left(c) == 0 || random() % 4 == 0) continue;
        // The first part of a case is a prompt; what follows are verify rows, some of them wrong.
        const bool decodes = mixed.Left(c) <= Length(c) / 4;
        pieces.push_back({.golden_case = c,
                          .count = std::min(mixed.Left(c), decodes ? pick(1, 6) : pick(1, 170)),
                          .phase = decodes ? Phase::kDecode : Phase::kPromptChunk,
                          .wrong_drafts = decodes ? pick(0, 5) : 0});
      }
      if (!pieces.empty()) mixed.Step(pieces);
      bool left = false;
      for (int c = 0; c < kCases; ++c) left |= mixed.Left(c) > 0;
      if (!left) break;
    }
    for (size_t c = 0; c < kCases; ++c) {
      EXPECT_EQ(mixed.hidden()[c], alone.hidden()[c]) << "case " << c;
    }
  }
}

}  // namespace
}  // namespace outrider
