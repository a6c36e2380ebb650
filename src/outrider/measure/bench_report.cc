#include "outrider/measure/bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "outrider/base/version.h"

namespace outrider {

namespace {

using Json = nlohmann::ordered_json;

Json RowJson(const BenchReport& report, const BenchRow& row) {
  const EngineCounters& counters = row.counters;
  const SpeculationCounts& speculation = counters.speculation;
  Json gpu;  // null without one
  if (counters.gpu) {
    gpu = {{"idle_seconds", counters.gpu->idle_seconds},
           {"idle_share", row.seconds > 0 ? counters.gpu->idle_seconds / row.seconds : 0},
           {"passes_graph", counters.gpu->passes_repeated},
           {"passes_eager", counters.gpu->passes_launched}};
  }
  const double speedup = Speedup(report, row);
  return {{"spec_tokens", row.spec_tokens},
          {"seconds", row.seconds},
          {"generated_tokens", row.GeneratedTokens()},
          {"tokens_per_second", row.TokensPerSecond()},
          {"speedup", speedup > 0 ? Json(speedup) : Json()},
          {"requests_per_second", row.RequestsPerSecond()},
          {"mean_first_token_milliseconds", row.MeanFirstTokenMilliseconds()},
          {"mean_milliseconds_per_token", row.MeanMillisecondsPerToken()},
          {"num_steps", counters.num_steps},
          {"milliseconds_per_step", row.MillisecondsPerStep()},
          {"model_seconds", counters.model_seconds},
          {"sample_seconds", counters.sample_seconds},
          {"draft_seconds", counters.draft_seconds},
          {"plan_seconds", counters.plan_seconds},
          {"host_microseconds_per_step", row.HostMicrosecondsPerStep()},
          {"plan_microseconds_per_step", row.PlanMicrosecondsPerStep()},
          {"host_share", row.HostShare()},
          {"mean_acceptance_length", speculation.MeanAcceptanceLength()},
          {"num_drafts", speculation.num_drafts},
          {"num_draft_tokens", speculation.num_draft_tokens},
          {"num_accepted_tokens", speculation.num_accepted_tokens},
          {"accepted_per_position", speculation.accepted_per_position},
          {"num_preemptions", counters.num_preemptions},
          {"resident_bytes", row.resident_bytes},
          {"gpu", gpu}};
}

/// Share of the row's time that `part` took, in percent.
double Percent(double part, const BenchRow& row) {
  return row.seconds > 0 ? 100 * part / row.seconds : 0;
}

}  // namespace

bool BenchReport::OutputsEqual() const {
  return std::all_of(rows.begin(), rows.end(), [this](const BenchRow& row) {
    return row.token_ids == rows.front().token_ids;
  });
}

double Speedup(const BenchReport& report, const BenchRow& row) {
  for (const BenchRow& candidate : report.rows) {
    if (candidate.spec_tokens == 0 && candidate.TokensPerSecond() > 0) {
      return row.TokensPerSecond() / candidate.TokensPerSecond();
    }
  }
  return 0;
}

std::string BenchTable(const BenchReport& report) {
  std::string out = fmt::format(
      "{} ({}), {}, {} kernels, {} threads{}, {}\n"
      "{}: {} requests, {} in flight, {:.0f} prompt tokens on average ({}), up to {} new tokens, "
      "temperature {}\n\n",
      report.model, report.model_type, report.dtype, report.isa, report.num_threads,
      report.ranks > 1 ? fmt::format(" of {} ranks", report.ranks) : "", report.cpu, report.command,
      report.num_prompts, report.batch_size, report.prompt_tokens_mean, report.prompts,
      report.output_len, report.temperature);
  out +=
      "  k  tokens/s  requests/s  speed-up  acceptance  ms/step  ms to first  ms/token  model  "
      "sample  draft"
      "   host  host us/step\n";
  for (const BenchRow& row : report.rows) {
    const double speedup = Speedup(report, row);
    out += fmt::format(
        "{:>3} {:>9.1f} {:>11.1f} {:>9} {:>11.2f} {:>8.3f} {:>12.1f} {:>9.3f} {:>5.0f}% {:>6.0f}% "
        "{:>5.0f}% "
        "{:>5.1f}% {:>13.1f}\n",
        row.spec_tokens, row.TokensPerSecond(), row.RequestsPerSecond(),
        speedup > 0 ? fmt::format("{:.2f}x", speedup) : "-",
        row.counters.speculation.MeanAcceptanceLength(), row.MillisecondsPerStep(),
        row.MeanFirstTokenMilliseconds(), row.MeanMillisecondsPerToken(),
        Percent(row.counters.model_seconds, row), Percent(row.counters.sample_seconds, row),
        Percent(row.counters.draft_seconds, row), 100 * row.HostShare(),
        row.HostMicrosecondsPerStep());
  }
  if (report.draft_length_varies) {
    out += "\nSteps draft up to k tokens, as many as --speculative-config lets them.\n";
  }
  if (!report.compares_outputs) {
    out += "\nOutputs are not compared: they depend on drafts with this rejection_sample_method.\n";
  } else if (report.rows.size() > 1) {
    out += report.OutputsEqual() ? "\nThe outputs of all rows are equal.\n"
                                 : "\nTHE OUTPUTS OF THE ROWS DIFFER.\n";
  }
  return out;
}

std::string BenchJson(const BenchReport& report) {
  Json object = {{"command", report.command},
                 {"version", kVersion},
                 {"model", report.model},
                 {"model_type", report.model_type},
                 {"dtype", report.dtype},
                 {"isa", report.isa},
                 {"cpu", report.cpu},
                 {"num_threads", report.num_threads},
                 {"ranks", report.ranks},
                 {"prompts", report.prompts},
                 {"num_prompts", report.num_prompts},
                 {"batch_size", report.batch_size},
                 {"prompt_tokens_mean", report.prompt_tokens_mean},
                 {"output_len", report.output_len},
                 {"temperature", report.temperature},
                 {"outputs_equal", report.compares_outputs ? Json(report.OutputsEqual()) : Json()},
                 {"draft_length_varies", report.draft_length_varies},
                 {"rows", Json::array()}};
  for (const BenchRow& row : report.rows) object["rows"].push_back(RowJson(report, row));
  return object.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string CpuName() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

}  // namespace outrider
