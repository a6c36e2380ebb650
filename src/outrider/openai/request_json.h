// A request body as JSON: parsed with bounds on depth and without repeated fields.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace outrider::openai {

/// Throws RequestError that says where `body` stops being JSON, or that it is nested more than 32
/// levels deep or names a field of its outermost object twice.
nlohmann::json ParseRequestJson(std::string_view body);

}  // namespace outrider::openai
