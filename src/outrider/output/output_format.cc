#include "outrider/output/output_format.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "outrider/base/error.h"

namespace outrider {
namespace {

constexpr ToolFormat kDeepSeekV3 = {
    .name = "deepseek_v3",
    .section_begin = "<｜tool▁calls▁begin｜>",
    .section_end = "<｜tool▁calls▁end｜>",
    .call_begin = "<｜tool▁call▁begin｜>",
    .call_end = "<｜tool▁call▁end｜>",
    .header = HeaderKind::kTypeThenName,
    .type_end = "<｜tool▁sep｜>",
    .header_end = "\n",
    .arguments = ArgumentsForm::kFencedJson,
    .line_end = "",
    .inner_mark = "",
    .section_per_call = false,
};

constexpr ToolFormat DeepSeekV31() {
  ToolFormat format = kDeepSeekV3;
  format.name = "deepseek_v31";
  format.header = HeaderKind::kName;
  format.header_end = format.type_end;
  format.arguments = ArgumentsForm::kJson;
  return format;
}

constexpr ToolFormat kDeepSeekV4 = {
    .name = "deepseek_v4",
    .section_begin = "<｜DSML｜tool_calls>",
    .section_end = "</｜DSML｜tool_calls>",
    .call_begin = "<｜DSML｜invoke name=\"",
    .call_end = "</｜DSML｜invoke>",
    .header = HeaderKind::kName,
    .type_end = "",
    .header_end = "\">",
    .arguments = ArgumentsForm::kAttributes,
    .line_end = "\n",
    .inner_mark = "｜DSML｜",
    .section_per_call = false,
    .parameter_begin = "<｜DSML｜parameter name=\"",
    .parameter_end = "</｜DSML｜parameter>",
};

constexpr ToolFormat DeepSeekV32() {
  ToolFormat format = kDeepSeekV4;
  format.name = "deepseek_v32";
  format.section_begin = "<｜DSML｜function_calls>";
  format.section_end = "</｜DSML｜function_calls>";
  return format;
}

constexpr ToolFormat kKimiK2 = {
    .name = "kimi_k2",
    .section_begin = "<|tool_calls_section_begin|>",
    .section_end = "<|tool_calls_section_end|>",
    .call_begin = "<|tool_call_begin|>",
    .call_end = "<|tool_call_end|>",
    .header = HeaderKind::kId,
    .type_end = "",
    .header_end = "<|tool_call_argument_begin|>",
    .arguments = ArgumentsForm::kJson,
    .line_end = "",
    .inner_mark = "",
    .section_per_call = false,
};

constexpr ToolFormat kGlm45 = {
    .name = "glm45",
    .section_begin = "",
    .section_end = "",
    .call_begin = "<tool_call>",
    .call_end = "</tool_call>",
    .header = HeaderKind::kName,
    .type_end = "",
    .header_end = "",
    .arguments = ArgumentsForm::kKeysAndValues,
    .line_end = "\n",
    .inner_mark = "",
    .section_per_call = false,
};

constexpr ToolFormat Glm47() {
  ToolFormat format = kGlm45;
  format.name = "glm47";
  format.line_end = "";
  return format;
}

constexpr ToolFormat Ling3() {
  ToolFormat format = Glm47();
  format.name = "ling3";
  return format;
}

constexpr ToolFormat kStep3p5 = {
    .name = "step3p5",
    .section_begin = "<tool_call>",
    .section_end = "</tool_call>",
    .call_begin = "<function=",
    .call_end = "</function>",
    .header = HeaderKind::kName,
    .type_end = "",
    .header_end = ">",
    .arguments = ArgumentsForm::kNamedTags,
    .line_end = "\n",
    .inner_mark = "",
    .section_per_call = true,
    .parameter_begin = "<parameter=",
    .parameter_end = "</parameter>",
};

constexpr std::array kToolFormats = {kDeepSeekV3, DeepSeekV31(), DeepSeekV32(),
                                     kDeepSeekV4, kKimiK2,       kGlm45,
                                     Glm47(),     Ling3(),       kStep3p5};

const ToolFormat* Find(std::string_view name) {
  const auto* const found =
      std::find_if(kToolFormats.begin(), kToolFormats.end(),
                   [&](const ToolFormat& format) { return format.name == name; });
  return found == kToolFormats.end() ? nullptr : found;
}

const ToolFormat* ToolFormatOf(std::string_view model_type, std::string_view chat_template) {
  const auto says = [&](std::string_view text) {
    return chat_template.find(text) != std::string_view::npos;
  };
  if (model_type == "deepseek_v4") return Find("deepseek_v4");
  // V3.2-Exp, of the same type, has the template of V3.1.
  if (model_type == "deepseek_v32" && !says(kDeepSeekV3.call_begin)) return Find("deepseek_v32");
  if (model_type.starts_with("deepseek_v")) {
    // V3 and R1 put the arguments into a Markdown block, V3.1 does not.
    return Find(says(kDeepSeekV3.call_begin) && !says("```json") ? "deepseek_v31" : "deepseek_v3");
  }
  if (model_type.starts_with("kimi_k2") || model_type == "kimi_linear") return Find("kimi_k2");
  if (model_type.starts_with("glm4")) {
    return Find(says("</arg_key><arg_value>") ? "glm47" : "glm45");
  }
  // GLM-5, whose calls are GLM-4.7's.
  if (model_type.starts_with("glm_moe")) return Find("glm47");
  if (model_type == "bailing_hybrid") return Find("ling3");
  if (model_type.starts_with("step3p5")) return Find("step3p5");
  return nullptr;
}

void CheckName(std::string_view option, std::string_view name,
               const std::vector<std::string>& names) {
  if (std::find(names.begin(), names.end(), name) != names.end()) return;
  throw InvalidArgument("{}: \"{}\" is unknown; choose from {}", option, name,
                        fmt::join(names, ", "));
}

}  // namespace

std::vector<std::string_view> MarksOf(const ToolFormat& format) {
  std::vector<std::string_view> marks = {
      format.section_begin, format.section_end, format.call_begin, format.call_end,
      format.type_end,      format.header_end,  format.inner_mark};
  if (format.arguments == ArgumentsForm::kKeysAndValues) {
    marks.insert(marks.end(),
                 {kArgumentKeyBegin, kArgumentKeyEnd, kArgumentValueBegin, kArgumentValueEnd});
  }
  std::erase(marks, "");
  return marks;
}

std::vector<std::string> ToolParserNames() {
  std::vector<std::string> names = {"auto", "none"};
  for (const ToolFormat& format : kToolFormats) names.emplace_back(format.name);
  return names;
}

// All of these models write <think>...</think>; the names are those that vLLM's users know.
std::vector<std::string> ReasoningParserNames() {
  return {"auto",        "none",    "deepseek_r1", "deepseek_v3", "deepseek_v32",
          "deepseek_v4", "kimi_k2", "glm45",       "ling3",       "step3p5"};
}

OutputFormat ChooseOutputFormat(std::string_view tool_parser, std::string_view reasoning_parser,
                                std::string_view model_type, std::string_view chat_template) {
  CheckName("--tool-call-parser", tool_parser, ToolParserNames());
  CheckName("--reasoning-parser", reasoning_parser, ReasoningParserNames());
  const ToolFormat* const known = ToolFormatOf(model_type, chat_template);
  OutputFormat format;
  format.tools = tool_parser == "auto" ? known : Find(tool_parser);
  // Every family whose tool calls are known has reasoning members.
  format.reasoning = reasoning_parser == "auto" ? known != nullptr : reasoning_parser != "none";
  return format;
}

}  // namespace outrider
