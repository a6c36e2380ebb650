// The one table of options. Flags, environment variables, keys of the configuration file, the help
// texts and the table in docs/configuration.md are all made from it.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/options/settings.h"

namespace outrider {

/// A set of commands.
class CommandSet {
 public:
  CommandSet(std::initializer_list<Command> commands) {
    for (const Command command : commands) bits_ |= Bit(command);
  }
  bool Has(Command command) const { return (bits_ & Bit(command)) != 0; }

 private:
  static uint32_t Bit(Command command) { return 1U << static_cast<uint32_t>(command); }
  uint32_t bits_ = 0;
};

enum class OptionKind : uint8_t {
  kValue,     // takes one value; the last one given counts
  kSwitch,    // --name or --name=false; true or false elsewhere
  kRepeated,  // --name A --name B; a list in YAML, commas in the environment
};

/// The texts that one source gives for an option; exactly one unless the option is repeated.
struct OptionValue {
  std::string where;  // "--port", "OUTRIDER_PORT", "serve.yaml: port"
  std::vector<std::string> texts;
};

/// One row of the table. For name "max-model-len", the flag is --max-model-len, the environment
/// variable OUTRIDER_MAX_MODEL_LEN and the YAML key max-model-len (or max_model_len).
struct OptionRow {
  std::string name;
  OptionKind kind = OptionKind::kValue;
  std::string group;         // heading in help texts
  std::string value_name;    // "N", "FILE", "text|json"; empty for switches
  std::string default_text;  // what holds when nobody gives a value, for people
  std::string help;
  CommandSet commands;
  /// Checks the texts and writes them into the settings. Throws Error naming `where`.
  std::function<void(Settings&, const OptionValue&)> set;
  bool secret = false;  // the value is not for logs

  std::string EnvironmentName() const;
};

/// All rows, in the order of the help texts. Two rows may share a name when no command has both.
std::span<const OptionRow> OptionTable();

/// The row that `command` knows under `name` (underscores count as hyphens), or null.
const OptionRow* FindOption(Command command, std::string_view name);

/// The first command that knows an option of this name, if any does.
std::optional<Command> CommandWithOption(std::string_view name);

/// The names that `command` knows.
std::vector<std::string> OptionNames(Command command);

}  // namespace outrider
