// Grammars under speculation, end to end: with drafts, in a crowd, cut short and computed again,
// the output is what it is alone without speculation.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <random>

#include "tests/engine/scenario_requests.h"
#include "tests/grammar/bundled_grammars.h"

namespace outrider {
namespace {

/// A request whose EOS counts.
GenerationRequest Constrained(std::vector<int32_t> prompt,
                              std::shared_ptr<const CompiledGrammar> grammar,
                              int32_t max_tokens = 40, float temperature = 0) {
  GenerationRequest request = Request(std::move(prompt), max_tokens, temperature);
  request.sampling.ignore_eos = false;
  request.grammar.grammar = std::move(grammar);
  return request;
}

std::string TextOf(std::span<const int32_t> tokens) {
  return BundledTokenizer().Decode(tokens, /*skip_special_tokens=*/true);
}

/// A regular expression that `text` alone matches.
std::string Literal(std::string_view text) {
  std::string expression;
  for (const char c : text) {
    if (std::string_view(R"(\.+*?()[]{}|^$/-)").find(c) != std::string_view::npos) {
      expression += '\\';
    }
    expression += c;
  }
  return expression;
}

const char* const kPersonSchema = R"({"type": "object", "properties": {
  "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
  "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3}},
  "required": ["name", "age", "tags"]})";

class GrammarScenarioTest : public testing::TestWithParam<DrafterKind> {
 protected:
  /// The greedy answer to the first trained prompt: what drafters guess, mostly right.
  static const Generated& FreeAnswer() {
    static const Generated answer = RunAlone({Request(TrainedPrompts()[0], 24)}).front();
    return answer;
  }

  /// One after the other on one engine.
  static std::vector<Generated> RunDrafted(const std::vector<GenerationRequest>& requests) {
    return RunEach(*MakeTestEngine({.drafter = GetParam(), .k = 3}), requests);
  }
};

TEST_P(GrammarScenarioTest, AGrammarThatAllowsTheAnswerKeepsItsAcceptance) {
  const GenerationRequest free = Request(TrainedPrompts()[0], 24);
  GenerationRequest constrained = free;
  constrained.grammar.grammar = CompileText(GrammarKind::kRegex, R"((.|\n)*)");
  const Generated without = RunDrafted({free}).front();
  const Generated with = RunDrafted({constrained}).front();
  ExpectEqual({with}, {without});
  EXPECT_EQ(with.stats.speculation.num_accepted_tokens,
            without.stats.speculation.num_accepted_tokens);
  if (GetParam() == DrafterKind::kChain) {
    EXPECT_GT(with.stats.speculation.MeanAcceptanceLength(), 3);
  }
}

// Reference scenario 16, first part, at every row of the window: the text must leave the expected
// answer after n tokens, where drafts go on with it.
TEST_P(GrammarScenarioTest, RefusesADraftInsideTheWindow) {
  std::vector<GenerationRequest> requests;
  std::vector<std::string> begins;
  for (size_t n = 1; n <= 8; ++n) {
    begins.push_back(TextOf(std::span(FreeAnswer().tokens).first(n)));
    requests.push_back(Constrained(
        TrainedPrompts()[0],
        CompileText(GrammarKind::kRegex, Literal(begins.back()) + "![A-Z]{3}[0-9a-z ]*"), 20));
  }
  const auto results = RunDrafted(requests);
  ExpectEqual(results, RunAlone(requests));
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(TextOf(results[i].tokens).substr(0, begins[i].size() + 1), begins[i] + "!");
  }
}

// Second part: nothing but the end may follow, where drafts go on. With an EOS to say it, and with
// nothing left to say it with.
TEST_P(GrammarScenarioTest, EndsInsideTheWindow) {
  std::vector<GenerationRequest> requests;
  std::vector<std::string> texts;
  for (size_t n = 1; n <= 8; ++n) {
    texts.push_back(TextOf(std::span(FreeAnswer().tokens).first(n)));
    const auto grammar = CompileText(GrammarKind::kRegex, Literal(texts.back()));
    for (const bool ignore_eos : {false, true}) {
      requests.push_back(Constrained(TrainedPrompts()[0], grammar));
      requests.back().sampling.ignore_eos = ignore_eos;
    }
  }
  const auto results = RunDrafted(requests);
  ExpectEqual(results, RunAlone(requests));
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(TextOf(results[i].tokens), texts[i / 2]);
    EXPECT_EQ(results[i].tokens.back() == kBundledEos, i % 2 == 0);
    EXPECT_EQ(results[i].finish_reason, FinishReason::kStop);
  }
}

// Third part: thinking ends at each row of the window, with an end of one token and of three.
TEST_P(GrammarScenarioTest, ThinkingEndsInsideTheWindow) {
  const std::vector<int32_t>& free = FreeAnswer().tokens;
  std::vector<GenerationRequest> requests;
  for (const std::ptrdiff_t length : {1, 3}) {
    for (std::ptrdiff_t n = 1; n <= 6; ++n) {
      requests.push_back(Constrained(TrainedPrompts()[0],
                                     CompileText(GrammarKind::kJsonSchema, kPersonSchema), 200));
      requests.back().grammar.start_after = {free.begin() + n, free.begin() + n + length};
    }
  }
  const auto results = RunDrafted(requests);
  ExpectEqual(results, RunAlone(requests));
  for (size_t i = 0; i < results.size(); ++i) {
    // What was thought is as it was without a grammar; JSON follows.
    const std::vector<int32_t>& end = requests[i].grammar.start_after;
    const auto thought = std::search(free.begin(), free.end(), end.begin(), end.end()) -
                         free.begin() + static_cast<std::ptrdiff_t>(end.size());
    const std::vector<int32_t>& tokens = results[i].tokens;
    ASSERT_GT(static_cast<std::ptrdiff_t>(tokens.size()), thought);
    EXPECT_TRUE(std::equal(free.begin(), free.begin() + thought, tokens.begin()));
    const std::string answer = TextOf(std::span(tokens).subspan(static_cast<size_t>(thought)));
    EXPECT_TRUE(nlohmann::json::accept(answer)) << answer;
  }
}

// Reference scenario 15.
TEST_P(GrammarScenarioTest, MixedBatchesOfLongChunksGrammarsAndPlainRequests) {
  const auto prompts = TrainedPrompts();
  std::mt19937 random(4);
  std::vector<GenerationRequest> requests;
  const auto schema = CompileText(GrammarKind::kJsonSchema, kPersonSchema);
  for (size_t i = 0; i < 5; ++i) {
    std::vector<int32_t> long_prompt;
    for (int t = 0; t < 200; ++t) long_prompt.push_back(static_cast<int32_t>(6 + random() % 1500));
    const float temperature = i % 2 == 0 ? 0.0F : 0.9F;
    requests.push_back(Constrained(prompts[i], schema, 200, temperature));
    requests.push_back(Constrained(long_prompt, CompileChoice({"yes", "no", "maybe"}), 10, 1));
    requests.push_back(Request(prompts[i + 5], 30, temperature));
    requests.push_back(
        Constrained(prompts[i + 10], CompileText(GrammarKind::kRegex, "(We|So) [a-z ]+[.]"), 30));
  }
  for (const int32_t chunk : {24, 100}) {
    const auto engine = MakeTestEngine(
        {.drafter = GetParam(), .k = 3, .max_num_batched_tokens = chunk, .threads = 2});
    const std::vector<Generated> results = RunTogether(*engine, requests, /*steps_between=*/1);
    ExpectEqual(results, RunAlone(requests));
    for (size_t i = 0; i < requests.size(); i += 4) {
      EXPECT_TRUE(nlohmann::json::accept(TextOf(results[i].tokens))) << TextOf(results[i].tokens);
    }
  }
}

TEST_P(GrammarScenarioTest, PreemptedInTheMiddleOfAText) {
  const auto prompts = TrainedPrompts();
  std::vector<GenerationRequest> requests;
  const auto grammar = CompileText(GrammarKind::kRegex, "([A-Z][a-z ,]+[.!] ?)+");
  for (size_t i = 0; i < 6; ++i) requests.push_back(Constrained(prompts[i], grammar, 60));
  const auto engine = MakeTestEngine(
      {.drafter = GetParam(), .block_size = 4, .num_blocks = 60, .max_model_len = 200});
  const auto results = RunTogether(*engine, requests);
  EXPECT_GT(engine->Counters().num_preemptions, 0);
  ExpectEqual(results, RunAlone(requests));
}

TEST_P(GrammarScenarioTest, WithTheOtherFields) {
  const std::vector<int32_t> prompt = TrainedPrompts()[1];
  const auto digits = CompileText(GrammarKind::kRegex, "[0-9]{1,30}");
  std::vector<GenerationRequest> requests;
  // The end may come after one digit, but not before min_tokens.
  requests.push_back(Constrained(prompt, digits));
  requests.back().sampling.min_tokens = 12;
  // Choices.
  for (int32_t choice = 0; choice < 3; ++choice) {
    requests.push_back(Constrained(prompt, digits, 40, 1.5F));
    requests.back().sampling.seed = ChoiceSeed(5, choice);
    requests.back().sampling.top_p = 0.9F;
  }
  // A stop string and a stop token inside the text.
  requests.push_back(Constrained(prompt, CompileText(GrammarKind::kRegex, "[a-z ]{30,60}")));
  requests.back().sampling.stop = {" t"};
  requests.push_back(Constrained(prompt, digits, 40, 1));
  requests.back().sampling.stop_token_ids = {Tokens("7").at(0)};
  // Penalties and biases do not let anything else through.
  requests.push_back(Constrained(prompt, digits, 40, 1));
  requests.back().sampling.frequency_penalty = 1;
  requests.back().sampling.logit_bias = {{Tokens("x").at(0), 100}};
  // A whole text that cannot go on ends before min_tokens.
  requests.push_back(Constrained(prompt, CompileChoice({"12", "34"})));
  requests.back().sampling.min_tokens = 12;
  // Fields that leave no token: an end without a reason to be proud of.
  requests.push_back(Constrained(prompt, digits));
  requests.back().sampling.allowed_token_ids = {Tokens("x").at(0)};

  const auto run = [&](DrafterKind drafter) {
    const auto engine = MakeTestEngine({.drafter = drafter, .k = 3}, &BundledTokenizer());
    return RunTogether(*engine, requests);
  };
  const auto results = run(GetParam());
  ExpectEqual(results, run(DrafterKind::kNone));
  EXPECT_GE(results[0].tokens.size(), 12U);
  EXPECT_EQ(TextOf(results[results.size() - 2].tokens).size(), 2U);
  EXPECT_TRUE(results.back().tokens.empty());
  for (size_t i = 0; i < results.size(); ++i) {
    if (i == 4) continue;
    const std::string text = TextOf(results[i].tokens);
    EXPECT_EQ(text.find_first_not_of("0123456789"), std::string::npos) << text;
  }
}

TEST_P(GrammarScenarioTest, ContextEndsInsideAText) {
  const std::vector<int32_t> prompt = TrainedPrompts()[0];
  for (const int32_t left : {1, 2, 3, 4, 5}) {
    const auto length = static_cast<int32_t>(prompt.size()) + left;
    const auto engine = MakeTestEngine(
        {.drafter = GetParam(), .block_size = 4, .num_blocks = 128, .max_model_len = length});
    const auto grammar = CompileText(GrammarKind::kJsonSchema, kPersonSchema);
    const Generated got = RunTogether(*engine, {Constrained(prompt, grammar, 100)}).front();
    EXPECT_EQ(static_cast<int32_t>(got.tokens.size()), left);
    EXPECT_EQ(got.finish_reason, FinishReason::kLength);
    EXPECT_EQ(got.tokens, RunAlone({Constrained(prompt, grammar, left)}).front().tokens);
  }
}

// Rules of acceptance whose output depends on the drafts still let through only what is allowed.
TEST_P(GrammarScenarioTest, OtherRulesOfAcceptance) {
  const auto schema = CompileText(GrammarKind::kJsonSchema, kPersonSchema);
  for (const RejectionMethod method : {RejectionMethod::kStandard, RejectionMethod::kSynthetic}) {
    const auto engine =
        MakeTestEngine({.drafter = GetParam(), .k = 3, .acceptance = {method, {0.9, 0.8, 0.7}}});
    std::vector<GenerationRequest> requests;
    for (size_t i = 0; i < 8; ++i) {
      requests.push_back(Constrained(TrainedPrompts()[i], schema, 250, i % 2 == 0 ? 0.8F : 0.0F));
      requests.back().sampling.seed = i;
    }
    for (const Generated& got : RunTogether(*engine, requests)) {
      EXPECT_EQ(got.finish_reason, FinishReason::kStop);
      EXPECT_TRUE(nlohmann::json::accept(TextOf(got.tokens))) << TextOf(got.tokens);
    }
  }
}

// Rejection sampling replaces a drawn draft by what the target's distribution has over the draft's,
// so the first one that a grammar refuses is verified (LosslessTest shows why), and none after it.
// With match no refused draft is.
TEST(GrammarAcceptanceTest, TheFirstRefusedDrawnDraftIsVerified) {
  const auto refused = [](int32_t token) {
    const std::string text = TextOf({&token, 1});
    return !std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isalpha(c); });
  };
  for (const RejectionMethod method : {RejectionMethod::kMatch, RejectionMethod::kStandard}) {
    const auto engine =
        MakeTestEngine({.k = 3, .acceptance = {method, {}}, .probabilistic_drafts = true});
    std::vector<GenerationRequest> requests;
    for (size_t i = 0; i < 16; ++i) {
      requests.push_back(
          Constrained(TrainedPrompts()[i], CompileText(GrammarKind::kRegex, "[a-zA-Z]*"), 30, 2));
      requests.back().sampling.seed = i;
    }
    int64_t num_refused = 0;
    for (const Generated& got : RunTogether(*engine, requests)) {
      EXPECT_TRUE(std::none_of(got.tokens.begin(), got.tokens.end(), refused));
      for (const std::vector<int32_t>& drafts : got.drafts) {
        const auto first = std::find_if(drafts.begin(), drafts.end(), refused);
        if (first == drafts.end()) continue;
        EXPECT_EQ(first + 1, drafts.end());
        ++num_refused;
      }
    }
    if (method == RejectionMethod::kMatch) {
      EXPECT_EQ(num_refused, 0);
    } else {
      EXPECT_GT(num_refused, 10);
    }
  }
}

std::string DrafterName(const testing::TestParamInfo<DrafterKind>& test) {
  constexpr std::array kNames = {"None", "Chain", "Repeated", "Ngram"};
  return kNames.at(static_cast<size_t>(test.param));
}

INSTANTIATE_TEST_SUITE_P(Drafters, GrammarScenarioTest,
                         testing::Values(DrafterKind::kChain, DrafterKind::kRepeated,
                                         DrafterKind::kNgram),
                         DrafterName);

TEST(GrammarTest, AGrammarOfAnotherVocabularyIsRefused) {
  const auto engine = MakeTestEngine({});
  const std::vector<int32_t> eos = {kBundledEos};
  GrammarCompiler other(BundledTokenizer(), kBundledVocab + 1, eos);
  const auto grammar = other.Compile({.kind = GrammarKind::kJsonObject, .text = {}, .choices = {}});
  EXPECT_EQ(RefusalOf(*engine, Constrained({7}, grammar)),
            fmt::format("the grammar was compiled for {} tokens: this model has {}",
                        kBundledVocab + 1, kBundledVocab));
}

}  // namespace
}  // namespace outrider
