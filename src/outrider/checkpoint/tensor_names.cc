#include "outrider/checkpoint/tensor_names.h"

#include <algorithm>
#include <array>

namespace outrider {

TensorNames TensorNames::Find(std::string_view prefix, FunctionRef<bool(std::string_view)> has) {
  const std::string own(prefix);
  TensorNames names;
  names.expected_ = {own + "model.", own + "lm_head."};
  const std::array<Form, 4> forms = {names.expected_,
                                     Form{"model.language_model.", "lm_head."},
                                     {"language_model.model.", "language_model.lm_head."},
                                     {"model.", "lm_head."}};
  const auto* found = std::find_if(forms.begin(), forms.end(), [&](const Form& form) {
    return has(form.trunk + "embed_tokens.weight");
  });
  names.stored_ = found == forms.end() ? names.expected_ : *found;
  return names;
}

std::string TensorNames::Renamed(std::string_view name, const Form& from, const Form& to) {
  constexpr std::array<std::string_view, 3> kInTrunk = {"layers.", "embed_tokens.", "norm."};
  if (name.starts_with(from.trunk)) {
    const std::string_view rest = name.substr(from.trunk.size());
    const bool in_trunk = std::any_of(kInTrunk.begin(), kInTrunk.end(),
                                      [rest](std::string_view s) { return rest.starts_with(s); });
    if (in_trunk) return to.trunk + std::string(rest);
  }
  if (name.starts_with(from.head)) return to.head + std::string(name.substr(from.head.size()));
  return std::string(name);
}

std::string TensorNames::Expected(std::string_view stored) const {
  return Renamed(stored, stored_, expected_);
}

std::string TensorNames::Stored(std::string_view expected) const {
  return Renamed(expected, expected_, stored_);
}

}  // namespace outrider
