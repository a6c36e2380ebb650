// Schemas, regular expressions, grammars, choices and structural tags as hostile input: compiling
// one throws Error or gives a grammar whose masks, acceptance and rollback agree.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/grammar/grammar_compiler.h"
#include "outrider/grammar/grammar_matcher.h"
#include "outrider/sampling/token_mask.h"
#include "tests/source_directory.h"

namespace {

using outrider::CompiledGrammar;
using outrider::GrammarCompiler;
using outrider::GrammarKind;
using outrider::GrammarMatcher;
using outrider::GrammarSpec;
using outrider::MaskWords;

constexpr int32_t kEos = 1;
constexpr int kMaxTokens = 24;

GrammarCompiler& Compiler() {
  static const outrider::Tokenizer tokenizer = outrider::Tokenizer::FromModelDirectory(
      outrider::SourceDirectory() / "models" / "tiny-v3-mtp3");
  static const std::vector<int32_t> eos = {kEos};
  static GrammarCompiler compiler(
      tokenizer, tokenizer.vocab_size(), eos,
      {.max_spec_bytes = 1 << 14, .max_seconds = 3, .max_cached_bytes = 0});
  return compiler;
}

/// The first byte says what the rest is; choices end with a line.
GrammarSpec Spec(std::string_view data) {
  GrammarSpec spec;
  if (data.empty()) return spec;
  spec.kind = static_cast<GrammarKind>(static_cast<uint8_t>(data[0]) % 6);
  data.remove_prefix(1);
  if (spec.kind != GrammarKind::kChoice) {
    spec.text = data;
    return spec;
  }
  while (!data.empty()) {
    const std::string_view choice = data.substr(0, data.find('\n'));
    spec.choices.emplace_back(choice);
    data.remove_prefix(std::min(data.size(), choice.size() + 1));
  }
  return spec;
}

/// A walk through allowed tokens, asking after others on the way.
void Walk(const std::shared_ptr<const CompiledGrammar>& grammar) {
  GrammarMatcher matcher(grammar);
  const int32_t vocab = grammar->vocab_size();
  std::mt19937 random(5);
  std::vector<std::vector<uint32_t>> masks;
  for (;;) {
    std::vector<uint32_t>& mask = masks.emplace_back(MaskWords(vocab));
    matcher.FillMask(mask);
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < vocab; ++id) {
      if (outrider::Allows(mask, id)) allowed.push_back(id);
    }
    for (int probe = 0; probe < 8; ++probe) {
      const auto id = static_cast<int32_t>(random() % static_cast<uint32_t>(vocab));
      const bool accepted = matcher.Accept(id);
      OUTRIDER_CHECK(accepted == outrider::Allows(mask, id), "token {} after {}", id,
                     masks.size() - 1);
      if (accepted) matcher.Rollback(1);
    }
    if (allowed.empty() || masks.size() == kMaxTokens) break;
    const int32_t next = allowed[random() % allowed.size()];
    OUTRIDER_CHECK(matcher.Accept(next), "token {} is allowed after {}, but not accepted", next,
                   masks.size() - 1);
  }
  while (masks.size() > 1) {
    const size_t back = 1 + random() % std::min<size_t>(4, masks.size() - 1);
    matcher.Rollback(static_cast<int32_t>(back));
    masks.resize(masks.size() - back);
    std::vector<uint32_t> mask(MaskWords(vocab));
    matcher.FillMask(mask);
    OUTRIDER_CHECK(mask == masks.back(), "rolled back to {}", masks.size() - 1);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    Walk(Compiler().Compile(Spec({reinterpret_cast<const char*>(data), size})));
  } catch (const outrider::Error& error) {
    const std::string_view message = error.what();
    OUTRIDER_CHECK(!message.empty() && message.find('\n') == std::string_view::npos, "{}", message);
  }
  return 0;
}
