#include "outrider/checkpoint/quantization.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "outrider/base/error.h"
#include "outrider/checkpoint/config_reader.h"

namespace outrider {
namespace {

constexpr size_t kLongestPattern = 512;

/// One element of a pattern and how often it comes.
struct Element {
  bool any = false;                            // any character
  char one = '\0';                             // or this one
  std::vector<std::string> alternatives = {};  // or, where there are some, one of these
  bool repeated = false;                       // none or more of it; not of alternatives

  bool IsOneCharacter() const { return alternatives.empty(); }
  bool Takes(char c) const { return any || c == one; }
};

struct Pattern {
  std::vector<Element> elements = {};
  bool to_end = false;  // the name ends where the pattern does
};

/// The alternatives from behind "(" on; moves text behind ")".
std::optional<Element> ParseGroup(std::string_view& text) {
  const size_t end = text.find(')');
  if (end == std::string_view::npos) return std::nullopt;
  Element element{.alternatives = {""}};
  for (size_t i = 0; i < end; ++i) {
    if (text[i] == '|') {
      element.alternatives.emplace_back();
    } else if (text[i] == '\\' && i + 1 < end) {
      element.alternatives.back() += text[++i];
    } else if (std::string_view("([.*+?{^$").find(text[i]) != std::string_view::npos) {
      return std::nullopt;
    } else {
      element.alternatives.back() += text[i];
    }
  }
  text.remove_prefix(end + 1);
  return element;
}

std::optional<Pattern> ParseRegex(std::string_view text) {
  Pattern pattern;
  if (text.starts_with('^')) text.remove_prefix(1);
  while (!text.empty()) {
    const char c = text.front();
    text.remove_prefix(1);
    if (c == '$' && text.empty()) {
      pattern.to_end = true;
    } else if (c == '(') {
      auto group = ParseGroup(text);
      if (!group) return std::nullopt;
      pattern.elements.push_back(std::move(*group));
    } else if (c == '.') {
      pattern.elements.push_back({.any = true});
    } else if (c == '*' && !pattern.elements.empty() && !pattern.elements.back().repeated &&
               pattern.elements.back().IsOneCharacter()) {
      pattern.elements.back().repeated = true;
    } else if (c == '\\' && !text.empty()) {
      pattern.elements.push_back({.one = text.front()});
      text.remove_prefix(1);
    } else if (std::string_view("[])+?{}|*\\^$").find(c) != std::string_view::npos) {
      return std::nullopt;
    } else {
      pattern.elements.push_back({.one = c});
    }
  }
  return pattern;
}

/// With * for any characters.
Pattern ParseGlob(std::string_view text) {
  Pattern pattern{.to_end = true};
  for (const char c : text) {
    if (c == '*') {
      pattern.elements.push_back({.any = true, .repeated = true});
    } else {
      pattern.elements.push_back({.one = c});
    }
  }
  return pattern;
}

/// Where in the name the first elements of a pattern can end, for all of them: no choice is tried
/// twice. Most patterns name another module, and fail with the first element that has no place.
bool Matches(const Pattern& pattern, std::string_view name) {
  std::vector<size_t> ends = {0};  // ascending
  std::vector<size_t> next;
  for (const Element& element : pattern.elements) {
    next.clear();
    for (size_t at : ends) {
      if (element.repeated) {
        if (!next.empty() && next.back() >= at) continue;  // an earlier one took what this could
        next.push_back(at);
        while (at < name.size() && element.Takes(name[at])) next.push_back(++at);
      } else if (element.IsOneCharacter()) {
        if (at < name.size() && element.Takes(name[at])) next.push_back(at + 1);
      } else {
        for (const std::string& text : element.alternatives) {
          if (name.substr(at).starts_with(text)) next.push_back(at + text.size());
        }
      }
    }
    if (next.empty()) return false;
    if (!element.IsOneCharacter()) {
      std::ranges::sort(next);
      next.erase(std::ranges::unique(next).begin(), next.end());
    }
    std::swap(ends, next);
  }
  return !pattern.to_end || ends.back() == name.size();
}

}  // namespace

std::string_view StoredFormatName(StoredFormat format) {
  switch (format) {
    case StoredFormat::kFp8Tensor:
      return "FP8 with a scale per tensor";
    case StoredFormat::kFp8Row:
      return "FP8 with a scale per row";
    case StoredFormat::kFp8Block:
      return "FP8 in blocks";
    case StoredFormat::kInt4:
      return "INT4 in groups";
    case StoredFormat::kNvfp4:
      return "NVFP4";
    case StoredFormat::kMxfp4:
      return "MXFP4";
  }
  OUTRIDER_CHECK(false);
}

bool NamesModule(std::string_view pattern, std::string_view module) {
  constexpr std::string_view kRegex = "re:";
  if (pattern.size() > kLongestPattern) return false;
  if (!pattern.starts_with(kRegex)) {
    const size_t star = pattern.find('*');
    if (star == std::string_view::npos) return pattern == module;
    return module.starts_with(pattern.substr(0, star)) && Matches(ParseGlob(pattern), module);
  }
  const std::optional<Pattern> regex = ParseRegex(pattern.substr(kRegex.size()));
  return regex && Matches(*regex, module);
}

bool Quantization::Covers(std::string_view module) const {
  return format && std::ranges::none_of(ignored, [module](const std::string& pattern) {
           return NamesModule(pattern, module);
         });
}

void CheckMethod(std::string_view where, std::string_view method) {
  if (method.empty() || method == "fp8" || method == "compressed-tensors" || method == "modelopt") {
    return;
  }
  throw InvalidArgument("{}: quantization {} cannot be loaded: {}", where,
                        Shown(std::string(method)),
                        method == "awq" || method == "gptq"
                            ? kForeignInt4
                            : "\"fp8\" (with weight_block_size), \"compressed-tensors\" and "
                              "\"modelopt\" can, and none");
}

}  // namespace outrider
