// What a user names as a model, and the directory that it is.
#include "outrider/cli/model_paths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "outrider/base/error.h"
#include "tests/temporary_directory.h"

namespace outrider::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ModelPathsTest : public ::testing::Test {
 protected:
  std::string Make(const std::string& folder, const std::string& file = "") {
    const std::filesystem::path path = directory_.path() / folder;
    std::filesystem::create_directories(path);
    if (!file.empty()) std::ofstream(path / file) << "{}";
    return path.string();
  }
  static std::string ErrorOf(const std::string& path) {
    try {
      return "no error: " + ModelDirectory(path);
    } catch (const Error& error) {
      return error.what();
    }
  }

  TemporaryDirectory directory_;
};

TEST_F(ModelPathsTest, SlashesAtTheEndGo) {
  const std::string model = Make("model", "config.json");
  EXPECT_EQ(ModelDirectory(model), model);
  EXPECT_EQ(ModelDirectory(model + "/"), model);
  EXPECT_EQ(ModelDirectory(model + "///"), model);
  EXPECT_EQ(ModelDirectory("/"), "/");
  EXPECT_EQ(ModelDirectory("/no/such/"), "/no/such") << "who reads it says that there is none";
}

TEST_F(ModelPathsTest, ACacheFolderIsTheSnapshotOfItsBranch) {
  const std::string folder = Make("models--acme--tiny");
  EXPECT_EQ(ModelDirectory(folder), folder);
  Make("models--acme--tiny/snapshots");
  EXPECT_THAT(ErrorOf(folder), AllOf(HasSubstr("with 0 snapshots"), HasSubstr("download")));
  const std::string first = Make("models--acme--tiny/snapshots/0123");
  EXPECT_EQ(ModelDirectory(folder + "/"), first) << "it is the only one";
  const std::string second = Make("models--acme--tiny/snapshots/4567");
  EXPECT_THAT(ErrorOf(folder), AllOf(HasSubstr("with 2 snapshots"), HasSubstr("name one")));
  Make("models--acme--tiny/refs");
  std::ofstream(folder + "/refs/main") << "4567\n";
  EXPECT_EQ(ModelDirectory(folder), second);
  std::ofstream(folder + "/refs/main") << "89ab";  // whose download never ended
  EXPECT_THAT(ErrorOf(folder), HasSubstr("with 2 snapshots"));
}

TEST_F(ModelPathsTest, GgufAndHubIdsSayWhatToDo) {
  const std::string folder = Make("gguf", "tiny-Q4_K_M.gguf");
  for (const std::string& path : {folder, folder + "/tiny-Q4_K_M.gguf", folder + "/other.gguf"}) {
    EXPECT_THAT(ErrorOf(path), AllOf(HasSubstr("GGUF is not read"), HasSubstr("safetensors")));
  }
  EXPECT_THAT(ModelDirectory(Make("gguf", "config.json")), folder) << "a checkpoint beside it";
  EXPECT_THAT(ErrorOf("deepseek-ai/DeepSeek-V2-Lite"),
              HasSubstr("run `hf download deepseek-ai/DeepSeek-V2-Lite --local-dir "
                        "DeepSeek-V2-Lite` and give DeepSeek-V2-Lite"));
  for (const char* path : {"./x/y", "x/y/z", "../x", "x", "/x/y", "a b/c"}) {
    EXPECT_THAT(ErrorOf(path), HasSubstr("no error")) << path;
  }
}

TEST_F(ModelPathsTest, SettingsHaveDirectoriesAndTheNameAsGiven) {
  Settings settings;
  settings.engine.model = Make("models--acme--tiny/snapshots/0123");
  settings.engine.model = Make("models--acme--tiny") + "/";
  settings.engine.tokenizer = Make("tokenizer") + "/";
  settings.engine.speculation.model = Make("drafter") + "/";
  ResolveModelPaths(&settings);
  EXPECT_EQ(settings.engine.model, Make("models--acme--tiny/snapshots/0123"));
  EXPECT_EQ(settings.engine.tokenizer, Make("tokenizer"));
  EXPECT_EQ(settings.engine.speculation.model, Make("drafter"));
  EXPECT_THAT(settings.serve.served_model_names, ElementsAre(Make("models--acme--tiny")));
  settings.serve.served_model_names = {"tiny/"};
  ResolveModelPaths(&settings);
  EXPECT_THAT(settings.serve.served_model_names, ElementsAre("tiny/"));
}

}  // namespace
}  // namespace outrider::cli
