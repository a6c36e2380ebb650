// What an engine has of a model directory's text side, and options that are refused.
#include "outrider/engine/engine_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/networks/model_directory.h"
#include "tests/source_directory.h"
#include "tests/temporary_directory.h"

namespace outrider {
namespace {

const std::filesystem::path kBundled = SourceDirectory() / "models/tiny-v3-mtp3";
const std::filesystem::path kKimiFiles = SourceDirectory() / "tests/text/golden/kimi_tiktoken";

// On a processor, with a small cache.
EngineOptions OptionsOf(const std::filesystem::path& model, int32_t threads) {
  EngineOptions options;
  options.model = model.string();
  options.device = DeviceKind::kCpu;
  options.kv_cache_memory_bytes = int64_t{8} << 20;
  options.num_threads = threads;
  return options;
}

// Weights of the bundled model's shape, with another vocabulary.
EngineOptions DummyModel(const std::filesystem::path& directory, int32_t vocab_size) {
  nlohmann::json config = ReadJson(kBundled / "config.json");
  config["vocab_size"] = vocab_size;
  std::ofstream(directory / "config.json") << config.dump();
  EngineOptions options = OptionsOf(directory, 1);
  options.load_format = LoadFormat::kDummy;
  options.speculation.num_speculative_tokens = 0;
  return options;
}

LoadedEngine Load(const EngineOptions& options) {
  return LoadEngine(options, [](int64_t, int64_t) {}, [](const StepTimes::Batch&) {});
}

TEST(EngineLoader, ServesATiktokenModel) {
  const TemporaryDirectory directory;
  std::filesystem::copy(kKimiFiles / "tiktoken.model", directory.path());
  std::filesystem::copy(kKimiFiles / "tokenizer_config.json", directory.path());
  std::ofstream(directory.path() / "chat_template.jinja") << "<|im_user|>{{ messages[0].content }}";
  const int32_t tokens = Tokenizer::FromModelDirectory(kKimiFiles).vocab_size();
  // As Kimi's models, which have no rows for the last two special tokens.
  const LoadedEngine loaded = Load(DummyModel(directory.path(), tokens - 2));
  ASSERT_NE(loaded.tokenizer, nullptr);
  EXPECT_EQ(loaded.tokenizer->vocab_size(), tokens);
  EXPECT_EQ(loaded.special_tokens.at("bos_token"), "[BOS]");
  ASSERT_TRUE(loaded.chat_template);
  const std::string prompt =
      loaded.chat_template->Render(R"([{"role":"user","content":"Hi"}])", {});
  EXPECT_EQ(loaded.tokenizer->Encode(prompt, false).front(),
            loaded.tokenizer->TokenId("<|im_user|>"));
  EXPECT_NE(loaded.grammars->Compile({.kind = GrammarKind::kRegex, .text = "a", .choices = {}}),
            nullptr);
}

// On a processor `outrider explain` says of every network whether a GPU runs it.
TEST(EngineLoader, ExplainsWhatAGpuWouldSay) {
  const auto on_a_gpu = [](const std::filesystem::path& model) {
    for (const Decision& d : ExplainEngine(OptionsOf(SourceDirectory() / model, 1)).decisions) {
      if (d.what == "on a Hopper GPU") return d.value + ": " + d.why;
    }
    return std::string("nothing");
  };
  using testing::StartsWith;
  EXPECT_THAT(on_a_gpu("models/tiny-v3-mtp3"), StartsWith("runs: it takes all that the network"));
  EXPECT_THAT(on_a_gpu("models/tiny-v4-dspark"), StartsWith("runs: it takes all that the network"));
  EXPECT_THAT(on_a_gpu("tests/golden/tiny-v32"), testing::HasSubstr("does not run: "));
}

TEST(EngineLoader, TakesDummyWeightsWithoutAnyTokenizer) {
  const TemporaryDirectory directory;
  const LoadedEngine loaded = Load(DummyModel(directory.path(), 64));
  EXPECT_EQ(loaded.tokenizer, nullptr);
  EXPECT_FALSE(loaded.chat_template);
}

TEST(EngineLoader, TellsTheMemoryOfEveryRank) {
  EngineOptions options = OptionsOf(kBundled, 4);
  const auto weights = [](const MemoryReport& memory) {
    return SumOf(memory.weights) + SumOf(memory.mtp_weights);
  };
  const MemoryReport whole = ExplainEngine(options).memory;
  EXPECT_TRUE(whole.ranks.empty());
  for (const int32_t ranks : {2, 4}) {
    options.tensor_parallel_size = ranks;
    const MemoryReport memory = ExplainEngine(options).memory;
    ASSERT_EQ(std::ssize(memory.ranks), ranks);
    EXPECT_EQ(memory.ranks.front().weights, weights(memory));
    int64_t sum = 0;
    for (const RankMemory& rank : memory.ranks) {
      EXPECT_EQ(rank.cache, memory.kv_cache_bytes + memory.kept_row_bytes);
      EXPECT_LT(rank.weights, weights(whole));
      sum += rank.weights;
    }
    EXPECT_GE(sum, weights(whole));  // what is not cut is on every rank
  }
}

TEST(EngineLoader, CachesOfRanksThatShareRequestsHoldSoManyTimesTheTokens) {
  EngineOptions options = OptionsOf(kBundled, 4);
  const MemoryReport one = ExplainEngine(options).memory;
  EXPECT_EQ(one.cache_ranks, 1);
  for (const int32_t ranks : {2, 4}) {
    options.tensor_parallel_size = ranks;
    options.data_parallel_attention = false;
    const MemoryReport heads = ExplainEngine(options).memory;
    options.data_parallel_attention = true;
    const LoadedEngine explained = ExplainEngine(options);
    const MemoryReport& requests = explained.memory;
    EXPECT_EQ(requests.cache_ranks, ranks);
    EXPECT_EQ(requests.kv_tokens, one.kv_tokens) << "of each rank";
    EXPECT_EQ(requests.kv_bytes_per_token, one.kv_bytes_per_token);
    ASSERT_EQ(std::ssize(requests.ranks), ranks);
    for (size_t rank = 0; rank < requests.ranks.size(); ++rank) {
      EXPECT_GT(requests.ranks[rank].weights, heads.ranks[rank].weights) << "all heads are there";
      EXPECT_EQ(requests.ranks[rank].cache, one.kv_cache_bytes + one.kept_row_bytes);
    }
  }
  options.num_threads = 2;
  options.tensor_parallel_size = 2;
  const LoadedEngine loaded = LoadEngine(options, nullptr);
  loaded.engine->Step();  // counters are those of the end of a step
  EXPECT_EQ(loaded.engine->Counters().num_kv_blocks, 2 * one.kv_pages);
}

// Over full history, windows with compressed entries, and running states: a request of the greatest
// length fits into the pages that are told of it, and takes most of them.
TEST(EngineLoader, ARequestTakesThePagesThatAreTold) {
  for (const char* model : {"models/tiny-v3-mtp3", "models/tiny-v4-dspark", "models/tiny-ling"}) {
    EngineOptions options = OptionsOf(SourceDirectory() / model, 1);
    options.kv_cache_memory_bytes = int64_t{64} << 20;
    options.max_model_len = 600;
    options.max_num_batched_tokens = 16;
    options.max_num_seqs = 1;
    options.enable_prefix_caching = false;
    options.speculation.num_speculative_tokens = 0;
    const LoadedEngine loaded = Load(options);
    int64_t told = 0;
    for (const CacheGroupReport& group : loaded.memory.kv_groups) told += group.pages_per_request;
    if (const auto& state = loaded.memory.state) told += state->state_pages + state->row_pages;
    GenerationRequest request;
    for (int32_t i = 0; i < 500; ++i) request.prompt_token_ids.push_back(6 + i % 90);
    request.sampling.max_tokens = 99;
    request.sampling.ignore_eos = true;
    bool ended = false;
    bool generates = false;
    loaded.engine->Submit(request, [&](RequestId, OutputDelta&& delta) {
      ended = ended || delta.finish_reason == FinishReason::kLength;
      generates = true;
    });
    int64_t most = 0;
    int64_t most_generating = 0;
    while (loaded.engine->Step()) {
      const EngineCounters counters = loaded.engine->Counters();
      const int64_t pages =
          std::lround(counters.kv_cache_usage * static_cast<double>(counters.num_kv_blocks));
      most = std::max(most, pages);
      if (generates) most_generating = std::max(most_generating, pages);
    }
    const RequestPages& pages = loaded.memory.request;
    EXPECT_LE(most_generating, pages.history + pages.generating) << model;
    EXPECT_GE(most_generating + 2, pages.history + pages.generating) << model;
    EXPECT_TRUE(ended) << model;
    EXPECT_LE(most, told) << model;
    EXPECT_GE(10 * most, 8 * told) << model;
  }
}

TEST(EngineLoader, TellsTheProgressOfAllRanksAsOne) {
  EngineOptions options = OptionsOf(kBundled, 2);
  options.speculation.num_speculative_tokens = 0;
  options.tensor_parallel_size = 2;
  int64_t last = 0;
  int64_t all = 0;
  const LoadedEngine loaded = LoadEngine(options, [&](int64_t done, int64_t total) {
    EXPECT_GE(done, last);
    EXPECT_LE(done, total);
    last = done;
    all = total;
  });
  EXPECT_GT(last, 0);
  EXPECT_EQ(last, all);
  EXPECT_EQ(loaded.memory.ranks.size(), 2U);
}

// Progress rises to what model and drafter have, and ends there. Alone a rank knows that when it
// begins; of several each takes the others' parts for as large as its own until they begin.
TEST(EngineLoader, ADraftersBytesAreInTheProgress) {
  for (const int32_t ranks : {1, 2}) {
    EngineOptions options = OptionsOf(kBundled, ranks);
    options.tensor_parallel_size = ranks;
    const auto bytes_of = [&options](const SpeculationOptions& speculation) {
      options.speculation = speculation;
      int64_t last = 0;
      std::vector<int64_t> totals;
      LoadEngine(options, [&](int64_t done, int64_t total) {
        EXPECT_GE(done, last);
        last = done;
        totals.push_back(total);
      });
      EXPECT_EQ(totals.back(), last);
      if (options.tensor_parallel_size == 1) {
        EXPECT_EQ(totals.front(), last);
      }
      return last;
    };
    const int64_t model = bytes_of({.num_speculative_tokens = 0});
    const int64_t both = bytes_of({.method = DraftMethod::kEagle3,
                                   .model = (SourceDirectory() / "models/tiny-v3-eagle3").string(),
                                   .num_speculative_tokens = 2});
    const auto file =
        std::filesystem::file_size(SourceDirectory() / "models/tiny-v3-eagle3/model.safetensors");
    EXPECT_GT(static_cast<double>(both - model), 0.8 * static_cast<double>(file)) << ranks;
  }
}

TEST(EngineLoader, ACacheThatIsTooSmallIsRefusedWithWhatIsNeeded) {
  const TemporaryDirectory directory;
  EngineOptions options = DummyModel(directory.path(), 64);
  options.kv_cache_memory_bytes = 16 << 10;
  options.max_model_len = 512;
  std::string what;
  try {
    Load(options);
  } catch (const Error& error) {
    what = error.what();
  }
  EXPECT_THAT(what, testing::StartsWith("a KV cache of 16.0 KiB (--kv-cache-memory-bytes) holds"));
  EXPECT_THAT(what, testing::ContainsRegex("a context of 512 needs [0-9.]+ MiB: give it more"));
}

}  // namespace
}  // namespace outrider
