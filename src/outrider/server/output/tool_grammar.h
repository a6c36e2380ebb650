// What a model's text must be when it has to call tools: a structural tag for the grammar compiler.
#pragma once

#include <span>
#include <string>

#include "outrider/server/output/output_format.h"

namespace outrider {

struct CallableTool {
  std::string name;
  std::string parameters;  // JSON schema of the arguments; "": any object
};

/// The text of a structural tag: calls of these tools and nothing else, at least one; just one
/// unless `parallel`.
std::string ToolCallsTag(const ToolFormat& format, std::span<const CallableTool> tools,
                         bool parallel);

}  // namespace outrider
