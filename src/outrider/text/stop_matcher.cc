#include "outrider/text/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "outrider/base/error.h"

namespace outrider {

void StopMatcher::Stop::Advance(char byte) {
  while (matched > 0 && text[matched] != byte) matched = border[matched];
  if (text[matched] == byte) ++matched;
}

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include_stop)
    : include_stop_(include_stop) {
  for (std::string& text : stops) {
    if (text.empty()) throw InvalidArgument("stop: a stop string must not be empty");
    Stop stop{.text = std::move(text), .border = {0, 0}};
    size_t border = 0;
    for (size_t i = 1; i < stop.text.size(); ++i) {
      while (border > 0 && stop.text[border] != stop.text[i]) border = stop.border[border];
      if (stop.text[border] == stop.text[i]) ++border;
      stop.border.push_back(border);
    }
    stops_.push_back(std::move(stop));
  }
}

std::string StopMatcher::Push(std::string_view text) {
  if (stopped()) return {};
  if (stops_.empty()) return std::string(text);
  for (const char byte : text) {
    held_.push_back(byte);
    for (size_t i = 0; i < stops_.size(); ++i) {
      Stop& stop = stops_[i];
      stop.Advance(byte);
      if (stop.matched == stop.text.size() &&
          (!stopped() || stop.text.size() > stops_[*stopped_by_].text.size())) {
        stopped_by_ = i;
      }
    }
    if (stopped()) {
      if (!include_stop_) held_.resize(held_.size() - stops_[*stopped_by_].text.size());
      return std::exchange(held_, {});
    }
  }
  size_t keep = 0;
  for (const Stop& stop : stops_) keep = std::max(keep, stop.matched);
  std::string released = held_.substr(0, held_.size() - keep);
  held_.erase(0, released.size());
  return released;
}

std::string StopMatcher::Flush() { return std::exchange(held_, {}); }

}  // namespace outrider
