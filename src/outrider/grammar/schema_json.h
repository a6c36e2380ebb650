// What the files that read JSON schemas have in common: the type, the place of a part, the error.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "outrider/base/error.h"

namespace outrider {

/// Members keep their order: the model writes properties in that of the schema.
using SchemaJson = nlohmann::ordered_json;

/// `name` in `schema`, or null where `schema` is no object or has no such member.
inline const SchemaJson* FindMember(const SchemaJson& schema, std::string_view name) {
  if (!schema.is_object()) return nullptr;
  const auto found = schema.find(name);
  return found == schema.end() ? nullptr : &*found;
}

/// Values are equal whatever the order of their members, and 1 is 1.0.
inline bool SameValue(const SchemaJson& a, const SchemaJson& b) {
  return nlohmann::json(a) == nlohmann::json(b);
}

/// An Error (kInvalidArgument) about the part of the schema at `place`, a JSON pointer that begins
/// with '#'.
template <typename... Args>
Error SchemaError(std::string_view place, fmt::format_string<Args...> format, Args&&... args) {
  return InvalidArgument("{}: {}", place.substr(0, 200),
                         fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace outrider
