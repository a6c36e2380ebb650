#include "outrider/grammar/object_schema.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace outrider {
namespace {

using WalkPart = std::function<SchemaJson(const SchemaJson&, const std::string&)>;

bool IsOpen(const SchemaJson* additional) { return additional != nullptr && *additional != false; }

/// Whether JSON can spell a name in one way only, escapes aside, and the compiler knows it.
bool IsPlainName(const std::string& name) {
  return std::all_of(name.begin(), name.end(),
                     [](char c) { return c >= 0x20 && c < 0x7F && c != '"' && c != '\\'; });
}

/// A member that is an object of schemas; null where there are none.
const SchemaJson* SchemasMember(const SchemaJson& schema, std::string_view name,
                                const std::string& place) {
  const SchemaJson* value = FindMember(schema, name);
  if (value == nullptr) return nullptr;
  if (!value->is_object()) throw SchemaError(place, "\"{}\" must be an object", name);
  return value;
}

std::vector<std::string> RequiredNames(const SchemaJson& schema, const std::string& place) {
  std::vector<std::string> names;
  const SchemaJson* required = FindMember(schema, "required");
  if (required == nullptr) return names;
  if (!required->is_array()) throw SchemaError(place, "\"required\" must be an array of names");
  for (const SchemaJson& name : *required) {
    if (!name.is_string()) throw SchemaError(place, "\"required\" must be an array of names");
    const auto& text = name.get_ref<const std::string&>();
    if (std::find(names.begin(), names.end(), text) == names.end()) names.push_back(text);
  }
  return names;
}

/// Objects are maps: names follow a rule, no name is known.
SchemaJson MapSchema(const SchemaJson& schema, const std::string& place, const WalkPart& walk,
                     SchemaJson typed) {
  const SchemaJson* patterns = FindMember(schema, "patternProperties");
  const bool by_pattern = patterns != nullptr && !patterns->empty();
  const std::string keyword = by_pattern ? "patternProperties" : "propertyNames";
  const SchemaJson* additional = FindMember(schema, "additionalProperties");
  for (const char* other : {"properties", "required"}) {
    const SchemaJson* value = FindMember(schema, other);
    if (value != nullptr && !value->empty()) {
      throw SchemaError(place, "\"{}\" together with \"{}\" is not supported", keyword, other);
    }
  }
  if (by_pattern) {
    if (FindMember(schema, "propertyNames") != nullptr) {
      throw SchemaError(place,
                        "\"patternProperties\" together with \"propertyNames\" is not "
                        "supported");
    }
    if (IsOpen(additional)) {
      throw SchemaError(place,
                        "\"patternProperties\" together with \"additionalProperties\" is "
                        "not supported, unless that is false");
    }
    if (patterns->size() > 1) {
      throw SchemaError(place, "\"patternProperties\" with several patterns is not supported");
    }
    const auto only = patterns->begin();
    const SchemaJson name =
        walk({{"type", "string"}, {"pattern", only.key()}}, place + "/patternProperties");
    typed["patternProperties"] = {{name["pattern"].get<std::string>(),
                                   walk(*only, place + "/patternProperties/" + only.key())}};
    typed["additionalProperties"] = false;
    return typed;
  }
  typed["propertyNames"] =
      walk({{"allOf", {{{"type", "string"}}, schema["propertyNames"]}}}, place + "/propertyNames");
  typed["additionalProperties"] = additional == nullptr
                                      ? SchemaJson::object()
                                      : walk(*additional, place + "/additionalProperties");
  return typed;
}

/// Objects have known names, and others where they are open.
SchemaJson RecordSchema(const SchemaJson& schema, const std::string& place, const WalkPart& walk,
                        int64_t least, SchemaJson typed) {
  const std::vector<std::string> required = RequiredNames(schema, place);
  const auto is_required = [&](const std::string& name) {
    return std::find(required.begin(), required.end(), name) != required.end();
  };
  const SchemaJson* additional = FindMember(schema, "additionalProperties");
  const SchemaJson* known = SchemasMember(schema, "properties", place);
  SchemaJson properties = SchemaJson::object();
  std::string never;  // a name that must not come
  if (known != nullptr) {
    for (const auto& [name, value] : known->items()) {
      const std::string part = fmt::format("{}/properties/{}", place, name);
      if (value == false) {
        if (is_required(name)) throw SchemaError(part, "is required, and false allows nothing");
        never = name;
        continue;
      }
      properties[name] = walk(value, part);
    }
  }
  for (const std::string& name : required) {
    if (properties.contains(name)) continue;
    if (additional != nullptr && *additional == false) {
      throw SchemaError(place, "\"required\" names \"{}\", which \"additionalProperties\" forbids",
                        name);
    }
    properties[name] = additional == nullptr ? SchemaJson::object()
                                             : walk(*additional, place + "/additionalProperties");
  }
  // Where nothing is said of other names, they come only when nothing else could.
  const bool open = additional != nullptr ? *additional != false
                                          : (known == nullptr && required.empty()) ||
                                                least > static_cast<int64_t>(properties.size());
  if (open && !never.empty()) {
    throw SchemaError(place,
                      "the property \"{}\" that is false is not supported beside "
                      "\"additionalProperties\"",
                      never);
  }
  for (const auto& [name, value] : properties.items()) {
    if (open && !IsPlainName(name)) {
      throw SchemaError(place,
                        "the property \"{}\" is not supported beside "
                        "\"additionalProperties\": its name is not plain ASCII",
                        name);
    }
  }
  if (!properties.empty()) typed["properties"] = properties;
  if (!required.empty()) typed["required"] = required;
  typed["additionalProperties"] = !open ? SchemaJson(false)
                                  : additional == nullptr
                                      ? SchemaJson::object()
                                      : walk(*additional, place + "/additionalProperties");
  return typed;
}

}  // namespace

std::optional<int64_t> CountMember(const SchemaJson& schema, std::string_view name,
                                   const std::string& place) {
  const SchemaJson* value = FindMember(schema, name);
  if (value == nullptr) return std::nullopt;
  const double count = value->is_number() ? value->get<double>() : -1;
  if (!(count >= 0) || count != std::floor(count)) {
    throw SchemaError(place, "\"{}\" must be an integer from 0 on, not {}", name, value->dump());
  }
  constexpr double kMost = 1e6;
  if (count <= kMost) return static_cast<int64_t>(count);
  if (name.starts_with("max")) return std::nullopt;
  throw SchemaError(place, "\"{}\" {} is not supported; up to {} is", name, value->dump(), kMost);
}

SchemaJson ObjectSchema(const SchemaJson& schema, const std::string& place, const WalkPart& walk) {
  for (const char* name :
       {"dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties"}) {
    if (schema.contains(name)) throw SchemaError(place, "\"{}\" is not supported", name);
  }
  const SchemaJson* patterns = SchemasMember(schema, "patternProperties", place);
  const SchemaJson* names = FindMember(schema, "propertyNames");
  const SchemaJson* additional = FindMember(schema, "additionalProperties");
  const int64_t least = CountMember(schema, "minProperties", place).value_or(0);
  std::optional<int64_t> most = CountMember(schema, "maxProperties", place);
  if (patterns != nullptr && patterns->empty()) patterns = nullptr;
  // Where other names are forbidden, propertyNames can only forbid known ones.
  const bool named = names != nullptr && *names != true && *names != SchemaJson::object() &&
                     (FindMember(schema, "properties") != nullptr || additional == nullptr ||
                      *additional != false);
  SchemaJson typed = {{"type", "object"}};
  typed = patterns != nullptr || named ? MapSchema(schema, place, walk, std::move(typed))
                                       : RecordSchema(schema, place, walk, least, std::move(typed));
  const auto count = [&](const char* name) {
    const SchemaJson* members = FindMember(typed, name);
    return members == nullptr ? int64_t{0} : static_cast<int64_t>(members->size());
  };
  const bool open = patterns != nullptr || typed["additionalProperties"] != false;
  const int64_t num_required = count("required");
  if (!open && least > count("properties")) {
    throw SchemaError(place, "\"minProperties\" is {}, but only {} names are known", least,
                      count("properties"));
  }
  if (most && *most < std::max(num_required, least)) {
    throw SchemaError(place, "\"maxProperties\" is {}, but at least {} members must come", *most,
                      std::max(num_required, least));
  }
  if (least > num_required) {
    // A name may come twice, and count once.
    if (open && least > 1) {
      throw SchemaError(place, "\"minProperties\" {} is not supported where names are free", least);
    }
    typed["minProperties"] = least;
  }
  if (most && (open || *most < count("properties"))) typed["maxProperties"] = *most;
  return typed;
}

}  // namespace outrider
