#include "outrider/cli/program.h"

#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/base/logging.h"
#include "outrider/cli/commands.h"
#include "outrider/cli/model_paths.h"
#include "outrider/measure/bench_run.h"
#include "outrider/options/command_line.h"

namespace outrider::cli {
namespace {

int Run(Invocation invocation) {
  if (!invocation.command.has_value()) {
    std::fputs(invocation.text.c_str(), stdout);
    return 0;
  }
  Settings& settings = invocation.settings;
  const Command command = *invocation.command;
  const std::string default_level = command == Command::kServe ? "info" : "warning";
  InitLogging(settings.log_level.empty() ? default_level : settings.log_level, settings.log_format);
  if (settings.chat.url.empty()) ResolveModelPaths(&settings);
  switch (command) {
    case Command::kServe:
      return RunServe(settings, invocation.non_defaults);
    case Command::kGenerate:
      return RunGenerate(settings);
    case Command::kChat:
      return RunChat(settings);
    case Command::kBenchLatency:
    case Command::kBenchThroughput:
    case Command::kBenchServe:
      return RunBench(settings, command);
    case Command::kBenchKernels:
      return RunBenchKernels(settings);
    case Command::kExplain:
      return RunExplain(settings);
  }
  return 2;
}

int RunReportingErrors(const std::vector<std::string>& arguments) {
  const LogFormat format = RequestedLogFormat(arguments, ProcessEnvironment);
  InitLogging("warning", format);
  try {
    const int status = Run(ParseCommandLine(arguments, ProcessEnvironment));
    // What was printed may be in a buffer still, and a full disk shows only now.
    std::cout.flush();
    if (!std::cout || std::fflush(stdout) != 0) {
      throw InvalidArgument("standard output cannot be written to");
    }
    return status;
  } catch (const Interrupted&) {
    PrintLine(spdlog::level::err, "outrider: interrupted");
    return 130;
  } catch (const Error& error) {
    PrintLine(spdlog::level::err, fmt::format("outrider: error: {}", error.what()));
    return 2;
  } catch (const std::exception& error) {
    PrintLine(spdlog::level::err, fmt::format("outrider: internal error: {}", error.what()));
    return 1;
  }
}

}  // namespace

int RunProgram(const std::vector<std::string>& arguments) {
  const int status = RunReportingErrors(arguments);
  FlushLog();
  return status;
}

}  // namespace outrider::cli
