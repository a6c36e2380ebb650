// The part of a JSON schema that speaks of one type, in a form that the grammar compiler enforces.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/grammar/schema_json.h"

namespace outrider {

/// Makes a schema within this one enforceable; its place is a JSON pointer.
using WalkSchema = std::function<SchemaJson(const SchemaJson& schema, const std::string& place)>;

/// The seven types' names, "integer" last: it is part of "number".
std::span<const std::string_view> SchemaTypes();

/// The types that keywords in `schema` speak of; empty where there are none, or of all types.
std::vector<std::string_view> TypesOfKeywords(const SchemaJson& schema);

/// Whether `schema` has keywords that say something about values of `type`.
bool HasKeywordsOf(const SchemaJson& schema, std::string_view type);

/// A schema with this one type that allows what `schema` does, or less where it says nothing
/// (docs/structured-output.md). Keywords of other types, `type`, `enum` and what combines schemas
/// are not looked at. Throws Error (kInvalidArgument) that names what cannot be enforced.
SchemaJson TypedSchema(std::string_view type, const SchemaJson& schema, const std::string& place,
                       const WalkSchema& walk);

}  // namespace outrider
