// The golden checkpoints of DeepSeek-V3.2 and GLM-5 in sizes that a GPU takes, whole, with their
// MTP modules: log-probabilities beside transformers'. Needs a GPU of compute capability 9.0.
#include "tests/networks/sparse_golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/kernels/cuda/hopper_test.h"
#include "tests/networks/cuda/device_run.h"
#include "tests/networks/cuda/known_requests.h"

namespace outrider::cuda {
namespace {

class SparseGoldenTest : public HopperTest<testing::TestWithParam<const char*>> {
 protected:
  static SparseGoldenRun RunOnGpu(const SparseGolden& model, const KnownRequest& request) {
    SparseGoldenRun result{{}, {}, ChoiceLog(request.tables[0])};
    TestNetwork network(model.config(), model.source(), 1,
                        std::make_unique<RecordingOps<CudaOps>>(result.choices));
    const std::vector<KnownRequest> requests = {request};
    KnownRun run(network, requests, kSparseGoldenBlock, DType::kBF16);
    for (int32_t first = 0; first < request.length; first += kSparseGoldenRows) {
      result.choices.BeginPass(first);
      run.Step({{0, first, std::min(kSparseGoldenRows, request.length - first)}});
    }
    result.target = network.Logits(run.rows()[0][0]);
    result.module = network.Logits(run.rows()[0][1]);
    return result;
  }
};

TEST_P(SparseGoldenTest, LogProbabilitiesOfTargetAndModule) {
  const SparseGolden model(GetParam());
  ASSERT_TRUE(model.HasCase(0));
  for (int c = 0; model.HasCase(c); ++c) {
    for (const bool prompt : {true, false}) {
      const KnownRequest request = model.Request(c, prompt);
      model.Judge(c, request, RunOnGpu(model, request), HopperBf16DotBound(),
                  fmt::format("{}, case {} as {}", GetParam(), c, prompt ? "a prompt" : "rows"));
    }
  }
}

std::string ModelName(const testing::TestParamInfo<const char*>& test) {
  std::string name = test.param;
  std::ranges::replace(name, '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, SparseGoldenTest, testing::ValuesIn(kSparseGoldens), ModelName);

}  // namespace
}  // namespace outrider::cuda
