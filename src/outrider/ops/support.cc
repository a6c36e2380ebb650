#include "outrider/ops/support.h"

#include <fmt/format.h>

#include <algorithm>

#include "outrider/base/error.h"

namespace outrider {

namespace {

/// "a", "a or b", "a, b or c".
template <typename T>
std::string Listed(const std::vector<T>& items) {
  std::string text;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) text += i + 1 == items.size() ? " or " : ", ";
    text += fmt::format("{}", items[i]);
  }
  return text;
}

std::string RangeWords(const NumberRange& range) {
  const bool ends = range.most != NumberRange().most;
  if (range.least == range.most) return fmt::format("{}", range.most);
  std::string text = range.multiple > 1 ? fmt::format("multiples of {}", range.multiple) : "";
  if (ends) text += fmt::format("{}up to {}", text.empty() ? "" : " ", range.most);
  return text;
}

}  // namespace

bool Taken::Has(const Asked& asked) const {
  if (const bool* has = std::get_if<bool>(&what_)) return *has;
  if (std::holds_alternative<std::string_view>(what_)) return true;
  if (const auto* range = std::get_if<NumberRange>(&what_)) {
    const int64_t number = std::get<int64_t>(asked);
    return number >= range->least && number <= range->most && number % range->multiple == 0;
  }
  if (const auto* numbers = std::get_if<std::vector<int64_t>>(&what_)) {
    return std::ranges::find(*numbers, std::get<int64_t>(asked)) != numbers->end();
  }
  const auto& names = std::get<std::vector<std::string_view>>(what_);
  return std::ranges::find(names, std::get<std::string_view>(asked)) != names.end();
}

std::string Taken::Words() const {
  if (const bool* has = std::get_if<bool>(&what_)) return *has ? "yes" : "no";
  if (!way().empty()) return fmt::format("yes, {}", way());
  if (const auto* range = std::get_if<NumberRange>(&what_)) return RangeWords(*range);
  if (const auto* numbers = std::get_if<std::vector<int64_t>>(&what_)) return Listed(*numbers);
  return Listed(std::get<std::vector<std::string_view>>(what_));
}

std::string_view Taken::way() const {
  const auto* way = std::get_if<std::string_view>(&what_);
  return way == nullptr ? std::string_view() : *way;
}

Lack LackOf(std::string_view name, const Asked& asked, const Taken& taken) {
  const std::string_view is = name.starts_with("--") ? " " : " = ";
  if (const auto* number = std::get_if<int64_t>(&asked)) {
    return {fmt::format("{}{}{}", name, is, *number), taken.Words()};
  }
  if (const auto* choice = std::get_if<std::string_view>(&asked)) {
    return {fmt::format("{}{}{}", name, is, *choice), taken.Words()};
  }
  return {std::string(name), ""};
}

}  // namespace outrider
