// What a model's text must be when it has to call tools, or when its calls have to be right:
// structural tags for the grammar compiler.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "outrider/grammar/grammar_spec.h"
#include "outrider/output/output_format.h"
#include "outrider/output/value_types.h"

namespace outrider {

struct CallableTool {
  std::string name;
  std::string parameters;     // JSON schema of the arguments; "": any object
  ParameterTypes types = {};  // of the parameters, as readers of the calls know them
  bool is_strict = false;     // its arguments must follow the schema where calls are free
};

/// The token that is the text of one of the marks around calls; nothing where text spells it.
using MarkTokens = std::function<std::optional<int32_t>(std::string_view)>;

// Both throw Error (kInvalidArgument), "tools: ...", for parameters that are no schema of
// an object or that cannot be enforced.

/// Calls of these tools and nothing else, at least one; just one unless `parallel`. Arguments
/// follow the schemas.
GrammarSpec ForcedCalls(const ToolFormat& format, std::span<const CallableTool> tools,
                        bool parallel, const MarkTokens& mark_tokens);

/// Any text, in which calls are of these tools; once one begins, its arguments follow the schema if
/// the tool is strict.
GrammarSpec FreeTextWithCalls(const ToolFormat& format, std::span<const CallableTool> tools);

}  // namespace outrider
