// Chat templates are rendered by the Python that has imported the package, with its Jinja2, on the
// thread that asks.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "outrider/base/error.h"
#include "outrider/text/template_interpreter.h"
#include "outrider/text/utf8.h"

namespace outrider {
namespace {

namespace nb = nanobind;

nb::str Text(const std::string& text) {
  const std::string valid = ReplaceInvalidUtf8(text);
  return nb::str(valid.data(), valid.size());
}

class HostInterpreter : public TemplateInterpreter {
 public:
  TemplateOutcome Run(const TemplateJob& job) override {
    const nb::gil_scoped_acquire gil;
    try {
      nb::object variables = nb::none();
      if (!job.compile_only) {
        nb::dict given;
        given["special_tokens"] = Text(job.special_tokens);
        given["messages"] = Text(job.messages);
        given["tools"] = Text(job.tools);
        given["extra"] = Text(job.extra);
        given["kimi_tools"] = job.kimi_tools;
        given["add_generation_prompt"] = job.add_generation_prompt;
        given["continue_final_message"] = job.continue_final_message;
        variables = given;
      }
      const std::chrono::duration<double> seconds = job.limits.time;
      const nb::object result =
          nb::module_::import_("outrider._templates")
              .attr("run")(Text(job.source), variables, job.limits.characters, seconds.count());
      return {nb::cast<std::string>(result[0]), nb::cast<std::string>(result[1])};
    } catch (const nb::python_error& error) {
      const std::string what = error.what();
      throw Error(ErrorCode::kUnavailable, "Python could not render the chat template: " +
                                               what.substr(what.find_last_of('\n') + 1));
    }
  }
};

}  // namespace

TemplateInterpreter& ProcessTemplateInterpreter() {
  static TemplateInterpreter* const kInterpreter = new HostInterpreter;
  return *kInterpreter;
}

}  // namespace outrider
