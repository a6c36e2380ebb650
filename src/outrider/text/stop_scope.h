// Which parts of a request's text stop strings are about: with a model that thinks, its answer.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

namespace outrider {

class StopScope {
 public:
  struct Run {
    size_t bytes;
    bool is_inside;  // stop strings are looked for
  };

  virtual ~StopScope() = default;

  /// Takes more text, whole characters of UTF-8, and appends what became certain: runs that follow
  /// each other without gaps. `final`: no text follows, and all of it is told.
  virtual void Push(std::string_view text, bool final, std::vector<Run>* runs) = 0;
};

/// Makes the scope of a text that begins. Empty: stop strings are about all of the text.
using MakeStopScope = std::function<std::unique_ptr<StopScope>()>;

}  // namespace outrider
