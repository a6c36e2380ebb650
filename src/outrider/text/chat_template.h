// A model's chat template: turns a conversation into the text of a prompt, as transformers'
// apply_chat_template does, with the real Jinja2 (template_interpreter.h). DeepSeek-V4 has code in
// its place (deepseek_v4_prompt.h).
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "outrider/text/deepseek_v4_options.h"
#include "outrider/text/template_interpreter.h"
#include "outrider/text/tokenizer_config.h"

namespace outrider {

struct RenderOptions {
  std::string tools_json;  // JSON array of tools, or empty
  std::string extra_json;  // JSON object of more variables (chat_template_kwargs), or empty
  bool add_generation_prompt = true;    // end with what begins the assistant's turn
  bool continue_final_message = false;  // end within the last message, for the model to continue it
  TemplateLimits limits;
};

/// Immutable; may be rendered from any thread.
class ChatTemplate {
 public:
  /// The template of a model directory: chat_template.jinja, or chat_template in
  /// tokenizer_config.json, one string or a list of named ones ("default"; "tool_use" when there
  /// are tools). Special tokens come from tokenizer_config.json; where its tokenizer_class is
  /// Kimi's, tools are shown as by Kimi's code. Without one, DeepSeek-V4's code
  /// where config.json has its model_type; else nothing. Error if it is malformed.
  static std::optional<ChatTemplate> FromModelDirectory(const std::filesystem::path& directory);

  /// A template from a file of its Jinja source, for the tokenizer of `config`.
  static ChatTemplate FromFile(const std::filesystem::path& file, const TokenizerConfig& config);

  /// A template from its Jinja source. `special_tokens`: {"bos_token", "<s>"}, ... become
  /// variables; `name` is used in messages of Check.
  static ChatTemplate FromString(std::string source,
                                 const std::map<std::string, std::string>& special_tokens,
                                 std::string name = "chat template");

  /// The prompts of DeepSeek-V4.
  static ChatTemplate DeepSeekV4(DeepSeekV4Efforts efforts);

  /// Starts Python, where the template needs it, and compiles the template. Throws Error, one line,
  /// that names its file: kInvalidArgument if it is malformed, with its line; kUnavailable if
  /// Python does not run.
  void Check() const;

  /// The prompt for `messages_json`, a JSON array of objects with "role" and "content". Throws
  /// Error, always one line, without the template's path: kInvalidArgument for what is wrong with
  /// the request, or with the template, with its line; kUnavailable if Python is.
  std::string Render(const std::string& messages_json, const RenderOptions& options) const;

  /// Jinja source of the template that is used without tools; empty where it is code.
  const std::string& source() const { return source_; }

 private:
  ChatTemplate() = default;

  std::string name_;
  std::string source_;
  std::string tool_use_source_;  // used with tools; the same as source_ if there is just one
  std::string special_tokens_;   // JSON object
  bool kimi_tools_ = false;      // as in TemplateJob
  std::optional<DeepSeekV4Efforts> deepseek_v4_;  // set: no template, but DeepSeek-V4's code
};

}  // namespace outrider
