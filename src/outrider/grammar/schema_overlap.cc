#include "outrider/grammar/schema_overlap.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

namespace outrider {
namespace {

constexpr int kMaxDepth = 8;               // of references and of properties looked into
constexpr int kMaxSchemasPerPair = 10000;  // looked at for one pair

std::string_view TypeOf(const SchemaJson& value) {
  if (value.is_number()) return "number";
  return value.type_name();  // "object", "array", "string", "boolean", "null"
}

/// What is certain of the values that a schema allows.
struct Facts {
  std::set<std::string, std::less<>> types = {"object", "array",   "string",
                                              "number", "boolean", "null"};
  std::optional<std::vector<SchemaJson>> values;  // no others
  std::set<std::string> required;
  std::map<std::string, std::vector<const SchemaJson*>> properties;
  std::vector<std::set<std::string>> closed;  // names outside of any of these do not come
};

class Prover {
 public:
  explicit Prover(const ResolveReference& resolve) : resolve_(resolve) {}

  bool CannotOverlap(const SchemaJson& a, const SchemaJson& b, int depth) const {
    if (depth > kMaxDepth) return false;
    Facts first;
    Facts second;
    Add(a, depth, &first);
    Add(b, depth, &second);
    if (first.values && second.values) {
      return std::none_of(first.values->begin(), first.values->end(), [&](const SchemaJson& value) {
        return std::any_of(second.values->begin(), second.values->end(),
                           [&](const SchemaJson& other) { return SameValue(value, other); });
      });
    }
    std::vector<std::string> common;
    std::set_intersection(first.types.begin(), first.types.end(), second.types.begin(),
                          second.types.end(), std::back_inserter(common));
    if (common.empty()) return true;
    if (common != std::vector<std::string>{"object"}) return false;
    return Forbids(first, second) || Forbids(second, first) || Differ(first, second, depth);
  }

 private:
  void Add(const SchemaJson& schema, int depth, Facts* facts) const {
    if (schema == false) facts->types.clear();
    if (!schema.is_object() || depth > kMaxDepth || ++num_looked_at_ > kMaxSchemasPerPair) return;
    if (const SchemaJson* type = FindMember(schema, "type")) {
      std::set<std::string, std::less<>> allowed;
      for (const SchemaJson& name : type->is_array() ? *type : SchemaJson::array({*type})) {
        allowed.insert(name == "integer" || !name.is_string() ? "number" : name.get<std::string>());
      }
      KeepTypes(allowed, facts);
    }
    if (const SchemaJson* constant = FindMember(schema, "const")) KeepValues({*constant}, facts);
    const SchemaJson* choices = FindMember(schema, "enum");
    if (choices != nullptr && choices->is_array()) {
      KeepValues({choices->begin(), choices->end()}, facts);
    }
    AddObject(schema, facts);
    const SchemaJson* reference = FindMember(schema, "$ref");
    if (reference != nullptr && reference->is_string()) {
      const SchemaJson* target = resolve_(reference->get_ref<const std::string&>());
      if (target != nullptr) Add(*target, depth + 1, facts);
    }
    if (const SchemaJson* all = FindMember(schema, "allOf"); all != nullptr && all->is_array()) {
      for (const SchemaJson& part : *all) Add(part, depth + 1, facts);
    }
    for (const char* name : {"anyOf", "oneOf"}) {
      const SchemaJson* any = FindMember(schema, name);
      if (any == nullptr || !any->is_array()) continue;
      std::set<std::string, std::less<>> allowed;
      for (const SchemaJson& part : *any) {
        Facts one;
        Add(part, depth + 1, &one);
        allowed.insert(one.types.begin(), one.types.end());
      }
      KeepTypes(allowed, facts);
    }
  }

  static void AddObject(const SchemaJson& schema, Facts* facts) {
    std::set<std::string> known;
    const SchemaJson* properties = FindMember(schema, "properties");
    if (properties != nullptr && properties->is_object()) {
      for (const auto& [name, value] : properties->items()) {
        facts->properties[name].push_back(&value);
        known.insert(name);
      }
    }
    const SchemaJson* required = FindMember(schema, "required");
    if (required != nullptr && required->is_array()) {
      for (const SchemaJson& name : *required) {
        if (name.is_string()) facts->required.insert(name.get<std::string>());
      }
    }
    const SchemaJson* additional = FindMember(schema, "additionalProperties");
    if (additional != nullptr && *additional == false &&
        FindMember(schema, "patternProperties") == nullptr) {
      facts->closed.push_back(std::move(known));
    }
  }

  static void KeepTypes(const std::set<std::string, std::less<>>& allowed, Facts* facts) {
    std::erase_if(facts->types, [&](const std::string& type) { return !allowed.contains(type); });
  }

  static void KeepValues(std::vector<SchemaJson> values, Facts* facts) {
    std::set<std::string, std::less<>> types;
    for (const SchemaJson& value : values) types.insert(std::string(TypeOf(value)));
    KeepTypes(types, facts);
    if (!facts->values || values.size() < facts->values->size()) facts->values = std::move(values);
  }

  // `a` requires a property that `b` never has.
  static bool Forbids(const Facts& a, const Facts& b) {
    return std::any_of(b.closed.begin(), b.closed.end(), [&](const std::set<std::string>& known) {
      return std::any_of(a.required.begin(), a.required.end(),
                         [&](const std::string& name) { return !known.contains(name); });
    });
  }

  // Both require a property that cannot be the same.
  bool Differ(const Facts& a, const Facts& b, int depth) const {
    return std::any_of(a.required.begin(), a.required.end(), [&](const std::string& name) {
      if (!b.required.contains(name)) return false;
      const auto first = a.properties.find(name);
      const auto second = b.properties.find(name);
      if (first == a.properties.end() || second == b.properties.end()) return false;
      return std::any_of(first->second.begin(), first->second.end(), [&](const SchemaJson* x) {
        return std::any_of(second->second.begin(), second->second.end(),
                           [&](const SchemaJson* y) { return CannotOverlap(*x, *y, depth + 1); });
      });
    });
  }

  const ResolveReference& resolve_;
  mutable int num_looked_at_ = 0;
};

}  // namespace

bool CannotOverlap(const SchemaJson& a, const SchemaJson& b, const ResolveReference& resolve) {
  return Prover(resolve).CannotOverlap(a, b, 0);
}

}  // namespace outrider
