// Answers to JSON schemas, drawn at random through their grammars: for json_schema_test.py, which
// checks them. Standard input has one schema per line, standard output one JSON object per line:
// {"error": TEXT}, or {"answers": [TEXT, ...]}, which may be fewer than asked for.
//   schema_answers ANSWERS SEED
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>

#include "outrider/base/error.h"
#include "outrider/grammar/grammar_matcher.h"
#include "outrider/sampling/token_mask.h"
#include "tests/grammar/bundled_grammars.h"

namespace outrider {
namespace {

constexpr double kTemperature = 1.5;
constexpr int kMostTokens = 300;

/// Logits of a model that knows nothing but wants to come to an end, the more the longer it speaks.
double Logit(std::string_view text, int num_tokens, std::mt19937_64& random) {
  double logit = std::normal_distribution<double>()(random);
  const double wish = 2 + num_tokens / 20.0;
  if (text.starts_with('"') || text.starts_with('}') || text.starts_with(']')) logit += wish;
  if (text.find_first_of(" \n\t\r") != std::string_view::npos) logit -= wish;
  return logit;
}

/// A whole text, or nothing when it does not come to an end.
std::optional<std::string> Draw(const std::shared_ptr<const CompiledGrammar>& grammar,
                                std::mt19937_64& random) {
  GrammarMatcher matcher(grammar);
  std::vector<uint32_t> mask(MaskWords(kBundledVocab));
  std::string text;
  std::uniform_real_distribution<double> uniform;
  for (int i = 0; i < kMostTokens; ++i) {
    matcher.FillMask(mask);
    int32_t best = -1;
    double best_score = 0;
    for (int32_t token = 0; token < BundledTokenizer().vocab_size(); ++token) {
      if (!Allows(mask, token)) continue;
      const double gumbel = -std::log(-std::log(uniform(random)));
      const double score =
          Logit(BundledTokenizer().TokenBytes(token), i, random) / kTemperature + gumbel;
      if (best < 0 || score > best_score) {
        best = token;
        best_score = score;
      }
    }
    if (matcher.complete() && (best < 0 || uniform(random) < 0.3)) return text;
    if (best < 0) return text + " (nothing is allowed, and the text is not whole)";
    OUTRIDER_CHECK(matcher.Accept(best));
    text += BundledTokenizer().TokenBytes(best);
  }
  return std::nullopt;
}

nlohmann::json Answer(const std::string& schema, int num_answers, std::mt19937_64& random) {
  std::shared_ptr<const CompiledGrammar> grammar;
  try {
    grammar = CompileText(GrammarKind::kJsonSchema, schema);
  } catch (const Error& error) {
    return {{"error", error.what()}};
  }
  nlohmann::json answers = nlohmann::json::array();
  for (int i = 0; i < num_answers; ++i) {
    if (const auto text = Draw(grammar, random)) answers.push_back(*text);
  }
  return {{"answers", answers}};
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "schema_answers: error: takes the number of answers and a seed\n";
    return 2;
  }
  std::mt19937_64 random(std::stoull(argv[2]));
  for (std::string schema; std::getline(std::cin, schema);) {
    const nlohmann::json answer = outrider::Answer(schema, std::stoi(argv[1]), random);
    // As the server does: what is no UTF-8 becomes U+FFFD.
    std::cout << answer.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) << '\n';
  }
}
