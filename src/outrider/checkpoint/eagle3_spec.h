// What an EAGLE-3 drafter (arXiv:2503.01840) is, beyond a network of one layer: which of the
// target's layers it reads, and the tokens that it drafts.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace outrider {

struct Eagle3Spec {
  /// As the config has them (Eagle3Taps); empty: it does not say.
  std::vector<int64_t> aux_layer_ids;
  int64_t num_taps = 3;
  int64_t target_hidden_size = 0;
  int64_t draft_vocab_size = 0;  // of the target's vocab_size tokens
  bool norms_taps = false;       // fc_norm: each tapped row is normalised before fc (3.1)
  bool norms_residual = false;   // norm_before_residual: the residual stream begins normalised
  bool norms_output = false;     // norm_output: what the next pass reads is normalised (3.1)
};

/// The layers whose outputs the drafter reads, rising, of a target of `target_layers` layers.
///
/// Drafters are published with ids of two kinds. Most say which layers the streams enter; a list
/// that begins with 1 says which layers they leave (sgl-project/sglang#25454). Without ids they
/// enter layers 2, n / 2 and n - 3. `entered`, if not empty, is taken instead of what the config
/// says, and names the layers that the streams enter. Throws Error, beginning with `where`, unless
/// there are num_taps layers of the target and they rise.
std::vector<int32_t> Eagle3Taps(const Eagle3Spec& spec, int64_t target_layers,
                                std::span<const int32_t> entered, std::string_view where);

}  // namespace outrider
