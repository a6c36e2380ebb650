// A small DeepSeek-V3.2 and a small GLM-5 with sizes that the GPU takes, loaded as a server loads
// them: answers with their module or an EAGLE-3 drafter are those without, bit for bit. Needs a GPU
// of compute capability 9.0.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/engine/cuda/engine_answers.h"
#include "tests/engine/cuda/small_engine_options.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/networks/small_eagle3.h"
#include "tests/networks/small_sparse_model.h"

namespace outrider::cuda {
namespace {

using SparseEngineTest = HopperTest<>;

TEST_F(SparseEngineTest, AnswersWithDraftersAreThoseWithout) {
  for (const SmallSparseSizes& sizes : {kGpuV32Sizes, kGpuGlm5Sizes}) {
    const SmallSparseModel model(1000, sizes);
    const SmallEagle3 drafter(model.directory());
    std::vector<std::vector<Generated>> by_type;
    for (const DType type : {DType::kBF16, DType::kF8E4M3}) {
      EngineOptions options = SmallEngineOptions(8);
      options.model = model.directory().string();
      options.load_format = LoadFormat::kDummy;
      options.max_model_len = 500;
      options.kv_cache_dtype = type;
      by_type.push_back(AnswersToRandomPrompts(options, 0));
      const std::vector<Generated>& plain = by_type.back();
      const std::vector<Generated> drafted = AnswersToRandomPrompts(options, 3);
      // Its layer reads latent entries beside those that an indexer chooses.
      options.speculation.method = DraftMethod::kEagle3;
      options.speculation.model = drafter.directory().string();
      const std::vector<Generated> with_eagle3 = AnswersToRandomPrompts(options, 3);
      for (size_t i = 0; i < plain.size(); ++i) {
        EXPECT_EQ(plain[i].tokens.size(), 30);
        EXPECT_EQ(Difference(drafted[i], plain[i]), "")
            << sizes.golden << ", " << DTypeName(type) << ", request " << i;
        EXPECT_EQ(Difference(with_eagle3[i], plain[i]), "")
            << sizes.golden << ", " << DTypeName(type) << ", EAGLE-3, request " << i;
      }
    }
    // 8 bits round: some log-probability differs.
    const auto differs = [](const Generated& a, const Generated& b) {
      return !Difference(a, b).empty();
    };
    EXPECT_FALSE(std::ranges::equal(by_type[0], by_type[1], std::not_fn(differs))) << sizes.golden;
  }
}

}  // namespace
}  // namespace outrider::cuda
