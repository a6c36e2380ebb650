#include <fmt/format.h>

#include <array>

#include "outrider/attention/attention_backend.h"
#include "outrider/base/dtype.h"
#include "outrider/checkpoint/rank_config.h"
#include "outrider/kv/cache_form.h"
#include "outrider/options/option_rows.h"
#include "outrider/options/speculative_config.h"

namespace outrider {

namespace {

std::optional<DType> ParseComputeDType(const OptionValue& value) {
  static const std::array<std::string, 3> kNames = {"auto", "float32", "bfloat16"};
  static constexpr std::array<std::optional<DType>, 3> kTypes = {std::nullopt, DType::kF32,
                                                                 DType::kBF16};
  return kTypes.at(ParseChoice(value.where, Text(value), kNames));
}

void SetCacheDType(const OptionValue& value, EngineOptions& options) {
  static const std::array<std::string, 5> kNames = {"auto", "float32", "bfloat16", "fp8",
                                                    "fp8_published"};
  static constexpr std::array<std::optional<DType>, 5> kTypes = {
      std::nullopt, DType::kF32, DType::kBF16, DType::kF8E4M3, DType::kF8E4M3};
  const size_t choice = ParseChoice(value.where, Text(value), kNames);
  options.kv_cache_dtype = kTypes.at(choice);
  options.published_cache = choice + 1 == kNames.size();
}

std::optional<KvCacheForm> ParseCacheForm(const OptionValue& value) {
  std::vector<std::string> names = {"auto"};
  for (const KvCacheForm form : kAllKvCacheForms) names.emplace_back(KvCacheFormName(form));
  const size_t choice = ParseChoice(value.where, Text(value), names);
  if (choice == 0) return std::nullopt;
  return kAllKvCacheForms.at(choice - 1);
}

std::vector<std::string> BackendNames() {
  std::vector<std::string> names;
  names.reserve(kAllAttentionBackends.size());
  for (const AttentionBackend backend : kAllAttentionBackends) {
    names.emplace_back(AttentionBackendName(backend));
  }
  return names;
}

AttentionBackend ParseAttentionBackend(const OptionValue& value) {
  return kAllAttentionBackends.at(ParseChoice(value.where, Text(value), BackendNames()));
}

}  // namespace

std::vector<OptionRow> EngineOptionRows() {
  const CommandSet every = {Command::kServe,        Command::kGenerate,        Command::kChat,
                            Command::kBenchLatency, Command::kBenchThroughput, Command::kBenchServe,
                            Command::kExplain};
  const CommandSet all = {Command::kServe,        Command::kGenerate,        Command::kChat,
                          Command::kBenchLatency, Command::kBenchThroughput, Command::kBenchServe,
                          Command::kBenchKernels, Command::kExplain};
  const CommandSet not_bench = {Command::kServe, Command::kGenerate, Command::kChat,
                                Command::kExplain};
  const CommandSet seeded = {Command::kServe, Command::kBenchLatency, Command::kBenchThroughput,
                             Command::kBenchServe};
  const OptionKind one = OptionKind::kValue;
  const EngineOptions defaults;
  std::vector<OptionRow> rows = {
      {"model", one, "Model", "DIR", "",
       "Hugging Face checkpoint directory (the positional argument MODEL)", every,
       [](Settings& s, const OptionValue& v) { s.engine.model = Text(v); }},
      {"tokenizer", one, "Model", "DIR", "the model's",
       "Directory with the tokenizer (tokenizer.json or tiktoken.model) to use instead of the "
       "model's",
       every, [](Settings& s, const OptionValue& v) { s.engine.tokenizer = Text(v); }},
      {"chat-template", one, "Model", "FILE", "the model's",
       "Jinja file with the chat template to use instead of the model's", every,
       [](Settings& s, const OptionValue& v) { s.engine.chat_template = Text(v); }},
      {"load-format", one, "Model", "auto|dummy", "auto",
       "auto reads safetensors; dummy makes random weights from config.json alone, to time any "
       "shape",
       every,
       [](Settings& s, const OptionValue& v) {
         static const std::array<std::string, 2> kNames = {"auto", "dummy"};
         s.engine.load_format =
             ParseChoice(v.where, Text(v), kNames) == 0 ? LoadFormat::kAuto : LoadFormat::kDummy;
       }},
      {"device", one, "Model", "auto|cpu|cuda", "auto",
       "What the engine runs on; cuda: a Hopper GPU, in builds that have its kernels; auto: the "
       "GPU where there is one that can be used, else the processor",
       every,
       [](Settings& s, const OptionValue& v) {
         static const std::array<std::string, 3> kNames = {"auto", "cpu", "cuda"};
         static constexpr std::array kKinds = {DeviceKind::kAuto, DeviceKind::kCpu,
                                               DeviceKind::kCuda};
         s.engine.device = kKinds.at(ParseChoice(v.where, Text(v), kNames));
       }},
      {"dtype", one, "Model", "auto|float32|bfloat16", "auto",
       "Type to compute in; auto: as the checkpoint says (float16 runs as float32)", every,
       [](Settings& s, const OptionValue& v) { s.engine.dtype = ParseComputeDType(v); }},
      {"quantization", one, "Model", "none|int8", "none",
       "What is done to weights at load; int8: every matrix but the router's is rounded to 8 bits "
       "with a scale per output, which halves the memory of bfloat16 weights",
       every,
       [](Settings& s, const OptionValue& v) {
         static const std::array<std::string, 2> kNames = {"none", "int8"};
         s.engine.quantization = ParseChoice(v.where, Text(v), kNames) == 0
                                     ? WeightQuantization::kNone
                                     : WeightQuantization::kInt8;
       }},
      {"max-model-len", one, "Model", "N", "the model's",
       "Longest context in tokens, prompt and answer together; the default shrinks to what the KV "
       "cache holds",
       every, [](Settings& s, const OptionValue& v) { s.engine.max_model_len = Int32(v, 1); }},

      {"kv-cache-dtype", one, "KV cache", "auto|float32|bfloat16|fp8|fp8_published", "auto",
       "Type of cache entries; auto: the compute type; fp8: 8 bits, e4m3 without scales, index "
       "keys with a scale each, on a GPU and of models with an indexer; fp8_published, and on a "
       "processor fp8 too: DeepSeek-V4's as its publishers round it, entries to 8 bits but for "
       "what is rotated, keys of indexers to 4; on a GPU in the memory of bfloat16",
       every, [](Settings& s, const OptionValue& v) { SetCacheDType(v, s.engine); }},
      {"kv-cache-form", one, "KV cache", "auto|latent|heads", "auto",
       "What an entry holds: the latent, or every head's key and value, which take less arithmetic "
       "and more memory; auto: heads where the model's shape makes that worth it, as for small "
       "models",
       every,
       [](Settings& s, const OptionValue& v) { s.engine.kv_cache_form = ParseCacheForm(v); }},
      {"kv-cache-memory-bytes", one, "KV cache", "SIZE",
       "1GiB; on a GPU what --gpu-memory-utilization leaves",
       "Memory for the KV cache of all layers, MTP layers included: 512M, 4GiB, ...", every,
       [](Settings& s, const OptionValue& v) {
         s.engine.kv_cache_memory_bytes = ParseSize(v.where, Text(v));
       }},
      {"gpu-memory-utilization", one, "KV cache", "SHARE",
       fmt::to_string(defaults.gpu_memory_utilization),
       "The share of a GPU's memory that weights, KV cache and work space may take together", every,
       [](Settings& s, const OptionValue& v) {
         s.engine.gpu_memory_utilization = Number(v, 0.01, 1);
       }},
      {"block-size", one, "KV cache", "N", fmt::to_string(defaults.block_size),
       "Tokens per page of the KV cache", every,
       [](Settings& s, const OptionValue& v) { s.engine.block_size = Int32(v, 1, 4096); }},
      {"enable-prefix-caching", OptionKind::kSwitch, "KV cache", "", "on",
       "Reuse the cache blocks of equal prompt beginnings", every,
       [](Settings& s, const OptionValue& v) { s.engine.enable_prefix_caching = Switch(v); }},
      {"kv-offload-memory-bytes", one, "KV cache", "SIZE", "none",
       "Host memory for cache blocks that leave the KV cache's memory. They come back, with equal "
       "bits, when a prompt begins with their tokens: 8GiB, ...",
       every,
       [](Settings& s, const OptionValue& v) {
         s.engine.kv_offload_memory_bytes = ParseSize(v.where, Text(v));
       }},
      {"kv-offload-dir", one, "KV cache", "DIR", "host memory",
       "Directory of a temporary file that holds the blocks of --kv-offload-memory-bytes in place "
       "of memory; nothing of it is left at exit",
       every, [](Settings& s, const OptionValue& v) { s.engine.kv_offload_dir = Text(v); }},
      {"fast-prefix", OptionKind::kSwitch, "KV cache", "", "",
       "Over a latent cache, reuse the blocks of earlier answers too: the next turn of a chat "
       "starts "
       "sooner, and its results are equal up to rounding, no longer bit for bit (see "
       "docs/speculation.md)",
       every, [](Settings& s, const OptionValue& v) { s.engine.fast_prefix = Switch(v); }},

      {"max-num-seqs", one, "Batching", "N", fmt::to_string(defaults.max_num_seqs),
       "Most requests that run at the same time", every,
       [](Settings& s, const OptionValue& v) { s.engine.max_num_seqs = Int32(v, 1, 65536); }},
      {"max-num-batched-tokens", one, "Batching", "N", "512; on a GPU 8192",
       "Most rows (prompt tokens and verify rows) of a step", every,
       [](Settings& s, const OptionValue& v) {
         s.engine.max_num_batched_tokens = Int32(v, 1, 1 << 20);
       }},
      {"attention-backend", one, "Batching", fmt::format("{}", fmt::join(BackendNames(), "|")),
       std::string(AttentionBackendName(defaults.attention_backend)),
       "How decode requests of different lengths share a kernel; only ragged and uniform-pad keep "
       "output independent of batching and drafts (see docs/architecture.md)",
       every,
       [](Settings& s, const OptionValue& v) {
         s.engine.attention_backend = ParseAttentionBackend(v);
       }},
      {"tensor-parallel-size", one, "Batching", "N", "1",
       "Ranks that share the model, each with its part of the weights: GPUs, or on a processor "
       "threads. Output does not depend on it",
       every,
       [](Settings& s, const OptionValue& v) {
         s.engine.tensor_parallel_size = Int32(v, 1, kMostRanks);
       }},
      {"data-parallel-attention", OptionKind::kSwitch, "Batching", "", "off",
       "With --tensor-parallel-size: each rank keeps the KV cache of its own requests, so that the "
       "ranks together hold as many times the tokens; it runs their attention with all heads. "
       "Output does not depend on it",
       every,
       [](Settings& s, const OptionValue& v) { s.engine.data_parallel_attention = Switch(v); }},
      {"num-threads", one, "Batching", "N", "all processors this process may use",
       "Threads that compute", all,
       [](Settings& s, const OptionValue& v) { s.engine.num_threads = Int32(v, 1, 1024); }},
      {"pin-threads", OptionKind::kSwitch, "Batching", "", "on",
       "Bind compute threads to processors, when they are as many as this process may use", all,
       [](Settings& s, const OptionValue& v) { s.engine.pin_threads = Switch(v); }},

      {"speculative-config", one, "Speculation", "JSON", "",
       R"(Speculation as one object: {"method": "mtp", "num_speculative_tokens": 3}; its keys can )"
       "also be given one by one, as in --speculative-config.num_speculative_tokens 3",
       every,
       [](Settings& s, const OptionValue& v) {
         ApplySpeculativeConfig(v.where, Text(v), s.engine.speculation);
       }},
  };
  const auto set_method = [](Settings& s, const OptionValue& v) {
    SetSpeculationMethod(v.where, Text(v), s.engine.speculation);
  };
  const auto set_tokens = [](Settings& s, const OptionValue& v) {
    SetNumSpeculativeTokens(v.where, Text(v), s.engine.speculation);
  };
  const auto set_adaptive = [](Settings& s, const OptionValue& v) {
    static const std::array<std::string, 2> kNames = {"true", "false"};
    s.engine.speculation.adaptive = ParseChoice(v.where, Text(v), kNames) == 0;
  };
  const std::string tokens_default =
      "as many as pay, up to the number of MTP modules or DSpark's block, 3 with a single module "
      "or eagle3; always 3 with ngram; 0 without";
  rows.insert(
      rows.end(),
      {{"speculative-config.method", one, "Speculation", "mtp|eagle3|ngram", "",
        "The key method alone", every, set_method},
       {"speculative-config.num_speculative_tokens", one, "Speculation", "N", "",
        "The key num_speculative_tokens alone", not_bench, set_tokens},
       {"speculative-config.adaptive", one, "Speculation", "true|false",
        "true with mtp and eagle3, unless the number of tokens is given; false for bench",
        "The key adaptive alone: choose how many tokens to draft, up to num_speculative_tokens, by "
        "measured acceptance and step times",
        every, set_adaptive},
       {"spec-method", one, "Speculation", "mtp|eagle3|ngram", "mtp",
        "How tokens are guessed; mtp: the checkpoint's multi-token prediction modules; eagle3: a "
        "drafter whose directory --speculative-config names as model; ngram: looked up earlier in "
        "the same text",
        every, set_method},
       {"spec-tokens", one, "Speculation", "N", tokens_default,
        "Draft tokens per request and step; 0 turns speculation off", not_bench, set_tokens},

       {"seed", one, "Sampling", "N", fmt::to_string(defaults.seed),
        "Seeds requests that bring no seed of their own", seeded,
        [](Settings& s, const OptionValue& v) { s.engine.seed = ParseUnsigned(v.where, Text(v)); }},
       {"logprobs-mode",
        one,
        "Sampling",
        "raw_logprobs|processed_logprobs",
        "raw_logprobs",
        "Log-probabilities of the model, or of what tokens were drawn from: after penalties, "
        "masks, "
        "temperature and cuts",
        {Command::kServe, Command::kGenerate},
        [](Settings& s, const OptionValue& v) {
          static const std::array<std::string, 2> kModes = {"raw_logprobs", "processed_logprobs"};
          s.engine.logprobs_mode = ParseChoice(v.where, Text(v), kModes) == 0
                                       ? LogprobsMode::kRaw
                                       : LogprobsMode::kProcessed;
        }},
       {"log-level", one, "Logging", "debug|info|warning|error", "info for serve, else warning",
        "Least level that is logged to standard error", all,
        [](Settings& s, const OptionValue& v) {
          static const std::array<std::string, 4> kLevels = {"debug", "info", "warning", "error"};
          s.log_level = kLevels.at(ParseChoice(v.where, Text(v), kLevels));
        }},
       {"log-format", one, "Logging", "text|json", "text", "Log lines for people or for machines",
        all, [](Settings& s, const OptionValue& v) {
          static const std::array<std::string, 2> kFormats = {"text", "json"};
          s.log_format =
              ParseChoice(v.where, Text(v), kFormats) == 0 ? LogFormat::kText : LogFormat::kJson;
        }}});
  return rows;
}

}  // namespace outrider
