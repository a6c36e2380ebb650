#include "outrider/options/help_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

#include "outrider/base/version.h"
#include "outrider/options/option_table.h"

namespace outrider {

namespace {

constexpr size_t kWidth = 100;
constexpr size_t kHelpColumn = 38;
constexpr size_t kChoiceColumn = 6;  // of further lines of a flag's choices

/// "  left", then `text` wrapped between kHelpColumn and kWidth. A long `left` is cut behind '|'.
std::string TwoColumns(std::string left, const std::string& text) {
  std::string out = "  ";
  while (out.size() - (out.rfind('\n') + 1) + left.size() > kWidth) {
    const size_t end = left.rfind('|', kWidth - kChoiceColumn - 1) + 1;
    if (end == 0) break;
    out.append(left, 0, end).append(1, '\n').append(kChoiceColumn, ' ');
    left.erase(0, end);
  }
  out += left;
  if (out.size() + 2 > kHelpColumn) {
    out += '\n';
    out.append(kHelpColumn, ' ');
  } else {
    out.append(kHelpColumn - out.size(), ' ');
  }
  size_t column = kHelpColumn;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find(' ', start), text.size());
    const size_t length = end - start;
    if (column > kHelpColumn && column + 1 + length > kWidth) {
      out += '\n';
      out.append(kHelpColumn, ' ');
      column = kHelpColumn;
    }
    if (column > kHelpColumn) {
      out += ' ';
      ++column;
    }
    out.append(text, start, length);
    column += length;
    start = end + 1;
  }
  return out + '\n';
}

std::string FlagText(const OptionRow& row) {
  return fmt::format("--{}{}{}", row.name, row.value_name.empty() ? "" : " ", row.value_name);
}

std::string HelpWithDefault(const OptionRow& row) {
  return row.default_text.empty() ? row.help
                                  : fmt::format("{} [default: {}]", row.help, row.default_text);
}

/// The groups of the rows that `wanted` takes, in order of first appearance.
template <typename Predicate>
std::vector<std::string> Groups(Predicate wanted) {
  std::vector<std::string> groups;
  for (const OptionRow& row : OptionTable()) {
    if (wanted(row) && std::find(groups.begin(), groups.end(), row.group) == groups.end()) {
      groups.push_back(row.group);
    }
  }
  return groups;
}

/// Whether a group has options of the engine, which commands share.
bool IsShared(const std::string& group) {
  const std::span<const OptionRow> rows = OptionTable();
  return std::any_of(rows.begin(), rows.end(), [&](const OptionRow& row) {
    return row.group == group && row.commands.Has(Command::kServe) &&
           row.commands.Has(Command::kGenerate);
  });
}

/// Commands of a row, those of bench that take a model as one.
std::string CommandsText(const OptionRow& row) {
  std::string text;
  for (const Command command : kAllCommands) {
    if (!row.commands.Has(command) || command == Command::kBenchThroughput ||
        command == Command::kBenchServe) {
      continue;
    }
    if (!text.empty()) text += ", ";
    text += command == Command::kBenchLatency ? "bench" : CommandName(command);
  }
  return text;
}

/// Text inside a cell of a Markdown table.
std::string Cell(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '|') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

}  // namespace

std::string VersionText() { return fmt::format("outrider {}\n", kVersion); }

std::string CommandSummary(Command command) {
  switch (command) {
    case Command::kServe:
      return "Serve a model over HTTP with the OpenAI API";
    case Command::kGenerate:
      return "Continue one prompt or answer one message";
    case Command::kChat:
      return "Talk with a model in the terminal, turn by turn";
    case Command::kBenchLatency:
      return "Time requests one after the other, with 0, 1, 2, ... draft tokens";
    case Command::kBenchThroughput:
      return "Time many requests at once, with 0, 1, 2, ... draft tokens";
    case Command::kBenchServe:
      return "Time a server of the model, as many clients at once see it";
    case Command::kBenchKernels:
      return "Time the kernels of this machine against what it can do at most; needs no model";
    case Command::kExplain:
      return "Say what would run and why: shapes, memory, kernels, drafter";
  }
  return "";
}

std::string ProgramHelp() {
  std::string out =
      "Outrider: inference for MLA language models with exact speculative decoding\n\n"
      "Usage: outrider COMMAND MODEL [OPTION ...]\n\nCommands:\n";
  for (const Command command : kAllCommands) {
    out += TwoColumns(CommandName(command), CommandSummary(command));
  }
  out += TwoColumns("completion", CompletionSummary()) + "\nOptions:\n" +
         TwoColumns("-h, --help", "Print this, or the help of a command") +
         TwoColumns("-V, --version", "Print the version") +
         "\nMODEL is a Hugging Face checkpoint directory. Example:\n"
         "  outrider generate models/tiny-v3-mtp3 --chat 'Noa is 28 years old. Elsa is 29 years "
         "older than Noa. How old will Elsa be in 23 years?'\n";
  return out;
}

std::string CompletionSummary() {
  return "Print a script that completes commands and options in bash, zsh or fish";
}

std::string CompletionHelp() {
  return CompletionSummary() +
         "\n\nUsage: outrider completion bash|zsh|fish\n\n"
         "  bash   source <(outrider completion bash)               # in ~/.bashrc\n"
         "  zsh    source <(outrider completion zsh)                # in ~/.zshrc, after compinit\n"
         "  fish   outrider completion fish > ~/.config/fish/completions/outrider.fish\n";
}

std::string BenchHelp() {
  return "Measure speed with and without speculation\n\n"
         "Usage: outrider bench latency|throughput|serve MODEL [OPTION ...]\n"
         "       outrider bench kernels [OPTION ...]\n\nCommands:\n" +
         TwoColumns("latency", CommandSummary(Command::kBenchLatency)) +
         TwoColumns("throughput", CommandSummary(Command::kBenchThroughput)) +
         TwoColumns("serve", CommandSummary(Command::kBenchServe)) +
         TwoColumns("kernels", CommandSummary(Command::kBenchKernels)) +
         "\nTheir options: outrider bench latency --help\n";
}

std::string CommandHelp(Command command) {
  const bool takes_model = FindOption(command, "model") != nullptr;
  std::string out =
      fmt::format("{}\n\nUsage: outrider {}{} [OPTION ...]\n", CommandSummary(command),
                  CommandName(command), takes_model ? " MODEL" : "");
  if (command == Command::kExplain) out += "       outrider explain --batch ITEMS [OPTION ...]\n";
  const auto wanted = [command](const OptionRow& row) {
    return row.commands.Has(command) && row.name != "model";
  };
  std::vector<std::string> groups = Groups(wanted);
  std::stable_partition(groups.begin(), groups.end(),
                        [](const std::string& group) { return !IsShared(group); });
  for (const std::string& group : groups) {
    out += fmt::format("\n{}:\n", group);
    for (const OptionRow& row : OptionTable()) {
      if (wanted(row) && row.group == group) {
        out += TwoColumns(FlagText(row), HelpWithDefault(row));
      }
    }
  }
  out += "\nOther:\n" +
         TwoColumns("--config FILE", "YAML file with a line 'name: value' for each option to set") +
         TwoColumns("-h, --help", "Print this");
  out +=
      "\nEvery option can also be set by an environment variable (--max-model-len is\n"
      "OUTRIDER_MAX_MODEL_LEN) or in the file of --config. The command line wins over the\n"
      "environment, the environment over the file.\n";
  return out;
}

std::string OptionsMarkdown() {
  std::string out;
  const auto all = [](const OptionRow&) { return true; };
  for (const std::string& group : Groups(all)) {
    out += fmt::format(
        "\n### {}\n\n| Option | Environment | Default | Commands | Meaning |\n"
        "|---|---|---|---|---|\n",
        group);
    for (const OptionRow& row : OptionTable()) {
      if (row.group != group) continue;
      const std::string flag = row.name == "model" ? "MODEL" : FlagText(row);
      out += fmt::format("| `{}` | `{}` | {} | {} | {} |\n", Cell(flag), row.EnvironmentName(),
                         Cell(row.default_text), CommandsText(row), Cell(row.help));
    }
  }
  return out;
}

}  // namespace outrider
