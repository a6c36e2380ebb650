// From options to a running engine: checkpoint, tokenizer, chat template, model, cache.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "outrider/checkpoint/model_config.h"
#include "outrider/engine/engine.h"
#include "outrider/engine/engine_options.h"
#include "outrider/grammar/grammar_compiler.h"
#include "outrider/model/weight_loader.h"
#include "outrider/text/chat_template.h"
#include "outrider/text/tokenizer.h"

namespace outrider {

/// Progress of loading weights: bytes read so far and in all.
using LoadProgress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

/// Where the memory went, in bytes, and what the cache holds.
struct MemoryReport {
  WeightSizes weights;      // target, as computed with
  WeightSizes mtp_weights;  // MTP modules
  int64_t kv_cache_bytes = 0;
  int64_t kv_bytes_per_token = 0;
  int64_t kv_tokens = 0;
  int64_t kept_row_bytes = 0;  // target rows that modules have put off, at most
};

/// A line of `outrider explain`: what was chosen, and why.
struct Decision {
  std::string what;   // e.g. "drafter"
  std::string value;  // e.g. "MtpChainDrafter, k = 3"
  std::string why;    // e.g. "the checkpoint has 3 chained MTP modules"
};

struct LoadedEngine {
  ModelConfig config;
  std::unique_ptr<Tokenizer> tokenizer;       // null with dummy weights and no tokenizer.json
  std::unique_ptr<GrammarCompiler> grammars;  // null without a tokenizer
  std::optional<ChatTemplate> chat_template;  // absent when the model has none
  std::map<std::string, std::string> special_tokens;  // "bos_token", ...
  MemoryReport memory;
  std::vector<Decision> decisions;
  int32_t num_speculative_tokens = 0;  // k
  KvCacheForm kv_cache_form = KvCacheForm::kLatent;
  std::unique_ptr<Engine> engine;
};

/// Throws Error if the attention backend needs another form of the KV cache than is asked for.
void CheckAttentionOptions(const EngineOptions& options);

/// What would run: config, memory and decisions, without reading weights (engine is null).
LoadedEngine ExplainEngine(const EngineOptions& options);

/// Loads everything. Throws Error on anything wrong with the options or the checkpoint.
LoadedEngine LoadEngine(const EngineOptions& options, const LoadProgress& progress);

}  // namespace outrider
