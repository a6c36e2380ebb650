// The Python program that renders chat templates: chat_template.py, compiled into the library.
#pragma once

namespace outrider {

extern const char* const kTemplateProgram;

}  // namespace outrider
