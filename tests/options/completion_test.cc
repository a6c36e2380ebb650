#include "outrider/options/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/options/option_table.h"
#include "tests/temporary_directory.h"

namespace outrider {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;

/// What bash offers for the last of `words`, which follow `outrider`.
std::vector<std::string> Offered(const std::vector<std::string>& words) {
  std::string script = CompletionScript(Shell::kBash) + "COMP_WORDS=(outrider";
  for (const std::string& word : words) script += " '" + word + "'";
  script += ")\nCOMP_CWORD=" + std::to_string(words.size()) +
            // A shell without a terminal lacks this builtin, which says how to show names of files.
            "\ncompopt() { :; }\n_outrider\nprintf '%s\\n' \"${COMPREPLY[@]}\" >&3\n";
  const TemporaryDirectory directory;
  const std::string path = directory.path() / "offered";
  std::unique_ptr<FILE, int (*)(FILE*)> bash(
      popen(("bash -u /dev/stdin 3>'" + path + "'").c_str(), "w"), pclose);
  EXPECT_EQ(std::fwrite(script.data(), 1, script.size(), bash.get()), script.size());
  EXPECT_EQ(pclose(bash.release()), 0) << script;
  std::vector<std::string> offered;
  std::ifstream lines(path);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) offered.push_back(line);
  }
  return offered;
}

TEST(Completion, BashOffersCommands) {
  EXPECT_THAT(Offered({""}), IsSupersetOf({"serve", "generate", "chat", "bench", "explain",
                                           "completion", "help", "version"}));
  EXPECT_THAT(Offered({"ser"}), ElementsAre("serve"));
  EXPECT_THAT(Offered({"help", "ch"}), ElementsAre("chat"));
  EXPECT_THAT(Offered({"completion", ""}), ElementsAre("bash", "zsh", "fish"));
  EXPECT_THAT(Offered({"bench", ""}),
              ElementsAre("latency", "throughput", "serve", "kernels", "--help"));
}

TEST(Completion, BashOffersEachCommandsOwnOptions) {
  for (const Command command : kAllCommands) {
    std::vector<std::string> words;
    std::istringstream name(CommandName(command));
    for (std::string word; name >> word;) words.push_back(word);
    words.emplace_back("--");
    std::vector<std::string> wanted = {"--config", "--help"};
    for (const std::string& option : OptionNames(command)) {
      if (option != "model") wanted.push_back("--" + option);
    }
    EXPECT_THAT(Offered(words), IsSupersetOf(wanted)) << CommandName(command);
  }
  EXPECT_THAT(Offered({"serve", "--por"}), ElementsAre("--port"));
  EXPECT_THAT(Offered({"generate", "--por"}), IsEmpty());
  EXPECT_THAT(Offered({"bench", "serve", "--por"}), IsEmpty());
  EXPECT_THAT(Offered({"serve", "DIR", "--no-pin"}), ElementsAre("--no-pin-threads"));
}

TEST(Completion, BashOffersValues) {
  EXPECT_THAT(Offered({"serve", "DIR", "--device", ""}), ElementsAre("auto", "cpu", "cuda"));
  EXPECT_THAT(Offered({"serve", "DIR", "--device", "=", "c"}), ElementsAre("cpu", "cuda"));
  EXPECT_THAT(Offered({"serve", "DIR", "--device", "="}), ElementsAre("auto", "cpu", "cuda"));
  EXPECT_THAT(Offered({"serve", "DIR", "--port", ""}), IsEmpty());
  EXPECT_THAT(Offered({"serve", "--config", "/etc/passw"}), Contains("/etc/passwd"));
  EXPECT_THAT(Offered({"serve", "/et"}), ElementsAre("/etc"));
}

TEST(Completion, ZshAndFishKnowEveryOption) {
  const std::string zsh = CompletionScript(Shell::kZsh);
  const std::string fish = CompletionScript(Shell::kFish);
  for (const OptionRow& row : OptionTable()) {
    if (row.name == "model") continue;
    EXPECT_THAT(zsh, HasSubstr("--" + row.name));
    EXPECT_THAT(fish, HasSubstr(" -l " + row.name + " "));
  }
  EXPECT_THAT(zsh, HasSubstr(":value:(auto cpu cuda)'"));
  EXPECT_THAT(fish, HasSubstr("-l device -x -a 'auto cpu cuda'"));
  EXPECT_THAT(fish, Not(HasSubstr("-l model ")));
}

TEST(Completion, OtherShellsAreRefused) {
  EXPECT_EQ(ParseShell("x", "fish"), Shell::kFish);
  try {
    ParseShell("outrider completion", "tcsh");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("bash"));
    EXPECT_THAT(error.what(), HasSubstr("tcsh"));
  }
}

}  // namespace
}  // namespace outrider
