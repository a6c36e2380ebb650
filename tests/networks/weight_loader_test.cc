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
using test_checkpoints::ErrorOf;
using ::testing::HasSubstr;

/// A checkpoint of tests/golden with another config.json, and perhaps one more tensor.
class ChangedCheckpoint {
 public:
  /// The name of a folder of tests/golden, or a whole path.
  explicit ChangedCheckpoint(const std::filesystem::path& from) : from_(GoldenDirectory() / from) {
    std::ifstream(from_ / "config.json") >> config_;
    const std::filesystem::path index = from_ / "model.safetensors.index.json";
    if (std::filesystem::exists(index)) {
      std::ifstream(index) >> index_;
    } else {
      for (const std::string& name : Source()->names()) {
        index_["weight_map"][name] = "model.safetensors";
      }
    }
    for (const json& file : index_["weight_map"]) {
      const std::string name = file;
      if (!std::filesystem::exists(path() / name)) {
        std::filesystem::create_symlink(std::filesystem::canonical(from_ / name), path() / name);
      }
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
    test_checkpoints::WriteSafetensors(path() / "added.safetensors",
                                       {{name, "F32", shape, test_checkpoints::Bytes(values)}});
    index_["weight_map"][name] = "added.safetensors";
  }

  /// A tensor of the checkpoint, as it is.
  std::vector<float> Values(const std::string& name, const std::vector<int64_t>& shape) const {
    const auto tensor = Source()->Open({name, shape});
    std::vector<float> values(static_cast<size_t>(tensor->rows() * tensor->cols()));
    tensor->ReadRows(0, tensor->rows(), values.data());
    return values;
  }

  void Remove(const std::string& name) { index_["weight_map"].erase(name); }

  std::string LoadError() const {
    std::ofstream(path() / "config.json") << config_;
    std::ofstream(path() / "model.safetensors.index.json") << index_;
    const json& type = config_["model_type"];
    const bool latent = type != "deepseek_v4" && type != "step3p5";
    return ErrorOf([&] {
      const LoadedModel model(path(), DType::kF32, SelectIsa(), /*threads=*/1,
                              latent ? KvCacheForm::kLatent : KvCacheForm::kHeads);
    });
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

// DeepSeek-V4's modules are not among the layers: "mtp.0.", not "layers.4.".
TEST(WeightLoaderTest, ALayerOfDeepSeekV4BehindTheLastIsAnError) {
  for (const std::filesystem::path& directory : {TinyV4Directory(), TinyDSparkDirectory()}) {
    ChangedCheckpoint checkpoint(directory);
    EXPECT_EQ(checkpoint.LoadError(), kNothing);
    const int64_t layers = checkpoint.config()["num_hidden_layers"];
    const int64_t width = checkpoint.config()["hidden_size"];
    const std::string name = fmt::format("layers.{}.attn_norm.weight", layers);
    checkpoint.Add(name, {width}, std::vector<float>(static_cast<size_t>(width), 1));
    EXPECT_EQ(
        checkpoint.LoadError(),
        fmt::format("invalid_argument: {}: holds {}, but \"num_hidden_layers\" of config.json "
                    "is {}; it must be the number of layers that the files hold",
                    checkpoint.PathText(), name, layers));
  }
}

TEST(WeightLoaderTest, ModulesOfStep35ThatNothingDescribesAreAnError) {
  ChangedCheckpoint checkpoint("tiny-step3p5");
  checkpoint.config()["num_nextn_predict_layers"] = 0;
  EXPECT_EQ(checkpoint.LoadError(), kNothing) << "the lists describe them";
  json& types = checkpoint.config()["layer_types"];
  types.erase(types.begin() + 4, types.end());
  EXPECT_THAT(checkpoint.LoadError(),
              HasSubstr("holds the MTP module model.layers.4.eh_proj.weight, but the lists of "
                        "config.json, \"layer_types\" first, have no element for layer 4"));
}

TEST(WeightLoaderTest, IntegersOutsideTheirRangeAreAnError) {
  const TemporaryDirectory directory;
  test_checkpoints::WriteSafetensors(
      directory.path() / "model.safetensors",
      {{"table", "I32", {2, 3}, test_checkpoints::Bytes(std::vector<int32_t>{0, 1, 2, 3, 4, 6})},
       {"below", "I32", {1, 2}, test_checkpoints::Bytes(std::vector<int32_t>{0, -1})}});
  const auto source = OpenCheckpoint(directory.path(), ModelConfig{});
  const cpu::CpuOps& ops = cpu::GetCpuOps(SelectIsa());
  ThreadPool pool(1);
  const int32_t* integers = nullptr;
  const auto load = [&](const std::string& name, int64_t rows, int64_t cols, int64_t limit) {
    const auto loader = ops.MakeWeightLoader(*source, {});
    loader->Integers(&integers, name, rows, cols, limit);
    return loader->Load({ops, &pool}, nullptr);
  };
  const auto memory = load("table", 2, 3, 7);
  EXPECT_EQ(std::vector<int32_t>(integers, integers + 6), (std::vector<int32_t>{0, 1, 2, 3, 4, 6}));
  EXPECT_THAT(ErrorOf([&] { load("table", 2, 3, 6); }),
              HasSubstr("table holds 6 in row 1, column 2; 0 to 5 is needed"));
  EXPECT_THAT(ErrorOf([&] { load("below", 1, 2, 7); }),
              HasSubstr("below holds -1 in row 0, column 1; 0 to 6 is needed"));
}

struct OwnTensorCase {
  std::filesystem::path directory;
  std::string copy;      // of a module, or the head
  std::string original;  // of the target [vocab_size, hidden_size]
};

/// A copy of a tensor of the target is fine, and one that differs is refused with `why`.
void CheckOwnTensor(const OwnTensorCase& c, bool tied, const std::string& why) {
  SCOPED_TRACE(c.directory.string() + ": " + c.copy);
  ChangedCheckpoint checkpoint(c.directory);
  checkpoint.config()["tie_word_embeddings"] = tied;
  const int64_t width = checkpoint.config()["hidden_size"];
  const std::vector<int64_t> shape = {checkpoint.config()["vocab_size"], width};
  std::vector<float> values = checkpoint.Values(c.original, shape);
  checkpoint.Add(c.copy, shape, values);
  EXPECT_EQ(checkpoint.LoadError(), kNothing);
  values[static_cast<size_t>(100 * width + 3)] += 1;
  checkpoint.Add(c.copy, shape, values);
  EXPECT_EQ(checkpoint.LoadError(), "invalid_argument: " + checkpoint.PathText() + ": " + c.copy +
                                        " differs from " + c.original + " in row 100, but " + why);
}

TEST(WeightLoaderTest, AModulesOwnEmbeddingOrHeadHasToBeTheTargets) {
  const std::string why =
      "MTP modules of this family use the target's; a module with its own is not supported";
  const std::filesystem::path step = GoldenDirectory() / "tiny-step3p5";
  for (const OwnTensorCase& c : std::vector<OwnTensorCase>{
           {TinyV4Directory(), "mtp.0.head.weight", "head.weight"},
           {TinyV4Directory(), "mtp.0.embed.weight", "embed.weight"},
           {TinyDSparkDirectory(), "mtp.1.embed.weight", "embed.weight"},
           {TinyModelDirectory(), "model.layers.6.shared_head.head.weight", "lm_head.weight"},
           {TinyModelDirectory(), "model.layers.5.embed_tokens.weight",
            "model.embed_tokens.weight"},
           {step, "model.layers.5.embed_tokens.weight", "model.embed_tokens.weight"}}) {
    CheckOwnTensor(c, /*tied=*/false, why);
  }
  ChangedCheckpoint checkpoint(TinyV4Directory());
  checkpoint.Add("mtp.0.gain.weight", {8}, std::vector<float>(8, 1));
  EXPECT_THAT(checkpoint.LoadError(), HasSubstr("1 unexpected: mtp.0.gain.weight"));
}

// As of DeepSeek-V3's family.
TEST(WeightLoaderTest, ATiedHeadIsTheEmbeddingInEveryFamily) {
  const std::string why =
      "\"tie_word_embeddings\" of config.json is true; it must be false, or the two tensors equal";
  const std::filesystem::path step = GoldenDirectory() / "tiny-step3p5";
  for (const OwnTensorCase& c :
       std::vector<OwnTensorCase>{{TinyV4Directory(), "head.weight", "embed.weight"},
                                  {step, "lm_head.weight", "model.embed_tokens.weight"}}) {
    CheckOwnTensor(c, /*tied=*/true, why);
    ChangedCheckpoint without(c.directory);
    without.Remove(c.copy);
    EXPECT_THAT(without.LoadError(), HasSubstr("1 missing: " + c.copy));
    without.config()["tie_word_embeddings"] = true;
    EXPECT_EQ(without.LoadError(), kNothing);
    ChangedCheckpoint as_published(c.directory);
    as_published.config()["tie_word_embeddings"] = true;
    EXPECT_THAT(as_published.LoadError(), HasSubstr(c.copy + " differs from " + c.original));
  }
}

}  // namespace
}  // namespace outrider
