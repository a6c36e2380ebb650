#include "outrider/kv/cache_form.h"

namespace outrider {

std::string_view KvCacheFormName(KvCacheForm form) {
  return form == KvCacheForm::kLatent ? "latent" : "heads";
}

int64_t CacheWidth(KvCacheForm form, const CacheShape& s) {
  return (form == KvCacheForm::kLatent ? s.latent : s.heads * (s.nope + s.value)) + s.rope;
}

int64_t MultiplyAddsPerKey(KvCacheForm form, const CacheShape& s) {
  return s.heads * (s.rope + (form == KvCacheForm::kLatent ? 2 * s.latent : s.nope + s.value));
}

KvCacheForm ChooseKvCacheForm(const CacheShape& s) {
  const int64_t saved =
      MultiplyAddsPerKey(KvCacheForm::kLatent, s) - MultiplyAddsPerKey(KvCacheForm::kHeads, s);
  const int64_t added = CacheWidth(KvCacheForm::kHeads, s) - CacheWidth(KvCacheForm::kLatent, s);
  return saved >= kMultiplyAddsPerNumber * added ? KvCacheForm::kHeads : KvCacheForm::kLatent;
}

}  // namespace outrider
