// An engine that goes on with other weights, and one that gives memory back: what requests get is
// what engines with these weights give.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "outrider/engine/engine_loader.h"
#include "tests/engine/scenario_requests.h"
#include "tests/source_directory.h"
#include "tests/temporary_directory.h"

namespace outrider {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
namespace fs = std::filesystem;

const fs::path kTarget = SourceDirectory() / "models/tiny-v3-mtp3";
const fs::path kEagle = SourceDirectory() / "models/tiny-v3-eagle3";

// A copy of a model in which every `stride`-th bfloat16 number has another sign.
fs::path ChangedCopy(const fs::path& model, const fs::path& to, size_t stride) {
  fs::copy(model, to, fs::copy_options::recursive);
  for (const auto& entry : fs::directory_iterator(to)) {
    if (entry.path().extension() != ".safetensors") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    std::string bytes(std::istreambuf_iterator<char>(file), {});
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof(header));
    for (const auto& tensor : nlohmann::json::parse(bytes.substr(8, header))) {
      if (tensor.value("dtype", "") != "BF16") continue;
      const size_t end = 8 + header + tensor["data_offsets"][1].get<size_t>();
      // The odd byte of a number has the sign.
      for (size_t i = 8 + header + tensor["data_offsets"][0].get<size_t>() + 1; i < end;
           i += 2 * stride) {
        bytes[i] = static_cast<char>(bytes[i] ^ 0x80);
      }
    }
    std::ofstream(entry.path(), std::ios::binary) << bytes;
  }
  return to;
}

EngineOptions WholeOptions(const fs::path& model) {
  EngineOptions options;
  options.model = model.string();
  options.device = DeviceKind::kCpu;
  options.num_threads = 1;
  options.kv_cache_memory_bytes = int64_t{16} << 20;
  options.max_model_len = 512;
  options.speculation.num_speculative_tokens = 3;
  return options;
}

LoadedEngine LoadWhole(const EngineOptions& options) { return LoadEngine(options, nullptr); }

std::string UpdateTo(Engine& engine, WeightUpdate update) {
  std::string said = "nothing";
  engine.UpdateWeights(std::move(update),
                       [&](const Error* error) { said = error == nullptr ? "" : error->what(); });
  engine.Step();
  return said;
}

std::string UpdateTo(Engine& engine, const fs::path& folder, const std::string& version = "") {
  return UpdateTo(engine,
                  {.folders = {.model = folder.string(), .drafter = ""}, .version = version});
}

GenerationRequest UpdatedRequest() { return Request(TrainedPrompts().front(), 60, 1.0F); }

std::vector<std::string> SpansOf(const Generated& generated) {
  std::vector<std::string> spans;
  for (const WeightSpan& span : generated.stats.weight_spans) {
    spans.push_back(fmt::format("{} {}", span.version, span.tokens));
  }
  return spans;
}

class WeightUpdateTest : public testing::Test {
 protected:
  TemporaryDirectory directory_;
  fs::path changed_ = ChangedCopy(kTarget, directory_.path() / "changed", 5);
};

TEST_F(WeightUpdateTest, GoesOnWithTheWeightsOfAFolderAndBack) {
  const Generated before = RunOne(*LoadWhole(WholeOptions(kTarget)).engine, UpdatedRequest());
  const Generated after = RunOne(*LoadWhole(WholeOptions(changed_)).engine, UpdatedRequest());
  ASSERT_NE(before.tokens, after.tokens);

  const LoadedEngine loaded = LoadWhole(WholeOptions(kTarget));
  Engine& engine = *loaded.engine;
  ExpectEqual({RunOne(engine, UpdatedRequest())}, {before});
  EXPECT_EQ(UpdateTo(engine, changed_, "two"), "");
  EXPECT_EQ(engine.Counters().weight_version, "two");
  const int64_t hits = engine.Counters().prefix_cache_hits;
  ExpectEqual({RunOne(engine, UpdatedRequest())}, {after});
  EXPECT_EQ(engine.Counters().prefix_cache_hits, hits);  // none of what other weights computed
  ExpectEqual({RunOne(engine, UpdatedRequest())}, {after});
  EXPECT_EQ(UpdateTo(engine, kTarget), "");
  EXPECT_EQ(engine.Counters().weight_version, "update-2");
  ExpectEqual({RunOne(engine, UpdatedRequest())}, {before});
}

TEST_F(WeightUpdateTest, TokensOfARequestThatCrossesAnUpdateAreThoseOfTheWeightsThatDrewThem) {
  EngineOptions options = WholeOptions(kTarget);
  options.weight_version = "one";
  const LoadedEngine loaded = LoadWhole(options);
  Engine& engine = *loaded.engine;
  const Generated before = RunOne(engine, UpdatedRequest());
  Generated crossing;
  Submit(engine, UpdatedRequest(), &crossing);
  while (crossing.tokens.size() < 10) engine.Step();
  const size_t first = crossing.tokens.size();
  EXPECT_EQ(UpdateTo(engine, changed_, "two"), "");
  RunUntilIdle(engine);
  ASSERT_EQ(crossing.tokens.size(), 60U);
  // The step after the update may have been the update's own.
  EXPECT_THAT(SpansOf(crossing),
              ElementsAre(fmt::format("one {}", first), fmt::format("two {}", 60 - first)));
  EXPECT_THAT(SpansOf(before), ElementsAre("one 60"));
  EXPECT_EQ(crossing.stats.num_preemptions, 1);

  // An engine with the other weights scores the later tokens alike, bit for bit.
  GenerationRequest given = UpdatedRequest();
  given.sampling.temperature = 0;
  given.grammar.forced_tokens = crossing.tokens;
  const Generated scored = RunOne(*LoadWhole(WholeOptions(changed_)).engine, given);
  for (size_t i = 0; i < 60; ++i) {
    const float logprob = crossing.logprobs[i].chosen.logprob;
    EXPECT_EQ(logprob,
              i < first ? before.logprobs[i].chosen.logprob : scored.logprobs[i].chosen.logprob)
        << i;
  }
}

// [tokens, numbers of a row] as rows.
std::vector<std::vector<int16_t>> RowsOf(const RoutedExperts& experts) {
  std::vector<std::vector<int16_t>> rows;
  const auto size = static_cast<std::ptrdiff_t>(experts.shape.RowSize());
  for (int32_t t = 0; t < experts.tokens; ++t) {
    rows.emplace_back(experts.ids.begin() + t * size, experts.ids.begin() + (t + 1) * size);
  }
  return rows;
}

TEST_F(WeightUpdateTest, ExpertsAreThoseOfTheWeightsThatDrewTheToken) {
  EngineOptions options = WholeOptions(kTarget);
  options.enable_return_routed_experts = true;
  options.max_num_batched_tokens = 8;
  EngineOptions other_options = options;
  other_options.model = changed_.string();
  const LoadedEngine loaded = LoadWhole(options);
  const LoadedEngine other = LoadWhole(other_options);
  Engine& engine = *loaded.engine;
  GenerationRequest request = UpdatedRequest();
  request.experts_from = 0;
  const size_t prompt = request.prompt_token_ids.size();
  const auto before = RowsOf(*RunOne(engine, request).experts);
  Generated crossing;
  Submit(engine, request, &crossing);
  while (crossing.tokens.size() < 10) engine.Step();
  const size_t first = crossing.tokens.size();
  EXPECT_EQ(UpdateTo(engine, changed_), "");
  RunUntilIdle(engine);
  GenerationRequest given = request;
  given.sampling.temperature = 0;
  given.grammar.forced_tokens = crossing.tokens;
  const auto scored = RowsOf(*RunOne(*other.engine, given).experts);
  const auto rows = RowsOf(*crossing.experts);
  ASSERT_EQ(rows.size(), prompt + 60 - 1);
  for (size_t t = 0; t < rows.size(); ++t) {
    EXPECT_EQ(rows[t], t + 1 < prompt + first ? before[t] : scored[t]) << "token " << t;
  }
  EXPECT_NE(before.front(), scored.front());

  // A prompt that had drawn nothing yet is the new weights' alone.
  ASSERT_GT(prompt, 8);
  Generated early;
  EXPECT_EQ(UpdateTo(engine, kTarget), "");
  Submit(engine, request, &early);
  engine.Step();
  EXPECT_EQ(UpdateTo(engine, changed_), "");
  RunUntilIdle(engine);
  EXPECT_EQ(RowsOf(*early.experts), RowsOf(*RunOne(*other.engine, request).experts));
}

TEST_F(WeightUpdateTest, ABadFolderLeavesTheOldWeights) {
  const LoadedEngine loaded = LoadWhole(WholeOptions(kTarget));
  Engine& engine = *loaded.engine;
  const Generated before = RunOne(engine, UpdatedRequest());
  Generated running;
  Submit(engine, UpdatedRequest(), &running);
  while (running.tokens.size() < 10) engine.Step();

  const fs::path truncated = directory_.path() / "truncated";
  fs::copy(changed_, truncated);
  fs::resize_file(truncated / "model-00002-of-00002.safetensors", 4'000'000);
  const fs::path other = directory_.path() / "other";
  fs::copy(changed_, other);
  nlohmann::json config = ReadJson(other / "config.json");
  config["rms_norm_eps"] = 1e-3;
  std::ofstream(other / "config.json") << config.dump();
  const fs::path empty = directory_.path() / "empty";
  fs::create_directory(empty);
  EXPECT_THAT(UpdateTo(engine, directory_.path() / "none"), HasSubstr("is no folder"));
  EXPECT_THAT(UpdateTo(engine, empty), HasSubstr("model.safetensors"));
  EXPECT_THAT(UpdateTo(engine, truncated), HasSubstr("model-00002-of-00002.safetensors"));
  EXPECT_THAT(UpdateTo(engine, other), HasSubstr("its rms_norm_eps differs"));
  EXPECT_THAT(UpdateTo(engine, SourceDirectory() / "tests/golden/tiny-v32"), HasSubstr("differs"));
  EXPECT_THAT(UpdateTo(engine, {.folders = {changed_.string(), kEagle.string()}, .version = ""}),
              HasSubstr("nothing drafts here with a checkpoint of its own"));
  EXPECT_EQ(engine.Counters().weight_version, "");
  RunUntilIdle(engine);
  EXPECT_EQ(running.stats.num_preemptions, 0);
  ExpectEqual({running, RunOne(engine, UpdatedRequest())}, {before, before});
}

TEST_F(WeightUpdateTest, AFolderNeedsNoConfig) {
  const Generated after = RunOne(*LoadWhole(WholeOptions(changed_)).engine, UpdatedRequest());
  fs::remove(changed_ / "config.json");
  const LoadedEngine loaded = LoadWhole(WholeOptions(kTarget));
  EXPECT_EQ(UpdateTo(*loaded.engine, changed_), "");
  ExpectEqual({RunOne(*loaded.engine, UpdatedRequest())}, {after});
}

TEST_F(WeightUpdateTest, TargetAndDrafterInOneCall) {
  const fs::path drafter = ChangedCopy(kEagle, directory_.path() / "drafter", 5);
  const auto options = [](const fs::path& target, const fs::path& eagle) {
    EngineOptions o = WholeOptions(target);
    o.speculation.method = DraftMethod::kEagle3;
    o.speculation.model = eagle.string();
    return o;
  };
  const auto traced = [](Engine& engine) {
    GenerationRequest request = UpdatedRequest();
    request.trace_steps = true;
    return RunOne(engine, request);
  };
  const Generated expected = traced(*LoadWhole(options(changed_, drafter)).engine);
  const LoadedEngine loaded = LoadWhole(options(kTarget, kEagle));
  Engine& engine = *loaded.engine;
  traced(engine);
  EXPECT_THAT(UpdateTo(engine, {.folders = {changed_.string(), kTarget.string()}, .version = ""}),
              HasSubstr("another network"));
  EXPECT_EQ(UpdateTo(engine, {.folders = {changed_.string(), drafter.string()}, .version = ""}),
            "");
  const Generated got = traced(engine);
  EXPECT_EQ(got.tokens, expected.tokens);
  EXPECT_EQ(got.drafts, expected.drafts);
  // Without a word on the drafter it is read from where it came last.
  EXPECT_EQ(UpdateTo(engine, changed_), "");
  EXPECT_EQ(traced(engine).drafts, expected.drafts);
}

TEST_F(WeightUpdateTest, RanksGetTheirParts) {
  EngineOptions options = WholeOptions(kTarget);
  options.tensor_parallel_size = 2;
  options.num_threads = 2;
  const LoadedEngine loaded = LoadWhole(options);
  RunOne(*loaded.engine, UpdatedRequest());
  EXPECT_EQ(UpdateTo(*loaded.engine, changed_), "");
  ExpectEqual({RunOne(*loaded.engine, UpdatedRequest())},
              {RunOne(*LoadWhole(WholeOptions(changed_)).engine, UpdatedRequest())});
}

/// Asks others until pages of the first request have left the pool.
void DriveOut(Engine& engine) {
  for (int32_t i = 0; engine.Counters().host_cache->pages_held < 4 && i < 40; ++i) {
    GenerationRequest other = UpdatedRequest();
    for (int32_t t = 0; t < 300; ++t) other.prompt_token_ids.push_back(6 + (i * 331 + t) % 1500);
    RunOne(engine, other);
  }
  ASSERT_GE(engine.Counters().host_cache->pages_held, 4);
}

EngineOptions OptionsWithHostPages() {
  EngineOptions options = WholeOptions(kTarget);
  options.kv_cache_memory_bytes = int64_t{9} << 20;
  options.max_num_seqs = 4;
  options.kv_offload_memory_bytes = int64_t{64} << 20;
  return options;
}

// Also of two updates that bring the same name.
TEST_F(WeightUpdateTest, PagesThatLeftTheCacheAreDropped) {
  const LoadedEngine loaded = LoadWhole(OptionsWithHostPages());
  Engine& engine = *loaded.engine;
  const Generated before = RunOne(engine, UpdatedRequest());
  for (const bool first : {true, false}) {
    ASSERT_NO_FATAL_FAILURE(DriveOut(engine));
    EXPECT_EQ(UpdateTo(engine, first ? changed_ : fs::path(kTarget), "same"), "");
    EXPECT_EQ(engine.Counters().host_cache->pages_held, 0);
    const int64_t hits = engine.Counters().host_cache_hits;
    const Generated after = RunOne(engine, UpdatedRequest());
    EXPECT_EQ(engine.Counters().host_cache_hits, hits);
    if (!first) ExpectEqual({after}, {before});
  }
}

TEST_F(WeightUpdateTest, SleepersKeepNoPagesOutsideOfTheCache) {
  const LoadedEngine loaded = LoadWhole(OptionsWithHostPages());
  Engine& engine = *loaded.engine;
  const Generated before = RunOne(engine, UpdatedRequest());
  for (const EngineMemory memory :
       {EngineMemory{.weights = true}, EngineMemory{.kv_cache = true}}) {
    ASSERT_NO_FATAL_FAILURE(DriveOut(engine));
    engine.Sleep(memory, PauseMode::kAbort, [](const Error*) {});
    while (engine.Step()) {
    }
    EXPECT_EQ(engine.Counters().host_cache->pages_held, 0);
    engine.WakeUp({.weights = true, .kv_cache = true}, [](const Error*) {});
    ExpectEqual({RunOne(engine, UpdatedRequest())}, {before});
  }
}

class SleepTest : public testing::TestWithParam<EngineMemory> {};

TEST_P(SleepTest, KeptRequestsGoOnWithTheSameTokens) {
  const LoadedEngine loaded = LoadWhole(WholeOptions(kTarget));
  Engine& engine = *loaded.engine;
  const Generated expected = RunOne(engine, UpdatedRequest());
  Generated first;
  Submit(engine, UpdatedRequest(), &first);
  while (first.tokens.size() < 10) engine.Step();
  bool asleep = false;
  engine.Sleep(GetParam(), PauseMode::kKeep, [&](const Error* error) { asleep = !error; });
  while (engine.Step()) {
  }
  EXPECT_TRUE(asleep);
  EXPECT_EQ(engine.Counters().weights_asleep, GetParam().weights);
  EXPECT_EQ(engine.Counters().cache_asleep, GetParam().kv_cache);
  const size_t so_far = first.tokens.size();
  Generated second;
  Submit(engine, UpdatedRequest(), &second);
  while (engine.Step()) {
  }
  EXPECT_EQ(first.tokens.size(), so_far);
  EXPECT_TRUE(second.tokens.empty());
  EXPECT_EQ(engine.Counters().num_requests_waiting, 2);
  std::optional<std::string> woken;
  engine.WakeUp({.weights = true, .kv_cache = true},
                [&](const Error* error) { woken = error == nullptr ? "" : error->what(); });
  RunUntilIdle(engine);
  EXPECT_EQ(woken, "");
  EXPECT_FALSE(engine.Counters().weights_asleep || engine.Counters().cache_asleep);
  ExpectEqual({first, second}, {expected, expected});
}

INSTANTIATE_TEST_SUITE_P(Memory, SleepTest,
                         testing::Values(EngineMemory{.weights = true},
                                         EngineMemory{.kv_cache = true},
                                         EngineMemory{.weights = true, .kv_cache = true}));

TEST_F(WeightUpdateTest, SleepersAreWokenByAnUpdate) {
  const LoadedEngine loaded = LoadWhole(WholeOptions(kTarget));
  Engine& engine = *loaded.engine;
  engine.Sleep({.weights = true, .kv_cache = true}, PauseMode::kAbort, [](const Error*) {});
  while (engine.Step()) {
  }
  EXPECT_THAT(UpdateTo(engine, directory_.path() / "none"), HasSubstr("is no folder"));
  EXPECT_TRUE(engine.Counters().weights_asleep);
  EXPECT_EQ(UpdateTo(engine, changed_), "");
  EXPECT_FALSE(engine.Counters().weights_asleep);
  EXPECT_TRUE(engine.Counters().cache_asleep);
  engine.WakeUp({.kv_cache = true}, [](const Error*) {});
  ExpectEqual({RunOne(engine, UpdatedRequest())},
              {RunOne(*LoadWhole(WholeOptions(changed_)).engine, UpdatedRequest())});
}

}  // namespace
}  // namespace outrider
