// A source of weights that has what another one has: tests override what they look at.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/checkpoint/weight_source.h"

namespace outrider {

class ForwardingSource : public WeightSource {
 public:
  /// inner: outlives this.
  explicit ForwardingSource(const WeightSource& inner) : inner_(inner) {}

  bool Has(std::string_view name) const override { return inner_.Has(name); }
  std::unique_ptr<WeightTensor> Open(const ExpectedTensor& tensor) const override {
    return inner_.Open(tensor);
  }
  void Check(std::span<const ExpectedTensor> expected,
             FunctionRef<bool(std::string_view)> ignorable) const override {
    inner_.Check(expected, ignorable);
  }
  std::string where() const override { return inner_.where(); }
  std::vector<std::string> names() const override { return inner_.names(); }

 private:
  const WeightSource& inner_;
};

}  // namespace outrider
