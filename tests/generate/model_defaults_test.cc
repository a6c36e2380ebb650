// What a model's folder offers to ask.
#include "outrider/generate/model_defaults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "outrider/base/error.h"
#include "tests/source_directory.h"
#include "tests/temporary_directory.h"

namespace outrider {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(ExampleQuestionsTest, AreThoseOfTheFolder) {
  const TemporaryDirectory folder;
  EXPECT_THAT(ReadExampleQuestions(folder.path()), IsEmpty());
  std::ofstream(folder.path() / "example_questions.json") << R"(["What is 1 + 1?", "And 2 + 2?"])";
  EXPECT_THAT(ReadExampleQuestions(folder.path()), ElementsAre("What is 1 + 1?", "And 2 + 2?"));
}

TEST(ExampleQuestionsTest, OtherFilesAreRefused) {
  const TemporaryDirectory folder;
  const std::filesystem::path path = folder.path() / "example_questions.json";
  for (const auto& [text, why] :
       {std::pair("{}", "must be a list of 1 to 8 questions"),
        {"[]", "must be a list of 1 to 8 questions"},
        {R"(["1","2","3","4","5","6","7","8","9"])", "must be a list of 1 to 8 questions"},
        {R"(["1", 2])", "must hold strings only"},
        {R"(["1")", "syntax error"},
        {R"([["1"]])", "levels deep"}}) {
    std::ofstream(path) << text;
    try {
      ReadExampleQuestions(folder.path());
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(path.string())) << text;
      EXPECT_THAT(error.what(), HasSubstr(why)) << text;
    }
  }
}

// The bundled models know arithmetic only, so each says what to ask; a drafter answers nothing.
TEST(ExampleQuestionsTest, EveryBundledModelThatAnswersHasSome) {
  int models = 0;
  for (const auto& entry : std::filesystem::directory_iterator(SourceDirectory() / "models")) {
    if (!std::filesystem::exists(entry.path() / "generation_config.json")) continue;
    EXPECT_THAT(ReadExampleQuestions(entry.path()), testing::Not(IsEmpty())) << entry.path();
    ++models;
  }
  EXPECT_GE(models, 2);
}

}  // namespace
}  // namespace outrider
