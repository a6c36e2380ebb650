// The names under which a server's model can be asked for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace outrider {

class ServedModels {
 public:
  /// At least one name; answers to requests without a model carry the first.
  explicit ServedModels(std::vector<std::string> names);

  const std::vector<std::string>& names() const { return names_; }
  bool Has(std::string_view name) const;

  /// The name that the answer carries: `name`, or the first for "". Throws RequestError
  /// (kNotFound) for other names.
  std::string Resolve(const std::string& name) const;

 private:
  std::vector<std::string> names_;
};

}  // namespace outrider
