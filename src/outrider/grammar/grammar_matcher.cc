#include "outrider/grammar/grammar_matcher.h"

#include <xgrammar/matcher.h>

#include <utility>

#include "outrider/base/error.h"
#include "outrider/grammar/compiled_grammar_impl.h"
#include "outrider/sampling/token_mask.h"

namespace outrider {

struct GrammarMatcher::Impl {
  explicit Impl(std::shared_ptr<const CompiledGrammar> compiled)
      : grammar(std::move(compiled)), matcher(grammar->impl().grammar) {}

  std::shared_ptr<const CompiledGrammar> grammar;
  xgrammar::GrammarMatcher matcher;
};

GrammarMatcher::GrammarMatcher(std::shared_ptr<const CompiledGrammar> grammar)
    : impl_(std::make_unique<Impl>(std::move(grammar))) {}

GrammarMatcher::~GrammarMatcher() = default;
GrammarMatcher::GrammarMatcher(GrammarMatcher&&) noexcept = default;
GrammarMatcher& GrammarMatcher::operator=(GrammarMatcher&&) noexcept = default;

void GrammarMatcher::FillMask(std::span<uint32_t> mask) {
  OUTRIDER_CHECK(mask.size() == MaskWords(impl_->grammar->vocab_size()));
  int64_t shape = static_cast<int64_t>(mask.size());
  int64_t stride = 1;
  DLTensor tensor{};
  tensor.data = mask.data();
  tensor.device = {kDLCPU, 0};
  tensor.ndim = 1;
  tensor.dtype = xgrammar::GetBitmaskDLType();
  tensor.shape = &shape;
  tensor.strides = &stride;
  impl_->matcher.FillNextTokenBitmask(&tensor);
}

bool GrammarMatcher::Accept(int32_t token) { return impl_->matcher.AcceptToken(token); }

void GrammarMatcher::Rollback(int32_t count) { impl_->matcher.Rollback(count); }

bool GrammarMatcher::complete() const { return impl_->matcher.IsCompleted(); }

}  // namespace outrider
