// How a model writes what is not plain content, its reasoning and its tool calls, as its chat
// template teaches it to: a table of the known formats, and the choice among them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {

/// Reasoning comes first, between these.
inline constexpr std::string_view kReasoningBegin = "<think>";
inline constexpr std::string_view kReasoningEnd = "</think>";

/// What stands before a call's arguments.
enum class HeaderKind : uint8_t {
  kName,          // NAME
  kTypeThenName,  // function TYPE_END NAME
  kId,            // functions.NAME:NUMBER, which is also the call's id
};

/// How a call's arguments are written.
enum class ArgumentsForm : uint8_t {
  kJson,        // one JSON object
  kFencedJson,  // one JSON object in a Markdown block
  /// <arg_key>KEY</arg_key><arg_value>VALUE</arg_value>, with string values as they are and others
  /// as JSON: the tool's schema tells which are which.
  kKeysAndValues,
  /// A tag for each, which names it and says whether the value is a string, as it is, or JSON:
  /// <｜DSML｜parameter name="KEY" string="true">VALUE</｜DSML｜parameter>
  kAttributes,
  /// A tag for each, which names it, and the value on lines of its own, as in kKeysAndValues:
  /// <parameter=KEY>
  /// VALUE
  /// </parameter>
  kNamedTags,
};

/// One spelling of tool calls:
/// section_begin (call_begin HEADER header_end ARGUMENTS call_end)* section_end. A call ends the
/// reasoning, whether or not its mark came before.
struct ToolFormat {
  std::string_view name;           // as --tool-call-parser has it
  std::string_view section_begin;  // around all calls; empty: there is nothing
  std::string_view section_end;
  std::string_view call_begin;
  std::string_view call_end;
  HeaderKind header;
  std::string_view type_end;    // kTypeThenName: between the two
  std::string_view header_end;  // empty: the header ends where the first argument begins
  ArgumentsForm arguments;
  std::string_view line_end;              // what the model writes after header, keys and values
  std::string_view inner_mark;            // a token within the marks; empty: there is none
  bool section_per_call;                  // each call has a section of its own
  std::string_view parameter_begin = {};  // kAttributes, kNamedTags: up to the name
  std::string_view parameter_end = {};    // kAttributes, kNamedTags: after the value
};

/// Around the arguments of kKeysAndValues.
inline constexpr std::string_view kArgumentKeyBegin = "<arg_key>";
inline constexpr std::string_view kArgumentKeyEnd = "</arg_key>";
inline constexpr std::string_view kArgumentValueBegin = "<arg_value>";
inline constexpr std::string_view kArgumentValueEnd = "</arg_value>";

/// What begins every tag of kAttributes.
inline constexpr std::string_view kDsmlBegin = "<｜DSML｜";
inline constexpr std::string_view kDsmlCallTag = "<｜DSML｜invoke";
inline constexpr std::string_view kDsmlEnd = "</｜DSML｜";

/// All the marks that tell calls of this format from other text.
std::vector<std::string_view> MarksOf(const ToolFormat& format);

/// What to look for in a model's text.
struct OutputFormat {
  bool reasoning = false;
  const ToolFormat* tools = nullptr;  // null: the model's tool calls are not known
};

/// The names that --tool-call-parser and --reasoning-parser take, "auto" and "none" first.
std::vector<std::string> ToolParserNames();
std::vector<std::string> ReasoningParserNames();

/// The format of a model. `tool_parser` and `reasoning_parser` are names of the above; "auto" goes
/// by model_type and by what the chat template says. Throws Error for other names.
OutputFormat ChooseOutputFormat(std::string_view tool_parser, std::string_view reasoning_parser,
                                std::string_view model_type, std::string_view chat_template);

}  // namespace outrider
