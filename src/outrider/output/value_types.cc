#include "outrider/output/value_types.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

namespace outrider {
namespace {

using nlohmann::json;

// References can go in circles.
constexpr int kMaxDepth = 32;

ValueTypes Types(uint8_t types) { return {types, {}}; }

uint8_t TypeOf(const json& value) {
  switch (value.type()) {
    case json::value_t::null:
      return ValueTypes::kNull;
    case json::value_t::boolean:
      return ValueTypes::kBoolean;
    case json::value_t::string:
      return ValueTypes::kString;
    case json::value_t::array:
      return ValueTypes::kArray;
    case json::value_t::object:
      return ValueTypes::kObject;
    case json::value_t::number_float:
      return std::floor(value.get<double>()) == value.get<double>() ? ValueTypes::kInteger
                                                                    : ValueTypes::kFraction;
    default:
      return ValueTypes::kInteger;
  }
}

uint8_t TypeNamed(const json& name) {
  static const std::map<std::string, uint8_t, std::less<>> kNames = {
      {"null", ValueTypes::kNull},       {"boolean", ValueTypes::kBoolean},
      {"integer", ValueTypes::kInteger}, {"number", ValueTypes::kInteger | ValueTypes::kFraction},
      {"string", ValueTypes::kString},   {"array", ValueTypes::kArray},
      {"object", ValueTypes::kObject}};
  if (!name.is_string()) return ValueTypes::kAll;
  const auto found = kNames.find(name.get_ref<const std::string&>());
  return found == kNames.end() ? uint8_t{ValueTypes::kAll} : found->second;
}

// The types that a schema's keywords are about; all where none of them is about a type.
uint8_t TypesByKeywords(const json& schema) {
  static const std::array<std::pair<uint8_t, std::array<const char*, 8>>, 4> kKeywords = {{
      {ValueTypes::kString, {"pattern", "minLength", "maxLength", "format", "contentEncoding"}},
      {ValueTypes::kInteger | ValueTypes::kFraction,
       {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}},
      {ValueTypes::kArray, {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"}},
      {ValueTypes::kObject,
       {"properties", "required", "additionalProperties", "patternProperties", "propertyNames",
        "minProperties", "maxProperties"}},
  }};
  uint8_t types = 0;
  for (const auto& [type, names] : kKeywords) {
    for (const char* name : names) {
      if (name != nullptr && schema.contains(name)) types |= type;
    }
  }
  return types == 0 ? uint8_t{ValueTypes::kAll} : types;
}

ValueTypes Union(const ValueTypes& a, const ValueTypes& b) {
  ValueTypes all = {static_cast<uint8_t>(a.types | b.types), a.values};
  all.values.insert(b.values.begin(), b.values.end());
  return all;
}

ValueTypes Intersection(const ValueTypes& a, const ValueTypes& b) {
  ValueTypes both = Types(a.types & b.types);
  for (const auto& [some, other] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    for (const std::string& value : some->values) {
      if (other->Allows(json::parse(value))) both.values.insert(value);
    }
  }
  return both;
}

class SchemaReader {
 public:
  explicit SchemaReader(const json& whole) : whole_(whole) {}

  // The schema that a reference, or several in a row, leads to; null where there is none.
  const json* Resolved(const json& schema) const {
    const json* at = &schema;
    for (int depth = 0; at->is_object() && at->contains("$ref"); ++depth) {
      const json& reference = (*at)["$ref"];
      if (depth > kMaxDepth || !reference.is_string()) return nullptr;
      const auto& path = reference.get_ref<const std::string&>();
      if (!path.starts_with('#')) return nullptr;
      try {
        at = &whole_.at(json::json_pointer(path.substr(1)));
      } catch (const json::exception&) {
        return nullptr;
      }
    }
    return at;
  }

  ValueTypes Read(const json& schema, int depth) const {
    if (schema.is_boolean()) return Types(schema.get<bool>() ? ValueTypes::kAll : 0);
    const json* const resolved = Resolved(schema);
    if (resolved == nullptr || !resolved->is_object() || depth > kMaxDepth) {
      return Types(ValueTypes::kAll);
    }
    if (resolved != &schema) return Read(*resolved, depth + 1);
    return ReadKeywords(schema, depth);
  }

 private:
  ValueTypes ReadKeywords(const json& schema, int depth) const {
    // Beside keywords that say which values are allowed, others need not tell the type.
    bool is_told = false;
    ValueTypes all = Types(ValueTypes::kAll);
    const auto narrow = [&](const ValueTypes& types) {
      all = Intersection(all, types);
      is_told = true;
    };
    if (const auto type = schema.find("type"); type != schema.end()) {
      ValueTypes types = Types(0);
      if (!type->is_array()) types = Types(TypeNamed(*type));
      for (const json& name : type->is_array() ? *type : json::array()) {
        types.types |= TypeNamed(name);
      }
      narrow(types);
    }
    const auto list_values = [&](const json& values) {
      ValueTypes types = Types(0);
      for (const json& value : values) types.values.insert(value.dump());
      narrow(types);
    };
    if (const auto choices = schema.find("enum"); choices != schema.end() && choices->is_array()) {
      list_values(*choices);
    }
    if (const auto value = schema.find("const"); value != schema.end()) {
      list_values(json::array({*value}));
    }
    for (const char* name : {"anyOf", "oneOf"}) {
      const auto branches = schema.find(name);
      if (branches == schema.end() || !branches->is_array()) continue;
      ValueTypes types = Types(0);
      for (const json& branch : *branches) types = Union(types, Read(branch, depth + 1));
      narrow(types);
    }
    if (const auto parts = schema.find("allOf"); parts != schema.end() && parts->is_array()) {
      for (const json& part : *parts) narrow(Read(part, depth + 1));
    }
    if (const auto no = schema.find("not"); no != schema.end()) {
      // Only a schema of types alone says which types are left.
      const bool types_only = no->is_object() && no->size() == 1 && no->contains("type");
      if (types_only) narrow(Types(ValueTypes::kAll & ~Read(*no, depth + 1).types));
    }
    return is_told ? all : Types(TypesByKeywords(schema));
  }

  const json& whole_;
};

}  // namespace

bool ValueTypes::only_strings() const {
  return (types == kString || (types == 0 && !values.empty())) &&
         std::all_of(values.begin(), values.end(),
                     [](const std::string& value) { return value.starts_with('"'); });
}

bool ValueTypes::Allows(const json& value) const {
  // Comparing goes no deeper than the listed values, whatever a model nests.
  return (types & TypeOf(value)) != 0 ||
         std::any_of(values.begin(), values.end(),
                     [&](const std::string& listed) { return json::parse(listed) == value; });
}

ValueTypes ValueTypesOf(const json& schema, const json& whole) {
  return SchemaReader(whole).Read(schema, 0);
}

ParameterTypes ParameterTypesOf(const json& schema) {
  ParameterTypes types;
  const json* const object = SchemaReader(schema).Resolved(schema);
  if (object == nullptr || !object->is_object()) return types;
  const auto properties = object->find("properties");
  if (properties == object->end() || !properties->is_object()) return types;
  for (const auto& [name, property] : properties->items()) {
    types.emplace(name, ValueTypesOf(property, schema));
  }
  return types;
}

}  // namespace outrider
