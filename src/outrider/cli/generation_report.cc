#include "outrider/cli/generation_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace outrider::cli {

namespace {

using Json = nlohmann::ordered_json;

Json TokenJson(const TokenLogprob& token, const TokenText& token_text) {
  return {{"token_id", token.token_id},
          {"token", token_text(token.token_id)},
          {"logprob", token.logprob}};
}

Json PositionsJson(const std::vector<PositionLogprobs>& positions, const TokenText& token_text) {
  Json result = Json::array();
  for (const PositionLogprobs& position : positions) {
    Json entry = TokenJson(position.chosen, token_text);
    entry["top"] = Json::array();
    for (const TokenLogprob& token : position.top) {
      entry["top"].push_back(TokenJson(token, token_text));
    }
    result.push_back(std::move(entry));
  }
  return result;
}

Json StopReasonJson(const OutputDelta& result) {
  if (const auto* id = std::get_if<int32_t>(&result.stop_reason)) return *id;
  if (const auto* text = std::get_if<std::string>(&result.stop_reason)) return *text;
  return nullptr;
}

Json SpeculationJson(const SpeculationCounts& counts) {
  return {{"num_drafts", counts.num_drafts},
          {"num_draft_tokens", counts.num_draft_tokens},
          {"num_accepted_tokens", counts.num_accepted_tokens},
          {"accepted_per_position", counts.accepted_per_position},
          {"mean_acceptance_length", counts.MeanAcceptanceLength()}};
}

}  // namespace

double DecodeTokensPerSecond(const RequestStats& stats) {
  const double seconds = stats.total_seconds - stats.first_token_seconds;
  if (stats.completion_tokens < 2 || seconds <= 0) return 0;
  return static_cast<double>(stats.completion_tokens - 1) / seconds;
}

std::string FiguresLine(const OutputDelta& result) {
  const RequestStats& stats = result.stats;
  std::string line = fmt::format(
      "{} prompt tokens; {} tokens in {:.2f} s, {:.1f} tokens/s; first token after {:.0f} ms",
      stats.prompt_tokens, stats.completion_tokens, stats.total_seconds,
      DecodeTokensPerSecond(stats), stats.first_token_seconds * 1e3);
  if (stats.speculation.num_drafts > 0) {
    line += fmt::format("; acceptance length {:.2f}", stats.speculation.MeanAcceptanceLength());
  }
  return line;
}

std::string GenerationJson(const OutputDelta& result, ReportedLogprobs logprobs,
                           const TokenText& token_text) {
  const RequestStats& stats = result.stats;
  Json object = {{"text", result.text}, {"token_ids", result.token_ids}};
  if (logprobs.tokens) object["logprobs"] = PositionsJson(result.logprobs, token_text);
  if (logprobs.prompt) {
    object["prompt_logprobs"] = PositionsJson(result.prompt_logprobs, token_text);
  }
  object["finish_reason"] = FinishReasonName(result.finish_reason.value());
  object["stop_reason"] = StopReasonJson(result);
  object["usage"] = {{"prompt_tokens", stats.prompt_tokens},
                     {"completion_tokens", stats.completion_tokens},
                     {"cached_tokens", stats.cached_tokens}};
  object["timings"] = {{"queue_seconds", stats.queue_seconds},
                       {"first_token_seconds", stats.first_token_seconds},
                       {"total_seconds", stats.total_seconds},
                       {"decode_tokens_per_second", DecodeTokensPerSecond(stats)}};
  object["speculation"] = SpeculationJson(stats.speculation);
  return object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace outrider::cli
