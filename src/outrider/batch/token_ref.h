// A token of a step, which the host may not have read yet: until then it knows the place where the
// device keeps it (ops/tokens_on_device.h).
#pragma once

#include <concepts>
#include <cstdint>
#include <ranges>
#include <span>

#include "outrider/base/error.h"

namespace outrider {

/// A token, the place of one on the device, or none. Kernels read arrays of them as int32_t: a
/// token, -1 for none, -2 - place.
class TokenRef {
 public:
  constexpr TokenRef() = default;
  /// A token that the host knows, or -1 for none.
  constexpr TokenRef(int32_t token) : number_(token) {  // NOLINT: it is one
    OUTRIDER_CHECK(token >= -1);
  }
  static constexpr TokenRef At(int32_t place) {
    TokenRef ref;
    ref.number_ = -2 - place;
    return ref;
  }

  constexpr bool on_device() const { return number_ < -1; }
  /// The token, which the host must know.
  constexpr int32_t token() const {
    OUTRIDER_CHECK(number_ >= 0, "a token that the host has not read");
    return number_;
  }
  /// The place of one that is on the device.
  constexpr int32_t place() const {
    OUTRIDER_CHECK(on_device());
    return -2 - number_;
  }

  friend constexpr bool operator==(TokenRef, TokenRef) = default;

 private:
  int32_t number_ = -1;
};

static_assert(sizeof(TokenRef) == sizeof(int32_t));

/// A view of tokens, also of an array of those that the host knows.
class TokenRefs : public std::span<const TokenRef> {
 public:
  using span::span;
  constexpr TokenRefs() = default;
  constexpr TokenRefs(std::span<const TokenRef> tokens) : span(tokens) {}  // NOLINT: a view
  template <std::ranges::contiguous_range Tokens>
    requires std::same_as<std::ranges::range_value_t<Tokens>, int32_t>
  TokenRefs(const Tokens& tokens)  // NOLINT: a view
      : span(reinterpret_cast<const TokenRef*>(std::ranges::data(tokens)),
             std::ranges::size(tokens)) {}
};

/// The tokens of a request, or its drafts, which the host must know. The ones on the device are
/// always the last ones.
inline std::span<const int32_t> KnownTokens(std::span<const TokenRef> tokens) {
  OUTRIDER_CHECK(tokens.empty() || !tokens.back().on_device(), "tokens that the host has not read");
  return {reinterpret_cast<const int32_t*>(tokens.data()), tokens.size()};
}

}  // namespace outrider
