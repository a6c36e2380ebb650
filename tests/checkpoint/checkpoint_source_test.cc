// Checkpoints opened from disk: every format, and every way to be broken. One case per fault makes
// it long.
#include <gmock/gmock.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>

#include "outrider/base/dtype.h"
#include "outrider/checkpoint/safetensors.h"
#include "outrider/checkpoint/weight_source.h"
#include "tests/checkpoint/checkpoint_writer.h"
#include "tests/source_directory.h"
#include "tests/temporary_directory.h"

namespace outrider {
namespace {

using nlohmann::json;
using test_checkpoints::Bytes;
using test_checkpoints::ErrorOf;
using test_checkpoints::TensorToWrite;
using test_checkpoints::WriteFile;
using test_checkpoints::WriteSafetensors;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const std::filesystem::path kTiny = SourceDirectory() / "models/tiny-v3-mtp3";

ModelConfig Fp8Config(int64_t block_rows = 128, int64_t block_cols = 128) {
  ModelConfig config;
  config.quantization.method = "fp8";
  config.quantization.block_rows = block_rows;
  config.quantization.block_cols = block_cols;
  return config;
}

constexpr auto kNothing = [](std::string_view) { return false; };

std::vector<float> ReadAll(const WeightTensor& tensor) {
  std::vector<float> values(tensor.rows() * tensor.cols());
  tensor.ReadRows(0, tensor.rows(), values.data());
  return values;
}

/// e4m3fn by its definition: sign, four exponent bits with bias 7, three fraction bits.
double Fp8Value(uint8_t bits) {
  const int exponent = (bits >> 3) & 15;
  const int fraction = bits & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

/// The bytes of a tensor of the bundled model, read without the code under test, except for where
/// they are.
template <typename T>
std::vector<T> RawTensor(const std::string& name) {
  for (const char* file :
       {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}) {
    for (const TensorInfo& info : ReadSafetensorsHeader(kTiny / file)) {
      if (info.name != name) continue;
      std::vector<T> values((info.end - info.begin) / sizeof(T));
      std::ifstream in(kTiny / file, std::ios::binary);
      in.seekg(static_cast<std::streamoff>(info.begin));
      in.read(reinterpret_cast<char*>(values.data()),
              static_cast<std::streamsize>(values.size() * sizeof(T)));
      return values;
    }
  }
  ADD_FAILURE() << "no tensor " << name;
  return {};
}

class TinyModelTest : public ::testing::Test {
 protected:
  const ModelConfig config_ = ReadModelConfig(kTiny);
  const std::unique_ptr<WeightSource> source_ = OpenCheckpoint(kTiny, config_);
};

TEST_F(TinyModelTest, HasItsTensors) {
  EXPECT_TRUE(source_->Has("lm_head.weight"));
  EXPECT_TRUE(source_->Has("model.layers.7.eh_proj.weight"));
  EXPECT_FALSE(source_->Has("model.layers.8.eh_proj.weight"));
  EXPECT_FALSE(source_->Has("model.layers.0.mlp.gate_proj.weight_scale_inv"));
  EXPECT_EQ(CountMtpLayers(*source_, config_), 3);
}

TEST_F(TinyModelTest, CountsMtpLayersThatTheConfigDoesNotDeclare) {
  ModelConfig config = config_;
  config.num_nextn_predict_layers = 0;
  EXPECT_EQ(CountMtpLayers(*source_, config), 3);
  config.tensor_prefix = "language_model.";
  EXPECT_EQ(CountMtpLayers(*source_, config), 0);
}

TEST_F(TinyModelTest, EveryFp8TensorEqualsAnIndependentComputation) {
  int checked = 0;
  for (const std::string& name : source_->names()) {
    const auto raw = [&] {
      for (const char* file :
           {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}) {
        for (const TensorInfo& info : ReadSafetensorsHeader(kTiny / file)) {
          if (info.name == name) return info;
        }
      }
      return TensorInfo{};
    }();
    if (raw.dtype != DType::kF8E4M3 || checked == 12) continue;
    ++checked;
    const auto tensor = source_->Open({name, raw.shape});
    EXPECT_TRUE(tensor->exact_in_bfloat16());
    EXPECT_EQ(tensor->stored_dtype(), DType::kF8E4M3);
    const std::vector<float> values = ReadAll(*tensor);
    const std::vector<uint8_t> bytes = RawTensor<uint8_t>(name);
    const std::vector<float> scales = RawTensor<float>(name + "_scale_inv");
    EXPECT_EQ(tensor->stored_bytes(), bytes.size() + 4 * scales.size());
    const int64_t cols = raw.shape[1];
    for (int64_t i = 0; i < raw.shape[0] * cols; ++i) {
      const int64_t scale = i / cols / 128 * ((cols + 127) / 128) + i % cols / 128;
      ASSERT_EQ(values[i], Fp8Value(bytes[i]) * scales[scale]) << name << " element " << i;
      ASSERT_EQ(values[i], RoundToBFloat16(values[i]));
    }
  }
  EXPECT_EQ(checked, 12);
}

TEST_F(TinyModelTest, ReadsBfloat16AndFloat32) {
  const std::string name = "model.layers.6.eh_proj.weight";
  const auto tensor = source_->Open({name, {256, 512}});
  EXPECT_TRUE(tensor->exact_in_bfloat16());
  const std::vector<uint16_t> bits = RawTensor<uint16_t>(name);
  const std::vector<float> values = ReadAll(*tensor);
  for (size_t i = 0; i < bits.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), uint32_t{bits[i]} << 16);
  }
  std::vector<BFloat16> rows(3 * 512);
  tensor->ReadBFloat16(7, 3, rows.data());
  EXPECT_EQ(std::memcmp(rows.data(), bits.data() + 7 * 512, rows.size() * sizeof(BFloat16)), 0);
  const std::string bias = "model.layers.7.mlp.gate.e_score_correction_bias";
  const auto vector = source_->Open({bias, {8}});
  EXPECT_EQ(vector->rows(), 1);
  EXPECT_EQ(vector->cols(), 8);
  EXPECT_FALSE(vector->exact_in_bfloat16());
  EXPECT_EQ(ReadAll(*vector), RawTensor<float>(bias));
  std::vector<BFloat16> rounded(8);
  vector->ReadBFloat16(0, 1, rounded.data());
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(rounded[i].bits, ToBFloat16(RawTensor<float>(bias)[i]).bits);
  }
}

TEST_F(TinyModelTest, AnyRangeOfRowsAndAnyThread) {
  const auto tensor =
      source_->Open({"model.layers.0.self_attn.kv_a_proj_with_mqa.weight", {576, 256}});
  const std::vector<float> whole = ReadAll(*tensor);
  std::vector<std::thread> threads;
  std::vector<int> equal(4, 0);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<float> part;
      bool all = true;
      for (int64_t first = t; first < 576; first += 37) {
        const int64_t count = std::min<int64_t>(576 - first, 131);
        part.assign(count * 256, NAN);
        tensor->ReadRows(first, count, part.data());
        all &= std::equal(part.begin(), part.end(), whole.begin() + first * 256);
      }
      equal[t] = all ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(equal, ::testing::Each(1));
  std::vector<float> none;
  tensor->ReadRows(576, 0, none.data());
}

TEST_F(TinyModelTest, ATensorOutlivesItsSource) {
  auto source = OpenCheckpoint(kTiny, config_);
  const auto tensor = source->Open({"model.norm.weight", {256}});
  source.reset();
  EXPECT_THAT(ReadAll(*tensor), Not(::testing::Contains(0.0F)));
}

/// A directory with one model.safetensors.
class Checkpoint {
 public:
  explicit Checkpoint(const std::vector<TensorToWrite>& tensors) {
    WriteSafetensors(directory_.path() / "model.safetensors", tensors);
  }
  std::unique_ptr<WeightSource> Open(const ModelConfig& config) const {
    return OpenCheckpoint(directory_.path(), config);
  }
  const std::filesystem::path& path() const { return directory_.path(); }

 private:
  TemporaryDirectory directory_;
};

TEST(CheckpointTest, RaggedFp8BlocksOfAnySize) {
  std::mt19937 random(1);
  const int64_t rows = 7;
  const int64_t cols = 11;
  std::string bytes(rows * cols, '\0');
  for (char& byte : bytes) {
    do byte = static_cast<char>(random());
    while ((byte & 0x7f) == 0x7f);
  }
  std::vector<float> scales(4 * 3);  // blocks of 2 x 4
  for (float& scale : scales) scale = static_cast<float>(random() % 1000) / 777.0F;
  const Checkpoint checkpoint({{"a.weight", "F8_E4M3", {rows, cols}, bytes},
                               {"a.weight_scale_inv", "F32", {4, 3}, Bytes(scales)}});
  const auto tensor = checkpoint.Open(Fp8Config(2, 4))->Open({"a.weight", {rows, cols}});
  EXPECT_FALSE(tensor->exact_in_bfloat16());
  const std::vector<float> values = ReadAll(*tensor);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const double exact = Fp8Value(bytes[r * cols + c]) * double{scales[r / 2 * 3 + c / 4]};
      EXPECT_EQ(values[r * cols + c], static_cast<float>(exact));
    }
  }
}

TEST(CheckpointTest, Fp8BlocksWithE8m0Scales) {
  const std::string codes = "\x31\xb8\x7e\x01";
  const Checkpoint checkpoint({{"a.weight", "F8_E4M3", {2, 2}, codes},
                               {"a.scale", "F8_E8M0", {1, 2}, std::string{'\x7f', '\x7c'}}});
  const auto source = checkpoint.Open(Fp8Config(128, 1));
  EXPECT_THAT(source->names(), ElementsAre("a.weight"));
  const auto tensor = source->Open({"a.weight", {2, 2}});
  EXPECT_EQ(tensor->stored_bytes(), 4 + 2);
  EXPECT_TRUE(tensor->exact_in_bfloat16());
  EXPECT_THAT(ReadAll(*tensor), ElementsAre(1.125F * 0.5F, -1.0F / 8, 448.0F, 0x1p-9F / 8));
}

/// Two rows of 64 codes, which count up, and a scale for each half of a row.
Checkpoint Fp4Checkpoint(const std::string& scales, std::vector<int64_t> scales_shape = {2, 2}) {
  std::string codes(64, '\0');
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<char>(i * 37);
  return Checkpoint({{"e.weight", "I8", {2, 32}, codes},
                     {"e.scale", "F8_E8M0", std::move(scales_shape), scales}});
}

TEST(CheckpointTest, Fp4PairsWithE8m0Scales) {
  const Checkpoint checkpoint = Fp4Checkpoint({'\x02', '\x79', '\x85', '\xfc'});
  const auto source = checkpoint.Open(Fp8Config());
  EXPECT_THAT(source->names(), ElementsAre("e.weight"));
  const std::vector<ExpectedTensor> expected = {{"e.weight", {2, 64}}};
  source->Check(expected, kNothing);
  const auto tensor = source->Open(expected[0]);
  EXPECT_EQ(tensor->stored_dtype(), DType::kF4E2M1);
  EXPECT_EQ(tensor->stored_bytes(), 64 + 4);
  EXPECT_TRUE(tensor->exact_in_bfloat16());
  const std::vector<float> values = ReadAll(*tensor);
  const double levels[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const double scales[] = {0x1p-125, 0x1p-6, 0x1p6, 0x1p125};
  std::vector<uint8_t> codes(32);
  tensor->ReadCodes(1, 1, codes.data());
  for (size_t i = 0; i < 128; ++i) {
    const auto pair = static_cast<uint8_t>(i / 2 * 37);
    if (i >= 64) {
      EXPECT_EQ(codes[(i - 64) / 2], pair);
    }
    const int code = i % 2 == 0 ? pair & 15 : pair >> 4;
    const double value = levels[code & 7] * scales[i / 32] * (code >= 8 ? -1 : 1);
    EXPECT_EQ(values[i], static_cast<float>(value)) << i;
    EXPECT_EQ(values[i], RoundToBFloat16(values[i])) << i;
  }
  std::vector<float> second(64);
  tensor->ReadRows(1, 1, second.data());
  EXPECT_TRUE(std::equal(second.begin(), second.end(), values.begin() + 64));
}

TEST(CheckpointTest, Fp4NeedsAScaleForEvery32ColumnsAndSaneOnes) {
  const auto open = [](const Checkpoint& checkpoint) {
    return ErrorOf([&] {
      const auto tensor = checkpoint.Open(Fp8Config())->Open({"e.weight", {2, 64}});
      ReadAll(*tensor);
    });
  };
  EXPECT_THAT(open(Fp4Checkpoint("abcd", {4, 1})),
              HasSubstr("e.weight (scales are [4, 1], not one for every 32 columns of [2, 64])"));
  EXPECT_THAT(open(Fp4Checkpoint({'\x7f', '\x7f', '\x7f', '\xff'})),
              HasSubstr("e.scale holds a NaN in row 1, column 1"));
  EXPECT_THAT(open(Fp4Checkpoint({'\x7f', '\x01', '\x7f', '\x7f'})),
              HasSubstr("e.scale holds 2^-126 in row 0, column 1; 2^-125 to 2^125 can be read"));
  EXPECT_THAT(open(Checkpoint({{"e.weight", "I8", {2, 64}, std::string(128, '\0')}})),
              HasSubstr("tensor e.weight is \"I8\""))
      << "bytes without scales are none of the types";
}

// compressed-tensors gives groups of zeros the scales 2^-127 and 2^-126.
TEST(CheckpointTest, GroupsOfZerosMayHaveAnyFiniteScale) {
  for (const char scale : {'\x00', '\x01', '\xfd', '\xfe'}) {
    std::string codes(64, '\x35');
    for (int i = 16; i < 32; ++i) codes[i] = i % 2 == 0 ? '\x80' : '\x08';  // zeros, with signs
    const auto open = [&] {
      return Checkpoint(
                 {{"e.weight", "I8", {2, 32}, codes},
                  {"e.scale", "F8_E8M0", {2, 2}, std::string{'\x7f', scale, '\x7f', '\x7f'}}})
          .Open(Fp8Config())
          ->Open({"e.weight", {2, 64}});
    };
    const std::vector<float> values = ReadAll(*open());
    EXPECT_EQ(values[31], 1.5F);
    for (int i = 32; i < 64; ++i) EXPECT_EQ(values[i], 0.0F);
    codes[20] = '\x10';
    EXPECT_THAT(ErrorOf([&] { ReadAll(*open()); }),
                HasSubstr("in row 0, column 1; 2^-125 to 2^125 can be read"));
  }
}

// A GPU takes scales relative to the row's largest.
TEST(CheckpointTest, ScalesOfARowMayNotDifferByMoreThanBfloat16Holds) {
  const auto read = [](const std::string& scales, const std::string& codes) {
    return ReadAll(
        *Checkpoint({{"e.weight", "I8", {2, 32}, codes}, {"e.scale", "F8_E8M0", {2, 2}, scales}})
             .Open(Fp8Config())
             ->Open({"e.weight", {2, 64}}));
  };
  const std::string codes(64, '\x35');
  EXPECT_EQ(read("\x7f\x7f\x02\x79", codes)[64 + 32], std::ldexp(3.0F, 0x79 - 127));
  EXPECT_THAT(ErrorOf([&] { read("\x7f\x7f\x02\x7a", codes); }),
              AllOf(HasSubstr("e.scale holds 2^-125 and 2^-5 in row 1; scales of a row that differ "
                              "by up to 2^119 can be read")));
  EXPECT_THAT(ErrorOf([&] { read("\xfc\x02\x7f\x7f", codes); }),
              HasSubstr("e.scale holds 2^-125 and 2^125 in row 0"));
  // Groups of zeros do not count, and leave the others their bits.
  for (const char of_zeros : {'\x01', '\xfc'}) {
    const std::vector<float> values =
        read(std::string("\x7f\x7f\x03") + of_zeros, codes.substr(0, 48) + std::string(16, '\0'));
    EXPECT_EQ(values[64], std::ldexp(3.0F, 3 - 127));
    EXPECT_EQ(values[127], 0.0F);
  }
}

TEST(CheckpointTest, OnlyPowersOfTwoInRangeAreExactInBfloat16) {
  const auto exact = [](std::vector<float> scales, char code = '\x31') {
    const Checkpoint checkpoint({{"a", "F8_E4M3", {1, 256}, std::string(256, code)},
                                 {"a_scale_inv", "F32", {1, 2}, Bytes(scales)}});
    return checkpoint.Open(Fp8Config())->Open({"a", {1, 256}})->exact_in_bfloat16();
  };
  EXPECT_TRUE(exact({1.0F, 0x1p-13F}));
  EXPECT_TRUE(exact({0x1p118F, -0x1p-117F}));
  EXPECT_FALSE(exact({0x1p119F, 1.0F}));
  EXPECT_FALSE(exact({1.0F, 0x1p-118F}));
  EXPECT_FALSE(exact({1.0F, 1.5F}));
  EXPECT_FALSE(exact({1.0F, 0.0F}, '\0'));
}

TEST(CheckpointTest, Float16AndBfloat16Scales) {
  const std::vector<uint16_t> halves = {0x3c00, 0xc000, 0x0001, 0x7bff};  // 1, -2, 2^-24, 65504
  const std::vector<uint16_t> scale = {0x4000};                           // bfloat16 2
  const Checkpoint checkpoint({{"h", "F16", {2, 2}, Bytes(halves)},
                               {"w", "F8_E4M3", {1, 2}, "\x38\x40"},  // 1, 2
                               {"w_scale_inv", "BF16", {1, 1}, Bytes(scale)}});
  const auto source = checkpoint.Open(Fp8Config());
  const auto tensor = source->Open({"h", {2, 2}});
  EXPECT_THAT(ReadAll(*tensor), ElementsAre(1, -2, 0x1p-24F, 65504));
  EXPECT_FALSE(tensor->exact_in_bfloat16());
  EXPECT_THAT(ReadAll(*source->Open({"w", {1, 2}})), ElementsAre(2, 4));
  EXPECT_THAT(source->names(), ElementsAre("h", "w"));
}

TEST(CheckpointTest, RowsLargerThanTheScratchBuffer) {
  const int64_t cols = 300'000;
  std::vector<uint16_t> bits(3 * cols);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i % 0x7f00);
  const Checkpoint checkpoint({{"a", "BF16", {3, cols}, Bytes(bits)}});
  const std::vector<float> values =
      ReadAll(*checkpoint.Open(ModelConfig())->Open({"a", {3, cols}}));
  for (size_t i = 0; i < bits.size(); ++i) ASSERT_EQ(values[i], ToFloat(BFloat16{bits[i]}));
}

TEST(CheckpointTest, ScalarsAndStacks) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6, 7, 8};
  const Checkpoint checkpoint({{"scalar", "F32", {}, Bytes(std::vector<float>{9})},
                               {"stack", "F32", {2, 2, 2}, Bytes(values)}});
  const auto source = checkpoint.Open(ModelConfig());
  EXPECT_THAT(ReadAll(*source->Open({"scalar", {}})), ElementsAre(9));
  const auto stack = source->Open({"stack", {2, 2, 2}});
  EXPECT_EQ(stack->rows(), 4);
  EXPECT_EQ(ReadAll(*stack), values);
}

TEST(CheckpointTest, AMatrixOfAStack) {
  std::mt19937 random(2);
  std::vector<float> values(3 * 5 * 7);
  for (float& value : values) value = static_cast<float>(random() % 100);
  std::string codes(values.size(), '\0');
  for (char& code : codes) code = static_cast<char>(random() % 0x7f);
  std::vector<float> scales(3 * 2 * 2);  // blocks of 4 x 4, of each matrix
  for (float& scale : scales) scale = static_cast<float>(random() % 1000) / 777.0F;
  const Checkpoint checkpoint({{"plain", "F32", {3, 5, 7}, Bytes(values)},
                               {"fp8", "F8_E4M3", {3, 5, 7}, codes},
                               {"fp8_scale_inv", "F32", {3, 2, 2}, Bytes(scales)}});
  const auto source = checkpoint.Open(Fp8Config(4, 4));
  for (int64_t e = 0; e < 3; ++e) {
    const auto plain = source->Open({"plain", {3, 5, 7}, e});
    EXPECT_THAT(plain->shape(), ElementsAre(5, 7));
    EXPECT_EQ(plain->stored_bytes(), 5 * 7 * 4);
    const std::vector<float> read = ReadAll(*plain);
    EXPECT_TRUE(std::equal(read.begin(), read.end(), values.begin() + e * 35));

    const auto fp8 = source->Open({"fp8", {3, 5, 7}, e});
    EXPECT_EQ(fp8->stored_bytes(), 5 * 7 + 4 * 4);
    ASSERT_NE(fp8->block_scales(), nullptr);
    EXPECT_EQ(fp8->block_scales()->values.size(), 4U);
    const std::vector<float> scaled = ReadAll(*fp8);
    for (int64_t r = 0; r < 5; ++r) {
      for (int64_t c = 0; c < 7; ++c) {
        const double exact = Fp8Value(codes[static_cast<size_t>(e * 35 + r * 7 + c)]) *
                             double{scales[static_cast<size_t>(e * 4 + r / 4 * 2 + c / 4)]};
        EXPECT_EQ(scaled[static_cast<size_t>(r * 7 + c)], static_cast<float>(exact));
      }
    }
  }
  // Blocks are cut in each matrix, so the whole stack cannot be read as one.
  EXPECT_THAT(ErrorOf([&] { source->Open({"fp8", {3, 5, 7}}); }),
              HasSubstr("fp8 (only matrices have blocks)"));
}

TEST(CheckpointTest, CheckNamesEverythingInOneError) {
  const Checkpoint checkpoint({{"bad_shape", "F32", {2}, std::string(8, '\0')},
                               {"good", "F32", {2}, std::string(8, '\0')},
                               {"half_scaled", "F8_E4M3", {129, 1}, std::string(129, '\0')},
                               {"half_scaled_scale_inv", "F32", {1, 1}, std::string(4, '\0')},
                               {"ids", "I64", {1}, std::string(8, '\0')},
                               {"int_scaled", "F8_E4M3", {1, 1}, std::string(1, '\0')},
                               {"int_scaled_scale_inv", "I32", {1, 1}, std::string(4, '\0')},
                               {"lonely_scale_inv", "F32", {1}, std::string(4, '\0')},
                               {"odd", "F4", {1}, std::string(1, '\0')},
                               {"rotary.inv_freq", "F32", {1}, std::string(4, '\0')},
                               {"unscaled", "F8_E4M3", {1, 1}, std::string(1, '\0')},
                               {"vector", "F8_E4M3", {1}, std::string(1, '\0')},
                               {"vector_scale_inv", "F32", {1}, std::string(4, '\0')}});
  const std::vector<ExpectedTensor> expected = {{"good", {2}},          {"bad_shape", {1, 2}},
                                                {"gone", {1}},          {"also_gone", {2}},
                                                {"unscaled", {1, 1}},   {"half_scaled", {129, 1}},
                                                {"int_scaled", {1, 1}}, {"ids", {1}},
                                                {"odd", {1}},           {"vector", {1}}};
  const auto source = checkpoint.Open(Fp8Config());
  const std::string message = ErrorOf([&] {
    source->Check(expected, [](std::string_view name) { return name.ends_with("inv_freq"); });
  });
  EXPECT_EQ(message,
            "invalid_argument: " + checkpoint.path().string() +
                ": the tensors do not fit config.json: 2 missing: gone, also_gone; "
                "1 of another shape: bad_shape is [2], not [1, 2]; "
                "2 of a type other than F32, BF16, F16 and F8_E4M3: ids is \"I64\", odd is \"F4\"; "
                "4 of 8 or 4 bits without usable scales: unscaled (no unscaled_scale_inv), "
                "half_scaled (scales are [1, 1], not [2, 1]), "
                "int_scaled (scales are \"I32\", not F32, BF16 or F8_E8M0), "
                "vector (only matrices have blocks); "
                "1 unexpected: lonely_scale_inv");
  const auto open_error = [&](const std::string& name, const std::vector<int64_t>& shape) {
    return ErrorOf([&] { source->Open({name, shape}); });
  };
  EXPECT_THAT(open_error("gone", {1}), HasSubstr(": no tensor gone"));
  EXPECT_THAT(open_error("bad_shape", {1, 2}), HasSubstr(": tensor bad_shape is [2], not [1, 2]"));
  EXPECT_THAT(open_error("ids", {1}),
              HasSubstr(": tensor ids is \"I64\"; F32, BF16, F16 and F8_E4M3 can be read"));
  EXPECT_THAT(
      open_error("unscaled", {1, 1}),
      HasSubstr(
          "tensor is of 8 or 4 bits without usable scales: unscaled (no unscaled_scale_inv)"));
  source->Check(std::vector<ExpectedTensor>{{"good", {2}}}, [](std::string_view) { return true; });
}

TEST(CheckpointTest, LongListsAreCutAndCounted) {
  std::vector<TensorToWrite> tensors;
  for (int i = 0; i < 30; ++i) tensors.push_back({fmt::format("t{:02}", i), "F32", {0}, ""});
  tensors.push_back({"a\\nb", "F32", {0}, ""});  // JSON for a line break in the name
  const Checkpoint checkpoint(tensors);
  const std::string message = ErrorOf([&] { checkpoint.Open(ModelConfig())->Check({}, kNothing); });
  EXPECT_THAT(message, AllOf(HasSubstr("31 unexpected: \"a\\nb\", t00, t01"),
                             HasSubstr("t18 and 11 more"), Not(HasSubstr("t19"))));
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

TEST(CheckpointTest, Fp8NeedsABlockSizeInTheConfig) {
  const Checkpoint checkpoint(
      {{"a", "F8_E4M3", {1, 1}, "x"}, {"a_scale_inv", "F32", {1, 1}, std::string(4, '\0')}});
  EXPECT_THAT(ErrorOf([&] { checkpoint.Open(ModelConfig())->Open({"a", {1, 1}}); }),
              HasSubstr("a (config.json gives no weight_block_size)"));
}

TEST(CheckpointTest, ScalesMustBeFinite) {
  const Checkpoint checkpoint(
      {{"a", "F8_E4M3", {1, 1}, "x"},
       {"a_scale_inv", "F32", {1, 1}, Bytes(std::vector<float>{INFINITY})}});
  EXPECT_THAT(ErrorOf([&] { checkpoint.Open(Fp8Config())->Open({"a", {1, 1}}); }),
              HasSubstr("model.safetensors: a_scale_inv holds a value that is not finite"));
}

// Blocks of zeros may have any scale, as long as their codes are zeros, with either sign.
TEST(CheckpointTest, AScaleOfZeroIsOfZeros) {
  const std::string zeros = std::string(8, '\0') + std::string(8, '\x80');
  std::string codes = zeros + zeros;  // [2, 16], blocks of 1 x 8
  const auto scales = [](std::vector<float> values) {
    return TensorToWrite{"a_scale_inv", "F32", {2, 2}, Bytes(values)};
  };
  const ModelConfig config = Fp8Config(1, 8);
  const auto open = [&](const TensorToWrite& with) {
    const Checkpoint checkpoint({{"a", "F8_E4M3", {2, 16}, codes}, with});
    return ErrorOf([&] { checkpoint.Open(config)->Open({"a", {2, 16}}); });
  };
  EXPECT_EQ(open(scales({0, -0.0F, 1, 0})), "nothing was thrown");
  codes[16 + 15] = 'x';
  EXPECT_EQ(open(scales({0, -0.0F, 0, 1})), "nothing was thrown");
  EXPECT_THAT(open(scales({1, 1, 1, 0})),
              HasSubstr("a_scale_inv holds a scale of zero in row 1, column 1"));
  // One for each row, one for the tensor, stacked matrices.
  const auto of_rows = [&](const std::vector<int64_t>& shape, const std::vector<float>& values) {
    const Checkpoint checkpoint(
        {{"b.weight", "F8_E4M3", {2, 16}, codes}, {"b.weight_scale", "F32", shape, Bytes(values)}});
    return ErrorOf([&] { checkpoint.Open(config)->Open({"b.weight", {2, 16}}); });
  };
  EXPECT_EQ(of_rows({2}, {0, 1}), "nothing was thrown");
  EXPECT_THAT(of_rows({2}, {1, 0}),
              HasSubstr("b.weight_scale holds a scale of zero in row 1, column 0"));
  EXPECT_THAT(of_rows({1}, {0}),
              HasSubstr("b.weight_scale holds a scale of zero in row 0, column 0"));
  const Checkpoint stacked(
      {{"c", "F8_E4M3", {2, 1, 16}, codes},
       {"c_scale_inv", "F32", {2, 1, 2}, Bytes(std::vector<float>{0, 0, 1, 0})}});
  const auto source = stacked.Open(config);
  source->Open({.name = "c", .shape = {2, 1, 16}, .index = 0});
  EXPECT_THAT(ErrorOf([&] { source->Open({.name = "c", .shape = {2, 1, 16}, .index = 1}); }),
              HasSubstr("c_scale_inv holds a scale of zero in row 1, column 1"));
}

TEST(CheckpointTest, OtherQuantizationsAreRefusedByName) {
  ModelConfig config;
  config.quantization.method = "bitsandbytes";
  EXPECT_THAT(ErrorOf([&] { OpenCheckpoint(kTiny, config); }),
              HasSubstr("quantization \"bitsandbytes\" cannot be loaded: \"fp8\" (with "
                        "weight_block_size), \"compressed-tensors\" and \"modelopt\" can, and "
                        "none"));
}

TEST(CheckpointTest, NoWeights) {
  const TemporaryDirectory directory;
  EXPECT_EQ(ErrorOf([&] { OpenCheckpoint(directory.path(), ModelConfig()); }),
            "not_found: " + directory.path().string() +
                ": has neither model.safetensors nor model.safetensors.index.json");
}

TEST(CheckpointTest, AFileCutOffAfterItsHeaderWasRead) {
  const Checkpoint checkpoint({{"a", "F32", {1000}, std::string(4000, '\0')}});
  const auto tensor = checkpoint.Open(ModelConfig())->Open({"a", {1000}});
  std::filesystem::resize_file(checkpoint.path() / "model.safetensors", 1000);
  EXPECT_THAT(ErrorOf([&] { ReadAll(*tensor); }),
              HasSubstr("model.safetensors: ends at byte 1000, "));
}

/// A directory with two shards, a [2] in one.safetensors and b [1] in two.safetensors, and an
/// index.
class ShardTest : public ::testing::Test {
 protected:
  ShardTest() {
    WriteSafetensors(path() / "one.safetensors",
                     {{"a", "F32", {2}, Bytes(std::vector<float>{1, 2})}});
    WriteSafetensors(path() / "two.safetensors", {{"b", "F32", {1}, Bytes(std::vector<float>{3})},
                                                  {"c", "F32", {1}, std::string(4, '\0')}});
  }
  const std::filesystem::path& path() const { return directory_.path(); }
  std::unique_ptr<WeightSource> OpenWith(const json& weight_map) const {
    WriteFile(path() / "model.safetensors.index.json",
              json{{"metadata", {{"total_size", 12}}}, {"weight_map", weight_map}}.dump());
    return OpenCheckpoint(path(), ModelConfig());
  }
  std::string ErrorOfMap(const json& weight_map) const {
    return ErrorOf([&] { OpenWith(weight_map); });
  }

 private:
  TemporaryDirectory directory_;
};

TEST_F(ShardTest, TensorsComeFromTheFilesOfTheIndex) {
  const auto source = OpenWith({{"a", "one.safetensors"}, {"b", "two.safetensors"}});
  EXPECT_THAT(ReadAll(*source->Open({"a", {2}})), ElementsAre(1, 2));
  EXPECT_THAT(ReadAll(*source->Open({"b", {1}})), ElementsAre(3));
  EXPECT_THAT(source->names(), ElementsAre("a", "b"));  // c is not in the index
}

TEST_F(ShardTest, MissingFilesAreListed) {
  EXPECT_EQ(ErrorOfMap({{"a", "x.safetensors"}, {"b", "y.safetensors"}, {"c", "two.safetensors"}}),
            "not_found: " + path().string() +
                ": files that model.safetensors.index.json names are missing: x.safetensors, "
                "y.safetensors");
}

TEST_F(ShardTest, ATensorThatIsNotInItsFile) {
  EXPECT_THAT(ErrorOfMap({{"b", "one.safetensors"}}),
              HasSubstr("one.safetensors: has no tensor \"b\", which model.safetensors.index.json "
                        "says it has"));
}

TEST_F(ShardTest, PathsThatLeaveTheDirectory) {
  for (const std::string& name :
       {std::string("../one.safetensors"), std::string("/etc/passwd"), std::string(""),
        std::string("x/../../one.safetensors"), std::string("one.safetensors\0x", 17)}) {
    EXPECT_THAT(ErrorOfMap({{"a", name}}),
                HasSubstr("for tensor \"a\"; a file in the same directory is needed"));
  }
}

TEST_F(ShardTest, BrokenIndexes) {
  EXPECT_THAT(ErrorOfMap({{"a", 3}}),
              HasSubstr("weight_map gives 3 for tensor \"a\", not a file name"));
  EXPECT_THAT(ErrorOfMap(json::object()), HasSubstr("needs an object \"weight_map\""));
  EXPECT_THAT(ErrorOfMap(json::array()), HasSubstr("needs an object \"weight_map\""));
  const std::filesystem::path index = path() / "model.safetensors.index.json";
  WriteFile(index, "[]");
  EXPECT_THAT(ErrorOf([&] { OpenCheckpoint(path(), ModelConfig()); }),
              HasSubstr("needs an object \"weight_map\""));
  WriteFile(index, "{");
  EXPECT_THAT(ErrorOf([&] { OpenCheckpoint(path(), ModelConfig()); }),
              HasSubstr("index.json: not valid JSON at line 1, column 2"));
  WriteFile(index, std::string(10000, '['));
  EXPECT_THAT(ErrorOf([&] { OpenCheckpoint(path(), ModelConfig()); }),
              HasSubstr("is nested more than 64 levels deep"));
}

TEST_F(ShardTest, TheIndexCountsBesideASingleFile) {
  WriteSafetensors(path() / "model.safetensors", {{"z", "F32", {0}, ""}});
  EXPECT_THAT(OpenWith({{"a", "one.safetensors"}})->names(), ElementsAre("a"));
  EXPECT_THAT(OpenWith({{"z", "model.safetensors"}})->names(), ElementsAre("z"));
  EXPECT_THAT(ErrorOf([&] { OpenWith({{"a", "gone.safetensors"}}); }),
              HasSubstr("files that model.safetensors.index.json names are missing: "
                        "gone.safetensors; model.safetensors is there, and counts where there is "
                        "no index"));
}

}  // namespace
}  // namespace outrider
