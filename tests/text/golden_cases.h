// The larger cases that other implementations made, unpacked by the build.
#pragma once

#include <filesystem>

namespace outrider {

/// The folder of what tests/text/golden/cases.tar.xz holds (tools/text_cases.py). Only
/// golden_cases.cc is compiled with this path, as source_directory.cc with its own.
std::filesystem::path GoldenCases();

}  // namespace outrider
