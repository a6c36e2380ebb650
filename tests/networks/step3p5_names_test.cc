// Step-3.5's weights under every name that checkpoints give them: equal bits; what does not fit is
// named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/checkpoint/checkpoint_writer.h"
#include "tests/networks/step3p5_golden.h"
#include "tests/temporary_directory.h"

namespace outrider {
namespace {

using nlohmann::json;
using test_checkpoints::ErrorOf;
using test_checkpoints::TensorToWrite;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// A golden checkpoint, to be written with other names and another config.
class StepVariant {
 public:
  explicit StepVariant(const std::string& golden) : from_(GoldenDirectory() / golden) {
    std::ifstream(from_ / "config.json") >> config;
    std::ifstream file(from_ / "model.safetensors", std::ios::binary);
    for (const TensorInfo& info : ReadSafetensorsHeader(from_ / "model.safetensors")) {
      TensorToWrite& tensor = tensors.emplace_back();
      tensor = {info.name, info.dtype_name, info.shape, std::string(info.end - info.begin, '\0')};
      file.seekg(static_cast<std::streamoff>(info.begin));
      file.read(tensor.data.data(), static_cast<std::streamsize>(tensor.data.size()));
    }
    OUTRIDER_CHECK(file.good());
  }

  json config;
  std::vector<TensorToWrite> tensors;

  TensorToWrite& At(const std::string& name) {
    const auto it = std::ranges::find(tensors, name, &TensorToWrite::name);
    OUTRIDER_CHECK(it != tensors.end(), "no {}", name);
    return *it;
  }
  void Erase(const std::string& name) {
    tensors.erase(tensors.begin() + (&At(name) - tensors.data()));
  }
  void Rename(const std::function<std::string(std::string)>& renamed) {
    for (TensorToWrite& tensor : tensors) tensor.name = renamed(tensor.name);
  }

  /// Stacks of experts become tensors of their own: `between` stands behind "moe.".
  void SplitExperts(const std::string& between) {
    std::vector<TensorToWrite> split;
    for (const TensorToWrite& tensor : tensors) {
      if (tensor.shape.size() != 3) {
        split.push_back(tensor);
        continue;
      }
      const size_t at = tensor.name.find(".moe.") + 5;
      const size_t bytes = tensor.data.size() / static_cast<size_t>(tensor.shape[0]);
      for (int64_t e = 0; e < tensor.shape[0]; ++e) {
        split.push_back({fmt::format("{}{}{}.{}", tensor.name.substr(0, at), between, e,
                                     tensor.name.substr(at)),
                         tensor.dtype,
                         {tensor.shape[1], tensor.shape[2]},
                         tensor.data.substr(static_cast<size_t>(e) * bytes, bytes)});
      }
    }
    tensors = std::move(split);
  }

  /// The config of a multimodal model around this one, which has other tensors too.
  void Wrap() {
    json outer = {{"model_type", "step3p7"},
                  {"architectures", {"Step3p7ForConditionalGeneration"}},
                  {"vision_config", {{"width", 8}}}};
    if (config.contains("quantization_config")) {
      outer["quantization_config"] = config["quantization_config"];
      config.erase("quantization_config");
    }
    outer["text_config"] = config;
    config = outer;
    for (const char* name : {"vision_model.conv1.weight", "vit_large_projector.weight"}) {
      tensors.push_back({name, "F32", {2}, test_checkpoints::Bytes(std::vector<float>{1, 2})});
    }
  }

  const std::filesystem::path& Write() {
    std::ofstream(path() / "config.json") << config;
    test_checkpoints::WriteSafetensors(path() / "model.safetensors", tensors);
    std::error_code ignored;
    std::filesystem::create_symlink(from_ / "golden.safetensors", path() / "golden.safetensors",
                                    ignored);
    return path();
  }
  const std::filesystem::path& path() const { return directory_.path(); }

  std::string LoadError() {
    return ErrorOf([&] { LoadedModel(Write(), DType::kF32, SelectIsa(), 1, KvCacheForm::kHeads); });
  }

 private:
  std::filesystem::path from_;
  TemporaryDirectory directory_;
};

std::string WithPrefix(std::string name, const std::string& trunk, const std::string& head) {
  if (name.starts_with("model.")) return trunk + name.substr(6);
  if (name.starts_with("lm_head.")) return head + name;
  return name;
}

class Step3p5NamesTest : public ::testing::TestWithParam<const char*> {
 protected:
  static constexpr const char* kNothing = "nothing was thrown";

  /// Compares bits of the target and the modules with the original's, in float32 and bfloat16.
  static void ExpectSameBits(StepVariant& variant) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      Step3p5Golden original(GoldenDirectory() / GetParam(), dtype);
      Step3p5Golden other(variant.Write(), dtype);
      ASSERT_EQ(other.network().num_mtp_modules(), 3);
      const auto a = original.Logits(0, {});
      const auto b = other.Logits(0, {});
      ASSERT_EQ(a.size(), 4U);
      ASSERT_EQ(b.size(), 4U);
      for (size_t i = 0; i < a.size(); ++i) {
        ASSERT_EQ(a[i].size(), b[i].size());
        EXPECT_EQ(std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)), 0) << i;
      }
    }
  }
};

TEST_P(Step3p5NamesTest, ExpertsOfTheirOwn) {
  for (const char* between : {"experts.", ""}) {
    StepVariant variant(GetParam());
    variant.SplitExperts(between);
    ExpectSameBits(variant);
  }
}

// As published, as transformers saves it, and as converted.
TEST_P(Step3p5NamesTest, InsideOfAMultimodalModel) {
  const std::vector<std::pair<std::string, std::string>> forms = {
      {"model.", ""}, {"model.language_model.", ""}, {"language_model.model.", "language_model."}};
  for (const auto& form : forms) {
    StepVariant variant(GetParam());
    variant.Rename(
        [&](const std::string& name) { return WithPrefix(name, form.first, form.second); });
    variant.Wrap();
    ExpectSameBits(variant);
  }
}

TEST_P(Step3p5NamesTest, ATextModelUnderAPrefix) {
  StepVariant variant(GetParam());
  variant.Rename([](const std::string& name) {
    return WithPrefix(name, "language_model.model.", "language_model.");
  });
  ExpectSameBits(variant);
}

// Lists with an element more than there are layers and modules are cut, as in published code.
TEST_P(Step3p5NamesTest, ListsLongerThanLayersAndModules) {
  StepVariant variant(GetParam());
  for (const char* key : {"layer_types", "rope_theta", "partial_rotary_factors", "swiglu_limits"}) {
    variant.config[key].push_back(variant.config[key][0]);
  }
  ExpectSameBits(variant);
}

TEST_P(Step3p5NamesTest, ExpertsThatDoNotFitAreNamed) {
  const std::string layer = "model.layers.1.moe.";
  const auto error = [&](const std::function<void(StepVariant&)>& change) {
    StepVariant variant(GetParam());
    const TensorToWrite stack = variant.At(layer + "gate_proj.weight");
    variant.SplitExperts("experts.");
    EXPECT_EQ(variant.LoadError(), kNothing);
    change(variant);
    return variant.LoadError();
  };
  const std::string fourth = layer + "experts.3.up_proj.weight";
  EXPECT_THAT(error([&](StepVariant& v) { v.Erase(fourth); }), HasSubstr("1 missing: " + fourth));
  EXPECT_THAT(error([&](StepVariant& v) {
                TensorToWrite more = v.At(fourth);
                more.name = layer + "experts.8.up_proj.weight";
                v.tensors.push_back(more);
              }),
              HasSubstr("unexpected: " + layer + "experts.8.up_proj.weight"));
  EXPECT_THAT(error([&](StepVariant& v) { v.At(fourth).shape = {48, 16}; }),
              HasSubstr("of another shape: " + fourth + " is [48, 16], not [16, 48]"));
  // A stack beside tensors of their own.
  StepVariant both(GetParam());
  const TensorToWrite stack = both.At(layer + "gate_proj.weight");
  both.SplitExperts("experts.");
  both.tensors.push_back(stack);
  EXPECT_THAT(
      both.LoadError(),
      AllOf(HasSubstr("2 missing: " + layer + "up_proj.weight, " + layer + "down_proj.weight"),
            HasSubstr("unexpected: " + layer + "experts.0.down_proj.weight")));
  // None at all.
  StepVariant none(GetParam());
  none.Erase(layer + "gate_proj.weight");
  EXPECT_THAT(none.LoadError(), HasSubstr("missing: " + layer + "gate_proj.weight"));
}

TEST_P(Step3p5NamesTest, NamesInMessagesAreThoseOfTheFiles) {
  StepVariant variant(GetParam());
  variant.Rename(
      [](const std::string& name) { return WithPrefix(name, "model.language_model.", ""); });
  variant.Wrap();
  variant.Erase("model.language_model.layers.1.input_layernorm.weight");
  TensorToWrite more = variant.At("model.language_model.norm.weight");
  more.name = "model.language_model.layers.1.more.weight";
  variant.tensors.push_back(more);
  variant.At("lm_head.weight").shape = {48, 264};
  EXPECT_THAT(variant.LoadError(),
              AllOf(HasSubstr("missing: model.language_model.layers.1.input_layernorm.weight"),
                    HasSubstr("unexpected: model.language_model.layers.1.more.weight"),
                    HasSubstr("lm_head.weight is [48, 264], not [264, 48]")));
  StepVariant twice(GetParam());
  TensorToWrite norm = twice.At("model.norm.weight");
  norm.name = "language_model.model.norm.weight";
  twice.Wrap();
  twice.Rename(
      [](const std::string& name) { return WithPrefix(name, "model.language_model.", ""); });
  twice.tensors.push_back(norm);
  EXPECT_THAT(twice.LoadError(), HasSubstr("holds both language_model.model.norm.weight and "
                                           "model.language_model.norm.weight"));
}

TEST_P(Step3p5NamesTest, ModulesCountedAsLayersAreAnError) {
  StepVariant variant(GetParam());
  const auto layers = variant.config["num_hidden_layers"].get<int>();
  variant.config["num_hidden_layers"] = layers + 3;
  for (const char* key : {"layer_types", "rope_theta", "partial_rotary_factors", "swiglu_limits",
                          "swiglu_limits_shared"}) {
    json& list = variant.config[key];
    for (int i = 0; i < 3; ++i) list.push_back(list.back());
  }
  EXPECT_THAT(variant.LoadError(),
              HasSubstr(fmt::format("layer {} has an eh_proj.weight, so it is an MTP module, but "
                                    "\"num_hidden_layers\" of config.json is {}",
                                    layers, layers + 3)));
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, Step3p5NamesTest,
                         ::testing::Values("tiny-step3p5", "tiny-step3p5-fp8"),
                         [](const auto& test) {
                           return std::string(test.param) == "tiny-step3p5" ? "Bfloat16" : "Fp8";
                         });

}  // namespace
}  // namespace outrider
