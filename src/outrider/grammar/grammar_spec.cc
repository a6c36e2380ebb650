#include "outrider/grammar/grammar_spec.h"

#include "outrider/base/error.h"

namespace outrider {

std::string_view GrammarKindName(GrammarKind kind) {
  switch (kind) {
    case GrammarKind::kJsonObject:
      return "json_object";
    case GrammarKind::kJsonSchema:
      return "json_schema";
    case GrammarKind::kRegex:
      return "regex";
    case GrammarKind::kChoice:
      return "choice";
    case GrammarKind::kEbnf:
      return "grammar";
    case GrammarKind::kStructuralTag:
      return "structural_tag";
    case GrammarKind::kToolCalls:
      return "tool_calls";
  }
  OUTRIDER_CHECK(false);
}

}  // namespace outrider
