#include "outrider/options/config_file.h"

#include <yaml-cpp/yaml.h>

#include <fstream>
#include <iterator>
#include <set>

#include "outrider/base/error.h"

namespace outrider {

namespace {

constexpr int kMaxDepth = 8;

int Line(const YAML::Node& node) { return node.Mark().line + 1; }

std::string Place(std::string_view where, const YAML::Node& node) {
  return fmt::format("{}, line {}", where, Line(node));
}

void AppendEntries(std::string_view where, const YAML::Node& mapping, const std::string& prefix,
                   int depth, std::vector<ConfigEntry>& entries) {
  if (depth > kMaxDepth) {
    throw InvalidArgument("{}: mappings are nested too deeply", Place(where, mapping));
  }
  std::set<std::string> seen;
  for (const auto& pair : mapping) {
    if (!pair.first.IsScalar()) {
      throw InvalidArgument("{}: a key must be plain text", Place(where, pair.first));
    }
    const std::string key = prefix + pair.first.Scalar();
    const YAML::Node& value = pair.second;
    if (!seen.insert(key).second) {
      throw InvalidArgument("{}: the key '{}' appears twice", Place(where, pair.first), key);
    }
    if (value.IsMap()) {
      AppendEntries(where, value, key + ".", depth + 1, entries);
      continue;
    }
    ConfigEntry entry{key, {}, value.IsSequence(), Line(pair.first)};
    if (value.IsScalar()) {
      entry.texts.push_back(value.Scalar());
    } else if (value.IsSequence()) {
      for (const YAML::Node& item : value) {
        if (!item.IsScalar()) {
          throw InvalidArgument("{}: the list '{}' may hold only plain values", Place(where, item),
                                key);
        }
        entry.texts.push_back(item.Scalar());
      }
    } else {
      throw InvalidArgument("{}: the key '{}' has no value", Place(where, pair.first), key);
    }
    entries.push_back(std::move(entry));
  }
}

}  // namespace

std::vector<ConfigEntry> ParseConfig(std::string_view where, const std::string& yaml) {
  std::vector<ConfigEntry> entries;
  try {
    const YAML::Node root = YAML::Load(yaml);
    if (root.IsNull()) return entries;
    if (!root.IsMap()) {
      throw InvalidArgument(
          "{}: must be a mapping of option names to values, one 'key: value' a line", where);
    }
    AppendEntries(where, root, "", 0, entries);
  } catch (const YAML::Exception& error) {
    throw InvalidArgument("{}, line {}: not YAML: {}", where, error.mark.line + 1, error.msg);
  }
  return entries;
}

std::vector<ConfigEntry> ReadConfigFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file.is_open() || file.bad()) {
    throw NotFound("--config: cannot read '{}'", path);
  }
  return ParseConfig(path, text);
}

}  // namespace outrider
