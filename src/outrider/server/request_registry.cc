#include "outrider/server/request_registry.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "outrider/server/generation_exchange.h"

namespace outrider {

void RequestRegistry::Add(const std::string& id, std::weak_ptr<GenerationExchange> exchange) {
  const std::lock_guard lock(mutex_);
  if (exchanges_.size() >= next_sweep_) {
    std::erase_if(exchanges_, [](const auto& entry) {
      const auto running = entry.second.lock();
      return running == nullptr || running->ended();
    });
    next_sweep_ = std::max<size_t>(64, 2 * exchanges_.size());
  }
  exchanges_.emplace(id, std::move(exchange));
}

size_t RequestRegistry::Abort(std::string_view id) {
  std::vector<std::shared_ptr<GenerationExchange>> found;
  {
    const std::lock_guard lock(mutex_);
    const auto [begin, end] = exchanges_.equal_range(id);
    for (auto entry = begin; entry != end; ++entry) {
      if (auto exchange = entry->second.lock()) found.push_back(std::move(exchange));
    }
  }
  return static_cast<size_t>(std::count_if(
      found.begin(), found.end(), [](const auto& exchange) { return exchange->AbortByClient(); }));
}

}  // namespace outrider
