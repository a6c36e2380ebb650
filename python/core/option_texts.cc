#include "python/core/option_texts.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "outrider/base/error.h"
#include "outrider/cli/model_paths.h"
#include "outrider/options/option_rows.h"
#include "outrider/options/option_table.h"
#include "outrider/options/option_value.h"

namespace outrider::python {
namespace {

// "max-model-len" is max_model_len. The keys of speculative-config are those of its dictionary.
std::string KeywordOf(const OptionRow& row) {
  std::string keyword = row.name;
  std::replace(keyword.begin(), keyword.end(), '-', '_');
  return keyword;
}

bool IsKeyword(const OptionRow& row, bool with_server) {
  if (!row.commands.Has(Command::kServe) || row.name.find('.') != std::string::npos) return false;
  // Logs are Python's.
  if (row.name == "log-level" || row.name == "log-format") return false;
  if (with_server) return true;
  // The server's limits of requests, how it reads answers and what they tell hold without it too.
  static constexpr std::array<std::string_view, 5> kOfRequests = {
      "max-logprobs", "max-num-queued-reqs", "tool-call-parser", "reasoning-parser",
      "enable-return-routed-experts"};
  return (row.group != "Server" && row.group != "Logging") ||
         std::find(kOfRequests.begin(), kOfRequests.end(), row.name) != kOfRequests.end();
}

}  // namespace

std::vector<std::string> KeywordNames(bool with_server) {
  std::vector<std::string> names;
  for (const OptionRow& row : OptionTable()) {
    if (IsKeyword(row, with_server)) names.push_back(KeywordOf(row));
  }
  return names;
}

std::string SuggestKeyword(const std::string& name, bool with_server) {
  return Suggestion(name, KeywordNames(with_server));
}

Settings SettingsOf(const OptionTexts& arguments) {
  Settings settings;
  for (const auto& [keyword, texts] : arguments) {
    const OptionRow* const row = FindOption(Command::kServe, keyword);
    OUTRIDER_CHECK(row != nullptr, "{}", keyword);
    if (row->kind != OptionKind::kRepeated && texts.size() != 1) {
      throw InvalidArgument("{}: takes one value, not a list of {}", keyword, texts.size());
    }
    row->set(settings, {keyword, texts});
  }
  if (settings.engine.model.empty()) {
    throw InvalidArgument("model: is missing; give the directory of a checkpoint");
  }
  cli::ResolveModelPaths(&settings);
  return settings;
}

}  // namespace outrider::python
