#include "outrider/options/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "outrider/options/help_text.h"
#include "outrider/options/option_table.h"
#include "outrider/options/option_value.h"

namespace outrider {

namespace {

struct Word {
  std::string text;
  std::string help;
};

/// What may stand first, or behind `bench`.
std::vector<Word> CommandWords(bool of_bench) {
  std::vector<Word> words;
  for (const Command command : kAllCommands) {
    const std::string name = CommandName(command);
    const bool is_bench = name.starts_with("bench ");
    if (is_bench != of_bench) continue;
    words.push_back({is_bench ? name.substr(name.find(' ') + 1) : name, CommandSummary(command)});
  }
  if (of_bench) return words;
  words.push_back({"bench", "Measure speed with and without speculation"});
  words.push_back({"completion", CompletionSummary()});
  words.push_back({"help", "Print the help of a command"});
  words.push_back({"version", "Print the version"});
  return words;
}

/// The values of an option that takes one of a few: "auto|cpu|cuda". Empty: it takes others.
std::vector<std::string> Choices(const OptionRow& row) {
  std::vector<std::string> choices;
  if (row.value_name.find('|') == std::string::npos) return choices;
  for (size_t start = 0; start <= row.value_name.size();) {
    const size_t end = std::min(row.value_name.find('|', start), row.value_name.size());
    choices.push_back(row.value_name.substr(start, end - start));
    start = end + 1;
  }
  return choices;
}

bool IsPath(const OptionRow& row) {
  return row.value_name == "FILE" || row.value_name == "DIR" || row.value_name == "PATH";
}

/// The options of a command but the positional one, with --config and --help.
std::vector<OptionRow> Rows(Command command) {
  std::vector<OptionRow> rows;
  for (const OptionRow& row : OptionTable()) {
    if (row.commands.Has(command) && row.name != "model") rows.push_back(row);
  }
  rows.push_back({.name = "config",
                  .group = "Other",
                  .value_name = "FILE",
                  .default_text = "",
                  .help = "YAML file with options",
                  .commands = {command},
                  .set = {}});
  rows.push_back({.name = "help",
                  .kind = OptionKind::kSwitch,
                  .group = "Other",
                  .value_name = "",
                  .default_text = "",
                  .help = "Print the help",
                  .commands = {command},
                  .set = {}});
  return rows;
}

/// Within single quotes of bash and zsh.
std::string Quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

/// Within single quotes of fish.
std::string FishQuoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "'";
}

/// "serve generate chat ..."
std::string Joined(const std::vector<Word>& words) {
  std::string text;
  for (const Word& word : words) text += (text.empty() ? "" : " ") + word.text;
  return text;
}

std::string BashScript() {
  std::string out = fmt::format(
      R"(# Completion of outrider for bash: source <(outrider completion bash)
_outrider() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} command=${{COMP_WORDS[1]-}}
  # readline cuts --option=value at the sign.
  if [[ $word == = ]]; then word=
  elif [[ $before == = ]]; then before=${{COMP_WORDS[COMP_CWORD-2]}}
  fi
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W '{} --help --version' -- "$word"))
    return
  fi
  case $command in
    completion) COMPREPLY=($(compgen -W 'bash zsh fish' -- "$word")); return ;;
    help) COMPREPLY=($(compgen -W '{}' -- "$word")); return ;;
    bench)
      if ((COMP_CWORD == 2)); then
        COMPREPLY=($(compgen -W '{} --help' -- "$word"))
        return
      fi
      command="bench ${{COMP_WORDS[2]}}" ;;
  esac
  case "$command $before" in
)",
      Joined(CommandWords(false)), Joined(CommandWords(false)), Joined(CommandWords(true)));
  for (const Command command : kAllCommands) {
    for (const OptionRow& row : Rows(command)) {
      if (row.kind == OptionKind::kSwitch) continue;
      const std::vector<std::string> choices = Choices(row);
      // What takes a number or a text of its own has nothing to complete.
      const std::string reply =
          !choices.empty() ? fmt::format("COMPREPLY=($(compgen -W {} -- \"$word\")); ",
                                         Quoted(fmt::format("{}", fmt::join(choices, " "))))
          : IsPath(row)    ? "compopt -o filenames; COMPREPLY=($(compgen -f -- \"$word\")); "
                           : "";
      out += fmt::format("    '{} --{}') {}return ;;\n", CommandName(command), row.name, reply);
    }
  }
  out += "  esac\n  case $command in\n";
  for (const Command command : kAllCommands) {
    std::string flags;
    for (const OptionRow& row : Rows(command)) {
      flags += (flags.empty() ? "--" : " --") + row.name;
      if (row.kind == OptionKind::kSwitch && row.default_text == "on") flags += " --no-" + row.name;
    }
    out += fmt::format("    {}) local options='{}' ;;\n", Quoted(CommandName(command)), flags);
  }
  out += R"(    *) return ;;
  esac
  if [[ $word == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$word"))
  else
    compopt -o filenames
    COMPREPLY=($(compgen -d -- "$word"))
  fi
}
complete -F _outrider outrider
)";
  return out;
}

/// An option's help inside brackets of zsh's _arguments.
std::string ZshHelp(const std::string& help) {
  std::string escaped;
  for (const char c : help) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string ZshSpecs(Command command) {
  std::string out;
  for (const OptionRow& row : Rows(command)) {
    const std::string many = row.kind == OptionKind::kRepeated ? "*" : "";
    std::string spec = fmt::format("{}--{}", many, row.name);
    if (row.kind != OptionKind::kSwitch) spec += "=";
    spec += fmt::format("[{}]", ZshHelp(row.help));
    if (row.kind != OptionKind::kSwitch) {
      const std::vector<std::string> choices = Choices(row);
      spec += ":value:";
      if (!choices.empty()) {
        spec += fmt::format("({})", fmt::join(choices, " "));
      } else if (IsPath(row)) {
        spec += "_files";
      }
    }
    out += " \\\n        " + Quoted(spec);
  }
  if (FindOption(command, "model") != nullptr) {
    out += " \\\n        '1:model:_files -/'";
  }
  return out + "\n";
}

/// "'serve:Serve a model ...' ..." for zsh's _describe.
std::string ZshWords(const std::vector<Word>& words) {
  std::string out;
  for (const Word& word : words) out += " " + Quoted(word.text + ":" + ZshHelp(word.help));
  return out;
}

std::string ZshScript() {
  std::string out = fmt::format(
      R"(#compdef outrider
# Completion of outrider for zsh: source <(outrider completion zsh), after compinit; or as the file
# _outrider in a folder of $fpath
_outrider() {{
  local -a commands=({}) bench_commands=({})
  if ((CURRENT == 2)); then
    _describe command commands
    return
  fi
  local command=$words[2] skip=1
  if [[ $command == completion ]]; then
    compadd bash zsh fish
    return
  elif [[ $command == help ]]; then
    _describe command commands
    return
  elif [[ $command == bench ]]; then
    if ((CURRENT == 3)); then
      _describe command bench_commands
      return
    fi
    command="bench $words[3]" skip=2
  fi
  shift $skip words
  ((CURRENT -= skip))
  case $command in
)",
      ZshWords(CommandWords(false)), ZshWords(CommandWords(true)));
  for (const Command command : kAllCommands) {
    out += fmt::format("    {})\n      _arguments{}      ;;\n", Quoted(CommandName(command)),
                       ZshSpecs(command));
  }
  // A file of fpath is run as the function's first call; elsewhere the function is announced.
  return out + R"(  esac
}
if [[ $funcstack[1] == _outrider ]]; then
  _outrider "$@"
else
  compdef _outrider outrider
fi
)";
}

std::string FishScript() {
  std::string out =
      "# Completion of outrider for fish:\n"
      "#   outrider completion fish > ~/.config/fish/completions/outrider.fish\n"
      "complete -c outrider -f\n";
  for (const Word& word : CommandWords(false)) {
    out += fmt::format("complete -c outrider -n __fish_use_subcommand -a {} -d {}\n", word.text,
                       FishQuoted(word.help));
  }
  out += "complete -c outrider -n '__fish_seen_subcommand_from completion' -a 'bash zsh fish'\n";
  const std::string bench = Joined(CommandWords(true));
  for (const Word& word : CommandWords(true)) {
    out += fmt::format(
        "complete -c outrider -n '__fish_seen_subcommand_from bench; and not "
        "__fish_seen_subcommand_from {}' -a {} -d {}\n",
        bench, word.text, FishQuoted(word.help));
  }
  for (const Command command : kAllCommands) {
    const std::string name = CommandName(command);
    // `bench serve` has other options than `serve`.
    const std::string condition =
        name.starts_with("bench ")
            ? fmt::format("__fish_seen_subcommand_from bench; and __fish_seen_subcommand_from {}",
                          name.substr(name.find(' ') + 1))
            : fmt::format(
                  "__fish_seen_subcommand_from {}; and not __fish_seen_subcommand_from bench",
                  name);
    if (FindOption(command, "model") != nullptr) {
      out += fmt::format("complete -c outrider -n '{}' -a '(__fish_complete_directories)'\n",
                         condition);
    }
    for (const OptionRow& row : Rows(command)) {
      out += fmt::format("complete -c outrider -n '{}' -l {}", condition, row.name);
      const std::vector<std::string> choices = Choices(row);
      if (!choices.empty()) {
        out += fmt::format(" -x -a '{}'", fmt::join(choices, " "));
      } else if (IsPath(row)) {
        out += " -r -F";
      } else if (row.kind != OptionKind::kSwitch) {
        out += " -x";
      }
      out += fmt::format(" -d {}\n", FishQuoted(row.help));
    }
  }
  return out;
}

}  // namespace

Shell ParseShell(std::string_view where, std::string_view name) {
  static const std::vector<std::string> kNames = {"bash", "zsh", "fish"};
  return static_cast<Shell>(ParseChoice(where, name, kNames));
}

std::string CompletionScript(Shell shell) {
  switch (shell) {
    case Shell::kBash:
      return BashScript();
    case Shell::kZsh:
      return ZshScript();
    case Shell::kFish:
      return FishScript();
  }
  return "";
}

}  // namespace outrider
