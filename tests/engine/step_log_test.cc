// What watchers are told: the ring of step records, and each request's drafts step by step.
#include "outrider/engine/step_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "outrider/text/tokenizer.h"
#include "tests/engine/test_engine.h"
#include "tests/grammar/bundled_grammars.h"

namespace outrider {
namespace {

std::vector<int64_t> StepsOf(const std::vector<StepRecord>& records) {
  std::vector<int64_t> steps;
  for (const StepRecord& record : records) steps.push_back(record.step);
  return steps;
}

TEST(StepLogTest, ListenersGetWhatIsLoggedWhileTheyLive) {
  StepLog log;
  EXPECT_FALSE(log.has_listeners());
  std::vector<StepRecord> records(3);
  StepLog::Listener first(log);
  EXPECT_TRUE(log.has_listeners());
  log.Add({.step = 1});
  {
    StepLog::Listener second(log);
    log.Add({.step = 2});
    EXPECT_EQ(second.Read(&records), 0);
    EXPECT_EQ(StepsOf(records), (std::vector<int64_t>{2}));
  }
  EXPECT_TRUE(log.has_listeners());
  EXPECT_EQ(first.Read(&records), 0);
  EXPECT_EQ(StepsOf(records), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(first.Read(&records), 0);
  EXPECT_TRUE(records.empty());
}

TEST(StepLogTest, SlowListenersLearnHowMuchTheyMissed) {
  StepLog log;
  StepLog::Listener listener(log);
  const int64_t count = StepLog::kCapacity + 7;
  for (int64_t i = 0; i < count; ++i) log.Add({.step = i});
  std::vector<StepRecord> records;
  EXPECT_EQ(listener.Read(&records), 7);
  ASSERT_EQ(records.size(), static_cast<size_t>(StepLog::kCapacity));
  EXPECT_EQ(records.front().step, 7);
  EXPECT_EQ(records.back().step, count - 1);
}

GenerationRequest ProblemRequest(int number, bool trace) {
  static const Tokenizer tokenizer = Tokenizer::FromModelDirectory(TinyModelDirectory());
  GenerationRequest request;
  request.prompt_token_ids = tokenizer.Encode(
      "Question: Tom has " + std::to_string(20 + number) +
          " apples. Mia has 19 apples more than Tom. How many apples do they have together?\n"
          "Answer:",
      true);
  request.sampling.temperature = 0.7F;
  request.sampling.seed = static_cast<uint64_t>(number);
  request.sampling.max_tokens = 40;
  request.trace_steps = trace;
  return request;
}

TEST(StepLogTest, RowsAddUpToWhatRan) {
  const auto engine = MakeTestEngine({.k = 3, .max_num_batched_tokens = 64});
  StepLog::Listener listener(engine->step_log());
  std::vector<Generated> outputs(3);
  int64_t prompt_tokens = 0;
  for (int i = 0; i < 3; ++i) {
    GenerationRequest request = ProblemRequest(i, false);
    prompt_tokens += static_cast<int64_t>(request.prompt_token_ids.size());
    Submit(*engine, std::move(request), &outputs[static_cast<size_t>(i)]);
  }
  RunUntilIdle(*engine);
  std::vector<StepRecord> records;
  ASSERT_EQ(listener.Read(&records), 0);
  const EngineCounters counters = engine->Counters();
  ASSERT_EQ(static_cast<int64_t>(records.size()), counters.num_steps);
  StepRecord sum;
  int mixed = 0;
  for (const StepRecord& record : records) {
    EXPECT_EQ(record.step, records.front().step + (&record - records.data()));
    EXPECT_GT(record.seconds, 0);
    EXPECT_EQ(record.decode_rows, record.decode_requests);  // nothing was preempted
    EXPECT_LE(record.accepted_drafts, record.draft_rows);
    EXPECT_EQ(record.num_speculative_tokens, 3);
    if (record.decode_rows > 0 && record.prompt_rows > 0) ++mixed;
    sum.draft_rows += record.draft_rows;
    sum.decode_rows += record.decode_rows;
    sum.prompt_rows += record.prompt_rows;
    sum.accepted_drafts += record.accepted_drafts;
    sum.emitted_tokens += record.emitted_tokens;
    sum.seconds += record.seconds;
  }
  EXPECT_GT(mixed, 0);
  EXPECT_EQ(sum.prompt_rows, prompt_tokens);
  EXPECT_EQ(sum.draft_rows, counters.speculation.num_draft_tokens);
  EXPECT_EQ(sum.accepted_drafts, counters.speculation.num_accepted_tokens);
  EXPECT_EQ(sum.emitted_tokens, counters.generation_tokens);
  EXPECT_EQ(counters.step_tokens.sum, counters.prompt_tokens + counters.generation_tokens);
  EXPECT_EQ(counters.verify_tokens.sum, sum.decode_rows + sum.draft_rows);
  EXPECT_EQ(std::accumulate(counters.step_tokens.counts.begin(), counters.step_tokens.counts.end(),
                            int64_t{0}),
            counters.num_steps);
  EXPECT_EQ(counters.num_speculative_tokens, 3);
  EXPECT_GT(counters.num_kv_blocks, 0);
  EXPECT_EQ(records.front().running + records.front().waiting, 3);
  EXPECT_GT(records.front().kv_cache_usage, 0);
  EXPECT_EQ(records.back().running, 0);
}

TEST(StepTraceTest, TellsEveryDraftAndWhatBecameOfIt) {
  const auto engine = MakeTestEngine({.k = 3});
  for (int i = 0; i < 4; ++i) {
    std::vector<OutputDelta> deltas;
    engine->Submit(ProblemRequest(i, true),
                   [&](RequestId, OutputDelta&& delta) { deltas.push_back(std::move(delta)); });
    RunUntilIdle(*engine);
    SpeculationCounts counts;
    for (const OutputDelta& delta : deltas) {
      ASSERT_EQ(delta.steps.size(), 1U);
      const StepTrace& step = delta.steps[0];
      EXPECT_EQ(step.num_accepted, delta.num_accepted_tokens);
      ASSERT_EQ(step.drafts.size(), static_cast<size_t>(delta.num_draft_tokens));
      ASSERT_EQ(step.num_tokens, static_cast<int32_t>(delta.token_ids.size()));
      counts.AddStep(delta.num_draft_tokens, step.num_accepted);
      const auto accepted = static_cast<size_t>(step.num_accepted);
      for (size_t j = 0; j < delta.token_ids.size() && j < step.drafts.size(); ++j) {
        if (j > accepted) break;
        EXPECT_EQ(step.drafts[j] == delta.token_ids[j], j < accepted) << "draft " << j;
      }
    }
    EXPECT_TRUE(deltas.front().steps[0].drafts.empty());  // the prompt's end
    const SpeculationCounts& told = deltas.back().stats.speculation;
    EXPECT_EQ(counts.num_drafts, told.num_drafts);
    EXPECT_EQ(counts.accepted_per_position, told.accepted_per_position);
  }
}

// Why there were fewer drafts than k: of each step with fewer, and of no other.
std::set<DraftLimit> LimitsOf(const TestEngineOptions& options, GenerationRequest request) {
  const auto engine = MakeTestEngine(options);
  std::set<DraftLimit> limits;
  bool first = true;
  engine->Submit(std::move(request), [&](RequestId, OutputDelta&& delta) {
    for (const StepTrace& step : delta.steps) {
      const bool fewer = std::cmp_less(step.drafts.size(), options.k);
      EXPECT_EQ(step.draft_limit != DraftLimit::kNone, fewer && options.k > 0);
      EXPECT_EQ(step.draft_limit == DraftLimit::kPrompt, std::exchange(first, false) && fewer);
      limits.insert(step.draft_limit);
    }
  });
  RunUntilIdle(*engine);
  return limits;
}

TEST(StepTraceTest, TellsWhyThereAreFewerDrafts) {
  using enum DraftLimit;
  GenerationRequest request = ProblemRequest(1, true);
  request.sampling.ignore_eos = true;
  // Two tokens behind those of whole steps, or one, leave no room for three drafts.
  EXPECT_EQ(LimitsOf({.k = 3}, request), (std::set{kNone, kPrompt, kLength}));
  EXPECT_EQ(LimitsOf({.k = 3, .draft_ranges = {{1, 100, 2}}}, request),
            (std::set{kPrompt, kSchedule, kLength}));
  EXPECT_THAT(LimitsOf({.drafter = DrafterKind::kNgram, .k = 3}, request),
              testing::IsSupersetOf({kPrompt, kDrafter}));
  EXPECT_EQ(LimitsOf({.drafter = DrafterKind::kNone, .k = 0}, request), std::set{kNone});
  GenerationRequest fewer = request;
  fewer.num_speculative_tokens = 1;
  EXPECT_THAT(LimitsOf({.k = 3}, fewer), testing::IsSupersetOf({kPrompt, kRequest}));
  GenerationRequest digits = request;
  digits.grammar.grammar = CompileText(GrammarKind::kRegex, "[0-9]{30}");
  EXPECT_TRUE(LimitsOf({.k = 3}, digits).contains(kGrammar));
}

TEST(StepTraceTest, IsAbsentUnlessAskedFor) {
  const auto engine = MakeTestEngine({.k = 3});
  engine->Submit(ProblemRequest(1, false),
                 [](RequestId, OutputDelta&& delta) { EXPECT_TRUE(delta.steps.empty()); });
  RunUntilIdle(*engine);
}

}  // namespace
}  // namespace outrider
