#include "outrider/options/batch_items.h"

#include <charconv>
#include <optional>

#include "outrider/base/error.h"

namespace outrider {

namespace {

constexpr int64_t kMostRows = 1 << 20;
constexpr int64_t kLongestContext = 1 << 24;

/// The whole of `text` as a number in [min, max].
std::optional<int32_t> Number(std::string_view text, int64_t min, int64_t max) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (value < min || value > max) return std::nullopt;
  return static_cast<int32_t>(value);
}

/// One item, by the rules of the header; `number` counts from 1.
class ItemParser {
 public:
  ItemParser(std::string_view where, size_t number, std::string_view item)
      : where_(where), number_(number), item_(item) {}

  BatchItem Parse() const {
    const size_t colon = item_.find(':');
    const std::string_view letter = item_.substr(0, colon);
    if (colon == std::string_view::npos || (letter != "p" && letter != "c" && letter != "d")) {
      throw Wrong("must start with p: (a prompt), c: (a chunk of a prompt) or d: (decode)",
                  "p:37, c:64@128 or d:4@900");
    }
    const std::string_view numbers = item_.substr(colon + 1);
    const size_t at = numbers.find('@');
    BatchItem item;
    item.text = item_;
    item.phase = letter == "p"   ? Phase::kPromptEnd
                 : letter == "c" ? Phase::kPromptChunk
                                 : Phase::kDecode;
    item.rows = Rows(letter, numbers.substr(0, at));
    if (at != std::string_view::npos) {
      item.context = Context(letter, item.rows, numbers.substr(at + 1));
    } else if (item.phase == Phase::kDecode) {
      throw Wrong("a decode request needs the number of its cached tokens",
                  fmt::format("d:{}@900", item.rows));
    }
    return item;
  }

 private:
  int32_t Rows(std::string_view letter, std::string_view text) const {
    const std::optional<int32_t> rows = Number(text, 1, kMostRows);
    if (!rows) {
      throw Wrong(fmt::format("'{}' is no number of rows from 1 to {}", text, kMostRows),
                  fmt::format("{}:4@900", letter));
    }
    return *rows;
  }

  int32_t Context(std::string_view letter, int32_t rows, std::string_view text) const {
    // The token before the first generated one is cached when a request decodes.
    const int32_t least = letter == "d" ? 1 : 0;
    const std::optional<int32_t> context = Number(text, least, kLongestContext);
    if (!context) {
      throw Wrong(fmt::format("'{}' is no number of cached tokens from {} to {}", text, least,
                              kLongestContext),
                  fmt::format("{}:{}@900", letter, rows));
    }
    return *context;
  }

  Error Wrong(std::string_view what, std::string_view right) const {
    return InvalidArgument("{}: item {} '{}': {}; write for example {}", where_, number_, item_,
                           what, right);
  }

  std::string_view where_;
  size_t number_;
  std::string_view item_;
};

}  // namespace

std::vector<BatchItem> ParseBatchItems(std::string_view where, std::string_view text) {
  constexpr std::string_view kSeparators = " ,\t\r\n";
  std::vector<BatchItem> items;
  int64_t rows = 0;
  for (size_t start = text.find_first_not_of(kSeparators); start != std::string_view::npos;) {
    const size_t end = std::min(text.find_first_of(kSeparators, start), text.size());
    const std::string_view item = text.substr(start, end - start);
    items.push_back(ItemParser(where, items.size() + 1, item).Parse());
    rows += items.back().rows;
    if (rows > kMostRows) {
      throw InvalidArgument("{}: items 1 to {} have {} rows: a step has at most {}", where,
                            items.size(), rows, kMostRows);
    }
    start = text.find_first_not_of(kSeparators, end);
  }
  if (items.empty()) {
    throw InvalidArgument("{}: names no request; write for example 'p:37 d:4@900 d:1@12'", where);
  }
  return items;
}

}  // namespace outrider
