// The names that files give the language model's tensors, and those that loaders ask for.
#pragma once

#include <string>
#include <string_view>

#include "outrider/base/function_ref.h"

namespace outrider {

/// Loaders ask for "{prefix}model.layers.0. ..." and "{prefix}lm_head.weight", with the prefix of
/// the config. Files of one model may say it differently: Step-3.7 is published as "model.layers."
/// beside "vision_model.", saved by transformers as "model.language_model.layers.", and converted
/// to "language_model.model.layers.".
class TensorNames {
 public:
  /// The form in which has(name) is true of the embedding. prefix: ModelConfig::tensor_prefix.
  static TensorNames Find(std::string_view prefix, FunctionRef<bool(std::string_view)> has);

  /// What loaders call the tensor `stored`; other tensors than the language model's keep their
  /// names.
  std::string Expected(std::string_view stored) const;
  /// What the files call the tensor that loaders call `expected`.
  std::string Stored(std::string_view expected) const;

 private:
  struct Form {
    std::string trunk;  // precedes "layers.", "embed_tokens." and "norm."
    std::string head;   // precedes "weight"
  };
  static std::string Renamed(std::string_view name, const Form& from, const Form& to);

  Form stored_;
  Form expected_;
};

}  // namespace outrider
