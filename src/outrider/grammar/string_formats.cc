#include "outrider/grammar/string_formats.h"

#include <fmt/format.h>

#include <map>

namespace outrider {
namespace {

// RFC 3339. Days that the calendar has, from the year 1000 on; no leap seconds.
std::string Date() {
  return "([1-9][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|"
         "30)|02-(0[1-9]|1[0-9]|2[0-8]))|([1-9][0-9](0[48]|[2468][048]|[13579][26])|([2468][048]|"
         "[13579][26])00)-02-29)";
}

std::string Time() {
  return "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?"
         "(Z|[+\\-]([01][0-9]|2[0-3]):[0-5][0-9])";
}

std::string Duration() {
  const std::string time = "T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S)";
  const std::string date = "([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)";
  return fmt::format("P([0-9]+W|{0}({1})?|{1})", date, time);
}

std::string HostName() {
  const std::string label = "[A-Za-z0-9]([A-Za-z0-9\\-]{0,61}[A-Za-z0-9])?";
  return fmt::format("{0}(\\.{0})*", label);
}

// The mailbox of RFC 5321 with a local part that is not quoted.
std::string Email() {
  const std::string atom = "[A-Za-z0-9!#$%&'*+/=?\\^_`{|}~\\-]+";
  return fmt::format("{0}(\\.{0})*@{1}", atom, HostName());
}

std::string Ipv4() {
  const std::string octet = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
  return fmt::format("({0}\\.){{3}}{0}", octet);
}

// Eight groups, or "::" with at most seven around it; no form with an IPv4 address in it.
std::string Ipv6() {
  const std::string group = "[0-9A-Fa-f]{1,4}";
  std::string all = fmt::format("({0}:){{7}}{0}", group);
  for (int before = 0; before <= 7; ++before) {
    const std::string left = before == 0 ? "" : fmt::format("{0}(:{0}){{{1}}}", group, before - 1);
    const std::string right =
        before == 7 ? "" : fmt::format("({0}(:{0}){{0,{1}}})?", group, 6 - before);
    all += fmt::format("|{}::{}", left, right);
  }
  return all;
}

// RFC 3986.
std::string Authority() {
  const std::string name = "([A-Za-z0-9\\-._~!$&'()*+,;=]|%[0-9A-Fa-f]{2})*";
  const std::string user = "([A-Za-z0-9\\-._~!$&'()*+,;=:]|%[0-9A-Fa-f]{2})*";
  return fmt::format("({}@)?{}(:[0-9]*)?", user, name);
}
const char* const kPathCharacter = "([A-Za-z0-9\\-._~!$&'()*+,;=:@]|%[0-9A-Fa-f]{2})";

std::string QueryAndFragment() {
  const std::string text = "([A-Za-z0-9\\-._~!$&'()*+,;=:@/?]|%[0-9A-Fa-f]{2})*";
  return fmt::format("(\\?{0})?(#{0})?", text);
}

std::string Uri() {
  return fmt::format("[A-Za-z][A-Za-z0-9+\\-.]*:(//{0}(/{1}*)*|/?({1}+(/{1}*)*)?){2}", Authority(),
                     kPathCharacter, QueryAndFragment());
}

std::string UriReference() {
  const std::string no_colon = "([A-Za-z0-9\\-._~!$&'()*+,;=@]|%[0-9A-Fa-f]{2})";
  return fmt::format("({0}|(//{1}(/{2}*)*|/({2}+(/{2}*)*)?|{3}+(/{2}*)*)?{4})", Uri(), Authority(),
                     kPathCharacter, no_colon, QueryAndFragment());
}

// RFC 6570.
std::string UriTemplate() {
  const std::string literal = "([!#$&(-;=?-\\[\\]_a-z~]|%[0-9A-Fa-f]{2})";
  const std::string name_character = "([A-Za-z0-9_]|%[0-9A-Fa-f]{2})";
  const std::string variable =
      fmt::format("{0}(\\.?{0})*(:[1-9][0-9]{{0,3}}|\\*)?", name_character);
  return fmt::format("({0}|\\{{[+#./;?&]?{1}(,{1})*\\}})*", literal, variable);
}

// RFC 6901.
const char* const kJsonPointer = "(/([^/~]|~[01])*)*";

}  // namespace

std::optional<std::string> PatternOfFormat(std::string_view format) {
  static const std::map<std::string, std::string, std::less<>> kPatterns = {
      {"date", Date()},
      {"time", Time()},
      {"date-time", Date() + "T" + Time()},
      {"duration", Duration()},
      {"email", Email()},
      {"hostname", HostName()},
      {"ipv4", Ipv4()},
      {"ipv6", Ipv6()},
      {"uri", Uri()},
      {"uri-reference", UriReference()},
      {"uri-template", UriTemplate()},
      {"uuid", "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"},
      {"json-pointer", kJsonPointer},
      {"relative-json-pointer", fmt::format("(0|[1-9][0-9]*)(#|{})", kJsonPointer)},
  };
  const auto found = kPatterns.find(format);
  if (found == kPatterns.end()) return std::nullopt;
  return found->second;
}

}  // namespace outrider
