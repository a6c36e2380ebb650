#include "outrider/text/scoped_stop_matcher.h"

#include <algorithm>
#include <utility>

namespace outrider {

ScopedStopMatcher::ScopedStopMatcher(std::vector<std::string> stops, bool include_stop,
                                     std::unique_ptr<StopScope> scope)
    : matcher_(std::move(stops), include_stop), scope_(std::move(scope)) {}

std::string ScopedStopMatcher::Push(std::string_view text, bool may_stop) {
  if (stopped()) return {};
  if (scope_ == nullptr) return may_stop ? matcher_.Push(text) : std::string(text);
  if (!may_stop) not_looked_at_ += text.size();
  return Sort(text, /*final=*/false);
}

std::string ScopedStopMatcher::End(std::string_view text) {
  if (stopped()) return {};
  std::string released = scope_ == nullptr ? matcher_.Push(text) : Sort(text, /*final=*/true);
  if (!stopped()) released += matcher_.Flush();
  return released;
}

// Passes on what the scope is certain about, through the matcher or past it.
std::string ScopedStopMatcher::Sort(std::string_view text, bool final) {
  unsorted_ += text;
  std::vector<StopScope::Run> runs;
  scope_->Push(text, final, &runs);
  std::string released;
  size_t begin = 0;
  for (const StopScope::Run& run : runs) {
    std::string_view part = std::string_view(unsorted_).substr(begin, run.bytes);
    begin += part.size();
    const size_t past = std::min(not_looked_at_, part.size());
    not_looked_at_ -= past;
    released += part.substr(0, past);
    part.remove_prefix(past);
    if (run.is_inside) {
      released += matcher_.Push(part);
      if (stopped()) return released;
    } else {
      released += matcher_.Flush();  // no stop string goes on behind this
      released += part;
    }
  }
  unsorted_.erase(0, begin);
  return released;
}

}  // namespace outrider
