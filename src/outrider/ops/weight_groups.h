// In what numbers the parts of a network are stored in files and kept in memory, for people.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "outrider/base/dtype.h"
#include "outrider/checkpoint/weight_source.h"

namespace outrider {

/// Bytes of weights in memory by what they are.
using WeightSizes = std::map<DType, int64_t>;
int64_t SumOf(const WeightSizes& sizes);

/// The weights of one part of a network, "routed experts", that are stored alike.
struct WeightGroup {
  std::string name;
  std::string stored;      // "int4, a bfloat16 scale for 32 columns"
  double stored_bits = 0;  // of a weight, scales included
  int64_t weights = 0;
  WeightSizes packed = {};

  double packed_bits() const {
    return static_cast<double>(SumOf(packed)) * 8 / static_cast<double>(weights);
  }
};

class WeightGroups {
 public:
  /// Adds a weight that is made of these tensors, which are of one part of the network.
  void Add(const std::string& first_name, std::span<const WeightTensor* const> tensors,
           const WeightSizes& packed);

  /// The largest first.
  std::vector<WeightGroup> Take();

 private:
  std::vector<WeightGroup> groups_;
};

}  // namespace outrider
