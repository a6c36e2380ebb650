// From arguments, environment and configuration file to Settings. A value on the command line wins
// over the environment, that over the configuration file, that over the default.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "outrider/options/settings.h"

namespace outrider {

/// The value of an environment variable, if it is set. An empty one counts as not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

/// The environment of this process.
std::optional<std::string> ProcessEnvironment(const std::string& name);

/// What to do.
struct Invocation {
  std::optional<Command> command;  // absent: print `text` and leave
  std::string text;                // of --help or --version
  Settings settings;
  /// What was set to something else than its default, by whatever source: "port=9000". Secrets are
  /// masked.
  std::vector<std::string> non_defaults;
};

/// `arguments` without the program's name. Throws Error{kInvalidArgument} with one line on anything
/// unknown, ill-formed, missing or contradictory. Options that only other commands know may stand
/// in the environment and the configuration file; they are skipped.
Invocation ParseCommandLine(std::span<const std::string> arguments, const Environment& environment);

/// The --log-format of a command line that may be wrong otherwise: errors of ParseCommandLine are
/// lines of the log, too. kText where nothing says kJson.
LogFormat RequestedLogFormat(std::span<const std::string> arguments,
                             const Environment& environment);

}  // namespace outrider
