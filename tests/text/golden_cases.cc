#include "tests/text/golden_cases.h"

namespace outrider {

std::filesystem::path GoldenCases() { return OUTRIDER_GOLDEN_CASES; }

}  // namespace outrider
