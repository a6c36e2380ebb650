// A module's pass in which some rows leave their cache entries only gives the bits of the whole
// pass: the same entries, and the same output of the rows that go on.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "tests/networks/loaded_model.h"

namespace outrider {
namespace {

constexpr int32_t kEntriesBlockSize = 4;
constexpr int32_t kBlocks = 8;
constexpr int32_t kContext = 5;  // positions whose entries a first pass left
constexpr int32_t kLength = 12;

class MtpEntriesTest : public ::testing::TestWithParam<std::tuple<Phase, KvCacheForm>> {
 protected:
  MtpEntriesTest() {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    for (int32_t i = 0; i < kLength; ++i) tokens_.push_back(static_cast<int32_t>(random() % 2000));
    previous_.resize(static_cast<size_t>(int64_t{kLength} * model().hidden_size()));
    for (float& x : previous_) x = normal(random);
  }

  static Network& model() {
    const KvCacheForm form = std::get<1>(GetParam());
    static std::map<KvCacheForm, std::unique_ptr<LoadedModel>> loaded;
    if (!loaded[form]) {
      loaded[form] =
          std::make_unique<LoadedModel>(TinyModelDirectory(), DType::kBF16, SelectIsa(), 1, form);
    }
    return *loaded[form]->model;
  }

  static KvCache MakeCache() {
    const NetworkCache needs = model().cache_needs();
    return {model().device(), MakeCacheConfig(needs, DType::kBF16, kEntriesBlockSize, kBlocks),
            needs.layers, DType::kBF16};
  }

  /// Positions [first, end).
  BatchLayout Layout(int32_t first, int32_t end) const {
    BatchLayout layout(kEntriesBlockSize);
    std::vector<RequestWork> work;
    if (first < end) {
      work.push_back({.phase = std::get<0>(GetParam()),
                      .context_length = first,
                      .tokens = std::span(tokens_).subspan(static_cast<size_t>(first),
                                                           static_cast<size_t>(end - first)),
                      .draft_tokens = {},
                      .samples = false,
                      .block_tables = {&blocks_, 1}});
    }
    layout.Assign(work);
    return layout;
  }

  MatrixView<const float> Previous(int32_t first) {
    const int64_t width = model().hidden_size();
    return MatrixView<float>(previous_.data(), kLength, width).Rows(first, kLength - first);
  }

  static std::vector<std::byte> Entries(KvCache& cache) {
    const LayerCache layer =
        cache.layer(static_cast<int32_t>(model().config().num_hidden_layers()));
    const auto element = static_cast<int64_t>(DTypeSize(layer.dtype));
    std::vector<std::byte> bytes;
    for (int32_t p = 0; p < kLength; ++p) {  // the block table is the identity
      const std::byte* entry = layer.data + layer.SlotOffset(p) * element;
      bytes.insert(bytes.end(), entry, entry + layer.width * element);
    }
    return bytes;
  }

  std::vector<int32_t> tokens_;
  std::vector<float> previous_;
  std::vector<int32_t> blocks_ = FirstBlocks(kBlocks);
};

TEST_P(MtpEntriesTest, EqualTheWholePass) {
  const int64_t width = model().hidden_size();
  std::vector<float> whole(static_cast<size_t>((kLength - kContext) * width));
  KvCache whole_cache = MakeCache();
  std::vector<float> first(static_cast<size_t>(kContext * width));
  model().ForwardMtp(0, Layout(0, kContext), whole_cache, Previous(0),
                     {first.data(), kContext, width});
  model().ForwardMtp(0, Layout(kContext, kLength), whole_cache, Previous(kContext),
                     {whole.data(), kLength - kContext, width});

  for (const int32_t num_outputs : {0, 1, 3, kLength - kContext}) {
    KvCache cache = MakeCache();
    model().ForwardMtp(0, Layout(0, kContext), Layout(0, 0), cache, Previous(0), {});
    std::vector<float> out(static_cast<size_t>(num_outputs * width));
    model().ForwardMtp(0, Layout(kContext, kLength - num_outputs),
                       Layout(kLength - num_outputs, kLength), cache, Previous(kContext),
                       {out.data(), num_outputs, width});
    EXPECT_EQ(Entries(cache), Entries(whole_cache)) << num_outputs << " outputs";
    EXPECT_EQ(std::memcmp(out.data(), whole.data() + whole.size() - out.size(),
                          out.size() * sizeof(float)),
              0)
        << num_outputs << " outputs";
  }
}

std::string EntriesCaseName(const ::testing::TestParamInfo<std::tuple<Phase, KvCacheForm>>& test) {
  return fmt::format("{}_{}", std::get<0>(test.param) == Phase::kDecode ? "Decode" : "Prompt",
                     KvCacheFormName(std::get<1>(test.param)));
}

INSTANTIATE_TEST_SUITE_P(Forms, MtpEntriesTest,
                         ::testing::Combine(::testing::Values(Phase::kDecode, Phase::kPromptChunk),
                                            ::testing::ValuesIn(kAllKvCacheForms)),
                         EntriesCaseName);

}  // namespace
}  // namespace outrider
