#include "outrider/http/http_head.h"

#include <algorithm>
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

// Whether every field of this name has this value, case ignored.
bool AllAre(const HttpRequest& head, std::string_view name, std::string_view value) {
  return std::all_of(head.headers.begin(), head.headers.end(), [&](const HttpHeader& header) {
    return !EqualIgnoringCase(header.name, name) || EqualIgnoringCase(header.value, value);
  });
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

std::optional<HeadFault> FindHeadFault(const HttpRequest& head, bool http_1_0) {
  const auto hosts =
      std::count_if(head.headers.begin(), head.headers.end(),
                    [](const HttpHeader& field) { return EqualIgnoringCase(field.name, "Host"); });
  if (hosts > 1 || (hosts == 0 && !http_1_0)) {
    return HeadFault{400, "a request of HTTP/1.1 must have one Host field"};
  }
  if (http_1_0 && head.Header("Transfer-Encoding")) {
    return HeadFault{400, "HTTP/1.0 has no Transfer-Encoding"};
  }
  if (!AllAre(head, "Transfer-Encoding", "chunked")) {
    return HeadFault{501, "Transfer-Encoding: this server takes chunked only"};
  }
  if (!AllAre(head, "Content-Encoding", "identity")) {
    return HeadFault{415, "Content-Encoding: this server takes bodies as they are only (identity)"};
  }
  if (!AllAre(head, "Expect", "100-continue")) {
    return HeadFault{417, "Expect: this server knows 100-continue only"};
  }
  return std::nullopt;
}

}  // namespace outrider
