// The load, the measurement and the report of bench, with a scripted service.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "outrider/base/error.h"
#include "outrider/cli/commands.h"
#include "outrider/measure/bench_load.h"
#include "outrider/measure/bench_report.h"
#include "outrider/measure/bench_run.h"
#include "tests/cli/stub_service.h"
#include "tests/source_directory.h"
#include "tests/temporary_directory.h"

namespace outrider::cli {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Lt;
using ::testing::Not;
using Json = nlohmann::json;

const std::atomic<bool> kNeverInterrupted{false};

TEST(BenchLoad, RandomPromptsAreDistinctInRangeAndRepeatable) {
  const auto prompts = RandomPrompts(50, 12, 100, 7);
  EXPECT_EQ(prompts, RandomPrompts(50, 12, 100, 7));
  EXPECT_NE(prompts, RandomPrompts(50, 12, 100, 8));
  std::set<int32_t> first_tokens;
  for (const auto& prompt : prompts) {
    EXPECT_EQ(prompt.size(), 12U);
    EXPECT_THAT(prompt, Each(AllOf(Ge(0), Lt(100))));
    first_tokens.insert(prompt.front());
  }
  EXPECT_EQ(first_tokens.size(), 50U) << "no two prompts share a prefix";
}

TEST(BenchLoad, PromptLines) {
  const auto lines = ParsePromptLines(
      "p.jsonl", "{\"prompt\": \"a b\"}\n\n{\"question\": \"why?\", \"answer\": \"1\"}\r\n");
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].text, "a b");
  EXPECT_FALSE(lines[0].chat);
  EXPECT_EQ(lines[1].text, "why?");
  EXPECT_TRUE(lines[1].chat);
}

TEST(BenchLoad, BadPromptLinesAreNamed) {
  const auto error = [](const std::string& text) -> std::string {
    try {
      ParsePromptLines("p.jsonl", text);
    } catch (const Error& caught) {
      return caught.what();
    }
    return "no error";
  };
  EXPECT_THAT(error("{\"prompt\": \"a\"}\n{\"text\": \"b\"}"),
              AllOf(HasSubstr("p.jsonl, line 2"), HasSubstr("question")));
  EXPECT_THAT(error("{\"prompt\": 3}"), HasSubstr("line 1"));
  EXPECT_THAT(error("not json"), HasSubstr("line 1"));
  EXPECT_THAT(error("\n\n"), HasSubstr("no prompt"));
  EXPECT_THROW(ReadPromptsFile("/nonexistent.jsonl"), Error);
}

TEST(BenchLoad, RequestsRepeatPromptsWithTheirOwnSeeds) {
  SamplingParams sampling;
  sampling.max_tokens = 9;
  const auto requests = MakeRequests({{1, 2}, {3}}, 3, sampling, 100);
  ASSERT_EQ(requests.size(), 3U);
  EXPECT_THAT(requests[2].prompt_token_ids, ElementsAre(1, 2));
  EXPECT_EQ(requests[2].sampling.seed, 102U);
  EXPECT_EQ(requests[2].sampling.max_tokens, 9);
}

TEST(BenchRun, KeepsTheBatchFullAndCountsOnlyItsOwn) {
  StubService service(HelloScript());
  const auto drive = [&] { service.Step(); };
  const std::vector<GenerationRequest> requests(5, EncodedRequest());
  RunLoad(service, drive, {requests.data(), 1}, 1, kNeverInterrupted);
  const BenchRow row = RunLoad(service, drive, requests, 2, kNeverInterrupted);
  EXPECT_EQ(service.largest_batch(), 2);
  EXPECT_EQ(row.GeneratedTokens(), 25);
  EXPECT_EQ(row.counters.generation_tokens, 25);
  EXPECT_EQ(row.counters.num_steps, 9);
  EXPECT_EQ(row.counters.speculation.num_drafts, 10);
  EXPECT_DOUBLE_EQ(row.counters.speculation.MeanAcceptanceLength(), 2.0);
  EXPECT_THAT(row.token_ids, Each(ElementsAre(5, 6, 7, 8, 9)));
  EXPECT_DOUBLE_EQ(row.MeanFirstTokenMilliseconds(), 500);
  EXPECT_DOUBLE_EQ(row.MeanMillisecondsPerToken(), 500);
  EXPECT_GT(row.seconds, 0);
  EXPECT_GT(row.resident_bytes, 1 << 20);
}

TEST(BenchRun, AnInterruptEndsEveryRequestAndThrows) {
  StubService service(HelloScript());
  std::atomic<bool> interrupted{false};
  const std::vector<GenerationRequest> requests(5, EncodedRequest());
  EXPECT_THROW(RunLoad(
                   service,
                   [&] {
                     service.Step();
                     interrupted = true;
                   },
                   requests, 3, interrupted),
               Interrupted);
  EXPECT_EQ(service.aborted().size(), 3U);
}

BenchReport TwoRows() {
  BenchReport report;
  report.command = "latency";
  report.model = "models/tiny";
  for (const int32_t k : {0, 3}) {
    BenchRow row;
    row.spec_tokens = k;
    row.seconds = k == 0 ? 4 : 2;
    row.token_ids = {{1, 2, 3, 4}};
    row.requests.resize(1);
    row.counters.num_steps = 4;
    row.counters.model_seconds = 1;
    row.counters.sample_seconds = 0.25;
    row.counters.draft_seconds = k == 0 ? 0 : 0.25;
    row.counters.plan_seconds = 1e-3;
    report.rows.push_back(row);
  }
  return report;
}

TEST(BenchReport, RatiosSharesAndEqualOutputs) {
  BenchReport report = TwoRows();
  EXPECT_DOUBLE_EQ(Speedup(report, report.rows[1]), 2);
  EXPECT_DOUBLE_EQ(report.rows[1].HostShare(), 0.25);
  EXPECT_DOUBLE_EQ(report.rows[1].HostMicrosecondsPerStep(), 125000);
  EXPECT_DOUBLE_EQ(report.rows[1].PlanMicrosecondsPerStep(), 250);
  EXPECT_THAT(BenchTable(report), AllOf(HasSubstr("2.00x"), HasSubstr("are equal")));
  report.rows[1].token_ids[0][3] = 5;
  EXPECT_FALSE(report.OutputsEqual());
  EXPECT_THAT(BenchTable(report), HasSubstr("DIFFER"));
  report.compares_outputs = false;
  EXPECT_THAT(BenchTable(report), AllOf(HasSubstr("not compared"), Not(HasSubstr("DIFFER"))));
  EXPECT_TRUE(Json::parse(BenchJson(report))["outputs_equal"].is_null());
  EXPECT_THAT(BenchTable(report), Not(HasSubstr("up to k")));
  report.draft_length_varies = true;
  EXPECT_THAT(BenchTable(report), HasSubstr("up to k"));
  EXPECT_EQ(Json::parse(BenchJson(report))["draft_length_varies"], true);
  report.rows.erase(report.rows.begin());
  EXPECT_EQ(Speedup(report, report.rows[0]), 0) << "nothing to compare with";
  EXPECT_TRUE(Json::parse(BenchJson(report))["rows"][0]["speedup"].is_null());
}

TEST(BenchReport, Json) {
  const Json object = Json::parse(BenchJson(TwoRows()));
  EXPECT_EQ(object["command"], "latency");
  EXPECT_EQ(object["outputs_equal"], true);
  ASSERT_EQ(object["rows"].size(), 2U);
  EXPECT_EQ(object["rows"][1]["spec_tokens"], 3);
  EXPECT_EQ(object["rows"][1]["tokens_per_second"], 2.0);
  EXPECT_EQ(object["rows"][1]["speedup"], 2.0);
  EXPECT_EQ(object["rows"][1]["host_share"], 0.25);
  EXPECT_EQ(object["rows"][1]["mean_acceptance_length"], 1.0);
}

/// What RunBench writes for the bundled model, k = 1 and 3.
Json RunWith(const std::function<void(SpeculationOptions&)>& set) {
  Settings settings;
  settings.engine.model = SourceDirectory() / "models/tiny-v3-mtp3";
  settings.engine.num_threads = 1;
  set(settings.engine.speculation);
  settings.bench.spec_tokens = {1, 3};
  settings.bench.num_prompts = 2;
  settings.bench.input_len = 4;
  settings.bench.output_len = 16;
  const TemporaryDirectory directory;
  settings.bench.json = directory.path() / "bench.json";
  EXPECT_EQ(RunBench(settings, Command::kBenchLatency), 0);
  std::ifstream in(settings.bench.json);
  return Json::parse(in);
}

TEST(RunBench, SyntheticAcceptanceIsThatOfTheFirstDrafts) {
  const Json by_rates = RunWith([](SpeculationOptions& speculation) {
    speculation.rejection_sample_method = RejectionMethod::kSynthetic;
    speculation.synthetic_acceptance_rates = {1, 1, 0};
  });
  EXPECT_TRUE(by_rates["outputs_equal"].is_null());
  EXPECT_EQ(by_rates["rows"][0]["mean_acceptance_length"], 2.0);
  EXPECT_EQ(by_rates["rows"][1]["accepted_per_position"][2], 0);
  const Json by_length = RunWith([](SpeculationOptions& speculation) {
    speculation.rejection_sample_method = RejectionMethod::kSynthetic;
    speculation.synthetic_acceptance_length = 3;
  });
  EXPECT_EQ(by_length["rows"][0]["mean_acceptance_length"], 2.0);
  EXPECT_EQ(by_length["rows"][1]["accepted_per_position"][2], 0);
}

TEST(RunBench, MatchingRowsAreCompared) {
  EXPECT_EQ(RunWith([](SpeculationOptions&) {})["outputs_equal"], true);
}

}  // namespace
}  // namespace outrider::cli
