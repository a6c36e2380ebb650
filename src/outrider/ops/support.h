// What a device can run of what networks and options ask for, as tables of rules. Errors at start,
// `outrider explain` and the table of docs/gpu.md are made from these rules.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace outrider {

/// Multiples of `multiple` from `least` to `most`.
struct NumberRange {
  int64_t least = 0;
  int64_t most = std::numeric_limits<int64_t>::max();
  int64_t multiple = 1;
};

/// What a network or an option asks for: a feature, a number, or a choice by name.
using Asked = std::variant<std::monostate, int64_t, std::string_view>;

/// What a device takes of what is asked for.
class Taken {
 public:
  /// A feature that the device has, or lacks.
  static Taken Yes() { return Taken(true); }
  static Taken No() { return Taken(false); }
  /// A feature that the device has, but computes in a way of its own: "with ..." in words.
  static Taken Yes(std::string_view way) { return Taken(way); }
  static Taken Only(int64_t number) { return Taken(NumberRange{number, number}); }
  static Taken UpTo(int64_t most) { return Taken(NumberRange{.most = most}); }
  static Taken Multiples(int64_t of, int64_t most = std::numeric_limits<int64_t>::max()) {
    return Taken(NumberRange{.most = most, .multiple = of});
  }
  static Taken Numbers(std::vector<int64_t> numbers) { return Taken(std::move(numbers)); }
  static Taken Names(std::vector<std::string_view> names) { return Taken(std::move(names)); }

  bool Has(const Asked& asked) const;
  /// For people: "yes", "no", "512", "up to 128", "multiples of 8 up to 512", "16, 32 or 64",
  /// "yes, with ...".
  std::string Words() const;
  /// "": it is computed as everywhere.
  std::string_view way() const;

 private:
  using What = std::variant<bool, std::string_view, NumberRange, std::vector<int64_t>,
                            std::vector<std::string_view>>;
  explicit Taken(What what) : what_(std::move(what)) {}

  What what_;
};

/// A rule about one thing that a Subject (a layer, a network, options) may ask of a device.
template <typename Subject>
struct Rule {
  std::string_view name;                            // as a user knows it: a key, a flag, words
  std::optional<Asked> (*asked)(const Subject& s);  // nothing: the subject does not ask for it
  Taken taken;
  std::string_view note = {};  // behind the name in tables
};

/// What a device does not take.
struct Lack {
  std::string what;   // "kv_lora_rank = 256", "--dtype float32", "hyper-connections"
  std::string takes;  // "512"; empty: there is no other
};

/// Says what is lacking: `asked`, of which the device takes only `taken`.
Lack LackOf(std::string_view name, const Asked& asked, const Taken& taken);

/// Returns the first thing that the subject asks for and the device lacks; nothing: it runs.
template <typename Subject>
std::optional<Lack> Supports(std::span<const Rule<Subject>> rules, const Subject& subject) {
  for (const Rule<Subject>& rule : rules) {
    const std::optional<Asked> asked = rule.asked(subject);
    if (asked && !rule.taken.Has(*asked)) return LackOf(rule.name, *asked, rule.taken);
  }
  return std::nullopt;
}

/// What the subject asks for and the device computes in a way of its own: "routers with ...".
template <typename Subject>
std::vector<std::string> OwnWays(std::span<const Rule<Subject>> rules, const Subject& subject) {
  std::vector<std::string> ways;
  for (const Rule<Subject>& rule : rules) {
    if (rule.taken.way().empty() || !rule.asked(subject)) continue;
    ways.push_back(std::string(rule.name).append(" ").append(rule.taken.way()));
  }
  return ways;
}

/// Lines of a table in Markdown, one for each rule: its name, what is taken.
template <typename Subject>
std::string SupportTable(std::span<const Rule<Subject>> rules) {
  std::string lines;
  for (const Rule<Subject>& rule : rules) {
    lines.append("| ").append(rule.name);
    if (!rule.note.empty()) lines.append(" ").append(rule.note);
    lines.append(" | ").append(rule.taken.Words()).append(" |\n");
  }
  return lines;
}

}  // namespace outrider
