// Where the files of the repository are that tests and benchmarks read.
#pragma once

#include <filesystem>

namespace outrider {

/// The root of the sources. Only source_directory.cc is compiled with this path: nothing else
/// differs between clones, so they share a compiler cache.
std::filesystem::path SourceDirectory();

}  // namespace outrider
