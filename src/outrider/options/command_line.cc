#include "outrider/options/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <string_view>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/options/completion.h"
#include "outrider/options/config_file.h"
#include "outrider/options/help_text.h"
#include "outrider/options/option_table.h"
#include "outrider/options/option_value.h"

namespace outrider {

namespace {

constexpr const char* kConfigVariable = "OUTRIDER_CONFIG";
// Options of vLLM and SGLang that start a process of each host (docs/several-gpus.md).
constexpr std::string_view kOfSeveralHosts[] = {"nnodes", "node-rank", "dist-init-addr",
                                                "master-addr", "master-port"};

/// The values that one source (arguments, environment or file) gives.
using Layer = std::vector<std::pair<const OptionRow*, OptionValue>>;

/// One command of the parser with the options declared on it.
struct ParsedCommand {
  CLI::App* app = nullptr;
  CLI::Option* config = nullptr;
  CLI::Option* model = nullptr;  // null: the command takes none
  std::vector<std::pair<const OptionRow*, CLI::Option*>> options;
};

CLI::Option* AddTextOption(CLI::App& app, const std::string& flag, const std::string& value_name) {
  return app.add_option(flag, CLI::callback_t([](const CLI::results_t&) { return true; }))
      ->type_name(value_name)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

ParsedCommand Declare(CLI::App& parent, Command command, const std::string& name) {
  ParsedCommand parsed;
  parsed.app = parent.add_subcommand(name);
  parsed.app->allow_extras();
  if (FindOption(command, "model") != nullptr) {
    parsed.model = AddTextOption(*parsed.app, "MODEL", "DIR");
  }
  parsed.config = AddTextOption(*parsed.app, "--config", "FILE");
  for (const OptionRow& row : OptionTable()) {
    if (!row.commands.Has(command) || row.name == "model") continue;
    const std::string flag = "--" + row.name;
    CLI::Option* option = nullptr;
    if (row.kind == OptionKind::kSwitch) {
      const std::string both = row.default_text == "on" ? flag + ",!--no-" + row.name : flag;
      option = parsed.app->add_flag_function(both, [](int64_t) {})
                   ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    } else {
      option = AddTextOption(*parsed.app, flag, row.value_name);
      if (row.kind == OptionKind::kRepeated) {
        option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
      }
    }
    parsed.options.emplace_back(&row, option);
  }
  return parsed;
}

/// Refuses values of switches that are neither true nor false: the parser counts them as numbers.
void CheckSwitches(std::span<const std::string> arguments) {
  for (const OptionRow& row : OptionTable()) {
    if (row.kind != OptionKind::kSwitch) continue;
    for (const std::string& flag : {"--" + row.name, "--no-" + row.name}) {
      for (const std::string& argument : arguments) {
        if (argument.starts_with(flag + "=")) ParseSwitch(flag, argument.substr(flag.size() + 1));
      }
    }
  }
}

/// Refuses the first argument that nothing took. `known`: names of options, of a program or `bench`
/// those of its commands.
void RefuseExtras(const CLI::App& app, const std::string& command_name,
                  std::span<const std::string> known, bool takes_model = true) {
  const std::vector<std::string> extras = app.remaining();
  if (extras.empty()) return;
  const auto is_flag = [](const std::string& argument) { return argument.starts_with("-"); };
  const auto flag = std::find_if(extras.begin(), extras.end(), is_flag);
  const std::string program = command_name.empty() ? "outrider" : "outrider " + command_name;
  if (flag == extras.end()) {
    if (app.get_parent() == nullptr || command_name == "bench") {
      const std::string hint = Suggestion(extras.front(), known);
      throw InvalidArgument("unknown command '{}' of {}{}", extras.front(), program,
                            hint.empty() ? fmt::format("; `{} --help` lists them", program) : hint);
    }
    throw InvalidArgument("unexpected argument '{}' of {}; it takes {}options", extras.front(),
                          program, takes_model ? "one MODEL and " : "only ");
  }
  std::string name = flag->substr(0, flag->find('='));
  name.erase(0, name.find_first_not_of('-'));
  std::vector<std::string> flags;
  for (const std::string& candidate : known) flags.push_back("--" + candidate);
  std::string hint = Suggestion("--" + name, flags);
  if (std::ranges::find(kOfSeveralHosts, name) != std::end(kOfSeveralHosts)) {
    hint = "; one process serves with the devices of one host: several hosts are not built yet";
  }
  if (const auto other = CommandWithOption(name); other.has_value()) {
    const bool before_command = command_name.empty() || command_name == "bench";
    hint = before_command ? "; options stand after the command"
                          : fmt::format("; it is an option of outrider {}", CommandName(*other));
  }
  throw InvalidArgument("unknown option {} of {}{}", flag->substr(0, flag->find('=')), program,
                        hint);
}

/// Refuses what stands in the place of a command and is none.
void RefuseUnknownCommand(const CLI::App& app, const CLI::App& bench) {
  static const std::vector<std::string> kCommands = {"serve",   "generate",   "chat", "bench",
                                                     "explain", "completion", "help", "version"};
  static const std::vector<std::string> kBenchCommands = {"latency", "throughput", "serve",
                                                          "kernels"};
  RefuseExtras(app, "", kCommands);
  RefuseExtras(bench, "bench", kBenchCommands);
}

/// Other programs take the model as an option.
void RefuseModelOption(Command command, const ParsedCommand& parsed) {
  if (parsed.model == nullptr) return;
  for (const std::string& extra : parsed.app->remaining()) {
    if (extra != "--model" && !extra.starts_with("--model=")) continue;
    const std::string model = extra != "--model"          ? extra.substr(extra.find('=') + 1)
                              : parsed.model->count() > 0 ? parsed.model->results().back()
                                                          : "DIR";
    throw InvalidArgument("--model is no option: the model stands alone, as in `outrider {} {}`",
                          CommandName(command), model);
  }
}

Layer FileLayer(Command command, const std::string& path) {
  Layer layer;
  for (ConfigEntry& entry : ReadConfigFile(path)) {
    const std::string where = fmt::format("{}, line {}: {}", path, entry.line, entry.key);
    const OptionRow* row = FindOption(command, entry.key);
    if (row == nullptr) {
      if (CommandWithOption(entry.key).has_value()) continue;
      std::vector<std::string> names;
      for (const OptionRow& known : OptionTable()) names.push_back(known.name);
      throw InvalidArgument("{}, line {}: unknown key '{}'{}", path, entry.line, entry.key,
                            Suggestion(entry.key, names));
    }
    if (entry.is_sequence && row->kind != OptionKind::kRepeated) {
      // A list where numbers are separated by commas elsewhere; anything else takes one value.
      if (row->value_name != "LIST" && row->value_name != "IDS") {
        throw InvalidArgument("{}: takes one value, not a list", where);
      }
      entry.texts = {fmt::format("{}", fmt::join(entry.texts, ","))};
    }
    layer.emplace_back(row, OptionValue{where, std::move(entry.texts)});
  }
  return layer;
}

Layer EnvironmentLayer(Command command, const Environment& environment) {
  Layer layer;
  for (const OptionRow& row : OptionTable()) {
    if (!row.commands.Has(command)) continue;
    const std::string variable = row.EnvironmentName();
    const std::optional<std::string> text = environment(variable);
    if (!text.has_value() || text->empty()) continue;
    OptionValue value{variable, {*text}};
    if (row.kind == OptionKind::kRepeated) value.texts = SplitCommas(*text);
    layer.emplace_back(&row, std::move(value));
  }
  return layer;
}

Layer ArgumentLayer(Command command, const ParsedCommand& parsed) {
  Layer layer;
  if (parsed.model != nullptr && parsed.model->count() > 0) {
    layer.emplace_back(FindOption(command, "model"),
                       OptionValue{"MODEL", {parsed.model->results().back()}});
  }
  for (const auto& [row, option] : parsed.options) {
    if (option->count() == 0) continue;
    std::vector<std::string> texts = option->results();
    if (row->kind != OptionKind::kRepeated) texts = {texts.back()};
    layer.emplace_back(row, OptionValue{"--" + row->name, std::move(texts)});
  }
  return layer;
}

/// Writes a layer into the settings and remembers its values for the log.
void Apply(const Layer& layer, Settings& settings, std::map<std::string, std::string>& given) {
  for (const auto& [row, value] : layer) {
    if (value.texts.empty()) throw InvalidArgument("{}: has no value", value.where);
    row->set(settings, value);
    given[row->name] = row->secret ? "***" : fmt::format("{}", fmt::join(value.texts, ","));
  }
}

/// What `outrider completion` prints, or its help.
std::string CompletionOf(std::span<const std::string> arguments) {
  const auto is_help = [](const std::string& text) { return text == "--help" || text == "-h"; };
  if (std::any_of(arguments.begin(), arguments.end(), is_help)) return CompletionHelp();
  if (arguments.size() != 1) {
    throw InvalidArgument("outrider completion takes one argument: bash, zsh or fish");
  }
  return CompletionScript(ParseShell("outrider completion", arguments.front()));
}

/// Options of an engine say nothing to a server that runs, nor does a server's key to an engine.
void CheckChat(const Layer& arguments, const ChatSettings& chat) {
  for (const auto& [row, value] : arguments) {
    if (chat.url.empty()) {
      if (row->name != "api-key") continue;
      throw InvalidArgument("{}: has no effect without --url", value.where);
    }
    if (row->name == "model") continue;
    const std::array<std::string_view, 3> useful = {"Input", "Sampling", "Logging"};
    if (std::find(useful.begin(), useful.end(), row->group) != useful.end()) continue;
    throw InvalidArgument("{}: has no effect with --url, where the server's own options hold",
                          value.where);
  }
}

void CheckComplete(Command command, const Settings& settings) {
  if (command == Command::kExplain && !settings.explain.batch.empty()) return;
  if (command == Command::kBenchKernels) return;
  if (command == Command::kChat && !settings.chat.url.empty()) return;
  if (settings.engine.model.empty()) {
    throw InvalidArgument("outrider {} needs MODEL, the directory of a Hugging Face checkpoint",
                          CommandName(command));
  }
  if (command != Command::kGenerate) return;
  const GenerateSettings& generate = settings.generate;
  const int prompts = static_cast<int>(generate.prompt.has_value()) +
                      static_cast<int>(generate.chat.has_value()) +
                      static_cast<int>(!generate.prompt_token_ids.empty());
  if (prompts != 1) {
    throw InvalidArgument("outrider generate needs {} of --prompt, --chat and --prompt-token-ids",
                          prompts == 0 ? "one" : "only one");
  }
  if (generate.system.has_value() && !generate.chat.has_value()) {
    throw InvalidArgument("--system goes with --chat only");
  }
}

}  // namespace

std::optional<std::string> ProcessEnvironment(const std::string& name) {
  const char* value = std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe)
  if (value == nullptr) return std::nullopt;
  return value;
}

Invocation ParseCommandLine(std::span<const std::string> given_arguments,
                            const Environment& environment) {
  CLI::App app("", "outrider");
  app.allow_extras();
  app.require_subcommand(0, 1);
  app.set_version_flag("-V,--version", VersionText());
  CLI::App* bench = app.add_subcommand("bench");
  bench->allow_extras();
  bench->require_subcommand(0, 1);
  std::map<Command, ParsedCommand> commands;
  for (const Command command : kAllCommands) {
    const std::string name = CommandName(command);
    const size_t blank = name.find(' ');
    CLI::App& parent = blank == std::string::npos ? app : *bench;
    commands[command] = Declare(parent, command, name.substr(blank + 1));
  }

  // A script to print, no command of the option table.
  const bool help_of_completion = given_arguments.size() == 2 && given_arguments[0] == "help" &&
                                  given_arguments[1] == "completion";
  if (help_of_completion || (!given_arguments.empty() && given_arguments[0] == "completion")) {
    Invocation completion;
    if (help_of_completion) {
      completion.text = CompletionHelp();
      return completion;
    }
    completion.text = CompletionOf(given_arguments.subspan(1));
    return completion;
  }
  CheckSwitches(given_arguments);
  // `help serve` is `serve --help`.
  std::vector<std::string> arguments(given_arguments.begin(), given_arguments.end());
  const bool asks_for_help = !arguments.empty() && arguments.front() == "help";
  if (asks_for_help) std::rotate(arguments.begin(), arguments.begin() + 1, arguments.end());
  if (asks_for_help) arguments.back() = "--help";
  if (arguments == std::vector<std::string>{"version"}) arguments = {"--version"};
  Invocation invocation;
  std::optional<CLI::ParseError> failure;
  bool help = false;
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    help = true;
  } catch (const CLI::CallForVersion&) {
    invocation.text = VersionText();
    return invocation;
  } catch (const CLI::ParseError& error) {
    failure = error;
  }
  for (const auto& [command, parsed] : commands) {
    if (parsed.app->parsed()) invocation.command = command;
  }
  if (asks_for_help && !invocation.command.has_value()) {
    RefuseUnknownCommand(app, *bench);
  }
  if (help) {
    invocation.text = invocation.command.has_value() ? CommandHelp(*invocation.command)
                      : bench->parsed()              ? BenchHelp()
                                                     : ProgramHelp();
    invocation.command.reset();
    return invocation;
  }
  if (failure.has_value()) throw InvalidArgument("{}", failure->what());
  if (!invocation.command.has_value()) {
    RefuseUnknownCommand(app, *bench);
    if (bench->parsed()) {
      throw InvalidArgument(
          "outrider bench needs a command: latency, throughput, serve or kernels");
    }
    throw InvalidArgument(
        "outrider needs a command: serve, generate, chat, bench or explain; see outrider --help");
  }

  const Command command = *invocation.command;
  const ParsedCommand& parsed = commands.at(command);
  RefuseExtras(app, "", {});
  RefuseExtras(*bench, "bench", {});
  std::vector<std::string> known = OptionNames(command);
  known.emplace_back("config");
  RefuseModelOption(command, parsed);
  RefuseExtras(*parsed.app, CommandName(command), known, parsed.model != nullptr);

  std::map<std::string, std::string> given;
  std::optional<std::string> config = environment(kConfigVariable);
  if (parsed.config->count() > 0) config = parsed.config->results().back();
  if (config.has_value()) Apply(FileLayer(command, *config), invocation.settings, given);
  Apply(EnvironmentLayer(command, environment), invocation.settings, given);
  const Layer from_arguments = ArgumentLayer(command, parsed);
  Apply(from_arguments, invocation.settings, given);
  if (command == Command::kChat) CheckChat(from_arguments, invocation.settings.chat);
  CheckComplete(command, invocation.settings);

  for (const auto& [name, text] : given) {
    const OptionRow* row = FindOption(command, name);
    if (text != row->default_text) {
      invocation.non_defaults.push_back(fmt::format("{}={}", name, text));
    }
  }
  return invocation;
}

LogFormat RequestedLogFormat(std::span<const std::string> arguments,
                             const Environment& environment) {
  const auto argument = [&](const std::string& flag) {
    std::optional<std::string> last;
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i] == flag && i + 1 < arguments.size()) last = arguments[i + 1];
      if (arguments[i].starts_with(flag + "=")) last = arguments[i].substr(flag.size() + 1);
    }
    return last;
  };
  const auto in_file = [](const std::string& path) -> std::optional<std::string> {
    try {
      for (const ConfigEntry& entry : ReadConfigFile(path)) {
        const OptionRow* const row = FindOption(Command::kServe, entry.key);
        const bool is_format = row != nullptr && row->name == "log-format";
        if (is_format && !entry.texts.empty()) return entry.texts.front();
      }
    } catch (const Error&) {
      return std::nullopt;  // ParseCommandLine says what is wrong with it
    }
    return std::nullopt;
  };
  std::optional<std::string> format = argument("--log-format");
  if (!format) format = environment("OUTRIDER_LOG_FORMAT");
  if (!format || format->empty()) {
    std::optional<std::string> config = argument("--config");
    if (!config) config = environment(kConfigVariable);
    if (config) format = in_file(*config);
  }
  return format == "json" ? LogFormat::kJson : LogFormat::kText;
}

}  // namespace outrider
