// Two JSON schemas made one that allows what both do.
#pragma once

#include <string>

#include "outrider/grammar/schema_json.h"

namespace outrider {

/// Without annotations, with "const" as an "enum" of one value, and without keywords that say
/// nothing here ("then" without "if"). `schema` is an object.
SchemaJson PlainSchema(const SchemaJson& schema, const std::string& place);

/// What `outer` and `inner` both allow; `inner` is part of what `outer` combines (a member of its
/// "allOf", what its "$ref" means). False where nothing can be allowed by both. Throws Error
/// (kInvalidArgument) that names the keywords which one schema cannot hold together.
SchemaJson Conjunction(const SchemaJson& outer, const SchemaJson& inner, const std::string& place);

}  // namespace outrider
