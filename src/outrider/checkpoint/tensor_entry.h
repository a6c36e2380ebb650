// A tensor of a checkpoint's files, not opened yet.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "outrider/base/file.h"
#include "outrider/checkpoint/safetensors.h"

namespace outrider {

struct TensorEntry {
  std::shared_ptr<const File> file;
  TensorInfo info;  // with the name in the file
};

/// By the names that loaders ask for.
using TensorEntries = std::map<std::string, TensorEntry, std::less<>>;

}  // namespace outrider
