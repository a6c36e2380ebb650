// The `outrider` program: arguments in, exit status out. Everything a user can get wrong ends as
// one line on standard error and status 2.
#pragma once

#include <string>
#include <vector>

namespace outrider::cli {

/// `arguments`: without the program's name.
int RunProgram(const std::vector<std::string>& arguments);

}  // namespace outrider::cli
