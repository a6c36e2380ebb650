#include "outrider/grammar/schema_conjunction.h"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>

namespace outrider {
namespace {

constexpr std::array<std::string_view, 4> kCombining = {"$ref", "allOf", "anyOf", "oneOf"};

bool IsIn(std::string_view name, std::span<const std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Keywords that can forbid a value, alone or with others. All others are annotations, or are
/// looked up by "$ref" only.
bool IsAssertion(std::string_view name) {
  constexpr auto kAssertions = std::to_array<std::string_view>({"$ref",
                                                                "$dynamicRef",
                                                                "$recursiveRef",
                                                                "$id",
                                                                "allOf",
                                                                "anyOf",
                                                                "oneOf",
                                                                "not",
                                                                "if",
                                                                "then",
                                                                "else",
                                                                "type",
                                                                "enum",
                                                                "const",
                                                                "format",
                                                                "minimum",
                                                                "maximum",
                                                                "exclusiveMinimum",
                                                                "exclusiveMaximum",
                                                                "multipleOf",
                                                                "minLength",
                                                                "maxLength",
                                                                "pattern",
                                                                "items",
                                                                "prefixItems",
                                                                "unevaluatedItems",
                                                                "contains",
                                                                "minContains",
                                                                "maxContains",
                                                                "minItems",
                                                                "maxItems",
                                                                "uniqueItems",
                                                                "properties",
                                                                "required",
                                                                "additionalProperties",
                                                                "unevaluatedProperties",
                                                                "patternProperties",
                                                                "propertyNames",
                                                                "minProperties",
                                                                "maxProperties",
                                                                "dependentRequired",
                                                                "dependentSchemas",
                                                                "dependencies"});
  return IsIn(name, kAssertions);
}

SchemaJson AsList(const SchemaJson& value) {
  return value.is_array() ? value : SchemaJson::array({value});
}

bool Holds(const SchemaJson& list, const SchemaJson& value) {
  return std::any_of(list.begin(), list.end(),
                     [&](const SchemaJson& other) { return SameValue(other, value); });
}

SchemaJson CommonValues(const SchemaJson& a, const SchemaJson& b) {
  SchemaJson common = SchemaJson::array();
  for (const SchemaJson& value : a) {
    if (Holds(b, value)) common.push_back(value);
  }
  return common;
}

/// Types that both allow: an integer is a number.
SchemaJson CommonTypes(const SchemaJson& a, const SchemaJson& b) {
  const SchemaJson others = AsList(b);
  SchemaJson common = SchemaJson::array();
  for (const SchemaJson& type : AsList(a)) {
    if (Holds(others, type) || (type == "integer" && Holds(others, "number"))) {
      common.push_back(type);
    } else if (type == "number" && Holds(others, "integer")) {
      common.push_back("integer");
    }
  }
  return common;
}

SchemaJson Both(const SchemaJson& a, const SchemaJson& b) {
  if (a == false || b == false) return false;
  if (a == true) return b;
  if (b == true) return a;
  if (SameValue(a, b)) return a;
  return {{"allOf", {a, b}}};
}

/// What "additionalProperties" of `schema` says of a property that it does not name.
const SchemaJson* Additional(const SchemaJson& schema) {
  return FindMember(schema, "additionalProperties");
}

/// Properties of both; of those that one does not name, what it says of others holds too.
SchemaJson CommonProperties(const SchemaJson& outer, const SchemaJson& inner) {
  SchemaJson properties = SchemaJson::object();
  const auto add = [&](const SchemaJson& schema, const SchemaJson& other) {
    const SchemaJson* known = FindMember(schema, "properties");
    if (known == nullptr) return;
    const SchemaJson* others = FindMember(other, "properties");
    for (const auto& [name, value] : known->items()) {
      if (properties.contains(name)) continue;
      const SchemaJson* second =
          others != nullptr && others->contains(name) ? &(*others)[name] : Additional(other);
      properties[name] = second == nullptr ? value : Both(value, *second);
    }
  };
  add(outer, inner);
  add(inner, outer);
  return properties;
}

class Merger {
 public:
  Merger(const SchemaJson& outer, const SchemaJson& inner, const std::string& place)
      : outer_(outer), inner_(inner), place_(place), merged_(outer) {}

  SchemaJson Merge() {
    for (const char* name : {"unevaluatedProperties", "unevaluatedItems"}) {
      if (FindMember(inner_, name) != nullptr) Refuse(name, name);
    }
    // "additionalProperties" goes by the patterns beside it, not by those of the other schema.
    const auto by_patterns = [](const SchemaJson& a, const SchemaJson& b) {
      return FindMember(a, "patternProperties") != nullptr &&
             (FindMember(b, "additionalProperties") != nullptr ||
              FindMember(b, "unevaluatedProperties") != nullptr);
    };
    if (by_patterns(outer_, inner_) || by_patterns(inner_, outer_)) {
      Refuse("patternProperties", "additionalProperties");
    }
    // Beside its own pattern a format says nothing, beside another schema's it does.
    const auto only_pattern = [](const SchemaJson& a, const SchemaJson& b) {
      return FindMember(a, "pattern") != nullptr && FindMember(a, "format") == nullptr &&
             FindMember(b, "format") != nullptr;
    };
    if (only_pattern(outer_, inner_) || only_pattern(inner_, outer_)) Refuse("pattern", "format");
    const bool arrays = FindMember(outer_, "prefixItems") != nullptr ||
                        FindMember(inner_, "prefixItems") != nullptr;
    for (const auto& [name, value] : inner_.items()) {
      const SchemaJson* mine = FindMember(outer_, name);
      if (arrays && (name == "items" || name == "prefixItems")) {
        const char* other = name == "items" ? "prefixItems" : "items";
        if (FindMember(outer_, other) != nullptr) Refuse(name, other);
      }
      if (name == "properties") continue;
      if (mine == nullptr) {
        merged_[name] = value;
      } else if (!SameValue(*mine, value)) {
        Combine(name, *mine, value);
      }
      if (impossible_) return false;
    }
    const SchemaJson properties = CommonProperties(outer_, inner_);
    if (!properties.empty() || FindMember(inner_, "properties") != nullptr) {
      merged_["properties"] = properties;
    }
    return merged_;
  }

 private:
  [[noreturn]] void Refuse(std::string_view name, std::string_view other) const {
    if (name == other) {
      throw SchemaError(place_, "\"{}\" in schemas that are combined is not supported", name);
    }
    throw SchemaError(place_, "\"{}\" and \"{}\" in schemas that are combined are not supported",
                      name, other);
  }

  void Combine(const std::string& name, const SchemaJson& a, const SchemaJson& b) {
    constexpr std::array<std::string_view, 6> kLower = {
        "minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "uniqueItems"};
    constexpr std::array<std::string_view, 5> kUpper = {"maximum", "exclusiveMaximum", "maxLength",
                                                        "maxItems", "maxProperties"};
    if (name == "type") {
      merged_[name] = CommonTypes(a, b);
      impossible_ = merged_[name].empty();
    } else if (name == "enum" && a.is_array() && b.is_array()) {
      merged_[name] = CommonValues(a, b);
      impossible_ = merged_[name].empty();
    } else if (IsIn(name, kLower) && a.type_name() == std::string_view(b.type_name())) {
      merged_[name] = std::max(a, b);
    } else if (IsIn(name, kUpper) && a.type_name() == std::string_view(b.type_name())) {
      merged_[name] = std::min(a, b);
    } else if (name == "required" && a.is_array() && b.is_array()) {
      for (const SchemaJson& value : b) {
        if (!Holds(merged_[name], value)) merged_[name].push_back(value);
      }
    } else if (name == "items" || name == "additionalProperties" || name == "propertyNames") {
      merged_[name] = Both(a, b);
    } else if (IsIn(name, kCombining)) {
      merged_["allOf"].push_back({{name, b}});
    } else {
      Refuse(name, name);
    }
  }

  const SchemaJson& outer_;
  const SchemaJson& inner_;
  const std::string& place_;
  SchemaJson merged_;
  bool impossible_ = false;
};

}  // namespace

SchemaJson PlainSchema(const SchemaJson& schema, const std::string& place) {
  SchemaJson plain = SchemaJson::object();
  const auto has = [&](const char* name) { return FindMember(schema, name) != nullptr; };
  const SchemaJson* dependent = FindMember(schema, "dependentSchemas");
  const bool depends = dependent != nullptr && !dependent->empty();
  const bool combines = std::any_of(kCombining.begin(), kCombining.end(),
                                    [&](auto name) { return FindMember(schema, name) != nullptr; });
  const SchemaJson* needed = FindMember(schema, "minContains");
  const bool none_needed = needed != nullptr && *needed == 0;
  for (const auto& [name, value] : schema.items()) {
    if (!IsAssertion(name)) continue;
    if ((name == "then" || name == "else") && !has("if")) continue;
    if (name == "if" && !has("then") && !has("else")) continue;
    // Items that may be there or not.
    const bool counted = has("contains") && (!none_needed || has("maxContains"));
    if (name.find("ontains") != std::string::npos && !counted) continue;
    if (name == "const" || name == "enum") {
      const SchemaJson values = name == "const" ? SchemaJson::array({value}) : value;
      if (!values.is_array()) throw SchemaError(place, "\"enum\" must be an array");
      const SchemaJson* before = FindMember(plain, "enum");
      plain["enum"] = before == nullptr ? values : CommonValues(*before, values);
      continue;
    }
    // Where nothing is combined, nothing else can have looked at these.
    if (name == "unevaluatedProperties" && !combines && !has("if") && !depends) {
      if (!has("additionalProperties")) plain["additionalProperties"] = value;
      continue;
    }
    if (name == "unevaluatedItems" && !combines && !has("if") && !has("contains")) {
      if (!has("items")) plain["items"] = value;
      continue;
    }
    if (name.starts_with("dependen") && value.is_object() && value.empty()) continue;
    plain[name] = value;
  }
  return plain;
}

SchemaJson Conjunction(const SchemaJson& outer, const SchemaJson& inner, const std::string& place) {
  return Merger(outer, inner, place).Merge();
}

}  // namespace outrider
