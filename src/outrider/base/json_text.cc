#include "outrider/base/json_text.h"

#include <nlohmann/json.hpp>

namespace outrider {

std::string JsonString(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace outrider
