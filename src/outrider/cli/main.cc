// The `outrider` program: arguments in, exit status out. Everything a user can get wrong ends as
// one line on standard error and status 2.
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/base/logging.h"
#include "outrider/cli/commands.h"
#include "outrider/measure/bench_run.h"
#include "outrider/options/command_line.h"

namespace outrider::cli {
namespace {

int Run(const Invocation& invocation) {
  if (!invocation.command.has_value()) {
    std::fputs(invocation.text.c_str(), stdout);
    return 0;
  }
  const Settings& settings = invocation.settings;
  const Command command = *invocation.command;
  const std::string level = command == Command::kServe ? "info" : "warning";
  InitLogging(settings.log_level.empty() ? level : settings.log_level, settings.log_format);
  switch (command) {
    case Command::kServe:
      return RunServe(settings, invocation.non_defaults);
    case Command::kGenerate:
      return RunGenerate(settings);
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

}  // namespace
}  // namespace outrider::cli

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
    const int status =
        outrider::cli::Run(outrider::ParseCommandLine(arguments, outrider::ProcessEnvironment));
    // What was printed may be in a buffer still, and a full disk shows only now.
    std::cout.flush();
    if (!std::cout || std::fflush(stdout) != 0) {
      throw outrider::InvalidArgument("standard output cannot be written to");
    }
    return status;
  } catch (const outrider::Interrupted&) {
    std::fputs("outrider: interrupted\n", stderr);
    return 130;
  } catch (const outrider::Error& error) {
    std::fprintf(stderr, "outrider: error: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "outrider: internal error: %s\n", error.what());
    return 1;
  }
}
