// Steps that end late: the next is planned and launched while one is in flight (LateExecutor,
// QueuedExecutor). Output must be what it is without, and what must not lag does not: each test is
// about a mistake that others made with overlapped steps. One case per mistake makes it long.
#include <gtest/gtest.h>

#include <regex>

#include "tests/engine/random_requests.h"
#include "tests/engine/scenario_requests.h"
#include "tests/grammar/bundled_grammars.h"
#include "tests/ops/token_keeping_ops.h"

namespace outrider {
namespace {

constexpr uint32_t kSeeds = 4;

std::vector<GenerationRequest> TrainedRequests(size_t count, int32_t max_tokens = 24) {
  const auto prompts = TrainedPrompts();
  std::vector<GenerationRequest> requests;
  for (size_t i = 0; i < count; ++i) {
    requests.push_back(Request(prompts[i % prompts.size()], max_tokens + static_cast<int32_t>(i)));
  }
  return requests;
}

/// Requests come while others run.
std::vector<Generated> RunJoining(Engine& engine, const std::vector<GenerationRequest>& requests) {
  std::vector<Generated> results(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    Submit(engine, requests[i], &results[i]);
    engine.Step();
  }
  RunUntilIdle(engine);
  return results;
}

class LateStepsTest : public testing::TestWithParam<DrafterKind> {
 protected:
  /// 0: as late as a thread makes them. Drafts stay on the device, but for one seed of three.
  static TestEngineOptions Late(uint32_t seed) {
    static const TokenKeepingOps ops(cpu::GetCpuOps(SelectIsa()).kernels());
    TestEngineOptions options = {.ops = seed % 3 == 2 ? nullptr : &ops, .drafter = GetParam()};
    if (seed == 0) {
      options.queued = true;
    } else {
      options.late_seed = seed;
    }
    return options;
  }
};

// Drafts and accepted counts of a request that is not in every step, or has another place in the
// next one (vLLM #40768, #43434, #46899, #50021, vllm-ascend #13863). What is drafted at every step
// is what is drafted for each alone.
TEST_P(LateStepsTest, DraftsAndCountsBelongToTheirRequests) {
  const auto requests = TrainedRequests(7);
  const auto alone = RunAlone(requests, GetParam());
  for (uint32_t seed = 0; seed < kSeeds; ++seed) {
    TestEngineOptions options = Late(seed);
    options.max_num_batched_tokens = 19;
    const auto results = RunJoining(*MakeTestEngine(options), requests);
    ExpectEqual(results, alone);
    ExpectEqualDrafts(results, alone);
  }
}

// The host reads drafts when they have been verified: of those that no grammar cuts, none before.
TEST_P(LateStepsTest, DraftsStayOnTheDevice) {
  const TokenKeepingOps ops(cpu::GetCpuOps(SelectIsa()).kernels());
  const auto requests = TrainedRequests(6);
  const auto results = RunJoining(*MakeTestEngine({.ops = &ops, .drafter = GetParam()}), requests);
  ExpectEqual(results, RunAlone(requests, GetParam()));
  const bool has_modules =
      GetParam() == DrafterKind::kChain || GetParam() == DrafterKind::kRepeated;
  EXPECT_EQ(ops.num_kept() > 100, has_modules);
}

// What follows a step begins before the host has read its tokens, where it need not know them: not
// beside requests with a grammar or penalties. Without a drafter that is the next step, else the
// drafter's pass.
TEST_P(LateStepsTest, TokensStayOnTheDevice) {
  const TokenKeepingOps ops(cpu::GetCpuOps(SelectIsa()).kernels());
  std::vector<GenerationRequest> requests = TrainedRequests(8, 30);
  for (size_t i = 0; i < 5; ++i) requests[i].sampling.max_tokens = 5;
  requests[0].grammar.grammar = CompileText(GrammarKind::kRegex, "[0-9]{1,3}( [0-9]{1,2}){6}");
  requests[1].sampling.presence_penalty = 0.5F;
  requests[2].sampling.logprobs = 3;
  requests[3].sampling.prompt_logprobs = 1;
  requests[4].sampling.temperature = 0.8F;
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    TestEngineOptions options = {.ops = &ops, .drafter = GetParam(), .late_seed = seed};
    const int64_t before = ops.num_later();
    const auto engine = MakeTestEngine(options);
    ExpectEqual(RunJoining(*engine, requests), RunAlone(requests, GetParam()));
    const int64_t later = ops.num_later() - before;
    EXPECT_GT(later, 8);
    EXPECT_LT(later, static_cast<int64_t>(engine->Counters().num_steps));
  }
}

// Every rank draws by itself: what a rank has not drawn, or its host has not read, is found.
TEST_P(LateStepsTest, TokensStayOnTheDevicesOfRanks) {
  std::vector<GenerationRequest> requests = TrainedRequests(8, 30);
  requests[0].grammar.grammar = CompileText(GrammarKind::kRegex, "[0-9]{1,3}( [0-9]{1,2}){6}");
  requests[1].sampling.presence_penalty = 0.5F;
  for (size_t i = 0; i < 2; ++i) requests[i].sampling.max_tokens = 5;
  requests[3].sampling.prompt_logprobs = 1;
  requests[4].sampling.temperature = 0.8F;
  const auto alone = RunAlone(requests, GetParam());
  for (const int32_t ranks : {2, 4}) {
    std::vector<std::unique_ptr<TokenKeepingOps>> ops;
    TestEngineOptions options = {.drafter = GetParam(), .ranks = ranks};
    for (int32_t rank = 0; rank < ranks; ++rank) {
      ops.push_back(std::make_unique<TokenKeepingOps>(cpu::GetCpuOps(SelectIsa()).kernels()));
      options.rank_ops.push_back(ops.back().get());
    }
    options.ops = ops.front().get();
    for (const bool queued : {false, true}) {
      options.queued = queued;
      options.late_seed = queued ? std::nullopt : std::optional<uint32_t>(7);
      ExpectEqual(RunJoining(*MakeTestEngine(options), requests), alone);
    }
    for (const auto& own : ops) {
      EXPECT_GT(own->num_later(), 8);
      EXPECT_EQ(own->num_later(), ops.front()->num_later());
      EXPECT_EQ(own->num_kept(), ops.front()->num_kept());
    }
  }
}

// Tokens that are there while the next step is being launched are handed out then. What the step
// gives does not depend on when its launch was interrupted.
TEST_P(LateStepsTest, TokensAreReadWhileTheNextStepIsLaunched) {
  const TokenKeepingOps ops(cpu::GetCpuOps(SelectIsa()).kernels());
  std::vector<GenerationRequest> requests = TrainedRequests(8, 30);
  requests[1].sampling.max_tokens = 3;
  requests[2].sampling.logprobs = 3;
  requests[4].sampling.temperature = 0.8F;
  const auto alone = RunAlone(requests, GetParam());
  TestEngineOptions options = {.ops = &ops, .drafter = GetParam()};
  options.queued = true;
  options.max_num_batched_tokens = 19;
  ExpectEqual(RunJoining(*MakeTestEngine(options), requests), alone);
  // With a drafter a step's tokens are read before the next begins.
  EXPECT_EQ(ops.num_read_while_launching() > 5, GetParam() == DrafterKind::kNone);
}

// Masks that lag by a step, or stand after other drafts than the row (vLLM #29821, #49694).
TEST_P(LateStepsTest, MasksFollowWhatTheStepInFlightAccepts) {
  std::vector<GenerationRequest> requests = TrainedRequests(6);
  const auto number = CompileText(GrammarKind::kRegex, "[0-9]{1,3}( [0-9]{1,2}){6}");
  const auto words = CompileText(GrammarKind::kRegex, "([a-z]+[ .]){4,}");
  for (size_t i = 0; i < requests.size(); i += 2) {
    requests[i].grammar.grammar = i % 4 == 0 ? number : words;
    requests[i].sampling.ignore_eos = false;
  }
  const auto alone = RunAlone(requests, GetParam());
  for (uint32_t seed = 0; seed < kSeeds; ++seed) {
    const auto results = RunJoining(*MakeTestEngine(Late(seed)), requests);
    ExpectEqual(results, alone);
    for (const size_t i : {size_t{0}, size_t{4}}) {
      const std::string text = BundledTokenizer().Decode(results[i].tokens, true);
      EXPECT_TRUE(std::regex_match(text, std::regex("[0-9]{1,3}( [0-9]{1,2}){6}"))) << text;
    }
  }
}

// One slot and few pages: whoever comes next gets what a step in flight still writes.
TEST_P(LateStepsTest, SlotsAndPagesInFlightGoToTheNextRequest) {
  const auto requests = TrainedRequests(5, 6);
  const auto alone = RunAlone(requests, GetParam());
  for (uint32_t seed = 0; seed < kSeeds; ++seed) {
    TestEngineOptions options = Late(seed);
    options.max_num_seqs = 1;
    options.block_size = 4;
    options.num_blocks = 32;
    options.max_model_len = 120;
    const auto engine = MakeTestEngine(options);
    ExpectEqual(RunTogether(*engine, requests), alone);
    EXPECT_EQ(engine->Counters().kv_cache_usage, 0);
  }
}

// The row behind a token that ends a request may run when the next request has its slot, whose long
// prompt comes in pieces.
TEST_P(LateStepsTest, WhatFollowsAnEndIsNotTheNextRequests) {
  const auto prompts = TrainedPrompts();
  std::vector<GenerationRequest> requests;
  for (size_t i = 0; i < 8; ++i) {
    requests.push_back(Request(prompts[i % prompts.size()], 24));
    for (size_t n = 0; n < 3 * (i % 2); ++n) {
      auto& tokens = requests.back().prompt_token_ids;
      tokens.insert(tokens.end(), prompts[n].begin(), prompts[n].end());
    }
    if (i % 2 == 1) continue;
    requests.back().sampling.stop_token_ids = {RunAlone({requests.back()}).front().tokens[3]};
  }
  const auto alone = RunAlone(requests, GetParam());
  for (uint32_t seed = 0; seed < kSeeds; ++seed) {
    TestEngineOptions options = Late(seed);
    options.max_num_seqs = 1;
    options.max_num_batched_tokens = 8;
    ExpectEqual(RunTogether(*MakeTestEngine(options), requests), alone);
  }
}

// vLLM #42117, #30916; SGLang #11981: preempted between two steps, then resumed.
TEST_P(LateStepsTest, PreemptedRequestsLoseNothing) {
  const auto requests = TrainedRequests(8, 40);
  const auto alone = RunAlone(requests, GetParam());
  for (uint32_t seed = 0; seed < kSeeds; ++seed) {
    TestEngineOptions options = Late(seed);
    options.block_size = 4;
    options.num_blocks = 60;
    options.max_model_len = 200;
    const auto engine = MakeTestEngine(options);
    ExpectEqual(RunTogether(*engine, requests), alone);
    EXPECT_GT(engine->Counters().num_preemptions, 0);
    EXPECT_EQ(engine->Counters().kv_cache_usage, 0);
  }
}

// What a step in flight computes for a request that has gone is dropped; its neighbours see
// nothing.
TEST_P(LateStepsTest, AbortedWithAStepInFlight) {
  const auto requests = TrainedRequests(6);
  const auto alone = RunAlone(requests, GetParam());
  size_t most_in_flight = 0;  // when requests are aborted
  for (uint32_t seed = 0; seed < kSeeds; ++seed) {
    TestEngineOptions options = Late(seed);
    options.max_num_seqs = 4;  // the slots of those that go are wanted
    const LateExecutor* executor = nullptr;
    options.late_executor = &executor;
    const auto engine = MakeTestEngine(options);
    std::vector<Generated> results(requests.size());
    std::vector<RequestId> ids;
    for (size_t i = 0; i < requests.size(); ++i) {
      ids.push_back(Submit(*engine, requests[i], &results[i]));
    }
    for (int step = 0; step < 3; ++step) engine->Step();
    if (executor != nullptr) most_in_flight = std::max(most_in_flight, executor->num_in_flight());
    engine->Abort(ids[0]);
    engine->Abort(ids[2]);
    RunUntilIdle(*engine);
    for (const size_t i : {size_t{0}, size_t{2}}) {
      EXPECT_EQ(results[i].finish_reason, FinishReason::kAbort);
      ASSERT_LE(results[i].tokens.size(), alone[i].tokens.size());
      EXPECT_TRUE(
          std::equal(results[i].tokens.begin(), results[i].tokens.end(), alone[i].tokens.begin()));
    }
    for (const size_t i : {size_t{1}, size_t{3}, size_t{4}, size_t{5}}) {
      ExpectEqual({results[i]}, {alone[i]});
    }
    EXPECT_EQ(engine->Counters().kv_cache_usage, 0);
  }
  EXPECT_GT(most_in_flight, 0U);
}

// SGLang #28802, vLLM #23938: a stop string and EOS in one step. The host alone knows of the
// string, the executor of EOS.
TEST_P(LateStepsTest, AStopStringComesBeforeAnEndBehindIt) {
  const GenerationRequest free = Request(TrainedPrompts()[0], 24);
  const Generated answer = RunAlone({free}).front();
  for (size_t at = 2; at + 2 < 8; ++at) {
    GenerationRequest request = free;
    request.sampling.stop = {
        BundledTokenizer().Decode(std::span(answer.tokens).subspan(at, 1), true)};
    request.sampling.stop_token_ids = {answer.tokens[at + 1]};  // behind it, in its window or not
    Generated expected;
    const auto plain = MakeTestEngine({.drafter = DrafterKind::kNone}, &BundledTokenizer());
    Submit(*plain, request, &expected);
    RunUntilIdle(*plain);
    for (uint32_t seed = 0; seed < kSeeds; ++seed) {
      const auto engine = MakeTestEngine(Late(seed), &BundledTokenizer());
      const Generated result = RunOne(*engine, request);
      EXPECT_EQ(Difference(result, expected), "") << "token " << at;
      EXPECT_LE(result.tokens.size(), at + 1);
      EXPECT_EQ(result.text.find(request.sampling.stop[0]), std::string::npos);
    }
  }
}

// Rows after the end are not delivered, not counted, and found by nobody.
TEST_P(LateStepsTest, WhatComesAfterAStopIsForNobody) {
  for (uint32_t seed = 0; seed < kSeeds; ++seed) {
    TestEngineOptions options = Late(seed);
    options.block_size = 4;
    const auto engine = MakeTestEngine(options, &BundledTokenizer());
    GenerationRequest request = Request(TrainedPrompts()[0], 24);
    request.sampling.stop = {"e"};
    const Generated result = RunOne(*engine, request);
    ASSERT_EQ(result.finish_reason, FinishReason::kStop);
    const EngineCounters counters = engine->Counters();
    EXPECT_EQ(counters.generation_tokens, static_cast<int64_t>(result.tokens.size()));
    EXPECT_EQ(counters.finished_stop, 1);
    // A prompt that goes on where the answer went on finds what was delivered, at most.
    GenerationRequest next = Request(request.prompt_token_ids, 4);
    next.prompt_token_ids.insert(next.prompt_token_ids.end(), result.tokens.begin(),
                                 result.tokens.end());
    const auto delivered = static_cast<int64_t>(next.prompt_token_ids.size());
    const Generated free = RunAlone({Request(request.prompt_token_ids, 24)}).front();
    next.prompt_token_ids.insert(next.prompt_token_ids.end(),
                                 free.tokens.begin() + static_cast<int64_t>(result.tokens.size()),
                                 free.tokens.end());
    const Generated again = RunOne(*engine, next);
    EXPECT_LE(again.stats.cached_tokens, delivered);
  }
}

// Ends by length and by token are in the step in flight (vLLM #27922): no row runs after them, but
// one after the token that ends a request and that the host has not read yet.
TEST_P(LateStepsTest, ShortAnswersEndInTheStepInFlight) {
  std::vector<GenerationRequest> requests;
  for (int32_t max_tokens = 1; max_tokens <= 5; ++max_tokens) {
    requests.push_back(Request(TrainedPrompts()[0], max_tokens));
  }
  requests.push_back(Request(TrainedPrompts()[0], 24));
  requests.back().sampling.stop_token_ids = {RunAlone({requests.back()}).front().tokens[6]};
  const auto alone = RunAlone(requests, GetParam());
  for (uint32_t seed = 0; seed < kSeeds; ++seed) {
    const auto engine = MakeTestEngine(Late(seed));
    StepLog::Listener listener(engine->step_log());
    const auto results = RunTogether(*engine, requests);
    ExpectEqual(results, alone);
    std::vector<StepRecord> steps;
    listener.Read(&steps);
    size_t ran = 0;  // how often a request was in a step; each time it is sampled
    for (const StepRecord& step : steps) {
      ran += static_cast<size_t>(step.decode_requests + step.prompt_requests);
    }
    size_t delivered = 0;
    for (const Generated& result : results) delivered += result.drafts.size();
    EXPECT_GE(ran, delivered);
    EXPECT_LE(ran, delivered + (GetParam() == DrafterKind::kNone ? 1 : 0));
  }
}

// A prompt's last block is published when its request has ended already, as modules need tokens
// behind it; beside others, whose drafts have been drawn by then.
TEST_P(LateStepsTest, RequestsEndWhileTheirPromptsArePublished) {
  const auto prompts = TrainedPrompts();
  std::vector<GenerationRequest> requests = TrainedRequests(6, 40);
  for (int32_t length = 14; length <= 18; ++length) {
    for (int32_t max_tokens = 1; max_tokens <= 6; ++max_tokens) {
      std::vector<int32_t> prompt =
          prompts[static_cast<size_t>(length + max_tokens) % prompts.size()];
      prompt.resize(static_cast<size_t>(length));
      prompt[1] = 6 + 10 * length + max_tokens;  // no two begin alike
      requests.push_back(Request(prompt, max_tokens));
    }
  }
  const auto alone = RunAlone(requests, GetParam());
  for (uint32_t seed = 0; seed < kSeeds; ++seed) {
    ExpectEqual(RunJoining(*MakeTestEngine(Late(seed)), requests), alone);
  }
}

// Accepted drafts bring a request to the context's end before the bounds do: nothing more may run.
TEST_P(LateStepsTest, EndsInTheStepInFlightAtTheContextsEnd) {
  const auto prompts = TrainedPrompts();
  std::vector<GenerationRequest> requests;
  for (size_t i = 0; i < 6; ++i) requests.push_back(Request(prompts[i], 1000));
  for (uint32_t seed = 0; seed < kSeeds; ++seed) {
    TestEngineOptions options = Late(seed);
    options.max_model_len = 64;
    options.block_size = 4;
    const auto results = RunTogether(*MakeTestEngine(options), requests);
    options.queued = false;
    options.late_seed.reset();
    options.drafter = DrafterKind::kNone;
    ExpectEqual(results, RunTogether(*MakeTestEngine(options), requests));
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(results[i].tokens.size() + prompts[i].size(), 64U);
    }
  }
}

// A crowd gets no drafts: its steps are launched ahead, as without a drafter. Those who are left
// when it has gone get theirs, from texts whose tokens the host has read. Both ways, twice.
TEST(LookupLateStepsTest, StepsWithoutDraftsAreLaunchedAhead) {
  std::vector<GenerationRequest> requests = TrainedRequests(8);
  requests[0].sampling.max_tokens = 60;
  requests[1].sampling.max_tokens = 50;
  requests[1].sampling.temperature = 0.8F;
  requests[2].sampling.logprobs = 3;
  requests[3].sampling.stop_token_ids = {RunAlone({requests[3]}).front().tokens[6]};
  requests[4].sampling.stop_token_ids = {RunAlone({requests[4]}).front().tokens[9]};
  const auto alone = RunAlone(requests);
  for (const int32_t ranks : {1, 2}) {
    for (uint32_t seed = 0; seed < (ranks == 1 ? kSeeds : 2); ++seed) {
      std::vector<std::unique_ptr<TokenKeepingOps>> ops;
      TestEngineOptions options = {
          .drafter = DrafterKind::kNgram, .draft_ranges = {{1, 2, 3}, {3, 100, 0}}, .ranks = ranks};
      for (int32_t rank = 0; rank < ranks; ++rank) {
        ops.push_back(std::make_unique<TokenKeepingOps>(cpu::GetCpuOps(SelectIsa()).kernels()));
        options.rank_ops.push_back(ops.back().get());
      }
      options.ops = ops.front().get();
      options.divides_requests = ranks > 1 && seed % 2 == 1;
      options.queued = seed == 0;
      if (seed > 0) options.late_seed = seed;
      const auto engine = MakeTestEngine(options);
      int64_t drafts = 0;
      for (int round = 0; round < 2; ++round) {
        ExpectEqual(RunTogether(*engine, requests), alone);
        EXPECT_GT(engine->Counters().speculation.num_drafts, drafts + 3) << "seed " << seed;
        drafts = engine->Counters().speculation.num_drafts;
      }
      if (seed == 0) {
        EXPECT_GT(ops.front()->num_read_while_launching(), 5) << ranks << " ranks";
      }
    }
  }
}

std::string NameOf(const testing::TestParamInfo<DrafterKind>& test) {
  constexpr std::array kNames = {"None", "Chain", "Repeated", "Ngram"};
  return kNames.at(static_cast<size_t>(test.param));
}

INSTANTIATE_TEST_SUITE_P(Drafters, LateStepsTest,
                         testing::Values(DrafterKind::kNone, DrafterKind::kChain,
                                         DrafterKind::kRepeated, DrafterKind::kNgram),
                         NameOf);

}  // namespace
}  // namespace outrider
