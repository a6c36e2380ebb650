// What a device takes is said in words by the rule that checks it.
#include "outrider/ops/support.h"

#include <gtest/gtest.h>

#include <array>

namespace outrider {
namespace {

TEST(Taken, NumbersAreTakenAsTheWordsSay) {
  struct Case {
    Taken taken;
    const char* words;
    std::vector<int64_t> has;
    std::vector<int64_t> lacks;
  };
  const std::array cases = {
      Case{Taken::Only(512), "512", {512}, {511, 513, 0, 1024}},
      Case{Taken::UpTo(128), "up to 128", {0, 1, 128}, {129, -1}},
      Case{Taken::Multiples(8), "multiples of 8", {0, 8, 8000}, {4, 12, -8}},
      Case{Taken::Multiples(32, 192), "multiples of 32 up to 192", {32, 192}, {100, 224}},
      Case{Taken::Numbers({16, 32, 256}), "16, 32 or 256", {16, 32, 256}, {0, 48, 512}},
      Case{Taken::Numbers({7}), "7", {7}, {8}},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(c.taken.Words(), c.words);
    for (const int64_t number : c.has) EXPECT_TRUE(c.taken.Has(number)) << c.words << number;
    for (const int64_t number : c.lacks) EXPECT_FALSE(c.taken.Has(number)) << c.words << number;
  }
}

TEST(Taken, NamesAndThings) {
  const Taken names = Taken::Names({"bfloat16", "fp8"});
  EXPECT_EQ(names.Words(), "bfloat16 or fp8");
  EXPECT_TRUE(names.Has(std::string_view("fp8")));
  EXPECT_FALSE(names.Has(std::string_view("float32")));
  EXPECT_EQ(Taken::Yes().Words(), "yes");
  EXPECT_TRUE(Taken::Yes().Has({}));
  EXPECT_EQ(Taken::No().Words(), "no");
  EXPECT_FALSE(Taken::No().Has({}));
  const Taken own_way = Taken::Yes("with sugar");
  EXPECT_EQ(own_way.Words(), "yes, with sugar");
  EXPECT_TRUE(own_way.Has({}));
  EXPECT_EQ(own_way.way(), "with sugar");
  EXPECT_EQ(Taken::Yes().way(), "");
}

struct Order {
  int64_t cups = 0;
  bool milk = false;
  std::string_view size = "small";
};

TEST(Supports, TheFirstLackInWords) {
  static const std::vector<Rule<Order>> rules = {
      {"cups", [](const Order& o) { return std::optional<Asked>(o.cups); }, Taken::UpTo(2)},
      {"milk",
       [](const Order& o) {
         return o.milk ? std::optional<Asked>(std::monostate()) : std::nullopt;
       },
       Taken::No()},
      {"--size", [](const Order& o) { return std::optional<Asked>(o.size); },
       Taken::Names({"small"}), "of a cup"},
  };
  const std::span<const Rule<Order>> table = rules;
  EXPECT_FALSE(Supports(table, Order{.cups = 2}));
  const auto cups = Supports(table, Order{.cups = 3, .milk = true});
  ASSERT_TRUE(cups);
  EXPECT_EQ(cups->what, "cups = 3");
  EXPECT_EQ(cups->takes, "up to 2");
  const auto milk = Supports(table, Order{.cups = 1, .milk = true});
  ASSERT_TRUE(milk);
  EXPECT_EQ(milk->what, "milk");
  EXPECT_EQ(milk->takes, "");
  EXPECT_EQ(Supports(table, Order{.size = "large"})->what, "--size large");
  EXPECT_EQ(SupportTable(table),
            "| cups | up to 2 |\n| milk | no |\n| --size of a cup | small |\n");
}

TEST(Supports, WhatIsComputedInAWayOfItsOwn) {
  static const std::vector<Rule<Order>> rules = {
      {"cups", [](const Order& o) { return std::optional<Asked>(o.cups); }, Taken::UpTo(2)},
      {"milk",
       [](const Order& o) {
         return o.milk ? std::optional<Asked>(std::monostate()) : std::nullopt;
       },
       Taken::Yes("with sugar")}};
  const std::span<const Rule<Order>> table = rules;
  EXPECT_FALSE(Supports(table, Order{.milk = true}));
  EXPECT_EQ(OwnWays(table, Order{.milk = true}), std::vector<std::string>{"milk with sugar"});
  EXPECT_TRUE(OwnWays(table, Order()).empty());
  EXPECT_EQ(SupportTable(table), "| cups | up to 2 |\n| milk | yes, with sugar |\n");
}

}  // namespace
}  // namespace outrider
