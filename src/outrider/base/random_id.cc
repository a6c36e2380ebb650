#include "outrider/base/random_id.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdint>

#include "outrider/base/error.h"

namespace outrider {

std::string RandomId() {
  std::array<uint64_t, 2> bits{};
  OUTRIDER_CHECK(getentropy(bits.data(), sizeof bits) == 0);
  return fmt::format("{:016x}{:016x}", bits[0], bits[1]);
}

}  // namespace outrider
