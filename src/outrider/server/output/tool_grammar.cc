#include "outrider/server/output/tool_grammar.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

namespace outrider {
namespace {

std::string Quoted(const std::string& text) { return nlohmann::json(text).dump(); }

std::string ConstString(std::string_view text) {
  return fmt::format(R"({{"type":"const_string","value":{}}})", Quoted(std::string(text)));
}

std::string Sequence(const std::vector<std::string>& elements) {
  return fmt::format(R"({{"type":"sequence","elements":[{}]}})", fmt::join(elements, ","));
}

// What stands in a call before its arguments; a Kimi call's number comes after this.
std::string CallBegin(const ToolFormat& format, const std::string& name) {
  std::string begin(format.call_begin);
  switch (format.header) {
    case HeaderKind::kName:
      return fmt::format("{}{}{}", begin, name,
                         format.key_values ? format.line_end : format.header_end);
    case HeaderKind::kTypeThenName:
      return fmt::format("{}function{}{}{}", begin, format.type_end, name, format.header_end);
    case HeaderKind::kId:
      return fmt::format("{}functions.{}:", begin, name);
  }
  return begin;
}

std::string Tag(const ToolFormat& format, const CallableTool& tool) {
  const std::string arguments =
      fmt::format(R"({{"type":"json_schema","json_schema":{}{}}})",
                  tool.parameters.empty() ? R"({"type":"object","additionalProperties":true})"
                                          : tool.parameters,
                  format.key_values ? R"(,"style":"glm_xml")" : "");
  const std::string content = format.header == HeaderKind::kId
                                  ? Sequence({R"({"type":"regex","pattern":"[0-9]+"})",
                                              ConstString(format.header_end), arguments})
                                  : arguments;
  const std::string begin = CallBegin(format, tool.name) + (format.fenced ? "```json\n" : "");
  const std::string end = (format.fenced ? "\n```" : "") + std::string(format.call_end);
  return fmt::format(R"({{"type":"tag","begin":{},"content":{},"end":{}}})", Quoted(begin), content,
                     Quoted(end));
}

}  // namespace

std::string ToolCallsTag(const ToolFormat& format, std::span<const CallableTool> tools,
                         bool parallel) {
  std::vector<std::string> tags;
  for (const CallableTool& tool : tools) tags.push_back(Tag(format, tool));
  // DeepSeek-V3 and GLM-4.5 write each call on lines of its own.
  const std::string separator(format.fenced ? "\n" : format.line_end);
  std::string calls = fmt::format(
      R"({{"type":"tags_with_separator","tags":[{}],"separator":{},"at_least_one":true,)"
      R"("stop_after_first":{}}})",
      fmt::join(tags, ","), Quoted(separator), !parallel);
  if (!format.section_begin.empty()) {
    calls = Sequence({ConstString(format.section_begin), calls, ConstString(format.section_end)});
  }
  return R"({"type":"structural_tag","format":)" + calls + "}";
}

}  // namespace outrider
