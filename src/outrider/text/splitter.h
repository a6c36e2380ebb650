// One splitting step of a pre-tokenizer: a regular expression (PCRE2 with JIT) that cuts text at
// its matches.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "outrider/base/function_ref.h"

namespace outrider {

/// What one step does with the text: the pattern, and which pieces go on.
struct SplitSpec {
  std::string pattern;  // Oniguruma syntax, or plain text if `literal`
  bool literal = false;
  bool keep_matches = true;  // pieces that match
  bool keep_between = true;  // pieces between matches
  std::string where;         // "tokenizer.json: pre_tokenizer[0]", for messages
};

/// Match data and JIT stack of one thread. A Splitter may be used from many threads at once, each
/// with a workspace of its own.
class SplitWorkspace {
 public:
  SplitWorkspace();
  ~SplitWorkspace();
  SplitWorkspace(const SplitWorkspace&) = delete;
  SplitWorkspace& operator=(const SplitWorkspace&) = delete;

 private:
  friend class Splitter;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class Splitter {
 public:
  /// Throws Error (kInvalidArgument) when the pattern does not compile, uses a construct without an
  /// equal in PCRE2, or can match the empty string.
  explicit Splitter(const SplitSpec& spec);
  ~Splitter();
  Splitter(Splitter&&) noexcept;
  Splitter& operator=(Splitter&&) noexcept;

  /// Hands the kept pieces of `text` to `emit`, in order; none is empty. `text` must be valid UTF-8
  /// and is matched by itself: anchors and look-around see nothing outside it. Throws Error
  /// (kTooLarge) when the match needs more backtracking or stack than is allowed.
  void Split(std::string_view text, SplitWorkspace* workspace,
             FunctionRef<void(std::string_view)> emit) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace outrider
