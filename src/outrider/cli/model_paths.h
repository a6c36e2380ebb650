// From what a user names to the directory of a checkpoint.
#pragma once

#include <string>

#include "outrider/options/settings.h"

namespace outrider::cli {

/// The directory that `path` names: without slashes at its end, and where it is a folder of the
/// Hugging Face cache (models--ORG--NAME) its snapshot. Throws Error that says what to do for a
/// GGUF file, for the id of a model on the hub, and for a cache folder without one snapshot to
/// take. Other paths are not looked at.
std::string ModelDirectory(const std::string& path);

/// Replaces the directories of model, tokenizer and drafter in the settings; the served name, if
/// none is given, becomes the model as it was named, without slashes at its end.
void ResolveModelPaths(Settings* settings);

}  // namespace outrider::cli
