// Plans of MLA decode attention made one after another without a pause, as a server's steps are,
// beside other streams and other processes on the GPU: a kernel may be suspended anywhere, and each
// run of attention must find its own plan. Needs a GPU of compute capability 9.0.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "outrider/kernels/cuda/mla_decode/mla_decode.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/hopper_test.h"

namespace outrider::cuda {
namespace {

constexpr int kHeads = 64;
constexpr int kRequests = 80;
constexpr int kMostTokens = 2 * kRequests;
constexpr int kPageSize = 64;
constexpr int kPages = 6;  // of a request
constexpr int kMostKeys = kPages * kPageSize;
constexpr int kLayers = 2;
constexpr size_t kRows = size_t{kMostTokens} * kHeads;

/// bfloat16 numbers of magnitude 0.125 to 1.
std::vector<uint16_t> RandomBf16(std::mt19937& random, size_t count) {
  std::vector<uint16_t> numbers(count);
  for (uint16_t& number : numbers) number = 0x3E00 + (random() & 0x817F);
  return numbers;
}

/// A step of all requests, of one or two tokens each.
struct Step {
  DeviceArray<int> starts;
  DeviceArray<int> lengths;
  int tokens = 0;

  explicit Step(std::mt19937& random) {
    std::vector<int> first = {0};
    std::vector<int> keys;
    for (int i = 0; i < kRequests; ++i) {
      first.push_back(first.back() + 1 + static_cast<int>(random() % 2));
      keys.push_back(2 + static_cast<int>(random() % (kMostKeys - 1)));
    }
    tokens = first.back();
    starts = DeviceArray<int>(first);
    lengths = DeviceArray<int>(keys);
  }
};

/// Steps over one cache, in a stream of their own, beside copies in another.
class Steps {
 public:
  Steps() {
    CudaOk(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
    CudaOk(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking), "stream");
    std::vector<int> pages(size_t{kRequests} * kPages);
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), random_);
    table_ = DeviceArray<int>(pages);
    for (int i = 0; i < 5; ++i) steps_.emplace_back(random_);
  }
  ~Steps() {
    cudaStreamDestroy(stream_);
    cudaStreamDestroy(copies_);
  }
  Steps(const Steps&) = delete;
  Steps& operator=(const Steps&) = delete;

  size_t count() const { return steps_.size(); }

  /// Launches a plan and its layers; waits for nothing. lse: kLayers times kRows. These numbers say
  /// what was read: all keys of a row are in its one.
  void Launch(size_t number, float* lse) const {
    const Step& step = steps_[number];
    MlaDecodeParams params;
    params.num_requests = kRequests;
    params.num_tokens = step.tokens;
    params.heads = kHeads;
    params.q = q_.data();
    params.query_start_loc = step.starts.data();
    params.seq_lens = step.lengths.data();
    params.block_table = table_.data();
    params.block_table_stride = kPages;
    params.cache = cache_.data();
    params.num_blocks = kRequests * kPages;
    params.page_size = kPageSize;
    params.softmax_scale = 0.05F;
    params.output = output_.data();
    CudaOk(MlaDecodePlan(params, kLimits, workspace_.data(), stream_), "plan");
    for (int layer = 0; layer < kLayers; ++layer) {
      params.lse = lse + static_cast<size_t>(layer) * kRows;
      CudaOk(MlaDecode(params, kLimits, workspace_.data(), stream_), "decode");
      params.plan_settled = true;
    }
  }

  /// Keeps memory busy, as the weights of a model's products do.
  void Copy() const {
    const size_t half = busy_.size() / 2;
    CudaOk(
        cudaMemcpyAsync(busy_.data() + half, busy_.data(), half, cudaMemcpyDeviceToDevice, copies_),
        "copy");
  }

  /// What a step gives when nothing else runs in the stream.
  std::vector<float> Alone(size_t number) const {
    const DeviceArray<float> lse(kLayers * kRows);
    Launch(number, lse.data());
    Wait();
    std::vector<float> result = lse.Download();
    result.resize(static_cast<size_t>(steps_[number].tokens) * kHeads);
    return result;
  }

  void Wait() const {
    CudaOk(cudaStreamSynchronize(stream_), "steps");
    CudaOk(cudaStreamSynchronize(copies_), "copies");
  }

 private:
  static constexpr MlaDecodeLimits kLimits = {kMostTokens, kRequests, kMostKeys, kHeads};

  std::mt19937 random_{7};
  cudaStream_t stream_ = nullptr;
  cudaStream_t copies_ = nullptr;
  DeviceArray<uint8_t> busy_{size_t{1} << 30};
  DeviceArray<uint16_t> cache_{
      RandomBf16(random_, size_t{kRequests} * kPages * kPageSize * kMlaKeyDim)};
  DeviceArray<uint16_t> q_{RandomBf16(random_, size_t{kMostTokens} * kHeads * kMlaKeyDim)};
  DeviceArray<uint16_t> output_{kRows * kMlaValueDim};
  DeviceArray<uint8_t> workspace_{MlaDecodeWorkspaceBytes(kLimits), 0};
  DeviceArray<int> table_;
  std::vector<Step> steps_;
};

/// Processes that keep the GPU busy with the same work until this one ends. They begin before it
/// has made a context: a process with one cannot be forked.
class MlaDecodePlanTest : public HopperTest<> {
 protected:
  static void SetUpTestSuite() {
    for (pid_t& child : children_) {
      child = fork();
      if (child == 0) _exit(Work());
    }
  }
  static void TearDownTestSuite() {
    for (const pid_t child : children_) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
  }

 private:
  static int Work() {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return 0;
    ShareMlaBlocks(2);
    const Steps steps;
    const DeviceArray<float> lse(kLayers * kRows);
    for (size_t i = 0;; ++i) {
      if (i % 8 == 0) steps.Copy();
      steps.Launch(i % steps.count(), lse.data());
      if (i % 64 == 63) steps.Wait();
    }
  }

  static inline std::array<pid_t, 3> children_ = {};
};

TEST_F(MlaDecodePlanTest, EveryRunFindsItsOwnPlan) {
  constexpr size_t kStreams = 2, kRuns = 100;
  constexpr int kBursts = 150;
  ShareMlaBlocks(kStreams);
  std::vector<std::unique_ptr<Steps>> streams;
  for (size_t i = 0; i < kStreams; ++i) streams.push_back(std::make_unique<Steps>());
  std::vector<std::vector<float>> expected;
  for (size_t i = 0; i < streams.front()->count(); ++i) {
    expected.push_back(streams.front()->Alone(i));
  }
  std::mt19937 random(3);
  const DeviceArray<float> lse(kStreams * kRuns * kLayers * kRows);
  for (int burst = 0; burst < kBursts; ++burst) {
    CudaOk(cudaMemset(lse.data(), 0xFF, lse.size() * sizeof(float)), "NaN");
    CudaOk(cudaDeviceSynchronize(), "NaN");
    std::vector<size_t> numbers(kStreams * kRuns);
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (i % 16 == 0) streams.front()->Copy();
      numbers[i] = random() % expected.size();
      streams[i % kStreams]->Launch(numbers[i], lse.data() + i * kLayers * kRows);
    }
    for (const auto& stream : streams) stream->Wait();
    const std::vector<float> got = lse.Download();
    for (size_t i = 0; i < numbers.size() * kLayers; ++i) {
      const std::vector<float>& wanted = expected[numbers[i / kLayers]];
      ASSERT_TRUE(
          std::equal(wanted.begin(), wanted.end(), got.begin() + static_cast<ptrdiff_t>(i * kRows)))
          << "burst " << burst << ", run " << i / kLayers << ", layer " << i % kLayers;
    }
  }
}

}  // namespace
}  // namespace outrider::cuda
