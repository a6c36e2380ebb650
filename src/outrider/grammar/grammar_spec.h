// What constrains the text of a request: a JSON schema, a regular expression, a list of choices, a
// grammar. Plain text as the client sent it; GrammarCompiler makes it something to match with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace outrider {

enum class GrammarKind : uint8_t {
  kJsonObject,     // any JSON object
  kJsonSchema,     // JSON that a schema allows
  kRegex,          // a regular expression that the whole text matches
  kChoice,         // one of `choices`
  kEbnf,           // a grammar in xgrammar's EBNF (GBNF style) with a rule called root
  kStructuralTag,  // a structural tag: free text with constrained parts, as tool calls are
  kToolCalls,      // a structural tag in which tokens added to the vocabulary are no text: only
                   // "token" elements allow them, by their ids
};

struct GrammarSpec {
  GrammarKind kind = GrammarKind::kJsonObject;
  /// The schema's JSON text, the expression, the EBNF, or the structural tag's JSON text; empty for
  /// kJsonObject and kChoice.
  std::string text;
  std::vector<std::string> choices;  // kChoice: at least one
  /// A structural tag of tool calls, which may come in the text's place; "": none may.
  std::string calls = {};
  bool compact =
      false;  // kJsonObject, kJsonSchema: JSON on one line, a space after commas and colons

  bool operator==(const GrammarSpec&) const = default;
};

}  // namespace outrider
