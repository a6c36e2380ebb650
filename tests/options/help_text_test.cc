#include "outrider/options/help_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "outrider/options/option_table.h"
#include "tests/source_directory.h"

namespace outrider {
namespace {

using ::testing::HasSubstr;

TEST(HelpText, FitsInAHundredColumnsAndShowsEveryOption) {
  for (const Command command : kAllCommands) {
    const std::string help = CommandHelp(command);
    std::istringstream lines(help);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100U) << line;
    for (const std::string& name : OptionNames(command)) {
      if (name != "model") {
        EXPECT_THAT(help, HasSubstr("--" + name)) << CommandName(command);
      }
    }
  }
}

// What only one command has stands before what all share: host and port of serve on top.
TEST(HelpText, ACommandsOwnOptionsComeFirst) {
  EXPECT_THAT(CommandHelp(Command::kServe), HasSubstr("[OPTION ...]\n\nServer:\n  --host "));
  EXPECT_THAT(CommandHelp(Command::kGenerate), HasSubstr("[OPTION ...]\n\nInput:\n  --prompt "));
  for (const Command command : {Command::kServe, Command::kGenerate}) {
    const std::string help = CommandHelp(command);
    EXPECT_LT(help.find("\nModel:\n"), help.find("\nLogging:\n"));
  }
}

// docs/configuration.md holds the table between two marks. With OUTRIDER_UPDATE_DOCS=1 this test
// writes it anew instead of comparing.
TEST(HelpText, TheDocumentedTableIsTheRealOne) {
  const std::string path = SourceDirectory() / "docs/configuration.md";
  std::ifstream in(path);
  std::string page((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const std::string begin = "<!-- options: made from the option table -->\n";
  const std::string end = "<!-- end of options -->";
  const size_t first = page.find(begin);
  const size_t last = page.find(end);
  ASSERT_NE(first, std::string::npos);
  ASSERT_NE(last, std::string::npos);
  const size_t start = first + begin.size();
  const std::string table = OptionsMarkdown() + "\n";
  if (std::getenv("OUTRIDER_UPDATE_DOCS") != nullptr) {
    page.replace(start, last - start, table);
    std::ofstream(path) << page;
    return;
  }
  EXPECT_TRUE(page.substr(start, last - start) == table)
      << path << " is out of date; run: OUTRIDER_UPDATE_DOCS=1 cli_test "
      << "--gtest_filter='HelpText.*'";
}

}  // namespace
}  // namespace outrider
