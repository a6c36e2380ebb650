#include "outrider/text/unicode_property.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/text/unicode_tables.h"

namespace outrider {
namespace {

struct Group {
  std::string_view name;
  std::string_view long_name;
  std::vector<std::string_view> categories;
};

const std::vector<Group>& Groups() {
  static const std::vector<Group> kGroups = {
      {"l", "letter", {"lu", "ll", "lt", "lm", "lo"}},
      {"lc", "casedletter", {"lu", "ll", "lt"}},
      {"m", "mark", {"mn", "mc", "me"}},
      {"n", "number", {"nd", "nl", "no"}},
      {"p", "punctuation", {"pc", "pd", "ps", "pe", "pi", "pf", "po"}},
      {"s", "symbol", {"sm", "sc", "sk", "so"}},
      {"z", "separator", {"zs", "zl", "zp"}},
      {"c", "other", {"cc", "cf", "cs", "co", "cn"}},
  };
  return kGroups;
}

std::optional<CodePointSet> FindTable(std::string_view name) {
  const std::span<const UnicodeTable> tables = UnicodeTables();
  const auto found = std::lower_bound(
      tables.begin(), tables.end(), name,
      [](const UnicodeTable& table, std::string_view value) { return table.name < value; });
  if (found == tables.end() || found->name != name) return std::nullopt;
  CodePointSet set;
  set.Add(found->ranges);
  return set;
}

}  // namespace

std::optional<CodePointSet> FindUnicodeProperty(std::string_view name) {
  std::string plain;
  for (const char c : name) {
    if (c != '_') plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  if (plain == "any") return CodePointSet(0, CodePointSet::kLast);
  if (plain == "assigned") return UnicodeProperty("cn").Complement();
  for (const Group& group : Groups()) {
    if (plain != group.name && plain != group.long_name) continue;
    CodePointSet set;
    for (const std::string_view category : group.categories) set.Add(*FindTable(category));
    return set;
  }
  return FindTable(plain);
}

CodePointSet UnicodeProperty(std::string_view name) {
  std::optional<CodePointSet> set = FindUnicodeProperty(name);
  OUTRIDER_CHECK(set.has_value(), "no property {}", name);
  return *std::move(set);
}

}  // namespace outrider
