// The YAML file of --config as a flat list of keys and texts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace outrider {

/// One key of the file. Nested mappings are written with dots ("speculative-config.method").
struct ConfigEntry {
  std::string key;
  std::vector<std::string> texts;  // one for a scalar, any number for a sequence of scalars
  bool is_sequence = false;
  int line = 0;  // from 1
};

/// The entries of the YAML text, in its order. Throws Error{kInvalidArgument} naming `where` and
/// the line on text that is not a mapping, repeated keys, keys without a value and sequences of
/// anything but scalars.
std::vector<ConfigEntry> ParseConfig(std::string_view where, const std::string& yaml);

/// ParseConfig of a file. Throws Error{kNotFound} when it cannot be read.
std::vector<ConfigEntry> ReadConfigFile(const std::string& path);

}  // namespace outrider
