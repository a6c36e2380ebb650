// From options to a running engine: checkpoint, tokenizer, chat template, model, cache.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "outrider/checkpoint/model_config.h"
#include "outrider/engine/engine.h"
#include "outrider/engine/engine_options.h"
#include "outrider/engine/load_progress.h"
#include "outrider/engine/measure_step_times.h"
#include "outrider/engine/plan/decision.h"
#include "outrider/engine/plan/memory_report.h"
#include "outrider/grammar/grammar_compiler.h"
#include "outrider/text/chat_template.h"
#include "outrider/text/text_prompt_encoder.h"
#include "outrider/text/tokenizer.h"

namespace outrider {

struct LoadedEngine {
  ModelConfig config;
  std::unique_ptr<Tokenizer> tokenizer;               // null with dummy weights and no tokenizer
  std::unique_ptr<GrammarCompiler> grammars;          // null without a tokenizer
  std::optional<ChatTemplate> chat_template;          // absent when the model has none
  std::map<std::string, std::string> special_tokens;  // "bos_token", ...
  MemoryReport memory;
  Decisions decisions;
  int32_t num_speculative_tokens = 0;   // k
  std::optional<StepTimes> step_times;  // with an adaptive number of drafts
  KvCacheForm kv_cache_form = KvCacheForm::kLatent;
  RowPaths row_paths = KvCacheForm::kLatent;
  std::string kernels;  // of the processor: the instruction set; "cuda"
  std::unique_ptr<Engine> engine;
};

/// The chat template that the options name, else the model's; nothing where there is none.
/// Throws Error if it cannot be read.
std::optional<ChatTemplate> LoadChatTemplate(const EngineOptions& options);

/// Finds what would run: config, memory and decisions. Reads no weights; `engine` is null.
LoadedEngine ExplainEngine(const EngineOptions& options);

/// Loads everything. If the number of drafts is adaptive, measures how long steps take, for about
/// three seconds at most; `measured` may be null. Throws Error on anything wrong with the options
/// or the checkpoint.
LoadedEngine LoadEngine(const EngineOptions& options, const LoadProgress& progress,
                        const StepTimesProgress& measured = nullptr);

/// The encoder of a loaded engine's tokenizer and chat template. Throws Error when it has no
/// tokenizer. `loaded` must outlive it.
TextPromptEncoder MakePromptEncoder(const LoadedEngine& loaded);

/// Makes that encoder; without a tokenizer one for requests that bring token ids.
std::unique_ptr<PromptEncoder> MakeRequestEncoder(const LoadedEngine& loaded);

}  // namespace outrider
