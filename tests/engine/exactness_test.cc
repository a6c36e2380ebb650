// The promise: a request's tokens and logprob bits do not depend on drafting, batching, chunking,
// block size or preemption. Random mixes, each request alone without speculation against everything
// together with everything on. Longer than most files: the configurations are one list.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>

#include "tests/engine/random_grammars.h"
#include "tests/engine/random_requests.h"
#include "tests/networks/small_sparse_model.h"
#include "tests/sanitized.h"

namespace outrider {
namespace {

/// Equal tokens and close logprobs, up to the first token where the two best were nearly equal.
void ExpectClose(const Generated& a, const Generated& b, const std::string& what) {
  constexpr float kTolerance = 1e-3F;
  ASSERT_EQ(a.tokens.size(), b.tokens.size()) << what;
  ASSERT_FALSE(a.tokens.empty()) << what;
  for (size_t i = 0; i < a.tokens.size(); ++i) {
    ASSERT_NEAR(a.logprobs[i].chosen.logprob, b.logprobs[i].chosen.logprob, kTolerance)
        << what << " token " << i;
    if (a.tokens[i] != b.tokens[i]) return;
  }
}

/// The requests of a seed one after the other, without speculation. Computed once per seed and
/// number and what of the options results may depend on.
const std::vector<Generated>& AloneRuns(const TestEngineOptions& options, uint32_t seed,
                                        const std::vector<GenerationRequest>& requests) {
  static std::map<std::tuple<std::string, DType, bool, WeightQuantization, KvCacheForm,
                             LogprobsMode, uint32_t, size_t>,
                  std::vector<Generated>>
      known;
  std::vector<Generated>& results = known[{
      options.checkpoint.string(), options.dtype, options.rounded_cache, options.quantization,
      options.cache_form, options.logprobs_mode, seed, requests.size()}];
  if (!results.empty()) return results;
  const auto engine = MakeTestEngine({.checkpoint = options.checkpoint,
                                      .dummy_seed = options.dummy_seed,
                                      .dtype = options.dtype,
                                      .rounded_cache = options.rounded_cache,
                                      .quantization = options.quantization,
                                      .drafter = DrafterKind::kNone,
                                      .max_num_batched_tokens = 1024,
                                      .prefix_caching = false,
                                      .cache_form = options.cache_form,
                                      .logprobs_mode = options.logprobs_mode});
  return results = RunEach(*engine, requests);
}

// A crowd makes preemptions; elsewhere fewer requests do where everything is slow.
constexpr int kCrowd = 32;
constexpr int kRequests = kSanitized ? 10 : 24;

std::filesystem::path SparseDirectory() {
  static const SmallSparseModel kModel(kBundledVocab);
  return kModel.directory();
}

const std::vector<DraftRange> kChangingDrafts = {{1, 1, 3}, {2, 2, 0}, {3, 4, 2},   {5, 5, 0},
                                                 {6, 7, 1}, {8, 9, 3}, {10, 11, 0}, {12, 64, 2}};

struct Case {
  const char* name;
  uint32_t seed;
  TestEngineOptions options;
};

class ExactnessTest : public testing::TestWithParam<Case> {};

TEST_P(ExactnessTest, TogetherEqualsAlone) {
  const auto& [name, seed, given] = GetParam();
  TestEngineOptions options = given;
  if (options.drafter_checkpoint.empty()) options.drafter_checkpoint = TinyEagle3Directory();
  const bool scarce = options.num_blocks < 100;
  auto requests = RandomRequests(seed, scarce ? kCrowd : kRequests);
  const int64_t vocab = ReadModelConfig(options.checkpoint).vocab_size;
  AddGrammars(seed, static_cast<int32_t>(vocab), requests);
  const auto& alone = AloneRuns(options, seed, requests);
  const auto engine = MakeTestEngine(options);
  std::mt19937 random(seed);
  const std::vector<Generated> together =
      RunJoining(*engine, requests, [&] { return random() % 3; });
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_EQ(Difference(together[i], alone[i]), "")
        << name << " seed " << seed << " request " << i;
  }
  const EngineCounters counters = engine->Counters();
  EXPECT_EQ(counters.num_requests_running + counters.num_requests_waiting, 0);
  EXPECT_EQ(counters.kv_cache_usage, 0);
  EXPECT_EQ(counters.num_preemptions > 0, scarce);
}

INSTANTIATE_TEST_SUITE_P(
    Configurations, ExactnessTest,
    testing::Values(
        Case{"plain", 1, {.drafter = DrafterKind::kNone}}, Case{"chain1", 2, {.k = 1}},
        Case{"chain2", 1, {.k = 2, .block_size = 8, .max_num_batched_tokens = 37}},
        Case{"chain3", 2, {.k = 3, .block_size = 64, .num_blocks = 128, .threads = 2}},
        Case{"chain3_float32", 3, {.dtype = DType::kF32, .max_num_batched_tokens = 64}},
        Case{"chain3_int8",
             1,
             {.quantization = WeightQuantization::kInt8,
              .k = 3,
              .max_num_batched_tokens = 37,
              .threads = 2}},
        Case{"repeated3_heads_float32_int8",
             3,
             {.dtype = DType::kF32,
              .quantization = WeightQuantization::kInt8,
              .drafter = DrafterKind::kRepeated,
              .k = 3,
              .cache_form = KvCacheForm::kHeads}},
        Case{"chain3_preempted", 2, {.k = 3, .num_blocks = 26, .max_model_len = 400}},
        Case{
            "repeated3_processed_logprobs",
            3,
            {.drafter = DrafterKind::kRepeated, .k = 3, .logprobs_mode = LogprobsMode::kProcessed}},
        Case{"chain3_uniform_pad",
             1,
             {.k = 3,
              .draft_form = DraftForm::kPadded,
              .threads = 2,
              .attention_backend = AttentionBackend::kUniformPad}},
        Case{"chain2_uniform_pad_preempted",
             2,
             {.k = 2,
              .num_blocks = 26,
              .max_model_len = 400,
              .attention_backend = AttentionBackend::kUniformPad}},
        Case{"repeated3_uniform_pad",
             1,
             {.drafter = DrafterKind::kRepeated,
              .k = 3,
              .attention_backend = AttentionBackend::kUniformPad}},
        Case{"repeated5_small_chunks",
             1,
             {.drafter = DrafterKind::kRepeated,
              .k = 5,
              .block_size = 4,
              .num_blocks = 2048,
              .max_num_batched_tokens = 19}},
        Case{"repeated2_preempted",
             2,
             {.drafter = DrafterKind::kRepeated, .k = 2, .num_blocks = 26, .max_model_len = 400}},
        Case{"chain3_heads",
             2,
             {.k = 3,
              .max_num_batched_tokens = 37,
              .threads = 2,
              .cache_form = KvCacheForm::kHeads}},
        Case{"chain3_heads_float32_padded",
             3,
             {.dtype = DType::kF32,
              .draft_form = DraftForm::kPadded,
              .block_size = 8,
              .num_blocks = 1024,
              .cache_form = KvCacheForm::kHeads}},
        Case{"chain2_heads_preempted",
             2,
             {.k = 2, .num_blocks = 26, .max_model_len = 400, .cache_form = KvCacheForm::kHeads}},
        Case{"repeated3_heads",
             1,
             {.drafter = DrafterKind::kRepeated, .k = 3, .cache_form = KvCacheForm::kHeads}},
        Case{"chain3_draft_vocab_300",
             2,
             {.k = 3, .draft_vocab_size = 300, .max_num_batched_tokens = 37, .threads = 2}},
        Case{"repeated3_draft_vocab_1001_int8",
             1,
             {.quantization = WeightQuantization::kInt8,
              .drafter = DrafterKind::kRepeated,
              .k = 3,
              .draft_vocab_size = 1001}},
        // The number of drafts follows the number of requests up and down: modules fall behind
        // and catch up.
        Case{"chain3_changing", 2, {.k = 3, .draft_ranges = kChangingDrafts}},
        Case{"chain3_changing_small_chunks_heads",
             3,
             {.k = 3,
              .draft_ranges = kChangingDrafts,
              .block_size = 8,
              .num_blocks = 1024,
              .max_num_batched_tokens = 37,
              .cache_form = KvCacheForm::kHeads}},
        Case{"chain3_changing_uniform_pad",
             1,
             {.k = 3,
              .draft_ranges = kChangingDrafts,
              .draft_form = DraftForm::kPadded,
              .attention_backend = AttentionBackend::kUniformPad}},
        Case{"chain3_changing_preempted",
             2,
             {.k = 3, .draft_ranges = kChangingDrafts, .num_blocks = 26, .max_model_len = 400}},
        Case{"repeated3_changing",
             3,
             {.drafter = DrafterKind::kRepeated, .k = 3, .draft_ranges = kChangingDrafts}},
        Case{"chain3_adaptive", 2, {.k = 3, .adaptive = true, .threads = 2}},
        Case{"chain3_adaptive_after_measuring",
             3,
             {.k = 3, .adaptive = true, .measures_steps = true, .block_size = 8}},
        Case{"repeated3_adaptive_after_measuring",
             1,
             {.drafter = DrafterKind::kRepeated, .k = 3, .adaptive = true, .measures_steps = true}},
        Case{"repeated3_adaptive_preempted",
             2,
             {.drafter = DrafterKind::kRepeated,
              .k = 3,
              .adaptive = true,
              .num_blocks = 26,
              .max_model_len = 400}},
        Case{"fake3",
             3,
             {.drafter = DrafterKind::kFake,
              .k = 3,
              .draft_ranges = kChangingDrafts,
              .draft_form = DraftForm::kPadded}},
        // A drafter with a checkpoint of its own.
        Case{"eagle3", 1, {.drafter = DrafterKind::kEagle3, .k = 3, .threads = 2}},
        Case{"eagle3_heads_float32_padded_small_chunks",
             3,
             {.dtype = DType::kF32,
              .drafter = DrafterKind::kEagle3,
              .k = 4,
              .draft_form = DraftForm::kPadded,
              .block_size = 8,
              .num_blocks = 1024,
              .max_num_batched_tokens = 37,
              .cache_form = KvCacheForm::kHeads}},
        Case{"eagle3_int8_drawn",
             1,
             {.quantization = WeightQuantization::kInt8,
              .drafter = DrafterKind::kEagle3,
              .k = 3,
              .probabilistic_drafts = true}},
        Case{"eagle3_changing_preempted",
             2,
             {.drafter = DrafterKind::kEagle3,
              .k = 3,
              .draft_ranges = kChangingDrafts,
              .num_blocks = 26,
              .max_model_len = 400}},
        Case{"eagle3_llama_changing_preempted",
             3,
             {.drafter_checkpoint = TinyLlamaEagle3Directory(),
              .drafter = DrafterKind::kEagle3,
              .k = 4,
              .draft_ranges = kChangingDrafts,
              .num_blocks = 34,
              .max_num_batched_tokens = 50,
              .max_model_len = 400,
              .probabilistic_drafts = true}},
        Case{"eagle3_adaptive_uniform_pad_late",
             1,
             {.drafter = DrafterKind::kEagle3,
              .k = 3,
              .adaptive = true,
              .attention_backend = AttentionBackend::kUniformPad,
              .late_seed = 6}},
        Case{"ngram3_adaptive", 1, {.drafter = DrafterKind::kNgram, .k = 3, .adaptive = true}},
        // DeepSeek-V4: three cache groups, an MTP module, blocks of drafts.
        Case{"v4_dspark5",
             1,
             {.checkpoint = TinyDSparkDirectory(),
              .drafter = DrafterKind::kBlock,
              .k = 5,
              .num_blocks = 4096,
              .max_num_batched_tokens = 37,
              .threads = 2,
              .cache_form = KvCacheForm::kHeads}},
        Case{"v4_dspark3_adaptive_preempted",
             2,
             {.checkpoint = TinyDSparkDirectory(),
              .drafter = DrafterKind::kBlock,
              .k = 3,
              .adaptive = true,
              .draft_form = DraftForm::kPadded,
              .num_blocks = 70,
              .max_num_batched_tokens = 64,
              .max_model_len = 400,
              .cache_form = KvCacheForm::kHeads}},
        Case{"v4_dspark4_float32_rounded_late",
             3,
             {.checkpoint = TinyDSparkDirectory(),
              .dtype = DType::kF32,
              .rounded_cache = true,
              .drafter = DrafterKind::kBlock,
              .k = 4,
              .block_size = 4,
              .num_blocks = 4096,
              .cache_form = KvCacheForm::kHeads,
              .late_seed = 1}},
        Case{"v4_repeated5_small_chunks",
             1,
             {.checkpoint = TinyV4Directory(),
              .drafter = DrafterKind::kRepeated,
              .k = 5,
              .block_size = 4,
              .num_blocks = 4096,
              .max_num_batched_tokens = 19,
              .cache_form = KvCacheForm::kHeads}},
        Case{"v4_repeated2_rounded_preempted",
             2,
             {.checkpoint = TinyV4Directory(),
              .rounded_cache = true,
              .drafter = DrafterKind::kRepeated,
              .k = 2,
              .draft_ranges = {{1, 2, 2}, {3, 4, 0}, {5, 64, 1}},
              .num_blocks = 90,
              .max_num_batched_tokens = 64,
              .max_model_len = 400,
              .cache_form = KvCacheForm::kHeads}},
        // Rows that read 12 tokens, which an indexer chooses.
        Case{"sparse_repeated3_small_chunks",
             1,
             {.checkpoint = SparseDirectory(),
              .dummy_seed = 4,
              .drafter = DrafterKind::kRepeated,
              .k = 3,
              .block_size = 4,
              .num_blocks = 4096,
              .max_num_batched_tokens = 37,
              .threads = 2,
              .cache_form = KvCacheForm::kHeads}},
        Case{"sparse_repeated2_float32_padded_preempted_late",
             2,
             {.checkpoint = SparseDirectory(),
              .dummy_seed = 5,
              .dtype = DType::kF32,
              .drafter = DrafterKind::kRepeated,
              .k = 2,
              .draft_ranges = {{1, 2, 2}, {3, 4, 0}, {5, 64, 1}},
              .draft_form = DraftForm::kPadded,
              .num_blocks = 26,
              .max_num_batched_tokens = 64,
              .max_model_len = 400,
              .cache_form = KvCacheForm::kHeads,
              .late_seed = 6}},
        Case{"sparse_repeated3_8_bit_cache_small_chunks",
             4,
             {.checkpoint = SparseDirectory(),
              .dummy_seed = 4,
              .rounded_cache = true,
              .drafter = DrafterKind::kRepeated,
              .k = 3,
              .block_size = 8,
              .num_blocks = 2048,
              .max_num_batched_tokens = 37,
              .threads = 2,
              .cache_form = KvCacheForm::kHeads}},
        // Steps end late.
        Case{"plain_late", 1, {.drafter = DrafterKind::kNone, .late_seed = 1}},
        Case{"chain3_late", 2, {.k = 3, .threads = 2, .late_seed = 2}},
        Case{"chain3_queued", 2, {.k = 3, .threads = 2, .queued = true}},
        Case{"chain3_late_changing_preempted",
             3,
             {.k = 3,
              .draft_ranges = kChangingDrafts,
              .num_blocks = 26,
              .max_model_len = 400,
              .late_seed = 3}},
        Case{"repeated3_late_padded",
             1,
             {.drafter = DrafterKind::kRepeated,
              .k = 3,
              .draft_form = DraftForm::kPadded,
              .max_num_batched_tokens = 37,
              .late_seed = 4}},
        Case{"ngram3_late_heads",
             2,
             {.drafter = DrafterKind::kNgram,
              .k = 3,
              .cache_form = KvCacheForm::kHeads,
              .late_seed = 5}}),
    [](const auto& test) { return std::string(test.param.name); });

/// The backends that leave requests over promise no bits, but the same function.
class InexactBackendTest : public testing::TestWithParam<AttentionBackend> {};

TEST_P(InexactBackendTest, TogetherIsCloseToAlone) {
  constexpr uint32_t kSeed = 1003;
  const TestEngineOptions options = {.dtype = DType::kF32,
                                     .num_blocks = 40,
                                     .max_model_len = 400,
                                     .attention_backend = GetParam()};
  auto requests = RandomRequests(kSeed, 12);
  for (GenerationRequest& request : requests) {
    // Without processors, tokens that are nearly equally good have nearly equal logprobs.
    request.sampling = SamplingParams();
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 30;
    request.sampling.ignore_eos = true;
    request.sampling.logprobs = 0;
  }
  const auto& alone = AloneRuns(options, kSeed, requests);
  const auto engine = MakeTestEngine(options);
  const std::vector<Generated> together = RunTogether(*engine, requests, /*steps_between=*/1);
  size_t num_equal = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    ExpectClose(together[i], alone[i], fmt::format("request {}", i));
    if (HasFatalFailure()) return;
    if (together[i].tokens == alone[i].tokens) ++num_equal;
  }
  EXPECT_GE(num_equal, requests.size() - 2) << "nearly equal logits are rare";
}

INSTANTIATE_TEST_SUITE_P(Backends, InexactBackendTest,
                         testing::Values(AttentionBackend::kUniformShortest,
                                         AttentionBackend::kUniformLargest,
                                         AttentionBackend::kSingle),
                         [](const auto& test) {
                           std::string name(AttentionBackendName(test.param));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace outrider
