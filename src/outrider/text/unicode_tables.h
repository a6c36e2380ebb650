// Which characters have which Unicode property: general categories, scripts and a few others.
// unicode_tables.cc is written by tools/make_unicode_tables.py; unicode_property.h reads it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "outrider/text/code_point_set.h"

namespace outrider {

struct UnicodeTable {
  std::string_view name;  // in lower case, without '_': "lu", "uppercaseletter", "han", "hani"
  std::span<const CodePointRange> ranges;  // sorted; no two touch
};

/// All tables, sorted by name.
std::span<const UnicodeTable> UnicodeTables();

}  // namespace outrider
