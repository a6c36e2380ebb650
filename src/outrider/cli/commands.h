// The commands of the `outrider` program. Each runs one invocation and returns the exit status;
// what a user got wrong throws Error.
#pragma once

#include <string>
#include <vector>

#include "outrider/options/settings.h"

namespace outrider::cli {

/// Serves until SIGINT or SIGTERM. `non_defaults` is for the first log line.
int RunServe(const Settings& settings, const std::vector<std::string>& non_defaults);

/// Answers one prompt. 130 when interrupted.
int RunGenerate(const Settings& settings);

/// Talks turn by turn until the input ends. 130 when it was left by Ctrl-C.
int RunChat(const Settings& settings);

/// `command` is kBenchLatency, kBenchThroughput or kBenchServe. 1 when the outputs of the rows
/// differ.
int RunBench(const Settings& settings, Command command);

/// Prints the kernels' figures against this machine's limits.
int RunBenchKernels(const Settings& settings);

int RunExplain(const Settings& settings);

}  // namespace outrider::cli
