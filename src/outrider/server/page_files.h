// The files of page/ as the build put them into the binary (page_files.cc.in).
#pragma once

#include <span>
#include <string_view>

namespace outrider {

struct PageFile {
  std::string_view name;  // "index.html"
  std::string_view content;
  std::string_view gzipped;
};

std::span<const PageFile> PageFiles();

}  // namespace outrider
