#include "outrider/options/option_table.h"

#include <algorithm>
#include <iterator>

#include "outrider/options/option_rows.h"

namespace outrider {

namespace {

std::vector<OptionRow> JoinRows() {
  std::vector<OptionRow> all = EngineOptionRows();
  for (std::vector<OptionRow> part :
       {ServeOptionRows(), GenerateOptionRows(), BenchOptionRows(), ExplainOptionRows()}) {
    std::move(part.begin(), part.end(), std::back_inserter(all));
  }
  return all;
}

std::string WithHyphens(std::string_view name) {
  std::string hyphenated(name);
  // The keys inside --speculative-config are vLLM's, with underscores: only what precedes the dot
  // is a flag's name.
  const auto end = std::find(hyphenated.begin(), hyphenated.end(), '.');
  std::replace(hyphenated.begin(), end, '_', '-');
  return hyphenated;
}

}  // namespace

std::string CommandName(Command command) {
  switch (command) {
    case Command::kServe:
      return "serve";
    case Command::kGenerate:
      return "generate";
    case Command::kChat:
      return "chat";
    case Command::kBenchLatency:
      return "bench latency";
    case Command::kBenchThroughput:
      return "bench throughput";
    case Command::kBenchServe:
      return "bench serve";
    case Command::kBenchKernels:
      return "bench kernels";
    case Command::kExplain:
      return "explain";
  }
  return "";
}

std::string OptionRow::EnvironmentName() const {
  std::string variable = "OUTRIDER_";
  for (const char c : name) {
    if (c == '-' || c == '.') {
      variable += '_';
    } else {
      variable += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    }
  }
  return variable;
}

std::span<const OptionRow> OptionTable() {
  static const std::vector<OptionRow> kTable = JoinRows();
  return kTable;
}

const OptionRow* FindOption(Command command, std::string_view name) {
  const std::string hyphenated = WithHyphens(name);
  for (const OptionRow& row : OptionTable()) {
    if (row.name == hyphenated && row.commands.Has(command)) return &row;
  }
  return nullptr;
}

std::optional<Command> CommandWithOption(std::string_view name) {
  for (const Command command : kAllCommands) {
    if (FindOption(command, name) != nullptr) return command;
  }
  return std::nullopt;
}

std::vector<std::string> OptionNames(Command command) {
  std::vector<std::string> names;
  for (const OptionRow& row : OptionTable()) {
    if (row.commands.Has(command)) names.push_back(row.name);
  }
  return names;
}

}  // namespace outrider
