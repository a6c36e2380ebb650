// JSON text that strangers wrote, parsed into a document within limits of depth and of the number
// of values, in time that is linear in the text's size. nlohmann-json's parser with a callback,
// which could hold such limits too, looks at all earlier members of an object after each of its
// containers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "outrider/base/error.h"

namespace outrider {

struct JsonLimits {
  size_t max_depth = 0;   // of objects and arrays within each other; a lone number has depth 0
  size_t max_values = 0;  // objects, arrays, strings, numbers, true, false and null; not names
  /// Objects that are at most this deep may not name a member twice: 1 means the outermost object.
  /// In deeper ones the last value counts.
  size_t unique_names_depth = 0;
};

/// Why a text was refused. what() goes on where "FILE " or "the request body " begins: "is nested
/// more than 32 levels deep".
class JsonFault : public Error {
 public:
  enum class Kind { kSyntax, kNumber, kDepth, kValues, kRepeatedName };

  JsonFault(Kind kind, size_t byte, const std::string& what, std::string name = "")
      : Error(ErrorCode::kInvalidArgument, what),
        kind_(kind),
        byte_(byte),
        name_(std::move(name)) {}

  Kind kind() const { return kind_; }
  size_t byte() const { return byte_; }              // kSyntax: from 1; else 0
  const std::string& name() const { return name_; }  // kRepeatedName: the member's, else ""

 private:
  Kind kind_;
  size_t byte_;
  std::string name_;
};

/// nlohmann-json's reason without its prefix, cut where it quotes much of the text: "line 1, column
/// 8: syntax error while ...".
std::string ShortJsonReason(std::string_view what);

/// Empties a document of bounded depth. nlohmann-json's destructor takes memory to free a document,
/// and ends the process where there is none.
template <typename Json>
// NOLINTNEXTLINE(bugprone-exception-escape): only arrays and objects are walked
void ClearJson(Json& value) noexcept {
  if (!value.is_structured()) return;
  for (Json& part : value) ClearJson(part);
  value.clear();
}

/// Builds a document from the parser's events. Each event costs one step, or one look-up of a name.
template <typename Json>
class BoundedJsonBuilder : public nlohmann::json_sax<Json> {
 public:
  using typename nlohmann::json_sax<Json>::number_integer_t;
  using typename nlohmann::json_sax<Json>::number_unsigned_t;
  using typename nlohmann::json_sax<Json>::number_float_t;
  using typename nlohmann::json_sax<Json>::string_t;
  using typename nlohmann::json_sax<Json>::binary_t;

  explicit BoundedJsonBuilder(const JsonLimits& limits) : limits_(limits) {}

  ~BoundedJsonBuilder() override { ClearJson(root_); }
  BoundedJsonBuilder(const BoundedJsonBuilder&) = delete;
  BoundedJsonBuilder& operator=(const BoundedJsonBuilder&) = delete;

  Json Take() { return std::move(root_); }

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t& /*spelling*/) override {
    return Add(value);
  }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t& /*value*/) override { OUTRIDER_CHECK(false, "JSON text has no binary"); }

  bool start_object(size_t /*size*/) override { return Open(Json::object()); }
  bool start_array(size_t /*size*/) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    Level& level = open_.back();
    auto& members = level.value->template get_ref<typename Json::object_t&>();
    const size_t before = members.size();
    level.member = MemberOf(members, name, level);
    if (members.size() == before && open_.size() <= limits_.unique_names_depth) {
      throw JsonFault(JsonFault::Kind::kRepeatedName, 0, fmt::format("names \"{}\" twice", name),
                      name);
    }
    return true;
  }

  bool parse_error(size_t byte, const std::string& /*token*/,
                   const nlohmann::json::exception& error) override {
    constexpr int kOutOfRange = 406;  // nlohmann-json's number of it
    if (error.id == kOutOfRange) {
      throw JsonFault(JsonFault::Kind::kNumber, 0,
                      "has a number that no floating-point type can hold");
    }
    throw JsonFault(JsonFault::Kind::kSyntax, byte,
                    "is not valid JSON: " + ShortJsonReason(error.what()));
  }

 private:
  static constexpr bool kOrdered = std::is_same_v<Json, nlohmann::ordered_json>;

  struct Level {
    Json* value = nullptr;   // an object or an array
    Json* member = nullptr;  // of an object: what the next value becomes
    // The places of an ordered object's members, which does not find them by name itself.
    std::unordered_map<std::string, size_t> places = {};
  };

  // A new member, or the one that has this name already.
  static Json* MemberOf(typename Json::object_t& members, const string_t& name, Level& level) {
    if constexpr (kOrdered) {
      const auto [found, is_new] = level.places.try_emplace(name, members.size());
      if (is_new) members.emplace_back(name, Json());
      return &members.begin()[static_cast<std::ptrdiff_t>(found->second)].second;
    } else {
      return &members[name];
    }
  }

  template <typename Value>
  Json* Put(Value&& value) {
    if (++num_values_ > limits_.max_values) {
      throw JsonFault(JsonFault::Kind::kValues, 0,
                      fmt::format("has more than {} values", limits_.max_values));
    }
    if (open_.empty()) {
      root_ = Json(std::forward<Value>(value));
      return &root_;
    }
    Level& level = open_.back();
    if (level.value->is_array()) {
      auto& elements = level.value->template get_ref<typename Json::array_t&>();
      return &elements.emplace_back(std::forward<Value>(value));
    }
    *level.member = Json(std::forward<Value>(value));
    return level.member;
  }

  template <typename Value>
  bool Add(Value&& value) {
    Put(std::forward<Value>(value));
    return true;
  }

  // Whatever is open stays where it is in memory: only the innermost container grows.
  bool Open(Json container) {
    if (open_.size() == limits_.max_depth) {
      throw JsonFault(JsonFault::Kind::kDepth, 0,
                      fmt::format("is nested more than {} levels deep", limits_.max_depth));
    }
    Level level;
    level.value = Put(std::move(container));
    open_.push_back(std::move(level));
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  const JsonLimits limits_;
  Json root_;
  std::vector<Level> open_;
  size_t num_values_ = 0;
};

/// `Json` is nlohmann::json, or nlohmann::ordered_json, whose members keep their order. Throws
/// JsonFault.
template <typename Json = nlohmann::json>
Json ParseBoundedJson(std::string_view text, const JsonLimits& limits) {
  BoundedJsonBuilder<Json> builder(limits);
  Json::sax_parse(text, &builder);
  return builder.Take();
}

}  // namespace outrider
