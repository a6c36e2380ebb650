// The table and the JSON of `outrider bench`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "outrider/measure/bench_run.h"

namespace outrider {

/// All rows of one call, and what they were measured on.
struct BenchReport {
  std::string command;  // "latency" or "throughput"
  std::string model;    // the path as given
  std::string model_type;
  std::string dtype;
  std::string isa;  // instruction set of the kernels, or "cuda"
  std::string cpu;  // the processor's name
  int32_t num_threads = 0;
  int32_t ranks = 1;    // that share the model and the threads
  std::string prompts;  // the prompts file, or "random"
  int32_t num_prompts = 0;
  int32_t batch_size = 0;
  double prompt_tokens_mean = 0;
  int32_t output_len = 0;
  double temperature = 0;
  /// Whether all rows ought to give the same tokens: not where acceptance is synthetic, nor where
  /// rejection sampling lets drafts choose among equally likely texts.
  bool compares_outputs = true;
  /// A row's k is the most that its steps draft, not what each of them does.
  bool draft_length_varies = false;
  std::vector<BenchRow> rows;  // by rising spec_tokens

  /// Every request got the same tokens in every row, as the promise of exact speculation has it.
  bool OutputsEqual() const;
};

/// Tokens/s of a row over those of the row without speculation; 0 when there is no such row.
double Speedup(const BenchReport& report, const BenchRow& row);

/// A heading, the rows with their speed-ups over k = 0, and whether the outputs are equal.
std::string BenchTable(const BenchReport& report);

/// One object; times in seconds unless a name says otherwise. "speedup" is null where there is no
/// row without speculation. Ends in a newline.
std::string BenchJson(const BenchReport& report);

/// The processor's name from /proc/cpuinfo, or "unknown".
std::string CpuName();

}  // namespace outrider
