// Rendering of chat templates by Jinja2 in a Python: one that the program embeds
// (embedded_interpreter.cc), or, in the Python package, the one that has imported it.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace outrider {

struct TemplateLimits {
  std::chrono::milliseconds time{2000};  // of a processor
  size_t input_bytes = 8UL << 20;        // of messages, tools and variables, as JSON
  size_t characters = 32UL << 20;        // of the rendered prompt
  size_t memory_bytes = 512UL << 20;     // what Python may allocate for one rendering
};

/// One rendering. The JSON texts go to Python as they are: the order of keys matters to templates.
struct TemplateJob {
  std::string name;            // of the template, for messages
  std::string source;          // Jinja
  std::string special_tokens;  // JSON object of variables, such as bos_token
  std::string messages;        // JSON array
  std::string tools;           // JSON array, or empty
  std::string extra;           // JSON object of more variables, or empty
  bool kimi_tools = false;     // tools are shown as the code of Kimi's tokenizers shows them
  bool compile_only = false;   // the prompt is empty
  bool add_generation_prompt = false;
  bool continue_final_message = false;
  TemplateLimits limits;

  size_t input_bytes() const { return messages.size() + tools.size() + extra.size(); }
};

/// What came of a job.
struct TemplateOutcome {
  std::string kind;  // "ok", "memory", "request", "template" (chat_template.py), or "time"
  std::string text;  // the prompt, or what was wrong
};

/// A Python with chat_template.py in it. Thread-safe.
class TemplateInterpreter {
 public:
  virtual ~TemplateInterpreter() = default;

  /// Throws Error (kUnavailable) where Python does not run.
  virtual TemplateOutcome Run(const TemplateJob& job) = 0;
};

/// The interpreter that this process has; lives until it ends.
TemplateInterpreter& ProcessTemplateInterpreter();

/// The rendered prompt, valid UTF-8. Callers wait their turn; up to 64 KiB of
/// input never wait for more than that in the program. Throws
/// Error with one line: kInvalidArgument for what the template or the request does wrong (with the
/// template's message and line) or a limit; kUnavailable when Python cannot start, or is caught in
/// an operation that cannot be interrupted. No message names a file but job.name: the log says more
/// of Python's start.
std::string RenderTemplate(const TemplateJob& job);

}  // namespace outrider
