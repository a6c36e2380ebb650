// Shell completion of the `outrider` program, made from the option table.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace outrider {

enum class Shell : uint8_t { kBash, kZsh, kFish };

/// "bash", "zsh" or "fish". Throws Error{kInvalidArgument} naming `where`.
Shell ParseShell(std::string_view where, std::string_view name);

/// A script for the shell to read. It completes commands, each command's options, the values of
/// options that take one of a few, and files and folders elsewhere.
std::string CompletionScript(Shell shell);

}  // namespace outrider
