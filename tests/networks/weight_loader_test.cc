// Checkpoints whose tensors and config.json disagree on layers and on the head.
#include "outrider/ops/weight_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/checkpoint/checkpoint_writer.h"
#include "tests/networks/loaded_model.h"
#include "tests/temporary_directory.h"

namespace outrider {
namespace {

using nlohmann::json;
using testing::ErrorOf;
using ::testing::HasSubstr;

/// A checkpoint of tests/golden with another config.json, and perhaps one more tensor.
class ChangedCheckpoint {
 public:
  explicit ChangedCheckpoint(const std::string& golden) : from_(GoldenDirectory() / golden) {
    std::ifstream(from_ / "config.json") >> config_;
    std::filesystem::create_symlink(from_ / "model.safetensors", path() / "base.safetensors");
    for (const std::string& name : Source()->names()) {
      index_["weight_map"][name] = "base.safetensors";
    }
  }

  json& config() { return config_; }
  std::filesystem::path path() const { return directory_.path(); }
  std::string PathText() const { return path().string(); }

  std::unique_ptr<WeightSource> Source() const {
    return OpenCheckpoint(from_, ReadModelConfig(from_));
  }

  void Add(const std::string& name, const std::vector<int64_t>& shape,
           const std::vector<float>& values) {
    testing::WriteSafetensors(path() / "added.safetensors",
                              {{name, "F32", shape, testing::Bytes(values)}});
    index_["weight_map"][name] = "added.safetensors";
  }

  std::string LoadError() const {
    std::ofstream(path() / "config.json") << config_;
    std::ofstream(path() / "model.safetensors.index.json") << index_;
    return ErrorOf([&] { const LoadedModel model(path()); });
  }

 private:
  std::filesystem::path from_;
  TemporaryDirectory directory_;
  json config_;
  json index_;
};

constexpr const char* kNothing = "nothing was thrown";

TEST(WeightLoaderTest, LoadsWhatFits) {
  EXPECT_EQ(ChangedCheckpoint("tiny-v2-lite").LoadError(), kNothing);
}

TEST(WeightLoaderTest, FewerLayersThanTheFilesHoldAreAnError) {
  ChangedCheckpoint checkpoint("tiny-v2-lite");
  checkpoint.config()["num_hidden_layers"] = 2;
  EXPECT_EQ(checkpoint.LoadError(),
            "invalid_argument: " + checkpoint.PathText() +
                ": holds model.layers.2.input_layernorm.weight, but \"num_hidden_layers\" of "
                "config.json is 2 and layer 2 is no MTP module (it has no eh_proj.weight); it must "
                "be the number of layers that the files hold");
}

TEST(WeightLoaderTest, MoreLayersThanTheFilesHoldAreAnError) {
  ChangedCheckpoint checkpoint("tiny-v2-lite");
  checkpoint.config()["num_hidden_layers"] = 4;
  EXPECT_THAT(checkpoint.LoadError(), HasSubstr("missing: model.layers.3."));
}

// Modules from num_hidden_layers on, with a layer that belongs to nothing behind them.
TEST(WeightLoaderTest, ALayerBehindTheMtpModulesIsAnError) {
  const auto source = OpenCheckpoint(TinyModelDirectory(), ReadModelConfig(TinyModelDirectory()));
  ModelConfig config = ReadModelConfig(TinyModelDirectory());
  ThreadPool pool(1);
  const auto load = [&] {
    return ErrorOf([&] {
      LoadNetwork(config, 0, *source, {DType::kF32}, {{cpu::GetCpuOps(SelectIsa()), &pool}});
    });
  };
  EXPECT_EQ(load(), kNothing);  // modules that are not used
  config.layers.pop_back();
  EXPECT_THAT(load(), HasSubstr("holds model.layers.4.input_layernorm.weight, but "
                                "\"num_hidden_layers\" of config.json is 4"));
  config.layers.resize(6, config.mtp_layer);
  EXPECT_THAT(load(), HasSubstr("layer 5 has an eh_proj.weight, so it is an MTP module, but "
                                "\"num_hidden_layers\" of config.json is 6"));
}

class TiedHeadTest : public ::testing::Test {
 protected:
  static constexpr int64_t kVocabulary = 264;
  static constexpr int64_t kHidden = 64;

  TiedHeadTest() : embedding_(kVocabulary * kHidden) {
    checkpoint_.Source()
        ->Open({"model.embed_tokens.weight", {kVocabulary, kHidden}})
        ->ReadRows(0, kVocabulary, embedding_.data());
  }

  ChangedCheckpoint checkpoint_{"tiny-v3-options"};
  std::vector<float> embedding_;
};

TEST_F(TiedHeadTest, MayBeInTheFileAsWell) {
  checkpoint_.Add("lm_head.weight", {kVocabulary, kHidden}, embedding_);
  EXPECT_EQ(checkpoint_.LoadError(), kNothing);
}

TEST_F(TiedHeadTest, MustBeEqual) {
  embedding_[200 * kHidden + 5] += 1;
  checkpoint_.Add("lm_head.weight", {kVocabulary, kHidden}, embedding_);
  EXPECT_EQ(checkpoint_.LoadError(),
            "invalid_argument: " + checkpoint_.PathText() +
                ": lm_head.weight differs from model.embed_tokens.weight in row 200, but "
                "\"tie_word_embeddings\" of config.json is true; it must be false, or the two "
                "tensors equal");
}

TEST_F(TiedHeadTest, MustHaveTheShapeOfTheEmbedding) {
  checkpoint_.Add("lm_head.weight", {1, kHidden}, std::vector<float>(kHidden));
  EXPECT_THAT(checkpoint_.LoadError(),
              HasSubstr("1 of another shape: lm_head.weight is [1, 64], not [264, 64]"));
}

}  // namespace
}  // namespace outrider
