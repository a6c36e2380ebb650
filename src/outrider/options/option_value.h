// Texts from flags, environment and configuration files as values. `where` names the source
// ("--port", "OUTRIDER_PORT", "serve.yaml: port") and opens every error message.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {

/// A whole number in [min, max]. Throws Error{kInvalidArgument} naming the range.
int64_t ParseInteger(std::string_view where, std::string_view text,
                     int64_t min = std::numeric_limits<int64_t>::min(),
                     int64_t max = std::numeric_limits<int64_t>::max());

/// A whole number in [0, 2^64).
uint64_t ParseUnsigned(std::string_view where, std::string_view text);

/// A finite number in [min, max].
double ParseNumber(std::string_view where, std::string_view text, double min, double max);

/// A number above 0, at most 1.
double ParseShare(std::string_view where, std::string_view text);

/// Bytes: a number of at least 1 byte with an optional unit. K, M, G, T and KiB, MiB, GiB, TiB are
/// powers of 1024; KB, MB, GB, TB powers of 1000. Case does not matter: "512M", "4GiB", "1.5g".
int64_t ParseSize(std::string_view where, std::string_view text);

/// true, yes, on, 1 or false, no, off, 0.
bool ParseSwitch(std::string_view where, std::string_view text);

/// The index of `text` in `choices`.
size_t ParseChoice(std::string_view where, std::string_view text,
                   std::span<const std::string> choices);

/// Whole numbers in [min, max] separated by commas; at least one.
std::vector<int32_t> ParseIntegerList(std::string_view where, std::string_view text, int32_t min,
                                      int32_t max);

/// `text` cut at every comma, blanks around the parts removed, empty parts dropped.
std::vector<std::string> SplitCommas(std::string_view text);

/// "; did you mean NAME?" for the candidate closest to `name` by edit distance, or "" when none is
/// close.
std::string Suggestion(std::string_view name, std::span<const std::string> candidates);

}  // namespace outrider
