// A request body as JSON: parsed with bounds on depth and on the number of values, and without
// repeated fields.
#pragma once

#include <cstddef>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace outrider::openai {

/// Objects and arrays within each other, the body's own included. OpenAI's schemas may have 10
/// levels of objects; with lists of nullable objects each takes 5 of these.
inline constexpr size_t kMaxRequestDepth = 128;
/// The limit of a body, token ids included: a prompt of 2 million ids fits.
inline constexpr size_t kMaxRequestValues = size_t{1} << 21;

struct ClearRequestJson {
  void operator()(nlohmann::json* value) const;
};

/// A whole body; freeing it takes no memory (ClearJson).
using RequestJson = std::unique_ptr<nlohmann::json, ClearRequestJson>;

/// Takes time that is linear in the size of `body`. Throws RequestError that says where `body`
/// stops being JSON, or that it is nested too deep, has too many values or names a field of its
/// outermost object twice.
RequestJson ParseRequestJson(std::string_view body);

/// A part of a body that ParseRequestJson took, with the members of objects in their order.
nlohmann::ordered_json ParseInOrder(std::string_view part);

}  // namespace outrider::openai
