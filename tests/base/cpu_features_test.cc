#include "outrider/base/cpu_features.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "outrider/base/error.h"

namespace outrider {
namespace {

TEST(SelectIsaTest, TheEnvironmentIsReadOnce) {
  const Isa isa = SelectIsa();
  setenv("OUTRIDER_ISA", "mmx", 1);
  EXPECT_EQ(SelectIsa(), isa);
  unsetenv("OUTRIDER_ISA");
}

// SelectIsa in a process of its own, which has not read the variable yet.
std::string AnswerWith(const char* wanted) {
  setenv("OUTRIDER_ISA", wanted, 1);
  try {
    return std::string(IsaName(SelectIsa()));
  } catch (const Error& error) {
    return error.what();
  }
}

void ExpectAnswer(const char* wanted, const std::string& answer) {
  EXPECT_EXIT(
      {
        fprintf(stderr, "%s", AnswerWith(wanted).c_str());
        std::_Exit(0);
      },
      testing::ExitedWithCode(0), testing::HasSubstr(answer));
}

TEST(SelectIsaDeathTest, TheEnvironmentChooses) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  ExpectAnswer("reference", "reference");
  ExpectAnswer("", std::string(IsaName(FastestIsa())));
  ExpectAnswer("mmx", "OUTRIDER_ISA=mmx is unknown");
  if (DetectIsa() < Isa::kAmx) ExpectAnswer("amx", "OUTRIDER_ISA=amx is not available here");
}

}  // namespace
}  // namespace outrider
