#include "outrider/grammar/grammar_compiler.h"

#include <xgrammar/compiler.h>
#include <xgrammar/config.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/grammar/compile_deadline.h"
#include "outrider/grammar/compiled_grammar_impl.h"
#include "outrider/grammar/grammar_cache.h"
#include "outrider/grammar/json_schema.h"
#include "outrider/grammar/regular_expression.h"
#include "outrider/grammar/xgrammar_log.h"

namespace outrider {

namespace {

/// Whitespace characters in a row in JSON: enough for indentation, and a model that is at a loss
/// cannot go on with them for ever.
constexpr int kMaxWhitespace = 24;

/// What stands for a token that is part of no text. xgrammar never takes a token without bytes; a
/// byte that UTF-8 does not have is in no class of characters, so such a token comes only by its
/// id.
constexpr std::string_view kNoText = "\xFF";

/// A choice as a string of xgrammar's EBNF.
std::string Quote(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (c == '"' || c == '\\') {
      quoted += {'\\', c};
    } else if (byte < 0x20 || byte == 0x7F) {
      quoted += fmt::format("\\x{:02x}", byte);
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string ChoicesToEbnf(const std::vector<std::string>& choices) {
  std::string grammar = "root ::= ";
  for (size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) grammar += " | ";
    grammar += Quote(choices[i]);
  }
  return grammar;
}

/// What xgrammar has to say, in one line: without the check that failed.
std::string OneLine(std::string_view message, GrammarKind kind) {
  const auto remove_to = [&](std::string_view end) {
    const size_t at = message.find(end);
    if (at != std::string_view::npos) message.remove_prefix(at + end.size());
  };
  if (message.find("heck failed: (") != std::string_view::npos) remove_to(" is false: ");
  if (message.starts_with("EBNF ") && kind != GrammarKind::kEbnf) {
    remove_to(", column ");  // of a grammar that the client never saw
    remove_to(": ");
  }
  std::string line;
  for (const char c : message.substr(0, 400)) {
    if (c == '\n' && line.ends_with(' ')) continue;
    line += c == '\n' ? ' ' : c;
  }
  while (line.ends_with(' ') || line.ends_with('.')) line.pop_back();
  return line;
}

xgrammar::Grammar ParseStructuralTag(const std::string& json, const xgrammar::TokenizerInfo& info) {
  auto result = xgrammar::Grammar::FromStructuralTag(json, info);
  if (auto* error = std::get_if<xgrammar::StructuralTagError>(&result)) {
    throw std::visit([](const auto& e) { return std::runtime_error(e.what()); }, *error);
  }
  return std::get<xgrammar::Grammar>(std::move(result));
}

xgrammar::Grammar ParseSchema(const std::string& schema, bool compact) {
  return xgrammar::Grammar::FromJSONSchema(schema, /*any_whitespace=*/!compact,
                                           /*indent=*/std::nullopt, /*separators=*/std::nullopt,
                                           /*strict_mode=*/true,
                                           compact ? std::nullopt : std::optional(kMaxWhitespace));
}

xgrammar::Grammar ParseText(const GrammarSpec& spec, const xgrammar::TokenizerInfo& info) {
  switch (spec.kind) {
    case GrammarKind::kJsonObject:
      return ParseSchema(R"({"type":"object","additionalProperties":true})", spec.compact);
    case GrammarKind::kJsonSchema:
      return ParseSchema(EnforceableSchema(spec.text), spec.compact);
    case GrammarKind::kRegex:
      return xgrammar::Grammar::FromRegex(ExpressionForText(spec.text));
    case GrammarKind::kChoice:
      return xgrammar::Grammar::FromEBNF(ChoicesToEbnf(spec.choices));
    case GrammarKind::kEbnf:
      return xgrammar::Grammar::FromEBNF(spec.text);
    case GrammarKind::kStructuralTag:
    case GrammarKind::kToolCalls:
      return ParseStructuralTag(EnforceableTag(spec.text), info);
  }
  OUTRIDER_CHECK(false);
}

xgrammar::Grammar Parse(const GrammarSpec& spec, const xgrammar::TokenizerInfo& info) {
  xgrammar::Grammar text = ParseText(spec, info);
  if (spec.calls.empty()) return text;
  return xgrammar::Grammar::Union({text, ParseStructuralTag(EnforceableTag(spec.calls), info)});
}

/// Budgets count what was generated between two masks, temperatures are the request's: neither has
/// a meaning when masks are made for guesses.
void RefuseRuleAttributes(const xgrammar::Grammar& grammar) {
  const std::string text = grammar.ToString();
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    const std::string_view head = line.substr(0, line.find("::="));
    for (const std::string_view name : {"max_tokens=", "max_chars=", "temperature="}) {
      if (head.find(name) != std::string_view::npos) {
        throw InvalidArgument("{} is not supported in grammars", name.substr(0, name.size() - 1));
      }
    }
  }
}

}  // namespace

struct GrammarCompiler::Impl {
  Impl(const Tokenizer& tokenizer_in, int32_t vocab_size_in, std::span<const int32_t> eos,
       const GrammarLimits& limits_in)
      : tokenizer(tokenizer_in),
        vocab_size(vocab_size_in),
        eos_token_ids(eos.begin(), eos.end()),
        limits(limits_in),
        cache(limits_in.max_cached_bytes) {}

  /// The bytes of a token in grammars of this kind.
  std::string TextOf(int32_t id, GrammarKind kind) const {
    if (kind == GrammarKind::kToolCalls && tokenizer.IsAdded(id)) return std::string(kNoText);
    if (kind != GrammarKind::kStructuralTag && tokenizer.IsSpecial(id)) return {};
    return std::string(tokenizer.TokenBytes(id));
  }

  /// The vocabulary as xgrammar sees it: the bytes of each token; tokens that no text can hold have
  /// none.
  const xgrammar::TokenizerInfo& VocabularyOf(GrammarKind kind) {
    const std::lock_guard lock(mutex);
    std::optional<xgrammar::TokenizerInfo>& info = kind == GrammarKind::kStructuralTag ? all_tokens
                                                   : kind == GrammarKind::kToolCalls   ? tool_tokens
                                                                                     : plain_tokens;
    if (!info) {
      // Kimi's tokenizer has two ids more than its models.
      const int32_t known = std::min(tokenizer.vocab_size(), vocab_size);
      std::vector<std::string> texts(static_cast<size_t>(known));
      for (int32_t id = 0; id < known; ++id) texts[static_cast<size_t>(id)] = TextOf(id, kind);
      for (const int32_t id : eos_token_ids) {
        if (id < known) texts[static_cast<size_t>(id)].clear();
      }
      info.emplace(texts, xgrammar::VocabType::RAW, vocab_size, std::vector<int32_t>());
    }
    return *info;
  }

  const xgrammar::TokenizerInfo& VocabularyOf(const GrammarSpec& spec) {
    return VocabularyOf(spec.calls.empty() ? spec.kind : GrammarKind::kToolCalls);
  }

  void CheckSize(const GrammarSpec& spec) const {
    size_t bytes = spec.text.size() + spec.calls.size();
    for (const std::string& choice : spec.choices) bytes += choice.size();
    if (bytes > limits.max_spec_bytes) {
      throw InvalidArgument("has {} bytes; at most {} are allowed", bytes, limits.max_spec_bytes);
    }
    if (spec.choices.size() > limits.max_choices) {
      throw InvalidArgument("has {} choices; at most {} are allowed", spec.choices.size(),
                            limits.max_choices);
    }
    if (spec.kind == GrammarKind::kChoice && spec.choices.empty()) {
      throw InvalidArgument("has no choices; at least one is needed");
    }
  }

  /// Within this thread's CompileDeadline.
  std::shared_ptr<const CompiledGrammar> Compile(const GrammarSpec& spec) {
    std::shared_ptr<const CompiledGrammar> compiled;
    try {
      const xgrammar::TokenizerInfo& vocabulary = VocabularyOf(spec);
      const XgrammarWarnings warnings;
      const xgrammar::Grammar grammar = Parse(spec, vocabulary);
      if (!warnings.first().empty()) throw std::runtime_error(warnings.first());
      RefuseRuleAttributes(grammar);
      xgrammar::GrammarCompiler compiler(vocabulary, /*max_threads=*/1, /*cache_enabled=*/false);
      compiled = std::make_shared<CompiledGrammar>(std::make_unique<CompiledGrammar::Impl>(
          CompiledGrammar::Impl{compiler.CompileGrammar(grammar)}));
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      throw InvalidArgument("{}", OneLine(error.what(), spec.kind));
    }
    if (compiled->memory_bytes() > limits.max_compiled_bytes) {
      throw InvalidArgument("is too large: {} MiB when compiled, at most {} are allowed",
                            compiled->memory_bytes() >> 20, limits.max_compiled_bytes >> 20);
    }
    return compiled;
  }

  const Tokenizer& tokenizer;
  const int32_t vocab_size;
  const std::vector<int32_t> eos_token_ids;
  const GrammarLimits limits;
  GrammarCache cache;
  std::mutex mutex;  // of these, made when they are first needed
  std::optional<xgrammar::TokenizerInfo> plain_tokens;
  std::optional<xgrammar::TokenizerInfo> all_tokens;
  std::optional<xgrammar::TokenizerInfo> tool_tokens;
};

GrammarCompiler::GrammarCompiler(const Tokenizer& tokenizer, int32_t vocab_size,
                                 std::span<const int32_t> eos_token_ids,
                                 const GrammarLimits& limits)
    : impl_(std::make_unique<Impl>(tokenizer, vocab_size, eos_token_ids, limits)) {}

GrammarCompiler::~GrammarCompiler() = default;

std::shared_ptr<const CompiledGrammar> GrammarCompiler::Find(const GrammarSpec& spec) {
  impl_->CheckSize(spec);
  const std::optional<GrammarOutcome> found = impl_->cache.Find(spec);
  if (!found) return nullptr;
  if (found->refusal) throw Error(*found->refusal);
  return found->grammar;
}

std::shared_ptr<const CompiledGrammar> GrammarCompiler::Compile(const GrammarSpec& spec) {
  return TryCompile(spec, impl_->limits.max_seconds);
}

std::shared_ptr<const CompiledGrammar> GrammarCompiler::TryCompile(
    const GrammarSpec& spec, double seconds, const std::atomic<bool>* cancelled) {
  if (auto found = Find(spec)) return found;
  const double most = impl_->limits.max_seconds;
  impl_->VocabularyOf(spec);  // made once: not the spec's time
  try {
    const CompileDeadline deadline(std::min(seconds, most), cancelled);
    auto compiled = impl_->Compile(spec);
    impl_->cache.Put(spec, {compiled, std::nullopt});
    return compiled;
  } catch (const CompileTimeout&) {
    if (seconds < most || (cancelled != nullptr && *cancelled)) return nullptr;
    const Error refusal = InvalidArgument("takes more than {} s to compile: make it simpler", most);
    impl_->cache.Put(spec, {nullptr, refusal});
    throw Error(refusal);
  } catch (const Error& refusal) {
    impl_->cache.Put(spec, {nullptr, refusal});
    throw;
  }
}

}  // namespace outrider
