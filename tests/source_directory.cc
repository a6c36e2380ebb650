#include "tests/source_directory.h"

namespace outrider {

std::filesystem::path SourceDirectory() { return OUTRIDER_SOURCE_DIR; }

}  // namespace outrider
