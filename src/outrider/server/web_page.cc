#include "outrider/server/web_page.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/server/page_files.h"

namespace outrider {
namespace {

constexpr std::string_view kPrefix = "/page/";

// Everything comes from this server, no script or style stands in the markup, and no text can
// become markup: scripts may not even try.
constexpr std::string_view kContentSecurityPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'";

const PageFile* FindFile(std::string_view path) {
  std::string_view name = "index.html";
  if (path != "/") {
    if (!path.starts_with(kPrefix)) return nullptr;
    name = path.substr(kPrefix.size());
  }
  const auto files = PageFiles();
  const auto found = std::find_if(files.begin(), files.end(),
                                  [&](const PageFile& file) { return file.name == name; });
  return found == files.end() ? nullptr : &*found;
}

std::string_view ContentType(std::string_view name) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kTypes = {{
      {".html", "text/html; charset=utf-8"},
      {".css", "text/css; charset=utf-8"},
      {".js", "text/javascript; charset=utf-8"},
      {".svg", "image/svg+xml"},
  }};
  for (const auto& [ending, type] : kTypes) {
    if (name.ends_with(ending)) return type;
  }
  OUTRIDER_CHECK(false, "page/{} is of no known type", name);
}

// Whether Accept-Encoding lists gzip, and not with ";q=0".
bool AcceptsGzip(const HttpRequest& request) {
  std::string_view rest = request.Header("Accept-Encoding").value_or("");
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    std::string entry(rest.substr(0, comma));
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    std::erase(entry, ' ');
    if (entry == "gzip") return true;
    constexpr std::string_view kWeight = "gzip;q=";
    if (entry.starts_with(kWeight)) return std::strtod(entry.c_str() + kWeight.size(), nullptr) > 0;
  }
  return false;
}

}  // namespace

bool IsPagePath(std::string_view path) { return FindFile(path) != nullptr; }

HttpResponse PageResponse(const HttpRequest& request) {
  const PageFile* const file = FindFile(request.path);
  OUTRIDER_CHECK(file != nullptr, "no page file {}", request.path);
  HttpResponse response;
  response.content_type = ContentType(file->name);
  response.headers = {{"Content-Security-Policy", std::string(kContentSecurityPolicy)},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cache-Control", "no-cache"},
                      {"Vary", "Accept-Encoding"}};
  const bool gzip = AcceptsGzip(request);
  if (gzip) response.headers.push_back({"Content-Encoding", "gzip"});
  response.body = gzip ? file->gzipped : file->content;
  return response;
}

}  // namespace outrider
