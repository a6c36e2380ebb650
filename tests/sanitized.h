// Whether sanitizers instrument this build: what is slow then does less of the same.
#pragma once

namespace outrider {

#ifdef OUTRIDER_SANITIZED
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

}  // namespace outrider
