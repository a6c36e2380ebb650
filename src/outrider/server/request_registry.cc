#include "outrider/server/request_registry.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "outrider/server/generation_response.h"

namespace outrider {

void RequestRegistry::Add(const std::string& id, std::weak_ptr<GenerationResponse> response) {
  const std::lock_guard lock(mutex_);
  if (responses_.size() >= next_sweep_) {
    std::erase_if(responses_, [](const auto& entry) {
      const auto running = entry.second.lock();
      return running == nullptr || running->ended();
    });
    next_sweep_ = std::max<size_t>(64, 2 * responses_.size());
  }
  responses_.emplace(id, std::move(response));
}

size_t RequestRegistry::Abort(std::string_view id, int32_t caller) {
  std::vector<std::shared_ptr<GenerationResponse>> found;
  {
    const std::lock_guard lock(mutex_);
    const auto [begin, end] = responses_.equal_range(id);
    for (auto entry = begin; entry != end; ++entry) {
      auto response = entry->second.lock();
      if (response != nullptr && response->caller() == caller) found.push_back(std::move(response));
    }
  }
  return static_cast<size_t>(std::count_if(
      found.begin(), found.end(), [](const auto& response) { return response->AbortByClient(); }));
}

}  // namespace outrider
