#include "outrider/kv/cache_group.h"

#include "outrider/base/error.h"

namespace outrider {

int64_t CacheConfig::PageBytes() const {
  int64_t bytes = 0;
  for (const CacheGroupSpec& group : groups) bytes = std::max(bytes, group.bytes_per_block());
  return bytes;
}

int32_t CacheConfig::TokensPerKey() const {
  int32_t tokens = groups.front().tokens_per_block;
  for (const CacheGroupSpec& group : groups) tokens = std::min(tokens, group.tokens_per_block);
  return tokens;
}

int32_t CacheConfig::TokensPerResume() const {
  int32_t tokens = 1;
  for (const CacheGroupSpec& group : groups) tokens = std::max(tokens, group.tokens_per_block);
  return tokens;
}

int32_t CacheConfig::TokensPerCheckpoint() const {
  const int32_t resume = TokensPerResume();
  int64_t pages = 0;  // of `resume` tokens
  for (const CacheGroupSpec& group : groups) {
    if (group.kind == CacheGroupKind::kFullHistory) pages += resume / group.tokens_per_block;
  }
  const int64_t times = pages == 0 ? 1 : (StatePages() + pages - 1) / pages;
  return static_cast<int32_t>(std::min<int64_t>(std::max<int64_t>(times, 1) * resume, kMostTokens));
}

int64_t CacheConfig::MostPages(int32_t tokens, int32_t step_tokens) const {
  int64_t pages = 0;
  for (const CacheGroupSpec& group : groups) {
    int64_t blocks = group.BlocksBefore(tokens);
    if (group.kind == CacheGroupKind::kSlidingWindow) {
      // The rows of a step, and the windows of the first of them; either end may cut a block.
      const int64_t span = int64_t{step_tokens} + rerun_tokens + group.window - 1;
      blocks = std::min(blocks, (span + group.tokens_per_block - 1) / group.tokens_per_block + 1);
    }
    pages += blocks;
  }
  return pages + 2 * StatePages() + StateRowPages();
}

int64_t CacheConfig::MostTokens(int64_t pages, int32_t step_tokens) const {
  int32_t fits = 0;
  int32_t too_many = kMostTokens + 1;
  while (too_many - fits > 1) {
    const int32_t middle = fits + (too_many - fits) / 2;
    (MostPages(middle, step_tokens) <= pages ? fits : too_many) = middle;
  }
  return fits;
}

void CacheConfig::Check() const {
  OUTRIDER_CHECK(!groups.empty() && num_pages > 0 && rerun_tokens >= 0);
  const int32_t key = TokensPerKey();
  const int32_t resume = TokensPerResume();
  OUTRIDER_CHECK(state.heads == 0 || resume % kStateBlock == 0);
  for (const CacheGroupSpec& group : groups) {
    OUTRIDER_CHECK(group.unit_tokens > 0 && group.tokens_per_block > 0 && group.layers > 0);
    OUTRIDER_CHECK(group.tokens_per_block % group.unit_tokens == 0);
    OUTRIDER_CHECK(group.tokens_per_block % key == 0 && resume % group.tokens_per_block == 0);
    OUTRIDER_CHECK((group.kind == CacheGroupKind::kSlidingWindow) == (group.window > 0));
  }
}

CacheConfig FullHistoryCache(int32_t num_pages, int32_t tokens_per_block) {
  return {.groups = {{.name = "full history", .tokens_per_block = tokens_per_block}},
          .num_pages = num_pages};
}

}  // namespace outrider
