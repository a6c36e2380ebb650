// What a JSON schema says of objects, in a form that the grammar compiler enforces.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "outrider/grammar/schema_json.h"

namespace outrider {

/// See TypedSchema (typed_schema.h).
SchemaJson ObjectSchema(
    const SchemaJson& schema, const std::string& place,
    const std::function<SchemaJson(const SchemaJson& schema, const std::string& place)>& walk);

/// The member `name` of `schema`, a count: an integer from 0 on. Counts that no text reaches come
/// back as nothing when they are an upper bound (`name` begins with "max"), and are an Error
/// otherwise.
std::optional<int64_t> CountMember(const SchemaJson& schema, std::string_view name,
                                   const std::string& place);

}  // namespace outrider
