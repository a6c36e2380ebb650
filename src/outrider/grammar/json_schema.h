// JSON schemas as the grammar compiler enforces them. xgrammar skips what it does not know, and
// enforces some keywords only alone or at some types; what leaves here holds nothing of the kind.
#pragma once

#include <string>
#include <string_view>

namespace outrider {

/// The text of a schema that allows only what `schema`, a text, allows, in words that the compiler
/// enforces: one type per schema, its bounds, "properties" with "required" and
/// "additionalProperties", "items" and "prefixItems", "enum", "anyOf", "$ref" to "$defs".
/// "allOf", and whatever stands beside "anyOf", "oneOf" or "$ref", is combined; a "oneOf" whose
/// branches cannot overlap is an "anyOf". Where the schema says nothing of further properties or
/// items it may allow less (docs/structured-output.md). The result of a result is itself.
/// Throws Error (kInvalidArgument), one line with the place and the keyword that cannot be
/// enforced.
std::string EnforceableSchema(std::string_view schema);

/// The text of a structural tag with every schema in it made enforceable, and every regular
/// expression plain (regular_expression.h). Throws Error
/// (kInvalidArgument), also for text that is no JSON.
std::string EnforceableTag(std::string_view tag);

}  // namespace outrider
