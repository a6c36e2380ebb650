// Which JSON values a schema allows, as far as types and listed values go. Models write a call's
// values without quotation marks: this tells whether 12345 is a number or a text.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>

namespace outrider {

struct ValueTypes {
  enum Type : uint8_t {
    kNull = 1,
    kBoolean = 2,
    kInteger = 4,
    kFraction = 8,  // numbers that are no integers
    kString = 16,
    kArray = 32,
    kObject = 64,
    kAll = 127,
  };

  uint8_t types = kAll;          // all values of these types are allowed
  std::set<std::string> values;  // and these, as JSON text

  bool operator==(const ValueTypes&) const = default;

  /// A text may be any string: then it is one, whatever it looks like.
  bool allows_strings() const { return (types & kString) != 0; }
  /// Nothing but strings is allowed.
  bool only_strings() const;
  bool Allows(const nlohmann::json& value) const;
};

/// The values that `schema` allows. `whole` is the schema that its references are within. Keywords
/// on what a value holds do not count: an object that lacks a member is an object all the same. A
/// schema without a type allows the types that its keywords speak of.
ValueTypes ValueTypesOf(const nlohmann::json& schema, const nlohmann::json& whole);

/// What the parameters of one function may be, by their names.
using ParameterTypes = std::map<std::string, ValueTypes, std::less<>>;
/// The types for all functions of a request, by their names.
using FunctionTypes = std::map<std::string, ParameterTypes, std::less<>>;

/// The parameters that a function's schema, an object's, has as its properties.
ParameterTypes ParameterTypesOf(const nlohmann::json& schema);

}  // namespace outrider
