#include "outrider/server/served_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "outrider/base/error.h"
#include "outrider/base/json_text.h"
#include "outrider/openai/api_error.h"

namespace outrider {

ServedModels::ServedModels(std::vector<std::string> names) : names_(std::move(names)) {
  OUTRIDER_CHECK(!names_.empty());
}

bool ServedModels::Has(std::string_view name) const {
  return std::find(names_.begin(), names_.end(), name) != names_.end();
}

std::string ServedModels::Resolve(const std::string& name) const {
  if (name.empty()) return names_[0];
  if (Has(name)) return name;
  throw openai::RequestError(ErrorCode::kNotFound, "model",
                             fmt::format("there is no model {}; this server has {}",
                                         JsonString(name.substr(0, 200)), JsonString(names_[0])),
                             "model_not_found");
}

}  // namespace outrider
