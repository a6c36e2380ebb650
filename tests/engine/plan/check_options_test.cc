// Options that are wrong whatever runs with them.
#include "outrider/engine/plan/check_options.h"

#include <gtest/gtest.h>

#include "tests/engine/plan/made_up_facts.h"

namespace outrider {
namespace {

using testing::HasSubstr;

std::string RefusalOf(const std::function<void(EngineOptions&)>& change) {
  EngineOptions options;
  change(options);
  return RefusalBy([&] { CheckOptions(options); });
}

std::string RefusalOfSpeculation(const std::function<void(SpeculationOptions&)>& change) {
  return RefusalOf([&](EngineOptions& o) { change(o.speculation); });
}

TEST(CheckOptions, TakesTheDefaults) {
  EXPECT_EQ(RefusalOf([](EngineOptions&) {}), "");
}

TEST(CheckOptions, NumbersAreAtLeastOne) {
  EXPECT_EQ(RefusalOf([](EngineOptions& o) { o.block_size = 0; }),
            "--block-size is 0: it must be at least 1");
  EXPECT_THAT(RefusalOf([](EngineOptions& o) { o.max_num_seqs = -1; }),
              HasSubstr("--max-num-seqs is -1"));
  EXPECT_THAT(RefusalOf([](EngineOptions& o) { o.max_num_batched_tokens = 0; }),
              HasSubstr("--max-num-batched-tokens is 0"));
  EXPECT_THAT(RefusalOf([](EngineOptions& o) { o.kv_cache_memory_bytes = 0; }),
              HasSubstr("--kv-cache-memory-bytes is 0"));
  EXPECT_THAT(RefusalOf([](EngineOptions& o) { o.max_model_len = 0; }),
              HasSubstr("--max-model-len is 0"));
  EXPECT_THAT(RefusalOf([](EngineOptions& o) { o.max_num_queued_reqs = 0; }),
              HasSubstr("--max-num-queued-reqs is 0"));
  EXPECT_THAT(RefusalOf([](EngineOptions& o) { o.num_threads = -2; }),
              HasSubstr("--num-threads is -2: use 0 for all"));
}

TEST(CheckOptions, TheShareOfAGpuIsOne) {
  for (const double share : {0.0, -0.5, 1.01}) {
    EXPECT_THAT(RefusalOf([&](EngineOptions& o) { o.gpu_memory_utilization = share; }),
                HasSubstr("above 0 and at most 1"))
        << share;
  }
  EXPECT_EQ(RefusalOf([](EngineOptions& o) { o.gpu_memory_utilization = 1; }), "");
}

TEST(CheckOptions, TypesAreThoseThatRun) {
  EXPECT_THAT(RefusalOf([](EngineOptions& o) { o.dtype = DType::kF8E4M3; }),
              HasSubstr("--dtype is float8_e4m3: use float32 or bfloat16"));
  EXPECT_EQ(RefusalOf([](EngineOptions& o) { o.kv_cache_dtype = DType::kF8E4M3; }), "");
  EXPECT_THAT(RefusalOf([](EngineOptions& o) { o.kv_cache_dtype = DType::kF16; }),
              HasSubstr("--kv-cache-dtype is float16"));
}

TEST(CheckOptions, ADecodeKernelNeedsItsCache) {
  EXPECT_THAT(RefusalOf([](EngineOptions& o) {
                o.kv_cache_form = KvCacheForm::kHeads;
                o.attention_backend = AttentionBackend::kSingle;
              }),
              HasSubstr("--attention-backend single chooses a decode kernel over a latent cache"));
}

TEST(CheckOptions, ADrafterIsDescribedForItsMethod) {
  EXPECT_THAT(RefusalOfSpeculation([](auto& o) { o.method = DraftMethod::kEagle3; }),
              HasSubstr("name its directory"));
  EXPECT_THAT(RefusalOfSpeculation([](auto& o) { o.model = "somewhere"; }),
              HasSubstr("needs the method eagle3"));
  EXPECT_THAT(RefusalOfSpeculation([](auto& o) { o.eagle_aux_hidden_state_layer_ids = {1}; }),
              HasSubstr("eagle_aux_hidden_state_layer_ids needs the method eagle3"));
  EXPECT_THAT(RefusalOfSpeculation([](auto& o) {
                o.method = DraftMethod::kNgram;
                o.draft_vocab_size = 100;
              }),
              HasSubstr("draft_vocab_size needs the method mtp"));
  EXPECT_THAT(RefusalOfSpeculation([](auto& o) { o.prompt_lookup_min = 6; }),
              HasSubstr("prompt_lookup_min is 6 and prompt_lookup_max 5"));
  EXPECT_THAT(RefusalOfSpeculation([](auto& o) { o.prompt_lookup_min = 0; }),
              HasSubstr("use 1 <= min <= max"));
}

TEST(CheckOptions, TheNumberOfDraftsIsSaidOnce) {
  for (const int32_t k : {-1, 33}) {
    EXPECT_THAT(RefusalOfSpeculation([&](auto& o) { o.num_speculative_tokens = k; }),
                HasSubstr("it must be 0 to 32"));
  }
  EXPECT_EQ(RefusalOfSpeculation([](auto& o) { o.num_speculative_tokens = 32; }), "");
  EXPECT_THAT(RefusalOfSpeculation([](auto& o) {
                o.adaptive = true;
                o.num_speculative_tokens_per_batch_size = {{1, 4, 3}};
              }),
              HasSubstr("give one of them"));
}

TEST(CheckOptions, AcceptanceRatesAreForSyntheticAcceptance) {
  const auto synthetic = [](SpeculationOptions& o) {
    o.rejection_sample_method = RejectionMethod::kSynthetic;
  };
  EXPECT_THAT(RefusalOfSpeculation(synthetic), HasSubstr("give one of"));
  EXPECT_THAT(RefusalOfSpeculation([](auto& o) { o.synthetic_acceptance_length = 2; }),
              HasSubstr("and none without"));
  EXPECT_EQ(RefusalOfSpeculation([&](auto& o) {
              synthetic(o);
              o.synthetic_acceptance_length = 2;
            }),
            "");
  EXPECT_THAT(RefusalOfSpeculation([&](auto& o) {
                synthetic(o);
                o.synthetic_acceptance_length = 2;
                o.synthetic_acceptance_rates = {0.5};
              }),
              HasSubstr("give one of"));
}

TEST(CheckOptions, DrawnDraftsNeedAModuleAndARuleThatLooksAtThem) {
  const auto refusal = [](const std::function<void(SpeculationOptions&)>& change) {
    return RefusalOfSpeculation([&](SpeculationOptions& o) {
      o.probabilistic_drafts = true;
      change(o);
    });
  };
  for (const auto method : {RejectionMethod::kMatch, RejectionMethod::kStandard}) {
    EXPECT_EQ(refusal([&](auto& o) { o.rejection_sample_method = method; }), "");
  }
  EXPECT_THAT(refusal([](auto& o) { o.method = DraftMethod::kNgram; }),
              HasSubstr("draft_sample_method probabilistic needs"));
  EXPECT_THAT(refusal([](auto& o) {
                o.rejection_sample_method = RejectionMethod::kSynthetic;
                o.synthetic_acceptance_length = 2;
              }),
              HasSubstr("draft_sample_method probabilistic needs"));
}

}  // namespace
}  // namespace outrider
