#include "outrider/ops/cpu/delta_head.h"

#include <algorithm>

#include "outrider/base/error.h"
#include "outrider/ops/cpu/lane_sums.h"

namespace outrider::cpu {

void DeltaHead::Begin(const KernelTable& kernels, int32_t head_dim, const float* state) {
  kernels_ = &kernels;
  head_dim_ = head_dim;
  rows_ = 0;
  state_ = state;
  product_.assign(width(), 1.0F);
  keys_.resize(kStateBlock * width());
  values_.resize(kStateBlock * width());
  sources_.resize(width() + kStateBlock);
  weights_.resize(width() + kStateBlock);
}

void DeltaHead::Decay(const float* decay) {
  for (size_t i = 0; i < width(); ++i) product_[i] *= decay[i];
  for (int32_t j = 0; j < rows_; ++j) {
    float* key = KeyOf(j);
    for (size_t i = 0; i < width(); ++i) key[i] *= decay[i];
  }
}

void DeltaHead::Append(const float* k, const float* decay, const float* u) {
  OUTRIDER_CHECK(rows_ < kStateBlock);
  Decay(decay);
  std::copy_n(k, width(), KeyOf(rows_));
  std::copy_n(u, width(), ValueOf(rows_));
  ++rows_;
}

void DeltaHead::Run(const DeltaRow& row, float* u, float* out) {
  OUTRIDER_CHECK(rows_ < kStateBlock);
  Decay(row.decay);
  for (int32_t d = 0; d < head_dim_; ++d) {
    sources_[static_cast<size_t>(d)] = state_ + int64_t{d} * head_dim_;
  }
  for (int32_t j = 0; j <= rows_; ++j) {
    sources_[width() + static_cast<size_t>(j)] = ValueOf(j);
  }
  const auto weigh = [&](const float* x, int32_t count) {
    for (size_t i = 0; i < width(); ++i) weights_[i] = x[i] * product_[i];
    for (int32_t j = 0; j < count; ++j) {
      weights_[width() + static_cast<size_t>(j)] = LaneDot(x, KeyOf(j), head_dim_);
    }
    return head_dim_ + count;
  };
  std::fill_n(u, width(), 0.0F);
  const int32_t before = weigh(row.k, rows_);
  kernels_->add_weighted(sources_.data(), weights_.data(), before, head_dim_, u);
  for (size_t i = 0; i < width(); ++i) u[i] = row.write * (row.v[i] - u[i]);

  std::copy_n(row.k, width(), KeyOf(rows_));
  std::copy_n(u, width(), ValueOf(rows_));
  ++rows_;
  std::fill_n(out, width(), 0.0F);
  const int32_t all = weigh(row.q, rows_);
  kernels_->add_weighted(sources_.data(), weights_.data(), all, head_dim_, out);
}

const float* DeltaHead::EndBlock() {
  OUTRIDER_CHECK(rows_ == kStateBlock);
  std::vector<float>& next = states_[next_];
  next_ = 1 - next_;
  next.assign(width() * width(), 0.0F);
  for (int32_t j = 0; j < kStateBlock; ++j) sources_[static_cast<size_t>(j) + 1] = ValueOf(j);
  for (size_t d = 0; d < width(); ++d) {
    sources_[0] = state_ + d * width();
    weights_[0] = product_[d];
    for (int32_t j = 0; j < kStateBlock; ++j) {
      weights_[static_cast<size_t>(j) + 1] = KeyOf(j)[d];
    }
    kernels_->add_weighted(sources_.data(), weights_.data(), 1 + kStateBlock, head_dim_,
                           next.data() + d * width());
  }
  rows_ = 0;
  std::fill_n(product_.begin(), width(), 1.0F);
  state_ = next.data();
  return state_;
}

}  // namespace outrider::cpu
