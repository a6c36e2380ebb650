// The grammar of one request: which tokens each of its verify rows allows, given the drafts before
// it; when it begins (after the end of thinking, where asked for); how the request may end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "outrider/base/matrix_view.h"
#include "outrider/grammar/grammar_matcher.h"

namespace outrider {

/// What a request asks for.
struct GrammarConstraint {
  std::shared_ptr<const CompiledGrammar> grammar;
  /// Until the output has held these tokens in a row, anything goes; the token after them is the
  /// first that the grammar sees. Empty: from the first token on.
  std::vector<int32_t> start_after;
  /// Tokens that must not come before, besides those that would end the request.
  std::vector<int32_t> not_before = {};
  /// In place of a grammar: the tokens of the output, which is to be scored as if the model had
  /// written it. The request ignores EOS, has no stop tokens and ends after the last one.
  std::vector<int32_t> forced_tokens = {};

  bool constrains() const { return grammar != nullptr || !forced_tokens.empty(); }
};

class RequestGrammar {
 public:
  /// `eos_token_ids` end the request, unless `ignore_eos`; so do `stop_token_ids`. None of them may
  /// come before the grammar has begun: a text that is whole is asked for.
  RequestGrammar(const GrammarConstraint& constraint, std::span<const int32_t> eos_token_ids,
                 bool ignore_eos, std::span<const int32_t> stop_token_ids);

  /// Goes on by tokens that the request has emitted. False when the grammar refuses one, which its
  /// masks should have kept from being drawn: then the request cannot go on.
  [[nodiscard]] bool Advance(std::span<const int32_t> tokens);

  /// How many of `drafts`, from the first, are allowed after what was emitted; none after one that
  /// ends the request.
  size_t CountAllowed(std::span<const int32_t> drafts);

  /// Row j of `masks`, [1 + drafts.size(), MaskWords(vocab)], gets the tokens that are allowed
  /// after what was emitted and drafts 0 .. j-1 (sampling/token_mask.h). Tokens that end the
  /// request are allowed where the text is whole; a stop token also where the grammar takes it for
  /// text. Rows that cannot come about, after a draft that is refused or ends the request, allow
  /// everything.
  void FillMasks(std::span<const int32_t> drafts, MatrixView<uint32_t> masks);

  /// What was emitted is a whole text of the grammar.
  bool complete() const { return place_.started && IsWhole(); }

 private:
  struct Place {
    bool started = false;      // the grammar has begun
    bool ended = false;        // the last token ended the request
    int32_t num_matched = 0;   // of start_after_, what the output ends with
    int32_t num_accepted = 0;  // tokens of the grammar's text, or forced ones
  };

  bool IsWhole() const;
  bool Accept(int32_t token);
  bool Step(int32_t token);
  void ReturnTo(const Place& place);
  void FillMask(std::span<uint32_t> mask);
  bool Ends(int32_t token) const;

  std::optional<GrammarMatcher> matcher_;  // unless tokens are forced
  std::vector<int32_t> forced_tokens_;
  std::vector<int32_t> start_after_;
  std::vector<int32_t> borders_;  // of each beginning of start_after_, for looking it up
  std::vector<int32_t> eos_token_ids_;
  std::vector<int32_t> end_token_ids_;  // what ends the request
  std::vector<int32_t> not_before_;     // what may not come before the grammar begins
  Place place_;
};

}  // namespace outrider
