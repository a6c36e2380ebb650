// Each processor against a plain computation over the whole history.
#include "outrider/sampling/logits_processors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <random>

#include "outrider/sampling/token_mask.h"
#include "tests/sampling/random_params.h"

namespace outrider {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

/// The definition: everything from `history`, nothing kept.
std::vector<float> Expected(const SamplingParams& params, const std::vector<int32_t>& prompt,
                            const std::vector<int32_t>& output, std::vector<float> logits) {
  for (size_t t = 0; t < logits.size(); ++t) {
    const auto token = static_cast<int32_t>(t);
    const auto holds = [&](const std::vector<int32_t>& list) {
      return std::find(list.begin(), list.end(), token) != list.end();
    };
    bool forbidden = params.allowed_token_ids && !holds(*params.allowed_token_ids);
    for (const std::vector<int32_t>& word : params.bad_words) {
      std::vector<int32_t> text = output;
      text.push_back(token);
      if (word.size() <= text.size() && std::equal(word.rbegin(), word.rend(), text.rbegin())) {
        forbidden = true;
      }
    }
    if (output.size() < static_cast<size_t>(params.min_tokens) &&
        (holds(params.stop_token_ids) || token == kEos)) {
      forbidden = true;
    }
    float x = forbidden ? kForbidden : logits[t];
    for (const TokenBias& bias : params.logit_bias) {
      if (bias.token == token) x += bias.value;
    }
    const auto count = static_cast<float>(std::count(output.begin(), output.end(), token));
    if (count > 0 || holds(prompt)) {
      x = x > 0 ? x / params.repetition_penalty : x * params.repetition_penalty;
    }
    x -= params.frequency_penalty * count;
    if (count > 0) x -= params.presence_penalty;
    logits[t] = x;
  }
  return logits;
}

std::vector<float> RandomRow(std::mt19937& random) {
  std::vector<float> row(kVocab);
  std::normal_distribution<float> normal(0, 3);
  for (float& x : row) x = normal(random);
  return row;
}

void ExpectSameBits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(a[i]), std::bit_cast<uint32_t>(b[i]))
        << i << ": " << a[i] << " and " << b[i];
  }
}

/// Row j as a device makes it of the parts.
std::vector<float> AppliedInParts(const SamplingParams& params, LogitsProcessors& processors,
                                  const TokenHistory& all, size_t j, std::vector<float> row) {
  std::vector<uint32_t> mask(MaskWords(kVocab), ~uint32_t{0});
  if (processors.MayForbid({all.tokens, all.prompt_length, {}})) {
    processors.Forbid({all.tokens, all.prompt_length, all.drafts.first(j)}, mask);
  }
  ApplyTokenMask(mask, row);
  for (const TokenBias& bias : processors.biases()) {
    row[static_cast<size_t>(bias.token)] += bias.value;
  }
  if (!processors.penalises()) return row;
  const std::span<const TokenCounts::Entry> entries =
      processors.Counts({all.tokens, all.prompt_length, {}});
  for (int32_t token = 0; token < kVocab; ++token) {
    const auto entry = std::ranges::find(entries, token, &TokenCounts::Entry::token);
    const bool listed = entry != entries.end();
    auto count = static_cast<float>(std::ranges::count(all.drafts.first(j), token));
    if (listed) count += static_cast<float>(entry->count);
    if (!listed && count == 0) continue;
    float& x = row[static_cast<size_t>(token)];
    x = x > 0 ? x / params.repetition_penalty : x * params.repetition_penalty;
    if (count > 0) {
      x -= params.frequency_penalty * count;
      x -= params.presence_penalty;
    }
  }
  return row;
}

TEST(LogitsProcessorsTest, EqualTheDefinitionForAnyHistory) {
  std::mt19937 random(1);
  const std::vector<int32_t> eos = {kEos};
  for (int round = 0; round < 300; ++round) {
    const SamplingParams params = RandomParams(random);
    const std::vector<int32_t> prompt = RandomTokens(random, 1 + random() % 12);
    LogitsProcessors processors(params, prompt, eos, kVocab);
    std::vector<int32_t> output;
    // Steps of a verification: rows after 0, 1, 2, ... drafts, of which some are then emitted.
    for (int step = 0; step < 6; ++step) {
      const std::vector<int32_t> drafts = RandomTokens(random, random() % 4);
      for (size_t j = 0; j <= drafts.size(); ++j) {
        std::vector<int32_t> tokens = prompt;
        tokens.insert(tokens.end(), output.begin(), output.end());
        std::vector<int32_t> hypothetical = output;
        hypothetical.insert(hypothetical.end(), drafts.begin(),
                            drafts.begin() + static_cast<std::ptrdiff_t>(j));
        const std::vector<float> row = RandomRow(random);
        std::vector<float> processed = row;
        processors.Apply({tokens, prompt.size(), std::span(drafts).first(j)}, processed);
        ExpectSameBits(processed, Expected(params, prompt, hypothetical, row));
        ExpectSameBits(AppliedInParts(params, processors, {tokens, prompt.size(), drafts}, j, row),
                       processed);
        if (HasFatalFailure()) return;
      }
      const size_t accepted = random() % (drafts.size() + 1);
      output.insert(output.end(), drafts.begin(),
                    drafts.begin() + static_cast<std::ptrdiff_t>(accepted));
      output.push_back(RandomTokens(random, 1)[0]);
    }
  }
}

struct Field {
  const char* name;
  void (*set)(SamplingParams&);
};

// The random test above would pass if no field ever mattered: each one alone must.
TEST(LogitsProcessorsTest, EachFieldAloneChangesARow) {
  const std::vector<Field> fields = {
      {"repetition_penalty", [](SamplingParams& p) { p.repetition_penalty = 2; }},
      {"presence_penalty", [](SamplingParams& p) { p.presence_penalty = 1; }},
      {"frequency_penalty", [](SamplingParams& p) { p.frequency_penalty = 1; }},
      {"logit_bias", [](SamplingParams& p) { p.logit_bias = {{3, 1.5F}}; }},
      {"bad_words", [](SamplingParams& p) { p.bad_words = {{5, 6, 7}}; }},
      {"allowed_token_ids", [](SamplingParams& p) { p.allowed_token_ids = {{4, 2}}; }},
      {"min_tokens", [](SamplingParams& p) { p.min_tokens = 3; }}};
  const std::vector<int32_t> eos = {kEos};
  const std::vector<int32_t> tokens = {9, 5, 6};  // a prompt of one token
  for (const Field& field : fields) {
    SamplingParams params;
    EXPECT_FALSE(LogitsProcessors::Needed(params));
    field.set(params);
    ASSERT_TRUE(LogitsProcessors::Needed(params)) << field.name;
    std::vector<float> row(kVocab, 1.0F);
    LogitsProcessors(params, std::span(tokens).first(1), eos, kVocab).Apply({tokens, 1, {}}, row);
    EXPECT_EQ(row, Expected(params, {9}, {5, 6}, std::vector<float>(kVocab, 1.0F))) << field.name;
    EXPECT_NE(row, std::vector<float>(kVocab, 1.0F)) << field.name;
  }
}

TEST(LogitsProcessorsTest, BadWordsAreLookedForInTheOutputAlone) {
  SamplingParams params;
  params.bad_words = {{5, 6}};
  const std::vector<int32_t> prompt = {4, 5};
  std::vector<float> row(kVocab, 0.0F);
  LogitsProcessors(params, prompt, {}, kVocab).Apply({prompt, 2, {}}, row);
  EXPECT_EQ(row[6], 0);
}

TEST(LogitsProcessorsTest, AnEosIdWithoutALogitIsIgnored) {
  SamplingParams params;
  params.min_tokens = 1;
  const std::vector<int32_t> prompt = {4};
  const std::vector<int32_t> eos = {kVocab, -1, 3};
  std::vector<float> row(kVocab, 0.0F);
  LogitsProcessors(params, prompt, eos, kVocab).Apply({prompt, 1, {}}, row);
  EXPECT_EQ(row[3], kForbidden);
  EXPECT_EQ(std::count(row.begin(), row.end(), 0.0F), kVocab - 1);
}

TEST(TokenCountsTest, RemovingLeavesNoTrace) {
  const std::vector<int32_t> prompt = {7, 3, 7};
  TokenCounts counts(prompt, 10);
  ASSERT_EQ(counts.entries().size(), 2U);
  counts.Add(5);
  counts.Add(3);
  counts.Add(5);
  ASSERT_EQ(counts.entries().size(), 3U);
  EXPECT_EQ(counts.entries()[1].token, 5);
  EXPECT_EQ(counts.entries()[1].count, 2);
  counts.Remove(5);
  counts.Remove(3);
  counts.Remove(5);
  ASSERT_EQ(counts.entries().size(), 2U);
  EXPECT_EQ(counts.entries()[0].count, 0);
  EXPECT_TRUE(counts.entries()[0].in_prompt);
}

}  // namespace
}  // namespace outrider
