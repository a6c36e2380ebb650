// Keyword arguments as rows of the option table (options/option_table.h).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "outrider/options/settings.h"

namespace outrider::python {

/// A keyword argument and its texts: one, or several for options that may be given several times.
using OptionTexts = std::vector<std::pair<std::string, std::vector<std::string>>>;

/// What a Python function that starts an engine takes: `serve`'s options, with those of its HTTP
/// server or without.
std::vector<std::string> KeywordNames(bool with_server);

/// "; did you mean NAME?", or "".
std::string SuggestKeyword(const std::string& name, bool with_server);

/// Settings with the arguments laid over the defaults; paths of models resolved. Throws Error that
/// names the argument.
Settings SettingsOf(const OptionTexts& arguments);

}  // namespace outrider::python
