#include "outrider/cli/model_paths.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <vector>

#include "outrider/base/error.h"

namespace outrider::cli {

namespace {

namespace fs = std::filesystem;

std::string WithoutEndSlashes(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

std::vector<fs::path> EntriesOf(const fs::path& directory) {
  std::error_code ignored;  // what cannot be listed has none
  std::vector<fs::path> entries;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, ignored)) {
    entries.push_back(entry.path());
  }
  return entries;
}

bool IsGguf(const fs::path& path) { return path.extension() == ".gguf"; }

/// "ORG/NAME", as the hub's ids are.
bool IsHubId(std::string_view path) {
  const auto is_name = [](std::string_view name) {
    return !name.empty() && name.front() != '.' && std::ranges::all_of(name, [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
    });
  };
  const size_t slash = path.find('/');
  return slash != std::string_view::npos && is_name(path.substr(0, slash)) &&
         is_name(path.substr(slash + 1));
}

/// The snapshot in a folder of the Hugging Face cache: that of its branch "main", else the only
/// one.
fs::path SnapshotOf(const fs::path& folder) {
  std::string revision;
  std::ifstream(folder / "refs/main") >> revision;
  fs::path main = folder / "snapshots" / revision;
  if (!revision.empty() && fs::is_directory(main)) return main;
  const std::vector<fs::path> snapshots = EntriesOf(folder / "snapshots");
  if (snapshots.size() == 1) return snapshots.front();
  throw InvalidArgument(
      "{} is a folder of the Hugging Face cache with {} snapshots: {}", folder.string(),
      snapshots.size(),
      snapshots.empty() ? "download the model again" : "name one of those in its folder snapshots");
}

}  // namespace

std::string ModelDirectory(const std::string& path) {
  const fs::path given = WithoutEndSlashes(path);
  const bool is_directory = fs::is_directory(given);
  if (is_directory && fs::exists(given / "config.json")) return given;
  if (is_directory && fs::is_directory(given / "snapshots")) return SnapshotOf(given);
  if (IsGguf(given) || (is_directory && std::ranges::any_of(EntriesOf(given), IsGguf))) {
    throw InvalidArgument(
        "{}: GGUF is not read: download the model that it was made from, a directory with "
        "config.json and safetensors files (--quantization int8 needs about the memory of Q8_0)",
        given.string());
  }
  if (!fs::exists(given) && IsHubId(given.string())) {
    throw InvalidArgument(
        "there is no directory {0}; if it is the id of a model on the Hugging Face hub, run `hf "
        "download {0} --local-dir {1}` and give {1}",
        given.string(), given.filename().string());
  }
  return given;
}

void ResolveModelPaths(Settings* settings) {
  std::vector<std::string>& names = settings->serve.served_model_names;
  if (names.empty()) names = {WithoutEndSlashes(settings->engine.model)};
  for (std::string* path : {&settings->engine.model, &settings->engine.tokenizer,
                            &settings->engine.speculation.model}) {
    if (!path->empty()) *path = ModelDirectory(*path);
  }
}

}  // namespace outrider::cli
