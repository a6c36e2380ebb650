// Compressors against double precision, and the equality of an entry's bits however its tokens were
// cut into steps. Needs a GPU of compute capability 9.0. Long because it has its own reference.
#include "outrider/kernels/cuda/compressed/compress_entries.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "outrider/base/error.h"
#include "tests/kernels/cuda/compressed/device_compressed_rows.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/kernels/cuda/sparse/expected_codes.h"

namespace outrider::cuda {
namespace {

struct CompressorShape {
  const char* name;
  int width;
  int other_width;  // of a second compressor, or 0
  int ratio;
  bool overlaps;
  bool codes = false;  // entries are e4m3, the narrow ones of overlaps with a scale each
  bool rounds = false;
};

constexpr float kEpsilon = 1e-6F;
constexpr float kMagnitude = 1.25F;
constexpr int kEntriesOfBlock = 4;
constexpr int kGap = 16;  // numbers of something else behind a block

float Frequency(int i) { return std::pow(10000.0F, -static_cast<float>(i) / 32); }

/// One compressor over the tokens of some requests, whose rows and entries are in blocks in any
/// order.
class World {
 public:
  World(std::mt19937& random, const CompressorShape& shape, int width, std::vector<int> lengths,
        int state_block)
      : width_(width),
        channels_(shape.overlaps ? 2 * width : width),
        ratio_(shape.ratio),
        overlaps_(shape.overlaps),
        codes_(shape.codes),
        rounds_(shape.rounds),
        state_block_(state_block),
        lengths_(std::move(lengths)) {
    for (const int length : lengths_) {
      x_.push_back(NormalFloats(random, static_cast<size_t>(length) * 2 * channels_, 2.0F));
    }
    bias_ = NormalFloats(random, static_cast<size_t>(ratio_) * channels_);
    norm_ = NormalFloats(random, static_cast<size_t>(width_));
    const int most = *std::max_element(lengths_.begin(), lengths_.end());
    blocks_of_request_ = most / state_block_ + 1;
    std::vector<int> blocks(lengths_.size() * blocks_of_request_);
    std::iota(blocks.begin(), blocks.end(), 0);
    std::mt19937 order(random());  // one draw, however many blocks there are
    std::shuffle(blocks.begin(), blocks.end(), order);
    blocks_ = blocks;
    entry_blocks_of_request_ = most / ratio_ / kEntriesOfBlock + 1;
    Clear();
  }

  int width() const { return width_; }

  /// Forgets all rows and entries.
  void Clear() {
    states_ = DeviceArray<float>(blocks_.size() * StateStride() / sizeof(float));
    entries_ = DeviceArray<uint16_t>(lengths_.size() * entry_blocks_of_request_ * EntryStride());
  }

  /// From this position on, rows are those of other tokens: rejected drafts.
  void DraftFrom(int position) { drafted_from_ = position; }

  /// Writes the rows of `step` to the cache, as products do; requests of `windows` have their
  /// places in block tables.
  Compressor Prepare(const std::vector<Window>& windows, const std::vector<SparseRow>& step,
                     int padding) {
    std::vector<int64_t> entry_slots;
    for (const SparseRow& row : step) {
      const float* of_row = Row(row.request, row.position);
      const float sign = row.position < drafted_from_ ? 1.0F : -1.0F;
      const size_t at = static_cast<size_t>(Block(row.request, row.position / state_block_)) *
                            StateStride() / sizeof(float) +
                        static_cast<size_t>(row.position % state_block_) * 2 * channels_;
      std::vector<float> numbers(of_row, of_row + 2 * channels_);
      for (float& number : numbers) number *= sign;
      CudaOk(cudaMemcpy(states_.data() + at, numbers.data(), numbers.size() * sizeof(float),
                        cudaMemcpyHostToDevice),
             "a row");
      entry_slots.push_back(int64_t{row.request} * entry_blocks_of_request_ * kEntriesOfBlock *
                                ratio_ +
                            row.position);
    }
    entry_slots.insert(entry_slots.end(), static_cast<size_t>(padding), -1);
    std::vector<int> tables;
    for (const Window& window : windows) {
      for (int i = 0; i < blocks_of_request_; ++i) tables.push_back(Block(window.request, i));
    }
    d_entry_slots_ = DeviceArray<int64_t>(entry_slots);
    d_tables_ = DeviceArray<int>(tables);
    d_bias_ = DeviceArray<float>(bias_);
    d_norm_ = DeviceArray<float>(norm_);
    Compressor c;
    c.width = width_;
    c.ratio = ratio_;
    c.overlaps = overlaps_;
    c.states = states_.data();
    c.state_block_stride = static_cast<int64_t>(StateStride());
    c.state_block_size = state_block_;
    c.state_blocks = d_tables_.data();
    c.state_blocks_stride = blocks_of_request_;
    c.bias = d_bias_.data();
    c.norm = d_norm_.data();
    c.entries = entries_.data();
    c.codes = codes_;
    c.rounds = rounds_;
    c.entry_block_stride = static_cast<int64_t>(EntryStride() * sizeof(uint16_t));
    c.entry_block_size = kEntriesOfBlock;
    c.entry_slots = d_entry_slots_.data();
    return c;
  }

  /// All entries' memory.
  std::vector<uint16_t> Entries() const { return entries_.Download(); }

  size_t EntryAt(int request, int entry) const {
    return BlockAt(request, entry) + static_cast<size_t>(entry % kEntriesOfBlock) * EntryNumbers();
  }
  /// What an entry takes; codes count in pairs.
  size_t EntryNumbers() const { return static_cast<size_t>(codes_ ? width_ / 2 : width_); }
  bool HasScales() const { return codes_ && width_ == kIndexDim && overlaps_; }
  /// Two numbers: an entry's scale.
  size_t ScaleAt(int request, int entry) const {
    return BlockAt(request, entry) + kEntriesOfBlock * EntryNumbers() +
           static_cast<size_t>(entry % kEntriesOfBlock) * 2;
  }

  /// Entry `entry` in double precision.
  std::vector<double> Wanted(int request, int entry) const {
    const int first = entry * ratio_;
    std::vector<double> out;
    double squares = 0;
    for (int i = 0; i < width_; ++i) {
      double sum = 0;
      double pooled = 0;
      const auto add = [&](int position, int channel) {
        const float* row = Row(request, position);
        const double gate = double{row[channels_ + channel]} +
                            bias_[static_cast<size_t>(position % ratio_ * channels_ + channel)];
        sum += std::exp(gate);
        pooled += std::exp(gate) * row[channel];
      };
      for (int p = first - ratio_; overlaps_ && first > 0 && p < first; ++p) add(p, i);
      for (int p = first; p < first + ratio_; ++p) add(p, overlaps_ ? width_ + i : i);
      out.push_back(pooled / sum);
      squares += out.back() * out.back();
    }
    const double factor = 1 / std::sqrt(squares / width_ + double{kEpsilon});
    for (size_t i = 0; i < out.size(); ++i) out[i] *= norm_[i] * factor;
    for (int i = 0; i < 32; ++i) {
      double& a = out[static_cast<size_t>(width_ - 64 + 2 * i)];
      double& b = out[static_cast<size_t>(width_ - 64 + 2 * i + 1)];
      const double angle = static_cast<float>(first) * Frequency(i);
      const double rotated = (a * std::cos(angle) - b * std::sin(angle)) * kMagnitude;
      b = (a * std::sin(angle) + b * std::cos(angle)) * kMagnitude;
      a = rotated;
    }
    return out;
  }

 private:
  size_t BlockAt(int request, int entry) const {
    return (static_cast<size_t>(request) * entry_blocks_of_request_ + entry / kEntriesOfBlock) *
           EntryStride();
  }
  size_t StateStride() const {
    return static_cast<size_t>(state_block_ * 2 * channels_ + kGap) * sizeof(float);
  }
  size_t EntryStride() const { return static_cast<size_t>(kEntriesOfBlock * width_ + kGap); }
  int Block(int request, int i) const {
    return blocks_[static_cast<size_t>(request * blocks_of_request_ + i)];
  }
  const float* Row(int request, int position) const {
    return x_[static_cast<size_t>(request)].data() + int64_t{position} * 2 * channels_;
  }

  int width_;
  int channels_;
  int ratio_;
  bool overlaps_;
  bool codes_;
  bool rounds_;
  int state_block_;
  int drafted_from_ = std::numeric_limits<int>::max();
  std::vector<int> lengths_;
  std::vector<std::vector<float>> x_;
  std::vector<float> bias_, norm_;
  std::vector<int> blocks_;
  int blocks_of_request_ = 0;
  int entry_blocks_of_request_ = 0;
  DeviceArray<float> states_;
  DeviceArray<uint16_t> entries_;
  DeviceArray<float> d_bias_, d_norm_;
  DeviceArray<int64_t> d_entry_slots_;
  DeviceArray<int> d_tables_;
};

class CompressEntriesTest : public HopperTest<::testing::TestWithParam<CompressorShape>> {
 protected:
  /// The compressors of a layer over the same tokens.
  std::vector<World> Worlds(int state_block) {
    std::mt19937 random(5);
    std::vector<World> worlds;
    worlds.emplace_back(random, GetParam(), GetParam().width, kLengths, state_block);
    if (GetParam().other_width > 0) {
      worlds.emplace_back(random, GetParam(), GetParam().other_width, kLengths, state_block);
    }
    return worlds;
  }

  /// One step.
  static void Step(std::vector<World>& worlds, const std::vector<Window>& windows, int padding = 0,
                   int replays = 0) {
    const std::vector<SparseRow> step = RowsOf(windows);
    std::vector<int32_t> positions;
    for (const SparseRow& row : step) positions.push_back(row.position);
    positions.resize(positions.size() + static_cast<size_t>(padding), 3);
    const DeviceArray<int32_t> d_positions(positions);
    const DeviceCompressedRows rows(windows, {.window = 128}, padding);
    CompressParams params;
    params.num_rows = rows.num_rows();
    params.positions = d_positions.data();
    params.rows = rows.rows().rows;
    params.count = static_cast<int>(worlds.size());
    for (size_t i = 0; i < worlds.size(); ++i) {
      params.compressors[i] = worlds[i].Prepare(windows, step, padding);
    }
    params.epsilon = kEpsilon;
    params.magnitude = kMagnitude;
    for (int i = 0; i < 32; ++i) params.frequencies[i] = Frequency(i);
    const auto launch = [&](cudaStream_t stream) {
      rows.Plan(stream);
      CudaOk(CompressEntries(params, stream), "entries");
    };
    RunOnDevice(launch, replays);
  }

  static std::vector<Window> Whole() {
    std::vector<Window> windows;
    for (size_t r = 0; r < kLengths.size(); ++r) {
      windows.push_back({static_cast<int>(r), 0, kLengths[r]});
    }
    return windows;
  }

  /// Entries after all tokens in one step.
  std::vector<std::vector<uint16_t>> WholeEntries(int state_block) {
    std::vector<World> worlds = Worlds(state_block);
    Step(worlds, Whole());
    std::vector<std::vector<uint16_t>> entries;
    for (const World& world : worlds) entries.push_back(world.Entries());
    return entries;
  }

  /// The codes of an entry in the entries' memory.
  static void ExpectEntryCodes(const World& world, const std::vector<uint16_t>& memory, int request,
                               int entry, const std::vector<double>& wanted) {
    const auto* const codes =
        reinterpret_cast<const uint8_t*>(&memory[world.EntryAt(request, entry)]);
    const std::string where =
        "request " + std::to_string(request) + ", entry " + std::to_string(entry);
    if (world.HasScales()) {
      float scale = 0;
      std::memcpy(&scale, &memory[world.ScaleAt(request, entry)], sizeof(scale));
      ExpectCodes(codes, scale, wanted, where);
    } else {
      double most = 0;
      for (const double value : wanted) most = std::max(most, std::abs(value));
      ExpectRounded(codes, 1.0F, wanted, most, where);
    }
  }

  static inline const std::vector<int> kLengths = {3, 130, 128, 259, 517, 4};
};

TEST_P(CompressEntriesTest, MatchDoublePrecisionAndWriteNothingElse) {
  std::vector<World> worlds = Worlds(8);
  Step(worlds, Whole(), 5);
  for (const World& world : worlds) {
    const std::vector<uint16_t> got = world.Entries();
    std::vector<bool> written(got.size());
    for (size_t r = 0; r < kLengths.size(); ++r) {
      for (int e = 0; e < kLengths[r] / GetParam().ratio; ++e) {
        const std::vector<double> wanted = world.Wanted(static_cast<int>(r), e);
        const size_t at = world.EntryAt(static_cast<int>(r), e);
        if (GetParam().codes) {
          ExpectEntryCodes(world, got, static_cast<int>(r), e, wanted);
          std::fill_n(written.begin() + static_cast<int64_t>(at), world.EntryNumbers(), true);
          if (world.HasScales()) {
            const auto scale = static_cast<int64_t>(world.ScaleAt(static_cast<int>(r), e));
            std::fill_n(written.begin() + scale, 2, true);
          }
          continue;
        }
        if (GetParam().rounds) {
          std::fill_n(written.begin() + static_cast<int64_t>(at), world.width(), true);
          const auto numbers = std::span(got).subspan(at, static_cast<size_t>(world.width()));
          const std::string where = "request " + std::to_string(r) + ", entry " + std::to_string(e);
          if (world.width() == kIndexDim) {
            ExpectPublished(numbers, Transformed(wanted), true, where);
          } else {
            ExpectPublished(numbers, std::span(wanted).first(wanted.size() - 64), false, where);
          }
          continue;
        }
        for (int i = 0; i < world.width(); ++i) {
          written[at + static_cast<size_t>(i)] = true;
          const double value = wanted[static_cast<size_t>(i)];
          // bfloat16 has 8 bits.
          ASSERT_NEAR(Bf16ToFloat(got[at + static_cast<size_t>(i)]), value,
                      0.005 * (0.1 + std::abs(value)))
              << "request " << r << ", entry " << e << ", number " << i;
        }
      }
    }
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_TRUE(written[i] || got[i] == 0xFFFF) << "number " << i << " of the entries";
    }
  }
}

// One token at a time, windows that close several entries, chunks that end anywhere, other blocks,
// other requests beside it.
TEST_P(CompressEntriesTest, AnEntrysBitsDependOnItsTokensAlone) {
  const std::vector<std::vector<uint16_t>> all = WholeEntries(8);
  for (const int rows : {1, 3, 7, 64, 200}) {
    std::vector<World> worlds = Worlds(8);
    const int most = *std::max_element(kLengths.begin(), kLengths.end());
    for (int begin = 0; begin < most; begin += rows) {
      std::vector<Window> windows;
      for (size_t r = 0; r < kLengths.size(); ++r) {
        const int end = std::min(begin + rows, kLengths[r]);
        if (begin < end) windows.push_back({static_cast<int>(r), begin, end});
      }
      Step(worlds, windows, rows % 3);
    }
    for (size_t i = 0; i < worlds.size(); ++i) {
      ASSERT_EQ(worlds[i].Entries(), all[i]) << rows << " rows a step";
    }
  }
  ASSERT_EQ(WholeEntries(16), all) << "blocks of 16 rows";
  ASSERT_EQ(WholeEntries(4), all) << "blocks of 4 rows";
}

// A rejected draft's rows and entries are of another token; the true token's are written later.
TEST_P(CompressEntriesTest, RejectedDraftsLeaveNothingBehind) {
  const std::vector<std::vector<uint16_t>> all = WholeEntries(8);
  std::vector<World> worlds = Worlds(8);
  for (int begin = 0; begin < 259; begin += 2) {
    for (World& world : worlds) world.DraftFrom(begin + 2);  // two of a window are accepted
    Step(worlds, {{3, begin, std::min(begin + 7, 259)}});
  }
  for (size_t i = 0; i < worlds.size(); ++i) {
    const std::vector<uint16_t> got = worlds[i].Entries();
    for (int e = 0; e < 259 / GetParam().ratio; ++e) {
      const auto at = static_cast<int64_t>(worlds[i].EntryAt(3, e));
      ASSERT_TRUE(std::equal(got.begin() + at,
                             got.begin() + at + static_cast<int64_t>(worlds[i].EntryNumbers()),
                             all[i].begin() + at))
          << "entry " << e;
    }
  }
}

TEST_P(CompressEntriesTest, KeepBitsInAGraph) {
  const std::vector<std::vector<uint16_t>> all = WholeEntries(8);
  std::vector<World> worlds = Worlds(8);
  Step(worlds, Whole(), 0, /*replays=*/10);
  for (size_t i = 0; i < worlds.size(); ++i) ASSERT_EQ(worlds[i].Entries(), all[i]);
}

INSTANTIATE_TEST_SUITE_P(
    Hopper, CompressEntriesTest,
    ::testing::Values(CompressorShape{"ratio_4", 512, 128, 4, true},
                      CompressorShape{"ratio_4_alone", 512, 0, 4, true},
                      CompressorShape{"ratio_128", 512, 0, 128, false},
                      CompressorShape{"narrow_128", 128, 0, 128, false},
                      CompressorShape{"codes_4", 512, 128, 4, true, true},
                      CompressorShape{"codes_128", 512, 0, 128, false, true},
                      CompressorShape{"rounded_4", 512, 128, 4, true, false, true},
                      CompressorShape{"rounded_128", 512, 0, 128, false, false, true}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(CompressEntriesArguments, AreRefused) {
  CompressParams good;
  good.num_rows = 1;
  good.count = 1;
  good.compressors[0].width = 512;
  good.compressors[0].ratio = 4;
  good.compressors[0].overlaps = true;
  good.compressors[0].state_block_size = 8;
  good.compressors[0].entry_block_size = 4;
  const auto refused = [&](auto change) {
    CompressParams params = good;
    change(params);
    EXPECT_THROW(static_cast<void>(CompressEntries(params, nullptr)), Error);
  };
  refused([](CompressParams& p) { p.num_rows = -1; });
  refused([](CompressParams& p) { p.count = 3; });
  refused([](CompressParams& p) { p.compressors[0].ratio = 8; });
  refused([](CompressParams& p) { p.compressors[0].width = 256; });
  refused([](CompressParams& p) { p.compressors[0].entry_block_size = 0; });
  refused([](CompressParams& p) { p.compressors[0].codes = p.compressors[0].rounds = true; });
  refused([](CompressParams& p) {
    p.compressors[0].codes = true;
    p.compressors[0].width = 128;
    p.compressors[0].ratio = 128;
    p.compressors[0].overlaps = false;
  });
  refused([](CompressParams& p) { p.compressors[0].state_block_stride = 4; });
  refused([](CompressParams& p) {
    p.count = 2;
    p.compressors[1] = p.compressors[0];
    p.compressors[1].ratio = 128;
    p.compressors[1].overlaps = false;
  });
  refused([](CompressParams& p) { p.compressors[0].state_block_size = 0; });
}

}  // namespace
}  // namespace outrider::cuda
