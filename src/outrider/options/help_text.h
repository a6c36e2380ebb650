// What --help and --version print, and the option tables of docs/configuration.md.
#pragma once

#include <string>

#include "outrider/options/settings.h"

namespace outrider {

/// "outrider" and the version of CMakeLists.txt.
std::string VersionText();

/// What `outrider --help` prints: the commands.
std::string ProgramHelp();

/// What `outrider bench --help` prints.
std::string BenchHelp();

/// One line on what `outrider completion` does.
std::string CompletionSummary();

/// What `outrider completion --help` prints.
std::string CompletionHelp();

/// What `outrider COMMAND --help` prints: usage and options by group, at most 100 columns wide.
std::string CommandHelp(Command command);

/// One line on what a command does.
std::string CommandSummary(Command command);

/// The option table as Markdown: a section per group, a row per option.
std::string OptionsMarkdown();

}  // namespace outrider
