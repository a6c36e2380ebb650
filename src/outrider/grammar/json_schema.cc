#include "outrider/grammar/json_schema.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "outrider/base/bounded_json.h"
#include "outrider/grammar/regular_expression.h"
#include "outrider/grammar/schema_conjunction.h"
#include "outrider/grammar/schema_json.h"
#include "outrider/grammar/schema_overlap.h"
#include "outrider/grammar/typed_schema.h"

namespace outrider {
namespace {

constexpr int kMaxNesting = 128;         // of the text, and of schemas on the way to a part
constexpr int64_t kMaxSchemas = 20000;   // after combining
constexpr int64_t kMaxValues = 2000000;  // in all schemas that are combined, one after the other

/// Throws an Error for what is no JSON, nests too deeply or has too many values.
SchemaJson ParseSchemaText(std::string_view text) {
  try {
    return ParseBoundedJson<SchemaJson>(text, {.max_depth = kMaxNesting, .max_values = kMaxValues});
  } catch (const JsonFault& fault) {
    if (fault.kind() != JsonFault::Kind::kSyntax) throw;
    throw InvalidArgument("is not valid JSON: byte {} is unexpected", fault.byte());
  }
}

class SchemaWalker {
 public:
  explicit SchemaWalker(const SchemaJson& root) : root_(root) {}

  SchemaJson WalkAll() {
    SchemaJson walked = Walk(root_, "#");
    SchemaJson definitions = SchemaJson::object();
    for (; !pending_.empty(); pending_.pop_front()) {
      const auto& [name, target, place] = pending_.front();
      definitions[name] = Walk(*target, place);
    }
    if (definitions.empty()) return walked;
    RefuseCircles(definitions);
    walked["$defs"] = std::move(definitions);
    return walked;
  }

 private:
  struct Definition {
    std::string name;
    const SchemaJson* target;
    std::string place;
  };

  SchemaJson Walk(const SchemaJson& schema, const std::string& place) {
    if (++num_schemas_ > kMaxSchemas) {
      throw SchemaError(place, "the schema is too large when its parts are combined");
    }
    if (++depth_ > kMaxNesting) {
      throw SchemaError(place, "the schema nests too deeply, or refers to itself");
    }
    SchemaJson walked = WalkOne(schema, place);
    --depth_;
    return walked;
  }

  SchemaJson WalkOne(const SchemaJson& schema, const std::string& place) {
    if (schema == true) return SchemaJson::object();
    if (schema == false) throw SchemaError(place, "false allows nothing");
    if (!schema.is_object()) throw SchemaError(place, "a schema is an object or a boolean");
    SchemaJson plain = PlainSchema(schema, place);
    for (const char* name : {"not", "if", "$dynamicRef", "$recursiveRef"}) {
      if (plain.contains(name)) throw SchemaError(place, "\"{}\" is not supported", name);
    }
    if (plain.contains("$id")) {
      if (place != "#") throw SchemaError(place, "\"$id\" within a schema is not supported");
      plain.erase("$id");
    }
    if (plain.contains("$ref")) return WalkReference(std::move(plain), place);
    for (const char* name : {"anyOf", "oneOf"}) {
      if (plain.contains(name)) return WalkChoice(std::move(plain), name, place);
    }
    if (plain.contains("allOf")) return WalkAllOf(std::move(plain), place);
    if (plain.contains("enum")) return WalkValues(plain, place);
    return WalkTypes(plain, place);
  }

  SchemaJson WalkReference(SchemaJson plain, const std::string& place) {
    if (!plain["$ref"].is_string()) throw SchemaError(place, "\"$ref\" must be a string");
    const std::string reference = plain["$ref"].get<std::string>();
    const SchemaJson* target = Resolve(reference);
    if (target == nullptr) {
      throw SchemaError(place,
                        "\"$ref\" {} is not supported, or points to nothing; \"#\" and "
                        "\"#/...\" are",
                        plain["$ref"].dump());
    }
    if (plain.size() == 1) return {{"$ref", "#/$defs/" + NameOf(reference, target)}};
    plain.erase("$ref");
    return WalkBoth(plain, *target, place);
  }

  // `outer` and a schema that it is combined with.
  SchemaJson WalkBoth(const SchemaJson& outer, const SchemaJson& inner, const std::string& place) {
    return Walk(Combined(outer, inner, place), place);
  }

  static int64_t CountValues(const SchemaJson& value) {
    if (!value.is_structured()) return 1;
    return std::accumulate(
        value.begin(), value.end(), int64_t{1},
        [](int64_t sum, const SchemaJson& part) { return sum + CountValues(part); });
  }

  SchemaJson Combined(const SchemaJson& outer, const SchemaJson& inner, const std::string& place) {
    if (inner.is_boolean()) return inner == true ? outer : inner;
    if (!inner.is_object()) throw SchemaError(place, "a schema is an object or a boolean");
    num_values_ += CountValues(outer) + CountValues(inner);
    if (num_values_ > kMaxValues) {
      throw SchemaError(place, "the schema is too large when its parts are combined");
    }
    const SchemaJson plain = PlainSchema(inner, place);
    if (plain.contains("$id")) throw SchemaError(place, "\"$id\" within a schema is not supported");
    return Conjunction(outer, plain, place);
  }

  static const SchemaJson& BranchesOf(const SchemaJson& plain, const char* name,
                                      const std::string& place) {
    const SchemaJson& branches = plain[name];
    if (!branches.is_array() || branches.empty()) {
      throw SchemaError(place, "\"{}\" must be an array of schemas, at least one", name);
    }
    return branches;
  }

  SchemaJson WalkChoice(SchemaJson plain, const char* name, const std::string& place) {
    const SchemaJson branches = BranchesOf(plain, name, place);
    plain.erase(name);
    std::vector<std::pair<SchemaJson, std::string>> possible;
    for (size_t i = 0; i < branches.size(); ++i) {
      std::string part = fmt::format("{}/{}/{}", place, name, i);
      SchemaJson branch = plain.empty() ? branches[i] : Combined(plain, branches[i], part);
      if (branch != false) possible.emplace_back(std::move(branch), std::move(part));
    }
    if (possible.empty()) throw SchemaError(place, "\"{}\" allows nothing", name);
    if (name == std::string_view("oneOf")) CheckDisjoint(possible, place);
    if (possible.size() == 1) return Walk(possible[0].first, possible[0].second);
    SchemaJson walked = SchemaJson::array();
    for (const auto& [branch, part] : possible) walked.push_back(Walk(branch, part));
    return {{"anyOf", std::move(walked)}};
  }

  void CheckDisjoint(const std::vector<std::pair<SchemaJson, std::string>>& branches,
                     const std::string& place) const {
    constexpr size_t kMaxBranches = 256;  // each is compared with each
    if (branches.size() > kMaxBranches) {
      throw SchemaError(place, "\"oneOf\" has {} branches; at most {} are supported",
                        branches.size(), kMaxBranches);
    }
    const ResolveReference resolve = [this](const std::string& text) { return Resolve(text); };
    for (size_t i = 0; i < branches.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (CannotOverlap(branches[i].first, branches[j].first, resolve)) continue;
        throw SchemaError(place,
                          "\"oneOf\" is not supported where two branches may allow the same value, "
                          "as {} and {} may; use \"anyOf\"",
                          branches[j].second, branches[i].second);
      }
    }
  }

  SchemaJson WalkAllOf(SchemaJson plain, const std::string& place) {
    SchemaJson parts = BranchesOf(plain, "allOf", place);
    plain.erase("allOf");
    const SchemaJson first = parts[0];
    parts.erase(0);
    if (!parts.empty()) plain["allOf"] = std::move(parts);
    if (plain.empty()) return Walk(first, place + "/allOf/0");
    return WalkBoth(plain, first, place);
  }

  SchemaJson WalkValues(const SchemaJson& plain, const std::string& place) {
    const std::vector<std::string> types = TypesOf(plain, place);
    SchemaJson values = SchemaJson::array();
    for (const SchemaJson& value : plain["enum"]) {
      const double number = value.is_number() ? value.get<double>() : 0.5;
      const bool whole = number == std::floor(number);
      const auto matches = [&](const std::string& type) {
        return type == value.type_name() || (type == "integer" && whole);
      };
      if (!types.empty() && std::none_of(types.begin(), types.end(), matches)) continue;
      if (HasKeywordsOf(plain, value.type_name())) {
        throw SchemaError(place,
                          "\"enum\" or \"const\" together with keywords for a {} is not "
                          "supported",
                          value.type_name());
      }
      CheckNumbers(value, place);
      values.push_back(value);
    }
    if (values.empty()) throw SchemaError(place, "\"enum\" allows nothing");
    return {{"enum", std::move(values)}};
  }

  // Numbers that neither 64-bit integers nor the nearest double are the same as.
  static void CheckNumbers(const SchemaJson& value, const std::string& place) {
    if (value.is_number() && std::abs(value.get<double>()) > 9.2e18) {
      throw SchemaError(place, "the number {} is not supported as a value; 64-bit integers are",
                        value.dump());
    }
    if (value.is_structured()) {
      for (const SchemaJson& part : value) CheckNumbers(part, place);
    }
  }

  static std::vector<std::string> TypesOf(const SchemaJson& plain, const std::string& place) {
    std::vector<std::string> types;
    const SchemaJson* type = FindMember(plain, "type");
    if (type == nullptr) return types;
    const auto known = SchemaTypes();
    for (const SchemaJson& name : type->is_array() ? *type : SchemaJson::array({*type})) {
      if (!name.is_string() || std::find(known.begin(), known.end(),
                                         name.get_ref<const std::string&>()) == known.end()) {
        throw SchemaError(place, "unsupported type {}", name.dump());
      }
      types.push_back(name.get<std::string>());
    }
    if (types.empty()) throw SchemaError(place, "\"type\" allows nothing");
    return types;
  }

  SchemaJson WalkTypes(const SchemaJson& plain, const std::string& place) {
    std::vector<std::string> types = TypesOf(plain, place);
    if (types.empty()) {  // those that it speaks of
      for (const std::string_view type : TypesOfKeywords(plain)) types.emplace_back(type);
      if (types.empty()) return SchemaJson::object();
    }
    if (std::find(types.begin(), types.end(), "number") != types.end()) {
      std::erase(types, "integer");
    }
    const WalkSchema walk = [this](const SchemaJson& schema, const std::string& part) {
      return Walk(schema, part);
    };
    SchemaJson walked = SchemaJson::array();
    for (const std::string& type : types) walked.push_back(TypedSchema(type, plain, place, walk));
    if (walked.size() == 1) return walked[0];
    return {{"anyOf", std::move(walked)}};
  }

  // Pointers into the schema; names in them may be escaped, for JSON pointers and for URIs.
  const SchemaJson* Resolve(const std::string& reference) const {
    if (reference == "#") return &root_;
    if (!reference.starts_with("#/")) return nullptr;
    std::string pointer;
    for (size_t i = 1; i < reference.size(); ++i) {
      if (reference[i] != '%') {
        pointer += reference[i];
        continue;
      }
      const std::string digits = reference.substr(i + 1, 2);
      if (digits.size() != 2 ||
          digits.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) {
        return nullptr;
      }
      pointer += static_cast<char>(std::stoi(digits, nullptr, 16));
      i += 2;
    }
    try {
      const SchemaJson::json_pointer path(pointer);
      return root_.contains(path) ? &root_.at(path) : nullptr;
    } catch (const SchemaJson::exception&) {
      return nullptr;  // no pointer
    }
  }

  // The name of a target's definition, which is walked once.
  const std::string& NameOf(const std::string& reference, const SchemaJson* target) {
    const auto [found, is_new] = names_.try_emplace(target, std::to_string(names_.size()));
    if (is_new) pending_.push_back({found->second, target, reference});
    return found->second;
  }

  // A definition that is itself, with nothing in between, allows nothing.
  static void RefuseCircles(const SchemaJson& definitions) {
    std::set<std::string> done;
    std::set<std::string> open;
    const std::function<void(const SchemaJson&)> visit = [&](const SchemaJson& schema) {
      if (const SchemaJson* choices = FindMember(schema, "anyOf")) {
        for (const SchemaJson& choice : *choices) visit(choice);
      }
      const SchemaJson* reference = FindMember(schema, "$ref");
      if (reference == nullptr) return;
      const std::string name = reference->get<std::string>().substr(sizeof("#/$defs/") - 1);
      if (done.contains(name)) return;
      if (!open.insert(name).second) throw InvalidArgument("\"$ref\"s go in a circle");
      visit(definitions[name]);
      open.erase(name);
      done.insert(name);
    };
    for (const auto& [name, schema] : definitions.items()) {
      visit({{"$ref", "#/$defs/" + name}});
    }
  }

  const SchemaJson& root_;
  std::map<const SchemaJson*, std::string> names_;  // of targets
  std::deque<Definition> pending_;
  int depth_ = 0;
  int64_t num_schemas_ = 0;
  int64_t num_values_ = 0;  // combined so far
};

// "json_schema" is a member of nothing else in tags.
void WalkTag(SchemaJson& part) {
  if (part.is_object() && part.contains("json_schema")) {
    SchemaJson& schema = part["json_schema"];
    schema = SchemaWalker(SchemaJson(schema)).WalkAll();
    if (part.contains("any_order") && part["any_order"] != false) {
      throw InvalidArgument("\"any_order\" is not supported");
    }
    return;
  }
  if (part.is_object() && part.contains("type") && part["type"] == "regex" &&
      part.contains("pattern") && part["pattern"].is_string()) {
    part["pattern"] = ExpressionForText(part["pattern"].get<std::string>());
    return;
  }
  if (part.is_structured()) {
    for (SchemaJson& inner : part) WalkTag(inner);
  }
}

}  // namespace

std::string EnforceableSchema(std::string_view schema) {
  const SchemaJson root = ParseSchemaText(schema);
  return SchemaWalker(root).WalkAll().dump();
}

std::string EnforceableTag(std::string_view tag) {
  SchemaJson all = ParseSchemaText(tag);
  WalkTag(all);
  return all.dump();
}

}  // namespace outrider
