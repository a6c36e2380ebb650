#include "outrider/grammar/typed_schema.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "outrider/grammar/object_schema.h"
#include "outrider/grammar/regular_expression.h"
#include "outrider/grammar/string_formats.h"

namespace outrider {
namespace {

constexpr std::array<std::string_view, 7> kTypes = {"object",  "array", "string", "number",
                                                    "boolean", "null",  "integer"};

struct TypeKeyword {
  std::string_view type;
  std::string_view name;
};
constexpr std::array kTypeKeywords = std::to_array<TypeKeyword>({
    {"object", "properties"},
    {"object", "required"},
    {"object", "additionalProperties"},
    {"object", "patternProperties"},
    {"object", "propertyNames"},
    {"object", "minProperties"},
    {"object", "maxProperties"},
    {"object", "dependentRequired"},
    {"object", "dependentSchemas"},
    {"object", "dependencies"},
    {"object", "unevaluatedProperties"},
    {"array", "items"},
    {"array", "prefixItems"},
    {"array", "contains"},
    {"array", "minItems"},
    {"array", "maxItems"},
    {"array", "uniqueItems"},
    {"array", "unevaluatedItems"},
    {"string", "minLength"},
    {"string", "maxLength"},
    {"string", "pattern"},
    {"number", "minimum"},
    {"number", "maximum"},
    {"number", "exclusiveMinimum"},
    {"number", "exclusiveMaximum"},
    {"number", "multipleOf"},
});

/// Beyond these, doubles do not hold every integer.
constexpr double kExactIntegers = 9007199254740992.0;
/// Exclusive bounds up to here are further from their neighbours than six decimals are.
constexpr double kExactDecimals = 4294967296.0;

std::optional<SchemaJson> Number(const SchemaJson& schema, std::string_view name,
                                 const std::string& place) {
  const SchemaJson* value = FindMember(schema, name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) throw SchemaError(place, "\"{}\" must be a number", name);
  return *value;
}

/// A bound as an integer: the least one from it on, or the last one before.
std::optional<int64_t> IntegerBound(const SchemaJson& schema, std::string_view name, bool up,
                                    const std::string& place) {
  const auto bound = Number(schema, name, place);
  if (!bound) return std::nullopt;
  if (bound->is_number_integer() && !bound->is_number_unsigned()) return bound->get<int64_t>();
  const double value = up ? std::ceil(bound->get<double>()) : std::floor(bound->get<double>());
  if (bound->is_number_unsigned() && bound->get<uint64_t>() <= INT64_MAX) {
    return bound->get<int64_t>();
  }
  if (!(std::abs(value) < 9.2e18)) {
    throw SchemaError(place, "\"{}\" of an integer must have at most 64 bits", name);
  }
  return static_cast<int64_t>(value);
}

SchemaJson IntegerSchema(const SchemaJson& schema, const std::string& place) {
  std::optional<int64_t> least = IntegerBound(schema, "minimum", true, place);
  if (const auto bound = IntegerBound(schema, "exclusiveMinimum", false, place)) {
    if (*bound == INT64_MAX) throw SchemaError(place, "\"exclusiveMinimum\" allows nothing");
    least = std::max(least.value_or(INT64_MIN), *bound + 1);
  }
  std::optional<int64_t> most = IntegerBound(schema, "maximum", false, place);
  if (const auto bound = IntegerBound(schema, "exclusiveMaximum", true, place)) {
    if (*bound == INT64_MIN) throw SchemaError(place, "\"exclusiveMaximum\" allows nothing");
    most = std::min(most.value_or(INT64_MAX), *bound - 1);
  }
  if (least && most && *least > *most) throw SchemaError(place, "the bounds allow no integer");
  SchemaJson typed = {{"type", "integer"}};
  if (least) typed["minimum"] = *least;
  if (most) typed["maximum"] = *most;
  const auto divisor = Number(schema, "multipleOf", place);
  if (!divisor) return typed;
  const double step = divisor->get<double>();
  constexpr int64_t kLargestStep = 1024;
  constexpr uint64_t kMostValues = 10000;
  if (!(step > 0)) throw SchemaError(place, "\"multipleOf\" must be above 0");
  if (step != std::floor(step) || step > static_cast<double>(kLargestStep)) {
    throw SchemaError(place, "\"multipleOf\" {} is not supported; integers up to {} are",
                      divisor->dump(), kLargestStep);
  }
  if (step == 1) return typed;
  typed["multipleOf"] = static_cast<int64_t>(step);
  if (!least && !most) return typed;
  // Unsigned differences do not overflow.
  const auto width = least && most ? static_cast<uint64_t>(*most) - static_cast<uint64_t>(*least)
                                   : std::numeric_limits<uint64_t>::max();
  if (width >= kMostValues) {
    throw SchemaError(place,
                      "\"multipleOf\" with bounds is not supported, unless they are two and at "
                      "most {} integers lie between them",
                      kMostValues);
  }
  const auto whole = static_cast<int64_t>(step);
  const int64_t above = (whole - *least % whole) % whole;  // from the least to the first multiple
  if (static_cast<uint64_t>(above) > width) {
    throw SchemaError(place, "no multiple of {} lies between the bounds", whole);
  }
  return typed;
}

/// Numbers with bounds are written with up to six decimals.
SchemaJson NumberSchema(const SchemaJson& schema, const std::string& place) {
  if (const auto divisor = Number(schema, "multipleOf", place)) {
    // Multiples of a whole number are whole; others depend on how a reader rounds.
    if (divisor->get<double>() != std::floor(divisor->get<double>())) {
      throw SchemaError(place, "\"multipleOf\" {} is not supported; integers are", divisor->dump());
    }
    return IntegerSchema(schema, place);
  }
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double lower = -kInfinity;  // the bounds, and the same in millionths
  double upper = kInfinity;
  double least = -kInfinity;
  double most = kInfinity;
  SchemaJson typed = {{"type", "number"}};
  for (const auto name : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}) {
    const auto bound = Number(schema, name, place);
    if (!bound) continue;
    const auto value = bound->get<double>();
    const bool exclusive = std::string_view(name).starts_with('e');
    if (bound->is_number_integer() && std::abs(value) > kExactIntegers) {
      throw SchemaError(place, "\"{}\" {} is not supported; integers up to 2^53 are", name,
                        bound->dump());
    }
    if (exclusive && std::abs(value) > kExactDecimals) {
      throw SchemaError(place, "\"{}\" {} is not supported; numbers up to 2^32 are", name,
                        bound->dump());
    }
    typed[name] = *bound;
    const bool from_below = std::string_view(name).ends_with("inimum");
    if (from_below) lower = std::max(lower, value);
    if (!from_below) upper = std::min(upper, value);
    // In millionths, the first and the last that may come.
    const double nearest = std::round(value * 1e6);
    if (std::abs(nearest) > kExactIntegers) continue;
    const double decimal = nearest / 1e6;  // as a reader reads it
    if (from_below) {
      const bool below = exclusive ? decimal <= value : decimal < value;
      least = std::max(least, below ? nearest + 1 : nearest);
    } else {
      const bool above = exclusive ? decimal >= value : decimal > value;
      most = std::min(most, above ? nearest - 1 : nearest);
    }
  }
  if (lower > upper || least > most) {
    throw SchemaError(place, "the bounds allow no number of at most six decimals");
  }
  return typed;
}

SchemaJson StringSchema(const SchemaJson& schema, const std::string& place) {
  const std::optional<int64_t> least = CountMember(schema, "minLength", place);
  const std::optional<int64_t> most = CountMember(schema, "maxLength", place);
  SchemaJson typed = {{"type", "string"}};
  const SchemaJson* pattern = FindMember(schema, "pattern");
  const SchemaJson* format = FindMember(schema, "format");
  const bool bounded = least.value_or(0) > 0 || most;
  if (pattern != nullptr) {
    if (!pattern->is_string()) throw SchemaError(place, "\"pattern\" must be a string");
    if (bounded) {
      throw SchemaError(place, "\"pattern\" together with \"{}\" is not supported",
                        most ? "maxLength" : "minLength");
    }
    try {
      typed["pattern"] = PatternForJsonString(pattern->get_ref<const std::string&>());
    } catch (const Error& error) {
      throw SchemaError(place, "{}", error.what());
    }
    return typed;
  }
  if (format != nullptr && format->is_string()) {
    const auto regular = PatternOfFormat(format->get_ref<const std::string&>());
    if (regular && bounded) {
      throw SchemaError(place, "\"format\" {} together with \"{}\" is not supported",
                        format->dump(), most ? "maxLength" : "minLength");
    }
    if (regular) typed["pattern"] = PatternForJsonString("^(" + *regular + ")$");
  }
  if (least && most && *least > *most) {
    throw SchemaError(place, "\"minLength\" is above \"maxLength\"");
  }
  if (least.value_or(0) > 0) typed["minLength"] = *least;
  if (most) typed["maxLength"] = *most;
  return typed;
}

SchemaJson ArraySchema(const SchemaJson& schema, const std::string& place, const WalkSchema& walk) {
  for (const char* name : {"contains", "unevaluatedItems"}) {
    if (schema.contains(name)) throw SchemaError(place, "\"{}\" is not supported", name);
  }
  const int64_t least = CountMember(schema, "minItems", place).value_or(0);
  std::optional<int64_t> most = CountMember(schema, "maxItems", place);
  if (const SchemaJson* unique = FindMember(schema, "uniqueItems")) {
    if (!unique->is_boolean()) throw SchemaError(place, "\"uniqueItems\" must be a boolean");
    if (*unique == true && most.value_or(2) > 1) {
      throw SchemaError(place, "\"uniqueItems\" is not supported");
    }
  }
  const SchemaJson* rest = FindMember(schema, "items");
  if (rest != nullptr && rest->is_array()) {
    throw SchemaError(place, "\"items\" as an array is not supported; use \"prefixItems\"");
  }
  SchemaJson first = SchemaJson::array();
  bool more = rest == nullptr || *rest != false;
  if (const SchemaJson* prefix = FindMember(schema, "prefixItems")) {
    if (!prefix->is_array() || prefix->empty()) {
      throw SchemaError(place, "\"prefixItems\" must be an array of schemas, at least one");
    }
    for (size_t i = 0; i < prefix->size(); ++i) {
      if (most && static_cast<int64_t>(i) == *most) break;
      if ((*prefix)[i] == false) {  // the array has to end before
        more = false;
        break;
      }
      first.push_back(walk((*prefix)[i], fmt::format("{}/prefixItems/{}", place, i)));
    }
    // More than the schema speaks of comes only where it has to.
    if (rest == nullptr && least <= static_cast<int64_t>(first.size())) more = false;
  }
  const auto count = static_cast<int64_t>(first.size());
  if (most && *most == count) more = false;
  if (!more && (!most || *most > count)) most = count;
  if (most && least > *most) {
    throw SchemaError(place, "\"minItems\" is {}, but no more than {} items can come", least,
                      *most);
  }
  SchemaJson typed = {{"type", "array"}};
  if (!first.empty()) typed["prefixItems"] = first;
  if (!more) {
    typed["items"] = false;
  } else {
    typed["items"] = rest == nullptr ? SchemaJson::object() : walk(*rest, place + "/items");
  }
  if (least > 0) typed["minItems"] = least;
  if (more && most) typed["maxItems"] = *most;
  return typed;
}

}  // namespace

std::span<const std::string_view> SchemaTypes() { return kTypes; }

std::vector<std::string_view> TypesOfKeywords(const SchemaJson& schema) {
  std::vector<std::string_view> types;
  for (const std::string_view type : kTypes) {
    if (type != "integer" && HasKeywordsOf(schema, type)) types.push_back(type);
  }
  return types;
}

bool HasKeywordsOf(const SchemaJson& schema, std::string_view type) {
  if (type == "integer") type = "number";
  const SchemaJson* format = FindMember(schema, "format");
  if (type == "string" && format != nullptr && format->is_string() &&
      PatternOfFormat(format->get_ref<const std::string&>())) {
    return true;
  }
  return std::any_of(kTypeKeywords.begin(), kTypeKeywords.end(), [&](const TypeKeyword& keyword) {
    return keyword.type == type && FindMember(schema, keyword.name) != nullptr;
  });
}

SchemaJson TypedSchema(std::string_view type, const SchemaJson& schema, const std::string& place,
                       const WalkSchema& walk) {
  if (type == "object") return ObjectSchema(schema, place, walk);
  if (type == "array") return ArraySchema(schema, place, walk);
  if (type == "string") return StringSchema(schema, place);
  if (type == "number") return NumberSchema(schema, place);
  if (type == "integer") return IntegerSchema(schema, place);
  return {{"type", type}};
}

}  // namespace outrider
