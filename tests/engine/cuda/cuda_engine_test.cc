// The engine over the GPU's operations: transformers' greedy texts, and each request alone against
// everything together, in bits. Needs a GPU of compute capability 9.0, and cuDNN.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "outrider/ops/cuda/cuda_ops.h"
#include "tests/engine/cuda/small_engine_options.h"
#include "tests/engine/random_grammars.h"
#include "tests/engine/random_requests.h"
#include "tests/engine/scenario_requests.h"
#include "tests/kernels/cuda/hopper_test.h"
#include "tests/networks/int4_tiny_model.h"

namespace outrider::cuda {
namespace {

class CudaEngineTest : public HopperTest<> {
 protected:
  void SetUp() override {
    HopperTest<>::SetUp();
    if (IsSkipped()) return;
    static const CudaOps* const shared = new CudaOps;
    ops_ = shared;
  }

  TestEngineOptions Options() const {
    TestEngineOptions options;
    options.ops = ops_;
    options.threads = 4;
    options.queued = true;
    return options;
  }

  const Ops* ops_ = nullptr;
};

TEST_F(CudaEngineTest, GreedyTextsWithAndWithoutDrafts) {
  const auto golden = ReadJson(GoldenDirectory() / "tiny-v3-mtp3/golden_greedy.json");
  const auto run = [&](DrafterKind drafter,
                       const std::filesystem::path& eagle3 = TinyEagle3Directory()) {
    TestEngineOptions options = Options();
    options.drafter = drafter;
    options.drafter_checkpoint = eagle3;
    const auto engine = MakeTestEngine(options);
    std::vector<Generated> results(golden.size());
    for (size_t i = 0; i < golden.size(); ++i) {
      GenerationRequest request = GreedyRequest(golden[i]);
      request.sampling.logprobs = 0;
      Submit(*engine, std::move(request), &results[i]);
    }
    RunUntilIdle(*engine);
    if (drafter != DrafterKind::kNone) {
      EXPECT_GT(engine->Counters().speculation.MeanAcceptanceLength(),
                drafter == DrafterKind::kChain ? 3.3 : 2.5);
    }
    return results;
  };
  const std::vector<Generated> plain = run(DrafterKind::kNone);
  const std::vector<Generated> drafted = run(DrafterKind::kChain);
  const std::vector<Generated> with_eagle3 = run(DrafterKind::kEagle3);
  const std::vector<Generated> with_llama = run(DrafterKind::kEagle3, TinyLlamaEagle3Directory());
  size_t equal = 0;
  for (size_t i = 0; i < golden.size(); ++i) {
    EXPECT_EQ(Difference(drafted[i], plain[i]), "") << "text " << i;
    EXPECT_EQ(Difference(with_eagle3[i], plain[i]), "") << "text " << i;
    EXPECT_EQ(Difference(with_llama[i], plain[i]), "") << "text " << i;
    if (plain[i].tokens == golden[i]["greedy_ids"].get<std::vector<int32_t>>()) ++equal;
  }
  std::printf("%zu of %zu greedy texts are transformers'\n", equal, golden.size());
  EXPECT_GE(equal * 200, golden.size() * 195);
}

TEST_F(CudaEngineTest, TogetherEqualsAlone) {
  constexpr uint32_t kSeed = 7;
  auto requests = RandomRequests(kSeed, 24);
  AddGrammars(kSeed, kBundledVocab, requests);
  TestEngineOptions plain = Options();
  plain.drafter = DrafterKind::kNone;
  plain.max_num_batched_tokens = 1024;
  plain.prefix_caching = false;
  const std::vector<Generated> alone = RunEach(*MakeTestEngine(plain), requests);
  struct Variant {
    const char* name;
    DrafterKind drafter;
    DraftForm form;
    int32_t block_size;
    int32_t num_blocks;
    int32_t max_num_batched_tokens;
    std::filesystem::path drafter_checkpoint = TinyEagle3Directory();
  };
  for (const Variant& variant :
       {Variant{"plain", DrafterKind::kNone, DraftForm::kCompacted, 16, 512, 256},
        {"chain", DrafterKind::kChain, DraftForm::kCompacted, 64, 128, 37},
        {"chain, padded, few pages", DrafterKind::kChain, DraftForm::kPadded, 16, 70, 256},
        {"repeated", DrafterKind::kRepeated, DraftForm::kCompacted, 32, 256, 64},
        {"EAGLE-3", DrafterKind::kEagle3, DraftForm::kCompacted, 16, 256, 90},
        {"EAGLE-3, Llama's", DrafterKind::kEagle3, DraftForm::kPadded, 16, 256, 90,
         TinyLlamaEagle3Directory()},
        {"ngram", DrafterKind::kNgram, DraftForm::kCompacted, 16, 512, 100}}) {
    TestEngineOptions options = Options();
    options.drafter = variant.drafter;
    options.drafter_checkpoint = variant.drafter_checkpoint;
    options.draft_form = variant.form;
    options.block_size = variant.block_size;
    options.num_blocks = variant.num_blocks;
    options.max_num_batched_tokens = variant.max_num_batched_tokens;
    const auto engine = MakeTestEngine(options);
    std::mt19937 random(kSeed);
    const std::vector<Generated> together =
        RunJoining(*engine, requests, [&] { return random() % 3; });
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(Difference(together[i], alone[i]), "") << variant.name << " request " << i;
    }
    EXPECT_EQ(engine->Counters().kv_cache_usage, 0) << variant.name;
  }
}

/// As `outrider` starts it.
TEST_F(CudaEngineTest, LoadsAndAnswersWithADeviceOfItsOwn) {
  const LoadedEngine loaded = LoadEngine(SmallEngineOptions(), [](int64_t, int64_t) {});
  const auto golden = ReadJson(GoldenDirectory() / "tiny-v3-mtp3/golden_greedy.json");
  const Generated result = RunOne(*loaded.engine, GreedyRequest(golden[0]));
  EXPECT_EQ(result.tokens, golden[0]["greedy_ids"].get<std::vector<int32_t>>());
}

/// Over a checkpoint that says that its weights have 4 bits; with drafts and without.
TEST_F(CudaEngineTest, LoadsAndAnswersWithInt4Experts) {
  const Int4TinyModel model;
  std::vector<std::vector<int32_t>> answers;
  for (const int32_t drafts : {0, 3}) {
    EngineOptions options = SmallEngineOptions();
    options.model = model.directory().string();
    options.speculation.num_speculative_tokens = drafts;
    const LoadedEngine loaded = LoadEngine(options, [](int64_t, int64_t) {});
    GenerationRequest request;
    request.prompt_token_ids = {5, 77, 301, 12, 9, 1024};
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 40;
    request.sampling.ignore_eos = true;
    const Generated result = RunOne(*loaded.engine, std::move(request));
    EXPECT_EQ(result.tokens.size(), 40);
    answers.push_back(result.tokens);
  }
  EXPECT_EQ(answers[0], answers[1]);
}

/// Conversations that take each other's pages, which go to the host and come back while steps are
/// in flight; entries of modules and kept rows of the target with them.
TEST_F(CudaEngineTest, PagesThatComeBackHaveTheirBits) {
  for (const bool adaptive : {false, true}) {
    TestEngineOptions options = Options();
    options.k = 3;
    options.adaptive = adaptive;
    options.max_model_len = 400;
    options.max_num_batched_tokens = 128;
    options.num_blocks = 40;
    TestEngineOptions bare = options;
    bare.prefix_caching = false;
    const auto cold = MakeTestEngine(bare);
    options.host_pages = 1000;
    const auto engine = MakeTestEngine(options);
    std::mt19937 random(5);
    std::vector<GenerationRequest> requests(4);
    for (int turn = 0; turn < 3; ++turn) {
      for (GenerationRequest& request : requests) {
        const int32_t more = turn == 0 ? 200 : 7;
        for (int32_t i = 0; i < more; ++i) {
          request.prompt_token_ids.push_back(static_cast<int32_t>(6 + random() % 1500));
        }
        request.sampling.temperature = 0.8F;
        request.sampling.seed = 7;
        request.sampling.max_tokens = 20;
        request.sampling.ignore_eos = true;
        request.sampling.logprobs = 2;
        const Generated result = RunOne(*engine, request);
        EXPECT_EQ(Difference(result, RunOne(*cold, request)), "") << "turn " << turn;
        const std::vector<int32_t>& answer = result.tokens;
        request.prompt_token_ids.insert(request.prompt_token_ids.end(), answer.begin(),
                                        answer.end());
      }
    }
    EXPECT_GT(engine->Counters().host_cache_hits, 4 * 150);
    EXPECT_GT(engine->Counters().speculation.num_accepted_tokens, 0);
  }
}

/// Tensors that are not read, of modules here, are no part of it.
TEST_F(CudaEngineTest, ProgressOfLoadingComesToAnEnd) {
  EngineOptions options = SmallEngineOptions();
  options.speculation.num_speculative_tokens = 0;
  int64_t all = 0;
  int64_t left = -1;
  LoadEngine(options, [&](int64_t done, int64_t total) {
    all = total;
    left = total - done;
  });
  EXPECT_GT(all, 1 << 20);
  EXPECT_EQ(left, 0);
}

/// The cache takes what target, drafter and the work space of both leave.
TEST_F(CudaEngineTest, ADrafterHasAPlaceInMemory) {
  EngineOptions options = SmallEngineOptions();
  options.kv_cache_memory_bytes.reset();
  options.gpu_memory_utilization = 0.1;
  options.max_num_seqs = 1024;  // the cache takes all it can get
  options.speculation.method = DraftMethod::kEagle3;
  options.speculation.model = TinyEagle3Directory().string();
  const LoadedEngine loaded = LoadEngine(options, [](int64_t, int64_t) {});
  const MemoryReport& memory = loaded.memory;
  ASSERT_TRUE(memory.gpu && memory.gpu->measured);
  EXPECT_GT(SumOf(memory.drafter_weights), 0);
  EXPECT_GT(memory.gpu->work_space, 0);
  EXPECT_LE(SumOf(memory.weights) + SumOf(memory.mtp_weights) + SumOf(memory.drafter_weights) +
                memory.gpu->work_space + memory.kv_cache_bytes + memory.kept_row_bytes,
            memory.gpu->usable);
  std::vector<Generated> results(64);
  for (Generated& result : results) {
    GenerationRequest request;
    request.prompt_token_ids.assign(400, 17);
    request.sampling.max_tokens = 20;
    Submit(*loaded.engine, std::move(request), &result);
  }
  RunUntilIdle(*loaded.engine);
  size_t free = 0;
  size_t total = 0;
  CheckCuda(cudaMemGetInfo(&free, &total), "memory");
  EXPECT_LE(static_cast<double>(total - free), 0.1 * static_cast<double>(total) + (512 << 20));
}

}  // namespace
}  // namespace outrider::cuda
