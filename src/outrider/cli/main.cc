#include <string>
#include <vector>

#include "outrider/cli/program.h"

int main(int argc, char** argv) {
  return outrider::cli::RunProgram({argv + (argc > 0 ? 1 : 0), argv + argc});
}
