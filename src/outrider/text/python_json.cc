#include "outrider/text/python_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "outrider/base/error.h"

namespace outrider {
namespace {

constexpr int kMaxDepth = 200;
constexpr std::string_view kJsonSpace = " \t\r\n";

// How deep arrays and objects are nested in valid JSON.
int DepthOf(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (in_string) {
      if (c == '\\') ++at;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

// Takes white space, and `mark` where that is not '\0', from the front.
void Skip(std::string_view* rest, char mark) {
  const auto skip_space = [rest] {
    rest->remove_prefix(std::min(rest->find_first_not_of(kJsonSpace), rest->size()));
  };
  skip_space();
  if (mark == '\0') return;
  OUTRIDER_CHECK(rest->starts_with(mark));
  rest->remove_prefix(1);
  skip_space();
}

// Takes the value at the front, which is valid JSON.
std::string_view TakeValue(std::string_view* rest) {
  size_t size = 0;
  int depth = 0;
  bool in_string = false;
  do {
    const char c = (*rest)[size];
    if (in_string) {
      if (c == '\\') ++size;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      ++depth;
    } else if (c == ']' || c == '}') {
      --depth;
    } else if (depth == 0) {  // a number or a word
      size = std::min(rest->find_first_of(" \t\r\n,]}"), rest->size()) - 1;
    }
    ++size;
  } while (depth > 0 || in_string);
  const std::string_view value = rest->substr(0, size);
  rest->remove_prefix(size);
  return value;
}

std::string Characters(std::string_view string) {
  if (string.find('\\') == std::string_view::npos) {
    return std::string(string.substr(1, string.size() - 2));
  }
  return nlohmann::json::parse(string).get<std::string>();
}

std::string DumpString(std::string_view characters) {
  std::string out = "\"";
  for (const char c : characters) {
    constexpr std::string_view kEscaped = "\"\\\n\r\t\f\b";
    constexpr std::string_view kLetters = "\"\\nrtfb";
    const size_t escape = kEscaped.find(c);
    if (escape != std::string_view::npos) {
      out += '\\';
      out += kLetters[escape];
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

// repr of a float: the fewest digits that tell it from others, without an exponent from 1e-4 up to
// below 1e16.
std::string DumpFloat(double value) {
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";  // as json.loads("1e999")
  std::array<char, 32> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 std::chars_format::scientific)
                       .ptr;
  const std::string_view text(buffer.data(), static_cast<size_t>(end - buffer.data()));
  const size_t e = text.find('e');
  const int exponent = std::atoi(std::string(text.substr(e + 1)).c_str());
  const std::string_view sign = text.starts_with('-') ? "-" : "";
  std::string digits;
  for (const char c : text.substr(sign.size(), e - sign.size())) {
    if (c != '.') digits += c;
  }
  const auto count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    return fmt::format("{}{}{}{}e{}{:02}", sign, digits[0], count > 1 ? "." : "", digits.substr(1),
                       exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return fmt::format("{}0.{:0>{}}", sign, digits, count - exponent - 1);
  if (count <= exponent + 1) return fmt::format("{}{:0<{}}.0", sign, digits, exponent + 1);
  const auto whole = static_cast<size_t>(exponent) + 1;
  return fmt::format("{}{}.{}", sign, digits.substr(0, whole), digits.substr(whole));
}

std::string DumpNumber(std::string_view number) {
  if (number.find_first_of(".eE") == std::string_view::npos) {
    return number == "-0" ? "0" : std::string(number);  // Python's integers have any size
  }
  return DumpFloat(std::strtod(std::string(number).c_str(), nullptr));
}

}  // namespace

std::optional<JsonText> JsonText::Parse(std::string_view text) {
  if (!nlohmann::json::accept(text) || DepthOf(text) > kMaxDepth) return std::nullopt;
  Skip(&text, '\0');
  return JsonText(TakeValue(&text));
}

JsonText::Kind JsonText::kind() const {
  switch (text_[0]) {
    case 'n':
      return Kind::kNull;
    case 't':
    case 'f':
      return Kind::kBool;
    case '"':
      return Kind::kString;
    case '[':
      return Kind::kArray;
    case '{':
      return Kind::kObject;
    default:
      return Kind::kNumber;
  }
}

std::string JsonText::String() const { return Characters(text_); }

std::vector<JsonText> JsonText::Elements() const {
  std::vector<JsonText> elements;
  std::string_view rest = text_;
  Skip(&rest, '[');
  while (!rest.starts_with(']')) {
    if (!elements.empty()) Skip(&rest, ',');
    elements.push_back(JsonText(TakeValue(&rest)));
    Skip(&rest, '\0');
  }
  return elements;
}

std::vector<std::pair<std::string, JsonText>> JsonText::Members() const {
  std::vector<std::pair<std::string, JsonText>> members;
  std::unordered_map<std::string, size_t> places;
  std::string_view rest = text_;
  Skip(&rest, '{');
  while (!rest.starts_with('}')) {
    if (!members.empty()) Skip(&rest, ',');
    std::string name = Characters(TakeValue(&rest));
    Skip(&rest, ':');
    const JsonText value(TakeValue(&rest));
    Skip(&rest, '\0');
    const auto [place, added] = places.try_emplace(name, members.size());
    if (added) {
      members.emplace_back(std::move(name), value);
    } else {
      members[place->second].second = value;
    }
  }
  return members;
}

std::optional<JsonText> JsonText::Find(std::string_view name) const {
  for (const auto& [member, value] : Members()) {
    if (member == name && value.kind() != Kind::kNull) return value;
  }
  return std::nullopt;
}

std::string JsonText::DumpLikePython() const {
  std::string out;
  switch (kind()) {
    case Kind::kNull:
    case Kind::kBool:
      return std::string(text_);
    case Kind::kNumber:
      return DumpNumber(text_);
    case Kind::kString:
      return DumpString(String());
    case Kind::kArray:
      for (const JsonText& element : Elements()) {
        if (!out.empty()) out += ", ";
        out += element.DumpLikePython();
      }
      return '[' + out + ']';
    case Kind::kObject:
      for (const auto& [name, value] : Members()) {
        if (!out.empty()) out += ", ";
        out.append(DumpString(name)).append(": ").append(value.DumpLikePython());
      }
      return '{' + out + '}';
  }
  return out;
}

}  // namespace outrider
