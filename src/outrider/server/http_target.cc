#include "outrider/server/http_target.h"

#include <cstddef>
#include <string>

namespace outrider {

namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// "%2F" becomes "/", and so on; what is no such escape stays.
std::string DecodePercents(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape = text[i] == '%' && i + 2 < text.size() && HexDigit(text[i + 1]) >= 0 &&
                        HexDigit(text[i + 2]) >= 0;
    decoded +=
        escape ? static_cast<char>(HexDigit(text[i + 1]) * 16 + HexDigit(text[i + 2])) : text[i];
    if (escape) i += 2;
  }
  return decoded;
}

}  // namespace

void SetTarget(std::string_view target, HttpRequest* request) {
  if (target.starts_with("http://") || target.starts_with("https://")) {
    const size_t host = target.find("//") + 2;
    const size_t path = target.find('/', host);
    target = path == std::string_view::npos ? "/" : target.substr(path);
  }
  const size_t question = target.find('?');
  request->path = DecodePercents(target.substr(0, question));
  if (question != std::string_view::npos) request->query = target.substr(question + 1);
}

}  // namespace outrider
