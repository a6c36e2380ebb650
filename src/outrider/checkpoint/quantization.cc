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
  std::vector<std::string> alternatives = {};  // or one of these
  bool repeated = false;                       // none or more of it
};

bool IsOneCharacter(const Element& element) {
  return element.any || (element.alternatives.size() == 1 && element.alternatives[0].size() == 1);
}

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
               IsOneCharacter(pattern.elements.back())) {
      pattern.elements.back().repeated = true;
    } else if (c == '\\' && !text.empty()) {
      pattern.elements.push_back({.alternatives = {std::string(1, text.front())}});
      text.remove_prefix(1);
    } else if (std::string_view("[])+?{}|*\\^$").find(c) != std::string_view::npos) {
      return std::nullopt;
    } else {
      pattern.elements.push_back({.alternatives = {std::string(1, c)}});
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
      pattern.elements.push_back({.alternatives = {std::string(1, c)}});
    }
  }
  return pattern;
}

/// Where in the name the first elements of a pattern can end, for all of them: no choice is tried
/// twice.
bool Matches(const Pattern& pattern, std::string_view name) {
  std::vector<bool> ends(name.size() + 1);
  ends[0] = true;
  for (const Element& element : pattern.elements) {
    std::vector<bool> next(name.size() + 1);
    for (size_t at = 0; at <= name.size(); ++at) {
      if (element.repeated && at > 0 && next[at - 1]) {
        const bool same = element.any || element.alternatives.front() == name.substr(at - 1, 1);
        if (same) next[at] = true;
      }
      if (!ends[at]) continue;
      if (element.repeated) {
        next[at] = true;
      } else if (element.any) {
        if (at < name.size()) next[at + 1] = true;
      } else {
        for (const std::string& text : element.alternatives) {
          if (name.substr(at).starts_with(text)) next[at + text.size()] = true;
        }
      }
    }
    ends = std::move(next);
  }
  return pattern.to_end ? ends.back() : std::ranges::find(ends, true) != ends.end();
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
  if (!pattern.starts_with(kRegex)) return Matches(ParseGlob(pattern), module);
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
