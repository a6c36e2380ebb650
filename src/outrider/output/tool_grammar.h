// What a model's text must be when it has to call tools: a structural tag for the grammar compiler
// (GrammarKind::kToolCalls).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "outrider/output/output_format.h"

namespace outrider {

struct CallableTool {
  std::string name;
  std::string parameters;  // JSON schema of the arguments; "": any object
  /// Parameters whose values are strings and nothing else, as readers of the calls know them.
  std::set<std::string, std::less<>> string_parameters = {};
};

/// The token that is the text of one of the marks around calls; nothing where text spells it.
using MarkTokens = std::function<std::optional<int32_t>(std::string_view)>;

/// The text of a structural tag: calls of these tools and nothing else, at least one; just one
/// unless `parallel`. Throws Error (kInvalidArgument), "tools: ...", for parameters that are no
/// schema of an object.
std::string ToolCallsTag(const ToolFormat& format, std::span<const CallableTool> tools,
                         bool parallel, const MarkTokens& mark_tokens);

}  // namespace outrider
