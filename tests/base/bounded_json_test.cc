// The parser for JSON that strangers wrote: what it accepts is what nlohmann-json makes of it, its
// limits hold, and its work is linear in the text, which is counted and not timed.
#include "outrider/base/bounded_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "tests/source_directory.h"

namespace outrider {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using testing::HasSubstr;

constexpr JsonLimits kWide = {.max_depth = 1000, .max_values = 10'000'000};

// What a parser does with the members of its objects: how many it looks at.
int64_t num_looked_at = 0;

template <typename Iterator>
class CountingIterator : public Iterator {
 public:
  CountingIterator() = default;
  CountingIterator(Iterator iterator) : Iterator(iterator) {}  // NOLINT: as the map's own
  CountingIterator& operator++() {
    ++num_looked_at;
    Iterator::operator++();
    return *this;
  }
};

struct CountingLess {
  bool operator()(const std::string& a, const std::string& b) const {
    ++num_looked_at;
    return a < b;
  }
};

template <typename Key, typename Value, typename /*Less*/, typename Allocator>
class CountingMap : public std::map<Key, Value, CountingLess, Allocator> {
 public:
  using Base = std::map<Key, Value, CountingLess, Allocator>;
  using iterator = CountingIterator<typename Base::iterator>;
  using const_iterator = CountingIterator<typename Base::const_iterator>;
  using Base::Base;

  iterator begin() { return Base::begin(); }
  iterator end() { return Base::end(); }
  const_iterator begin() const { return Base::begin(); }
  const_iterator end() const { return Base::end(); }
  const_iterator cbegin() const { return Base::cbegin(); }
  const_iterator cend() const { return Base::cend(); }
};

using CountedJson = nlohmann::basic_json<CountingMap>;

// {"prompt":"a","zzz":{"0":{},"1":{},...}}
std::string ManyObjects(size_t count) {
  std::string text = R"({"prompt":"a","zzz":{)";
  for (size_t i = 0; i < count; ++i) {
    text += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":{}";
  }
  return text + "}}";
}

int64_t WorkOf(const std::function<void()>& parse) {
  num_looked_at = 0;
  parse();
  return num_looked_at;
}

TEST(BoundedJsonTest, WorkIsLinearInTheNumberOfObjects) {
  constexpr size_t kFew = 1000;
  const std::string few = ManyObjects(kFew);
  const auto take_all = [](int, CountedJson::parse_event_t, CountedJson&) { return true; };
  EXPECT_GT(WorkOf([&] { EXPECT_TRUE(CountedJson::parse(few, take_all).is_object()); }),
            int64_t{kFew * kFew / 4})
      << "the counter does not see what a callback costs";
  EXPECT_LT(WorkOf([&] { ParseBoundedJson<CountedJson>(few, kWide); }), int64_t{kFew} * 20);
  // A look-up of a name costs the logarithm of the number of members.
  constexpr size_t kMany = 200'000;
  const std::string many = ManyObjects(kMany);
  EXPECT_LT(WorkOf([&] { ParseBoundedJson<CountedJson>(many, kWide); }), int64_t{kMany} * 40);
}

// Members that keep their order are a list, in which a look-up by name goes through all of it.
TEST(BoundedJsonTest, OrderedObjectsMayBeLarge) {
  constexpr size_t kMany = 200'000;
  const auto parsed = ParseBoundedJson<ordered_json>(ManyObjects(kMany), kWide);
  EXPECT_EQ(parsed["zzz"].size(), kMany);
  EXPECT_EQ(std::prev(parsed["zzz"].end()).key(), std::to_string(kMany - 1));
}

TEST(BoundedJsonTest, MakesWhatTheLibraryMakes) {
  for (
      const std::string_view text :
      {R"({"b":1,"a":[1,-2,2.5,1e300,true,false,null,"x\u00e9\n",{},[]],"c":{"d":{"e":[[[{}]]]}}})",
       R"([])", R"({})", R"(7)", R"(-0)", R"("text")", R"(null)", R"({"a":1,"b":2,"a":{"c":3}})",
       R"({"a":{"x":1,"x":[2,{"y":1,"y":2}]},"":0})", R"(18446744073709551615)",
       " [ 1 ,\t{ \"a\" :\r\n 2 } ] "}) {
    EXPECT_EQ(ParseBoundedJson(text, kWide), json::parse(text)) << text;
    EXPECT_EQ(ParseBoundedJson<ordered_json>(text, kWide).dump(), ordered_json::parse(text).dump())
        << text;
  }
}

JsonFault FaultOf(std::string_view text, const JsonLimits& limits) {
  try {
    ParseBoundedJson(text, limits);
  } catch (const JsonFault& fault) {
    return fault;
  }
  return {JsonFault::Kind::kSyntax, 0, "no fault"};
}

TEST(BoundedJsonTest, HoldsItsLimits) {
  const JsonLimits limits = {.max_depth = 3, .max_values = 5, .unique_names_depth = 1};
  using Kind = JsonFault::Kind;
  EXPECT_NO_THROW(ParseBoundedJson("[[[1]]]", limits));
  EXPECT_EQ(FaultOf("[[[[", limits).kind(), Kind::kDepth);
  EXPECT_EQ(FaultOf(R"({"a":{"b":[{}]}})", limits).kind(), Kind::kDepth) << "an empty level is one";
  EXPECT_STREQ(FaultOf("[[[[]]]]", limits).what(), "is nested more than 3 levels deep");
  EXPECT_NO_THROW(ParseBoundedJson("[1,2,3,4]", limits));
  EXPECT_EQ(FaultOf("[1,2,3,4,5]", limits).kind(), Kind::kValues);
  EXPECT_STREQ(FaultOf("[{},[],{},[],1", limits).what(), "has more than 5 values");
  const JsonFault repeated = FaultOf(R"({"a":1,"b":2,"a":3})", limits);
  EXPECT_EQ(repeated.kind(), Kind::kRepeatedName);
  EXPECT_EQ(repeated.name(), "a");
  EXPECT_NO_THROW(ParseBoundedJson(R"({"a":{"b":1,"b":2}})", limits));
  EXPECT_EQ(FaultOf("[1e999]", limits).kind(), Kind::kNumber);
  const JsonFault syntax = FaultOf("[1,", limits);
  EXPECT_EQ(syntax.kind(), Kind::kSyntax);
  EXPECT_EQ(syntax.byte(), 4U);
  EXPECT_THAT(syntax.what(), HasSubstr("is not valid JSON: line 1, column 4: "));
  EXPECT_EQ(FaultOf("", limits).kind(), Kind::kSyntax);
  EXPECT_EQ(FaultOf("{} {}", limits).kind(), Kind::kSyntax);
  EXPECT_EQ(FaultOf("[\"\xff\"]", limits).kind(), Kind::kSyntax);
}

// Whoever needs limits uses this parser: the library's own with a callback is quadratic.
TEST(BoundedJsonTest, NobodyParsesWithCallbacks) {
  int64_t num_files = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(SourceDirectory() / "src")) {
    if (entry.path().extension() != ".cc" && entry.path().extension() != ".h") continue;
    ++num_files;
    std::ifstream file(entry.path());
    const std::string text(std::istreambuf_iterator<char>(file), {});
    for (const char* name : {"parse_event_t", "parser_callback_t"}) {
      EXPECT_EQ(text.find(name), std::string::npos) << entry.path() << " has " << name;
    }
  }
  EXPECT_GT(num_files, 500);
}

}  // namespace
}  // namespace outrider
