// Command lines in, settings or errors out. One case per source and fault makes it long.
#include "outrider/options/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/options/option_table.h"
#include "tests/temporary_directory.h"

namespace outrider {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Variables = std::map<std::string, std::string>;

Invocation Parse(const std::vector<std::string>& arguments, const Variables& variables = {}) {
  return ParseCommandLine(arguments, [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

/// The message of the error that the command line causes.
std::string ErrorOf(const std::vector<std::string>& arguments, const Variables& variables = {}) {
  try {
    Parse(arguments, variables);
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), Not(HasSubstr("\n"))) << "an error is one line";
    return error.what();
  }
  return "no error";
}

class ConfigFixture : public ::testing::Test {
 protected:
  std::string Write(const std::string& yaml) {
    const std::filesystem::path path = directory_.path() / "config.yaml";
    std::ofstream(path) << yaml;
    return path.string();
  }

 private:
  TemporaryDirectory directory_;
};

TEST(CommandLine, CommandsAndTheirModel) {
  EXPECT_EQ(Parse({"serve", "m"}).command, Command::kServe);
  EXPECT_EQ(Parse({"generate", "m", "--prompt", "x"}).command, Command::kGenerate);
  EXPECT_EQ(Parse({"bench", "latency", "m"}).command, Command::kBenchLatency);
  EXPECT_EQ(Parse({"bench", "throughput", "m"}).command, Command::kBenchThroughput);
  EXPECT_EQ(Parse({"bench", "serve", "m"}).command, Command::kBenchServe);
  EXPECT_EQ(Parse({"bench", "kernels", "--num-threads", "1"}).command, Command::kBenchKernels);
  EXPECT_EQ(Parse({"explain", "models/tiny"}).settings.engine.model, "models/tiny");
  EXPECT_EQ(Parse({"explain", "serve"}).settings.engine.model, "serve");
}

TEST(CommandLine, DefaultsAreTheStructs) {
  const Invocation invocation = Parse({"serve", "m"});
  EXPECT_EQ(invocation.settings.engine.block_size, EngineOptions().block_size);
  EXPECT_EQ(invocation.settings.engine.kv_cache_memory_bytes,
            EngineOptions().kv_cache_memory_bytes);
  EXPECT_EQ(invocation.settings.serve.port, 8000);
  EXPECT_FALSE(invocation.settings.engine.speculation.num_speculative_tokens.has_value());
  EXPECT_THAT(invocation.non_defaults, ElementsAre("model=m"));
}

TEST_F(ConfigFixture, ArgumentsWinOverEnvironmentOverFileOverDefault) {
  const std::string file = Write("port: 1\nmax-num-seqs: 1\nmax_model_len: 1\nblock-size: 16\n");
  const Variables variables = {{"OUTRIDER_PORT", "2"}, {"OUTRIDER_MAX_NUM_SEQS", "2"}};
  const Settings settings =
      Parse({"serve", "m", "--config", file, "--port", "3"}, variables).settings;
  EXPECT_EQ(settings.serve.port, 3);
  EXPECT_EQ(settings.engine.max_num_seqs, 2);
  EXPECT_EQ(settings.engine.max_model_len, 1);
  EXPECT_EQ(settings.engine.block_size, 16);
  EXPECT_EQ(settings.engine.max_num_batched_tokens, EngineOptions().max_num_batched_tokens);
}

TEST_F(ConfigFixture, AttentionBackendFromEverySource) {
  const auto backend = [](const std::vector<std::string>& arguments, const Variables& variables) {
    return Parse(arguments, variables).settings.engine.attention_backend;
  };
  const std::string file = Write("attention-backend: uniform-pad\n");
  const Variables variables = {{"OUTRIDER_ATTENTION_BACKEND", "uniform-largest"}};
  EXPECT_EQ(backend({"serve", "m"}, {}), AttentionBackend::kRagged);
  EXPECT_EQ(backend({"explain", "m", "--config", file}, {}), AttentionBackend::kUniformPad);
  EXPECT_EQ(backend({"generate", "m", "--prompt", "x", "--config", file}, variables),
            AttentionBackend::kUniformLargest);
  EXPECT_EQ(backend({"bench", "latency", "m", "--attention-backend", "single"}, variables),
            AttentionBackend::kSingle);
}

TEST_F(ConfigFixture, KvCacheFormFromEverySource) {
  const auto form = [](const std::vector<std::string>& arguments, const Variables& variables) {
    return Parse(arguments, variables).settings.engine.kv_cache_form;
  };
  const std::string file = Write("kv-cache-form: heads\n");
  const Variables variables = {{"OUTRIDER_KV_CACHE_FORM", "latent"}};
  EXPECT_EQ(form({"serve", "m"}, {}), std::nullopt);
  EXPECT_EQ(form({"explain", "m", "--config", file}, {}), KvCacheForm::kHeads);
  EXPECT_EQ(form({"serve", "m", "--config", file}, variables), KvCacheForm::kLatent);
  EXPECT_EQ(form({"bench", "latency", "m", "--kv-cache-form", "auto"}, variables), std::nullopt);
  EXPECT_THROW(form({"serve", "m", "--kv-cache-form", "keys"}, {}), Error);
}

TEST_F(ConfigFixture, QuantizationFromEverySource) {
  const auto quantization = [](const std::vector<std::string>& arguments,
                               const Variables& variables) {
    return Parse(arguments, variables).settings.engine.quantization;
  };
  const std::string file = Write("quantization: int8\n");
  const Variables variables = {{"OUTRIDER_QUANTIZATION", "none"}};
  EXPECT_EQ(quantization({"serve", "m"}, {}), WeightQuantization::kNone);
  EXPECT_EQ(quantization({"explain", "m", "--config", file}, {}), WeightQuantization::kInt8);
  EXPECT_EQ(quantization({"serve", "m", "--config", file}, variables), WeightQuantization::kNone);
  EXPECT_EQ(quantization({"bench", "latency", "m", "--quantization", "int8"}, variables),
            WeightQuantization::kInt8);
  EXPECT_EQ(quantization({"generate", "m", "--prompt", "x", "--quantization", "int8"}, {}),
            WeightQuantization::kInt8);
  EXPECT_THROW(quantization({"serve", "m", "--quantization", "int4"}, {}), Error);
}

TEST_F(ConfigFixture, TheFileCanComeFromTheEnvironmentAndNameTheModel) {
  const std::string file = Write("model: models/tiny\nport: 77\n");
  const Settings settings = Parse({"serve"}, {{"OUTRIDER_CONFIG", file}}).settings;
  EXPECT_EQ(settings.engine.model, "models/tiny");
  EXPECT_EQ(settings.serve.port, 77);
}

TEST_F(ConfigFixture, SpeculationFromEverySourceAndSpelling) {
  const auto tokens = [](const Invocation& invocation) {
    return invocation.settings.engine.speculation.num_speculative_tokens.value_or(-1);
  };
  const std::string json = R"({"method": "mtp", "num_speculative_tokens": 2})";
  EXPECT_EQ(tokens(Parse({"serve", "m", "--speculative-config", json})), 2);
  EXPECT_EQ(tokens(Parse({"serve", "m", "--speculative-config.num_speculative_tokens", "3"})), 3);
  EXPECT_EQ(tokens(Parse({"serve", "m", "--speculative-config", json, "--spec-tokens", "0"})), 0);
  EXPECT_EQ(tokens(Parse({"serve", "m"}, {{"OUTRIDER_SPECULATIVE_CONFIG", json}})), 2);
  EXPECT_EQ(tokens(Parse({"serve", "m"}, {{"OUTRIDER_SPEC_TOKENS", "1"}})), 1);
  EXPECT_EQ(tokens(Parse({"bench", "latency", "m", "--speculative-config", json})), 2);
  const std::string file = Write("speculative-config:\n  num_speculative_tokens: 1\n");
  EXPECT_EQ(tokens(Parse({"serve", "m", "--config", file})), 1);
  // A short flag on the command line wins over the long form in the environment.
  EXPECT_EQ(
      tokens(Parse({"serve", "m", "--spec-tokens", "0"}, {{"OUTRIDER_SPECULATIVE_CONFIG", json}})),
      0);
  const std::string file_json = Write("speculative-config: '" + json + "'\n");
  EXPECT_EQ(tokens(Parse({"serve", "m", "--config", file_json})), 2);
}

TEST_F(ConfigFixture, ListsFromEverySource) {
  const auto names = [](const std::vector<std::string>& arguments, const Variables& variables) {
    return Parse(arguments, variables).settings.serve.served_model_names;
  };
  EXPECT_THAT(names({"serve", "m", "--served-model-name", "a", "--served-model-name", "b,c"}, {}),
              ElementsAre("a", "b,c"));
  EXPECT_THAT(names({"serve", "m"}, {{"OUTRIDER_SERVED_MODEL_NAME", "a, b"}}),
              ElementsAre("a", "b"));
  const std::string file = Write("served-model-name: [x, 'y,z']\n");
  EXPECT_THAT(names({"serve", "m", "--config", file}, {}), ElementsAre("x", "y,z"));
  const std::string scalar = Write("served-model-name: tiny\n");
  EXPECT_THAT(names({"serve", "m", "--config", scalar}, {}), ElementsAre("tiny"));
  const std::string list = Write("spec-tokens: [0, 3]\n");
  EXPECT_THAT(Parse({"bench", "latency", "m", "--config", list}).settings.bench.spec_tokens,
              ElementsAre(0, 3));
}

TEST_F(ConfigFixture, OriginsAreListedAsHereOrAsInVllm) {
  const auto cors = [](const std::vector<std::string>& arguments) {
    return Parse(arguments).settings.serve.cors;
  };
  const CorsOptions none = cors({"serve", "m"});
  EXPECT_TRUE(none.allowed_origins.empty());
  EXPECT_THAT(none.allowed_methods, ElementsAre("*"));
  EXPECT_THAT(none.allowed_headers, ElementsAre("*"));
  EXPECT_FALSE(none.allow_credentials);
  const CorsOptions some = cors(
      {"serve", "m", "--allowed-origins", R"(["https://a.b", "http://c"])", "--allowed-methods",
       "GET", "--allowed-methods", "POST", "--allowed-headers", R"(["*"])", "--allow-credentials"});
  EXPECT_THAT(some.allowed_origins, ElementsAre("https://a.b", "http://c"));
  EXPECT_THAT(some.allowed_methods, ElementsAre("GET", "POST"));
  EXPECT_THAT(some.allowed_headers, ElementsAre("*"));
  EXPECT_TRUE(some.allow_credentials);
  const std::string file = Write("allowed-origins: ['https://a.b', 'http://c']\n");
  EXPECT_EQ(cors({"serve", "m", "--config", file}).allowed_origins, some.allowed_origins);
  EXPECT_THAT(ErrorOf({"serve", "m", "--allowed-methods", R"([1])"}),
              HasSubstr("--allowed-methods: '[1]' is no list of strings"));
  EXPECT_THAT(ErrorOf({"serve", "m", "--allowed-headers", "a b"}),
              HasSubstr("--allowed-headers: 'a b' is no name of a header"));
}

TEST(CommandLine, EngineValues) {
  const Settings settings = Parse({"serve",
                                   "m",
                                   "--dtype",
                                   "float32",
                                   "--kv-cache-dtype",
                                   "bfloat16",
                                   "--load-format",
                                   "dummy",
                                   "--kv-cache-memory-bytes",
                                   "512M",
                                   "--max-num-queued-reqs",
                                   "7",
                                   "--seed",
                                   "18446744073709551615",
                                   "--num-threads",
                                   "2",
                                   "--tokenizer",
                                   "t",
                                   "--kv-offload-memory-bytes",
                                   "3GiB",
                                   "--kv-offload-dir",
                                   "pages",
                                   "--max-logprobs",
                                   "5",
                                   "--log-format",
                                   "json",
                                   "--log-level",
                                   "debug"})
                                .settings;
  EXPECT_EQ(settings.engine.dtype, DType::kF32);
  EXPECT_EQ(settings.engine.kv_cache_dtype, DType::kBF16);
  EXPECT_EQ(settings.engine.load_format, LoadFormat::kDummy);
  EXPECT_EQ(settings.engine.kv_cache_memory_bytes, int64_t{512} << 20);
  EXPECT_EQ(settings.engine.kv_offload_memory_bytes, int64_t{3} << 30);
  EXPECT_EQ(settings.engine.kv_offload_dir, "pages");
  EXPECT_EQ(settings.engine.max_num_queued_reqs, 7);
  EXPECT_EQ(settings.engine.seed, 18446744073709551615U);
  EXPECT_EQ(settings.engine.num_threads, 2);
  EXPECT_EQ(settings.engine.tokenizer, "t");
  EXPECT_EQ(settings.engine.max_logprobs, 5);
  EXPECT_EQ(settings.log_format, LogFormat::kJson);
  EXPECT_EQ(settings.log_level, "debug");
  EXPECT_FALSE(Parse({"serve", "m", "--dtype", "auto"}).settings.engine.dtype.has_value());
}

TEST(CommandLine, GenerateFieldsThatProcessLogits) {
  const Settings settings = Parse({"generate",
                                   "m",
                                   "--prompt",
                                   "x",
                                   "--repetition-penalty",
                                   "1.5",
                                   "--presence-penalty",
                                   "-1",
                                   "--frequency-penalty",
                                   "0.5",
                                   "--min-tokens",
                                   "3",
                                   "--logit-bias",
                                   R"({"17": -100, "3": 2.5})",
                                   "--bad-words",
                                   "a, b",
                                   "--bad-words",
                                   "c",
                                   "--allowed-token-ids",
                                   "4,5",
                                   "--prompt-logprobs",
                                   "30",
                                   "--logprobs-mode",
                                   "processed_logprobs"})
                                .settings;
  const SamplingParams& sampling = settings.generate.sampling;
  EXPECT_EQ(settings.generate.repetition_penalty, 1.5);
  EXPECT_EQ(sampling.presence_penalty, -1.0F);
  EXPECT_EQ(sampling.frequency_penalty, 0.5F);
  EXPECT_EQ(sampling.min_tokens, 3);
  ASSERT_EQ(sampling.logit_bias.size(), 2U);
  EXPECT_EQ(sampling.logit_bias[0].token, 17);
  EXPECT_EQ(sampling.logit_bias[1].value, 2.5F);
  EXPECT_THAT(settings.generate.bad_words, ElementsAre("a, b", "c"));
  EXPECT_THAT(*sampling.allowed_token_ids, ElementsAre(4, 5));
  EXPECT_EQ(sampling.prompt_logprobs, 30);
  EXPECT_EQ(settings.engine.max_logprobs, 30);
  EXPECT_EQ(settings.engine.logprobs_mode, LogprobsMode::kProcessed);

  const auto error = [](const std::string& flag, const std::string& value) {
    return ErrorOf({"generate", "m", "--prompt", "x", flag, value});
  };
  EXPECT_THAT(error("--logit-bias", "[1]"), HasSubstr("--logit-bias: '[1]' is not a JSON object"));
  EXPECT_THAT(error("--logit-bias", R"({"a":1})"), HasSubstr("--logit-bias: token id"));
  EXPECT_THAT(error("--logit-bias", R"({"1":"x"})"), HasSubstr("token 1 must be a number"));
  EXPECT_THAT(error("--repetition-penalty", "0"), HasSubstr("--repetition-penalty"));
  EXPECT_THAT(error("--presence-penalty", "3"), HasSubstr("--presence-penalty"));
  EXPECT_THAT(error("--min-tokens", "-1"), HasSubstr("--min-tokens"));
  EXPECT_THAT(error("--logprobs-mode", "raw"), HasSubstr("processed_logprobs"));
}

TEST(CommandLine, RangesAreToldAsTheyAre) {
  const auto generate = [](const std::string& flag, const std::string& value) {
    return ErrorOf({"generate", "m", "--prompt", "x", flag, value});
  };
  for (const char* value : {"2", "0", "-1"}) {
    EXPECT_THAT(generate("--top-p", value), HasSubstr("it must be above 0, at most 1"));
  }
  EXPECT_EQ(Parse({"generate", "m", "--prompt", "x", "--top-p", "1e-12"}).settings.generate.top_p,
            1e-12);
  EXPECT_EQ(
      Parse({"generate", "m", "--prompt", "x", "--temperature", "7"}).settings.generate.temperature,
      7);
  EXPECT_EQ(Parse({"bench", "latency", "m", "--temperature", "7"}).settings.bench.temperature, 7);
  EXPECT_THAT(generate("--temperature", "-1"), HasSubstr("it must be at least 0"));
  EXPECT_THAT(generate("--temperature", "1e39"), HasSubstr("out of range"));
  EXPECT_THAT(ErrorOf({"serve", "m", "--num-threads", "0"}), HasSubstr("from 1 to 1024"));
  EXPECT_THAT(ErrorOf({"serve", "m", "--uds", ""}), HasSubstr("--uds: must not be empty"));
}

TEST(CommandLine, GenerateValues) {
  const GenerateSettings settings = Parse({"generate",
                                           "m",
                                           "--chat",
                                           "hi",
                                           "--system",
                                           "be brief",
                                           "--temperature",
                                           "0",
                                           "--top-k",
                                           "5",
                                           "--top-p",
                                           "0.9",
                                           "--min-p",
                                           "0.1",
                                           "--seed",
                                           "4",
                                           "--max-tokens",
                                           "32",
                                           "--stop",
                                           "a,b",
                                           "--stop",
                                           "\n",
                                           "--stop-token-id",
                                           "1",
                                           "--stop-token-id",
                                           "2",
                                           "--ignore-eos",
                                           "--logprobs",
                                           "2",
                                           "--json"})
                                        .settings.generate;
  EXPECT_EQ(settings.chat, "hi");
  EXPECT_EQ(settings.system, "be brief");
  EXPECT_EQ(settings.temperature, 0);
  EXPECT_EQ(settings.top_k, 5);
  EXPECT_EQ(settings.top_p, 0.9);
  EXPECT_EQ(settings.min_p, 0.1);
  EXPECT_EQ(settings.seed, 4U);
  EXPECT_EQ(settings.max_tokens, 32);
  EXPECT_THAT(settings.stop, ElementsAre("a,b", "\n"));
  EXPECT_THAT(settings.stop_token_ids, ElementsAre(1, 2));
  EXPECT_TRUE(settings.ignore_eos);
  EXPECT_EQ(settings.logprobs, 2);
  EXPECT_TRUE(settings.json);
  EXPECT_THAT(
      Parse({"generate", "m", "--prompt-token-ids", "1,2,3"}).settings.generate.prompt_token_ids,
      ElementsAre(1, 2, 3));
}

TEST(CommandLine, TheLastValueAndASwitchTurnedOff) {
  EXPECT_EQ(Parse({"serve", "m", "--port", "1", "--port=2"}).settings.serve.port, 2);
  EXPECT_FALSE(Parse({"generate", "m", "--prompt", "x", "--json=false"}, {{"OUTRIDER_JSON", "1"}})
                   .settings.generate.json);
  EXPECT_EQ(Parse({"generate", "m", "--prompt", "-"}).settings.generate.prompt, "-");
  EXPECT_EQ(Parse({"generate", "m", "--prompt", "--json"}).settings.generate.prompt, "--json");
}

TEST(CommandLine, HelpAndVersion) {
  EXPECT_FALSE(Parse({"--help"}).command.has_value());
  EXPECT_THAT(Parse({"--help"}).text, HasSubstr("outrider COMMAND MODEL"));
  EXPECT_THAT(Parse({"bench", "--help"}).text, HasSubstr("latency|throughput|serve"));
  EXPECT_THAT(
      Parse({"bench", "kernels", "--help"}).text,
      AllOf(HasSubstr("Usage: outrider bench kernels [OPTION"), Not(HasSubstr("MODEL [OPTION"))));
  EXPECT_THAT(Parse({"serve", "--help"}).text,
              AllOf(HasSubstr("--port N"), HasSubstr("Speculation:"), Not(HasSubstr("--prompt"))));
  EXPECT_THAT(Parse({"bench", "latency", "-h"}).text, HasSubstr("--input-len"));
  EXPECT_THAT(Parse({"--version"}).text, HasSubstr("outrider 0."));
}

TEST(CommandLine, HelpAndVersionAreCommandsToo) {
  EXPECT_EQ(Parse({"help"}).text, Parse({"--help"}).text);
  EXPECT_EQ(Parse({"help", "serve"}).text, Parse({"serve", "--help"}).text);
  EXPECT_EQ(Parse({"help", "bench"}).text, Parse({"bench", "--help"}).text);
  EXPECT_EQ(Parse({"help", "bench", "latency"}).text, Parse({"bench", "latency", "-h"}).text);
  EXPECT_EQ(Parse({"version"}).text, Parse({"--version"}).text);
  EXPECT_EQ(Parse({"-V"}).text, Parse({"--version"}).text);
  EXPECT_FALSE(Parse({"help", "serve"}).command.has_value());
  EXPECT_THAT(ErrorOf({"help", "srve"}), AllOf(HasSubstr("'srve'"), HasSubstr("mean serve?")));
  EXPECT_THAT(ErrorOf({"help", "bench", "latncy"}), HasSubstr("mean latency?"));
  EXPECT_THAT(ErrorOf({"versoin"}), HasSubstr("mean version?"));
}

TEST(CommandLine, TheModelIsNoOption) {
  const std::string told = "--model is no option: the model stands alone, as in `outrider ";
  EXPECT_EQ(ErrorOf({"serve", "m", "--model", "x"}), told + "serve m`");
  EXPECT_EQ(ErrorOf({"serve", "m", "--model=x"}), told + "serve x`");
  EXPECT_EQ(ErrorOf({"serve", "--model", "x"}), told + "serve x`");
  EXPECT_EQ(ErrorOf({"serve", "--model"}), told + "serve DIR`");
  EXPECT_EQ(ErrorOf({"bench", "latency", "--model=x"}), told + "bench latency x`");
  EXPECT_THAT(ErrorOf({"bench", "kernels", "--model=x"}), HasSubstr("unknown option --model"));
}

// Also where the rest of the command line is wrong.
TEST(CommandLine, TheLogFormatIsKnownBeforeAnythingIsChecked) {
  const auto format = [](const std::vector<std::string>& arguments, const Variables& variables) {
    return RequestedLogFormat(arguments,
                              [&](const std::string& name) -> std::optional<std::string> {
                                const auto found = variables.find(name);
                                if (found == variables.end()) return std::nullopt;
                                return found->second;
                              });
  };
  EXPECT_EQ(format({"quantum"}, {}), LogFormat::kText);
  EXPECT_EQ(format({"serve", "--port", "x", "--log-format", "json"}, {}), LogFormat::kJson);
  EXPECT_EQ(format({"serve", "--log-format=json", "--nothing"}, {}), LogFormat::kJson);
  EXPECT_EQ(format({"quantum"}, {{"OUTRIDER_LOG_FORMAT", "json"}}), LogFormat::kJson);
  EXPECT_EQ(format({"--log-format", "text"}, {{"OUTRIDER_LOG_FORMAT", "json"}}), LogFormat::kText);
  EXPECT_EQ(format({"--log-format=json", "--log-format=text"}, {}), LogFormat::kText);
  EXPECT_EQ(format({"--log-format"}, {}), LogFormat::kText);
  EXPECT_EQ(format({"serve", "--config", "/no/such"}, {}), LogFormat::kText);
}

TEST_F(ConfigFixture, TheLogFormatOfAFileIsKnownBeforeAnythingIsChecked) {
  const std::string file = Write("port: none\nlog_format: json\n");
  const auto nothing = [](const std::string&) -> std::optional<std::string> {
    return std::nullopt;
  };
  EXPECT_EQ(RequestedLogFormat(std::vector<std::string>{"serve", "--config=" + file}, nothing),
            LogFormat::kJson);
}

TEST(CommandLine, NonDefaultsAreListedWithoutSecrets) {
  EXPECT_THAT(Parse({"serve", "m", "--port", "8000", "--api-key", "sesame"},
                    {{"OUTRIDER_SPEC_TOKENS", "2"}})
                  .non_defaults,
              ElementsAre("api-key=***", "model=m", "spec-tokens=2"));
  EXPECT_THAT(Parse({"serve", "m", "--api-key-file", "keys"}).non_defaults,
              ElementsAre("api-key-file=keys", "model=m"))
      << "a path is no secret";
}

TEST(CommandLine, WhatNobodyKnowsIsNamedWithTheNearest) {
  EXPECT_THAT(ErrorOf({"serve", "m", "--max-modle-len", "5"}),
              AllOf(HasSubstr("unknown option --max-modle-len"),
                    HasSubstr("did you mean --max-model-len?")));
  EXPECT_THAT(ErrorOf({"serve", "m", "--prot=5"}),
              AllOf(HasSubstr("unknown option --prot "), HasSubstr("--port")));
  EXPECT_THAT(ErrorOf({"generate", "m", "--prompt", "x", "--port", "5"}),
              HasSubstr("it is an option of outrider serve"));
  EXPECT_THAT(ErrorOf({"serve", "m", "-x"}), HasSubstr("unknown option -x"));
  for (const char* option : {"--nnodes", "--node-rank", "--dist-init-addr=a:1", "--master-addr"}) {
    EXPECT_THAT(ErrorOf({"serve", "m", option, "2"}),
                HasSubstr("of outrider serve; one process serves with the devices of one host: "
                          "several hosts are not built yet"))
        << option;
  }
  EXPECT_THAT(ErrorOf({"serve", "m", "n"}), HasSubstr("unexpected argument 'n'"));
  EXPECT_THAT(
      ErrorOf({"bench", "kernels", "m"}),
      HasSubstr("unexpected argument 'm' of outrider bench kernels; it takes only options"));
  EXPECT_THAT(ErrorOf({"bench", "kernels", "--block-size", "64"}),
              HasSubstr("it is an option of outrider serve"));
  EXPECT_THAT(ErrorOf({"srve", "m"}), AllOf(HasSubstr("'srve'"), HasSubstr("mean serve?")));
  EXPECT_THAT(ErrorOf({"bench", "latncy", "m"}),
              AllOf(HasSubstr("'latncy'"), HasSubstr("mean latency?")));
  EXPECT_THAT(ErrorOf({"quantum"}), HasSubstr("'quantum' of outrider; `outrider --help` lists"));
  EXPECT_THAT(ErrorOf({"--port", "3", "serve", "m"}), HasSubstr("unknown option --port"));
  EXPECT_THAT(ErrorOf({"bench", "--json", "x", "latency", "m"}),
              HasSubstr("unknown option --json of outrider bench; options stand after"));
}

TEST(CommandLine, SwitchesAreTrueOrFalse) {
  for (const std::string flag :
       {"--enable-prefix-caching", "--no-enable-prefix-caching", "--fast-prefix"}) {
    EXPECT_THAT(ErrorOf({"serve", "m", flag + "=maybe"}),
                HasSubstr(flag + ": 'maybe' is neither true nor false"));
  }
  const auto caches = [](const std::string& flag) {
    return Parse({"serve", "m", flag}).settings.engine.enable_prefix_caching;
  };
  EXPECT_TRUE(caches("--enable-prefix-caching=on"));
  EXPECT_FALSE(caches("--enable-prefix-caching=off"));
  EXPECT_FALSE(caches("--no-enable-prefix-caching"));
}

TEST(CommandLine, WhatIsMissing) {
  EXPECT_THAT(ErrorOf({}), HasSubstr("needs a command"));
  EXPECT_THAT(ErrorOf({"bench"}), HasSubstr("latency, throughput, serve or kernels"));
  EXPECT_THAT(ErrorOf({"serve"}), HasSubstr("outrider serve needs MODEL"));
  EXPECT_THAT(ErrorOf({"serve", "m", "--port"}), HasSubstr("--port"));
  EXPECT_THAT(ErrorOf({"generate", "m"}), HasSubstr("needs one of --prompt"));
  EXPECT_THAT(ErrorOf({"generate", "m", "--prompt", "a", "--chat", "b"}), HasSubstr("only one of"));
  EXPECT_THAT(ErrorOf({"generate", "m", "--prompt", "a", "--system", "b"}), HasSubstr("--system"));
}

TEST_F(ConfigFixture, FileErrorsNameFileLineAndKey) {
  const std::string unknown = Write("block-size: 16\nprot: 1\n");
  EXPECT_THAT(ErrorOf({"serve", "m", "--config", unknown}),
              AllOf(HasSubstr(unknown + ", line 2"), HasSubstr("'prot'"), HasSubstr("mean port?")));
  const std::string bad = Write("port: 99999\n");
  EXPECT_THAT(ErrorOf({"serve", "m", "--config", bad}),
              AllOf(HasSubstr(bad), HasSubstr("port"), HasSubstr("99999")));
  // A bad value is an error even where another source wins.
  EXPECT_THAT(ErrorOf({"serve", "m", "--config", bad, "--port", "1"}), HasSubstr("99999"));
  const std::string list = Write("port: [1, 2]\n");
  EXPECT_THAT(ErrorOf({"serve", "m", "--config", list}), HasSubstr("one value, not a list"));
  const std::string key = Write("speculative-config: {num_spec_tokens: 3}\n");
  EXPECT_THAT(ErrorOf({"serve", "m", "--config", key}), HasSubstr("num_spec_tokens"));
  EXPECT_THAT(ErrorOf({"serve", "m", "--config", "/nonexistent.yaml"}),
              HasSubstr("/nonexistent.yaml"));
  // What only another command knows may stand in a shared file.
  const std::string shared = Write("port: 1\nspec-tokens: 2\n");
  EXPECT_EQ(Parse({"explain", "m", "--config", shared})
                .settings.engine.speculation.num_speculative_tokens,
            2);
}

TEST(CommandLine, EnvironmentErrorsNameTheVariable) {
  EXPECT_THAT(ErrorOf({"serve", "m"}, {{"OUTRIDER_BLOCK_SIZE", "big"}}),
              AllOf(HasSubstr("OUTRIDER_BLOCK_SIZE"), HasSubstr("'big'")));
  EXPECT_THAT(ErrorOf({"serve", "m"}, {{"OUTRIDER_PORT", "tcp://10.0.0.1:8000"}}),
              AllOf(HasSubstr("OUTRIDER_PORT"), HasSubstr("Kubernetes")));
  EXPECT_EQ(Parse({"serve", "m"}, {{"OUTRIDER_PORT", ""}}).settings.serve.port, 8000);
}

TEST(CommandLine, DraftLengthIsAdaptiveUntilANumberIsGiven) {
  const auto adaptive = [](std::vector<std::string> options) {
    options.insert(options.begin(), {"serve", "m"});
    return Parse(options).settings.engine.speculation.IsAdaptive();
  };
  EXPECT_TRUE(adaptive({}));
  EXPECT_TRUE(adaptive({"--speculative-config", R"({"draft_vocab_size": 500})"}));
  EXPECT_FALSE(adaptive({"--spec-tokens", "3"}));
  EXPECT_FALSE(adaptive({"--speculative-config", R"({"num_speculative_tokens": 3})"}));
  EXPECT_FALSE(adaptive({"--speculative-config.adaptive", "false"}));
  EXPECT_TRUE(adaptive({"--spec-tokens", "3", "--speculative-config.adaptive", "true"}));
  EXPECT_TRUE(
      adaptive({"--speculative-config", R"({"num_speculative_tokens": 2, "adaptive": true})"}));
  EXPECT_FALSE(adaptive(
      {"--speculative-config", R"({"num_speculative_tokens_per_batch_size": [[1, 8, 3]]})"}));
}

TEST(CommandLine, DraftLengthIsFixedWhereOutputWouldDependOnTheClock) {
  const auto adaptive = [](const std::string& config) {
    return Parse({"serve", "m", "--speculative-config", config})
        .settings.engine.speculation.IsAdaptive();
  };
  EXPECT_FALSE(adaptive(R"({"rejection_sample_method": "standard"})"));
  EXPECT_FALSE(
      adaptive(R"({"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2})"));
  EXPECT_TRUE(adaptive(R"({"rejection_sample_method": "standard", "adaptive": true})"));
  EXPECT_FALSE(adaptive(R"({"method": "ngram"})"));
  EXPECT_TRUE(adaptive(R"({"method": "ngram", "adaptive": true})"));
}

TEST(CommandLine, SpeculativeConfigNamesADrafter) {
  const SpeculationOptions o =
      Parse({"serve", "m", "--speculative-config",
             R"({"method": "eagle3", "model": "d", "eagle_aux_hidden_state_layer_ids": [2, 30]})"})
          .settings.engine.speculation;
  EXPECT_EQ(o.method, DraftMethod::kEagle3);
  EXPECT_EQ(o.model, "d");
  EXPECT_EQ(o.eagle_aux_hidden_state_layer_ids, (std::vector<int32_t>{2, 30}));
  EXPECT_TRUE(o.IsAdaptive());
  EXPECT_EQ(Parse({"serve", "m", "--spec-method", "eagle3"}).settings.engine.speculation.method,
            DraftMethod::kEagle3);
}

TEST(CommandLine, SpeculativeConfigErrorsNameTheKey) {
  const auto error = [](const std::string& json) {
    return ErrorOf({"serve", "m", "--speculative-config", json});
  };
  EXPECT_THAT(error(R"({"num_spec_tokens": 3})"),
              AllOf(HasSubstr("--speculative-config"), HasSubstr("'num_spec_tokens'"),
                    HasSubstr("num_speculative_tokens")));
  EXPECT_THAT(error(R"({"methd": "mtp"})"), HasSubstr("did you mean method?"));
  EXPECT_THAT(error(R"({"method": "eagle"})"), AllOf(HasSubstr("method"), HasSubstr("'eagle'")));
  for (const std::string method : {"dflash", "dspark"}) {
    EXPECT_THAT(
        error(R"({"method": ")" + method + R"(", "model": "d"})"),
        AllOf(HasSubstr("method"), HasSubstr("'" + method + "'"), HasSubstr("eagle3, ngram")));
  }
  EXPECT_THAT(error(R"({"model": 3})"), HasSubstr("must be a string, not 3"));
  EXPECT_THAT(error(R"({"eagle_aux_hidden_state_layer_ids": 3})"),
              HasSubstr("must be a list of layers, not 3"));
  EXPECT_THAT(error(R"({"eagle_aux_hidden_state_layer_ids": [2, 0]})"),
              AllOf(HasSubstr("eagle_aux_hidden_state_layer_ids"), HasSubstr("from 1 to 4096")));
  EXPECT_THAT(error(R"({"method": 3})"), HasSubstr("must be a string, not 3"));
  EXPECT_THAT(error(R"({"num_speculative_tokens": "3"})"), HasSubstr("must be a whole number"));
  EXPECT_THAT(error(R"({"num_speculative_tokens": 2.5})"), HasSubstr("must be a whole number"));
  EXPECT_THAT(error(R"({"num_speculative_tokens": -1})"), HasSubstr("from 0 to 32"));
  EXPECT_THAT(error(R"({"draft_vocab_size": 0})"),
              AllOf(HasSubstr("draft_vocab_size"), HasSubstr("must be at least 1")));
  EXPECT_THAT(error(R"({"adaptive": 1})"),
              AllOf(HasSubstr("adaptive"), HasSubstr("must be true or false, not 1")));
  EXPECT_THAT(ErrorOf({"serve", "m", "--speculative-config.adaptive", "yes"}), HasSubstr("'yes'"));
  EXPECT_THAT(error(R"({"method": "mtp", "method": "mtp"})"), HasSubstr("appears twice"));
  EXPECT_THAT(error("[1]"), HasSubstr("must be a JSON object"));
  EXPECT_THAT(error("{"), AllOf(HasSubstr("is not JSON"), HasSubstr("for example")));
  EXPECT_THAT(ErrorOf({"serve", "m", "--speculative-config.methd", "mtp"}),
              HasSubstr("did you mean --speculative-config.method?"));
}

TEST(CommandLine, EveryOptionRefusesABadValueByItsName) {
  for (const Command command : kAllCommands) {
    for (const std::string& name : OptionNames(command)) {
      const OptionRow* row = FindOption(command, name);
      ASSERT_NE(row, nullptr) << name;
      const bool numeric = row->value_name == "N" || row->value_name == "P" ||
                           row->value_name == "T" || row->value_name == "SECONDS" ||
                           row->value_name == "ID" || row->value_name == "IDS" ||
                           row->value_name == "LIST" || row->value_name == "SIZE";
      const bool choice = row->value_name.find('|') != std::string::npos;
      if (!numeric && !choice) continue;
      Settings settings;
      try {
        row->set(settings, {"--" + name, {"!bad!"}});
        ADD_FAILURE() << name << " takes anything";
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), AllOf(HasSubstr("--" + name + ": "), HasSubstr("!bad!")));
      }
    }
  }
}

TEST(CommandLine, NoCommandHasAnOptionTwice) {
  for (const Command command : kAllCommands) {
    std::vector<std::string> names = OptionNames(command);
    std::sort(names.begin(), names.end());
    EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end()) << CommandName(command);
    EXPECT_THAT(names, Not(IsEmpty()));
  }
  EXPECT_EQ(FindOption(Command::kServe, "max-model-len")->EnvironmentName(),
            "OUTRIDER_MAX_MODEL_LEN");
}

}  // namespace
}  // namespace outrider
