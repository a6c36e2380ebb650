// Whether no value can be allowed by two JSON schemas: what "oneOf" needs to be a plain choice.
#pragma once

#include <functional>
#include <string>

#include "outrider/grammar/schema_json.h"

namespace outrider {

/// What a "$ref" means; null where it means nothing.
using ResolveReference = std::function<const SchemaJson*(const std::string& reference)>;

/// True where it is certain: by types, by values, by a property that both require, by one that one
/// requires and the other forbids. False says nothing.
bool CannotOverlap(const SchemaJson& a, const SchemaJson& b, const ResolveReference& resolve);

}  // namespace outrider
