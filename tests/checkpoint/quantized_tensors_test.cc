// Weights of compressed-tensors, ModelOpt and DeepSeek-V4 with 4 and 8 bits: what their tensors
// stand for, and what is refused.
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "outrider/base/dtype.h"
#include "outrider/checkpoint/weight_source.h"
#include "tests/checkpoint/checkpoint_writer.h"
#include "tests/temporary_directory.h"

namespace outrider {
namespace {

using test_checkpoints::Bytes;
using test_checkpoints::ErrorOf;
using test_checkpoints::TensorToWrite;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class QuantizedTensorsTest : public ::testing::Test {
 protected:
  std::unique_ptr<WeightSource> Open(const std::vector<TensorToWrite>& tensors) const {
    test_checkpoints::WriteSafetensors(directory_.path() / "model.safetensors", tensors);
    ModelConfig config;
    config.quantization.method = "compressed-tensors";
    return OpenCheckpoint(directory_.path(), config);
  }

  /// The values of NAME.weight, a.weight, in a checkpoint of these tensors.
  std::vector<float> Values(const std::vector<TensorToWrite>& tensors, int64_t rows,
                            int64_t cols) const {
    const auto source = Open(tensors);
    source->Check(std::vector<ExpectedTensor>{{"a.weight", {rows, cols}}},
                  [](std::string_view) { return false; });
    const auto tensor = source->Open({"a.weight", {rows, cols}});
    std::vector<float> values(static_cast<size_t>(rows * cols));
    tensor->ReadRows(0, rows, values.data());
    std::vector<float> one(static_cast<size_t>(cols));
    for (int64_t r = 0; r < rows; ++r) {  // rows alone are the same
      tensor->ReadRows(r, 1, one.data());
      EXPECT_TRUE(std::equal(one.begin(), one.end(), values.begin() + r * cols));
    }
    return values;
  }

  /// What Check says about a.weight [rows, cols] of these tensors.
  std::string Problem(const std::vector<TensorToWrite>& tensors, int64_t rows, int64_t cols) const {
    const auto source = Open(tensors);
    return ErrorOf([&] {
      source->Check(std::vector<ExpectedTensor>{{"a.weight", {rows, cols}}},
                    [](std::string_view) { return false; });
      source->Open({"a.weight", {rows, cols}});
    });
  }

  const TemporaryDirectory directory_;
};

TensorToWrite WithShape(TensorToWrite tensor, std::vector<int64_t> shape) {
  tensor.shape = std::move(shape);
  return tensor;
}

TensorToWrite Words(int64_t rows, int64_t words) {
  std::vector<uint32_t> data(static_cast<size_t>(rows * words));
  for (size_t i = 0; i < data.size(); ++i) data[i] = i % 2 == 0 ? 0x76543210 : 0xfedcba98;
  return {"a.weight_packed", "I32", {rows, words}, Bytes(data)};
}

TensorToWrite BFloat16Scales(std::vector<int64_t> shape, const std::vector<float>& scales) {
  std::vector<uint16_t> data;
  for (const float scale : scales) data.push_back(ToBFloat16(scale).bits);
  return {"a.weight_scale", "BF16", std::move(shape), Bytes(data)};
}

TEST_F(QuantizedTensorsTest, Int4) {
  const TensorToWrite shape = {"a.weight_shape", "I64", {2}, Bytes(std::vector<int64_t>{2, 64})};
  const std::vector<float> values =
      Values({Words(2, 8), BFloat16Scales({2, 2}, {1, 0.5F, 3, -2}), shape}, 2, 64);
  const float scales[] = {1, 0.5F, 3, -2};
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(values[i], (static_cast<int>(i % 16) - 8) * scales[i / 32]) << i;
  }
  // One scale for all 64 columns, a shape of I32, and none.
  const std::vector<TensorToWrite> wide = {Words(2, 8), BFloat16Scales({2, 1}, {2, 4})};
  const std::vector<float> of_64 = Values(wide, 2, 64);
  for (size_t i = 0; i < of_64.size(); ++i) {
    EXPECT_EQ(of_64[i], static_cast<float>((static_cast<int>(i % 16) - 8) * (i < 64 ? 2 : 4)));
  }
  std::vector<TensorToWrite> with_shape = wide;
  with_shape.push_back({"a.weight_shape", "I32", {2}, Bytes(std::vector<int32_t>{2, 64})});
  EXPECT_EQ(Values(with_shape, 2, 64), of_64);
  const auto tensor = Open(wide)->Open({"a.weight", {2, 64}});
  EXPECT_EQ(tensor->stored_dtype(), DType::kI4);
  EXPECT_EQ(tensor->stored_bytes(), 64 + 4);
  EXPECT_FALSE(tensor->exact_in_bfloat16());
  ASSERT_NE(tensor->group_scales(), nullptr);
  EXPECT_EQ(tensor->group_scales()->cols, 32);
  EXPECT_EQ(tensor->group_scales()->stored_cols, 64);
}

TEST_F(QuantizedTensorsTest, WhatIsNoInt4) {
  const TensorToWrite words = Words(2, 8);
  const TensorToWrite scales = BFloat16Scales({2, 2}, {1, 1, 1, 1});
  EXPECT_THAT(Problem({words}, 2, 64), HasSubstr("a.weight_packed (no a.weight_scale)"));
  EXPECT_THAT(Problem({words, {"a.weight_scale", "F16", {2, 2}, std::string(8, '\0')}}, 2, 64),
              HasSubstr("a.weight_packed (scales are \"F16\"; BF16 is needed)"));
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{1, 4}, {4}, {4, 1}, {2, 2, 1}}) {
    EXPECT_THAT(Problem({words, WithShape(scales, shape)}, 2, 64),
                HasSubstr("not one for every 32 or a multiple of it columns of [2, 64])"));
  }
  EXPECT_THAT(Problem({words, BFloat16Scales({2, 4}, std::vector<float>(8, 1))}, 2, 64),
              HasSubstr("(scales are [2, 4], not one for every 32"));
  EXPECT_THAT(
      Problem({words, scales, {"a.weight_zero_point", "I32", {1, 2}, std::string(8, '\0')}}, 2, 64),
      HasSubstr("(it has zero points; symmetric INT4 without them can be read)"));
  EXPECT_THAT(
      Problem({words, scales, {"a.weight_g_idx", "I32", {64}, std::string(256, '\0')}}, 2, 64),
      HasSubstr("(its columns are reordered by activation; INT4 in order can be read)"));
  EXPECT_THAT(Problem({words, scales}, 2, 32),
              HasSubstr("a.weight_packed is [2, 64], not [2, 32]"));
  EXPECT_THAT(
      Problem({words, scales, {"a.weight_shape", "I64", {2}, Bytes(std::vector<int64_t>{2, 63})}},
              2, 64),
      HasSubstr("a.weight_shape is not [2, 64], the shape of a.weight_packed"));
  EXPECT_THAT(
      Problem(
          {words, scales, {"a.weight_shape", "I64", {3}, Bytes(std::vector<int64_t>{2, 64, 1})}}, 2,
          64),
      HasSubstr("a.weight_shape is not [2, 64]"));
  const auto infinite =
      Open({words, BFloat16Scales({2, 2}, {1, 1, INFINITY, 1})})->Open({"a.weight", {2, 64}});
  std::vector<float> values(128);
  EXPECT_THAT(ErrorOf([&] { infinite->ReadRows(0, 2, values.data()); }),
              HasSubstr("a.weight_scale holds a value that is not finite in row 1, column 0"));
  infinite->ReadRows(0, 1, values.data());
  const auto nan =
      Open({words, BFloat16Scales({2, 2}, {1, NAN, 1, 1})})->Open({"a.weight", {2, 64}});
  EXPECT_THAT(ErrorOf([&] { nan->ReadRows(0, 2, values.data()); }),
              HasSubstr("a.weight_scale holds a value that is not finite in row 0, column 1"));
  const auto zero =
      Open({words, BFloat16Scales({2, 2}, {1, 1, 1, -0.0F})})->Open({"a.weight", {2, 64}});
  EXPECT_THAT(ErrorOf([&] { zero->ReadRows(0, 2, values.data()); }),
              HasSubstr("a.weight_scale holds a scale of zero in row 1, column 1"));
}

// A file that was cut off, and tensors of fewer rows or words than the matrix has.
TEST_F(QuantizedTensorsTest, TruncatedPackedTensors) {
  const TensorToWrite words = Words(2, 8);
  const TensorToWrite scales = BFloat16Scales({2, 2}, {1, 1, 1, 1});
  Open({scales, words});
  const std::filesystem::path file = directory_.path() / "model.safetensors";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  ModelConfig config;
  config.quantization.method = "compressed-tensors";
  EXPECT_THAT(ErrorOf([&] { OpenCheckpoint(directory_.path(), config); }),
              HasSubstr("tensor \"a.weight_packed\" has data_offsets"));
  EXPECT_THAT(Problem({Words(2, 7), scales}, 2, 64),
              HasSubstr("a.weight_packed is [2, 56], not [2, 64]"));
  EXPECT_THAT(Problem({Words(1, 8), scales}, 2, 64),
              HasSubstr("a.weight_packed is [1, 64], not [2, 64]"));
  EXPECT_THAT(Problem({Words(2, 8), BFloat16Scales({1, 2}, {1, 1})}, 2, 64),
              HasSubstr("a.weight_packed (scales are [1, 2], not one for every"));
}

TensorToWrite Pairs(const char* name, const char* dtype) {
  std::vector<uint8_t> data(32);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>((2 * i) % 16 * 17 + 16);
  return {name, dtype, {2, 16}, Bytes(data)};
}
constexpr double kE2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};

TEST_F(QuantizedTensorsTest, Nvfp4OfBothMakers) {
  const std::string scales = Bytes(std::vector<uint8_t>{0x38, 0x40, 0x3c, 0xb8});  // 1, 2, 1.5, -1
  const double scale_of[] = {1, 2, 1.5, -1};
  const TensorToWrite of_groups = {"a.weight_scale", "F8_E4M3", {2, 2}, scales};
  const auto expect = [&](const std::vector<float>& values) {
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(values[i], kE2m1[i % 16] * scale_of[i / 16] * 0.25) << i;
    }
  };
  expect(Values({Pairs("a.weight_packed", "U8"),
                 of_groups,
                 {"a.weight_global_scale", "F32", {1}, Bytes(std::vector<float>{4})},
                 {"a.input_global_scale", "F32", {1}, Bytes(std::vector<float>{9})}},
                2, 32));
  expect(Values({Pairs("a.weight", "U8"),
                 of_groups,
                 {"a.weight_scale_2", "F32", {}, Bytes(std::vector<float>{0.25F})},
                 {"a.input_scale", "F32", {}, Bytes(std::vector<float>{9})},
                 {"model.layers.0.self_attn.k_proj.k_scale", "F32", {}, std::string(4, '\0')}},
                2, 32));
}

TEST_F(QuantizedTensorsTest, WhatIsNoNvfp4) {
  const TensorToWrite pairs = Pairs("a.weight", "U8");
  const TensorToWrite scales = {"a.weight_scale", "F8_E4M3", {2, 2}, std::string(4, '\x38')};
  const auto global = [](const char* dtype, std::vector<int64_t> shape, std::string data) {
    return TensorToWrite{"a.weight_scale_2", dtype, std::move(shape), std::move(data)};
  };
  EXPECT_THAT(Problem({pairs, scales}, 2, 32),
              HasSubstr("(no weight_scale_2 or weight_global_scale beside its weight_scale)"));
  EXPECT_THAT(Problem({pairs, scales, global("F16", {}, "xx")}, 2, 32),
              HasSubstr("(its global scale is not one F32)"));
  EXPECT_THAT(Problem({pairs, scales, global("F32", {2}, std::string(8, 'x'))}, 2, 32),
              HasSubstr("(its global scale is not one F32)"));
  EXPECT_THAT(
      Problem({pairs, WithShape(scales, {4, 1}), global("F32", {}, std::string(4, 'x'))}, 2, 32),
      HasSubstr("(scales are [4, 1], not one for every 16 columns of [2, 32])"));
  for (const float value : {0.0F, INFINITY, NAN}) {
    EXPECT_THAT(
        Problem({pairs, scales, global("F32", {}, Bytes(std::vector<float>{value}))}, 2, 32),
        HasSubstr(fmt::format("a.weight_scale_2 is {}, no scale", value)));
  }
  const TensorToWrite nan = {"a.weight_scale", "F8_E4M3", {2, 2}, "\x38\x38\x38\x7f"};
  const auto tensor = Open({pairs, nan, global("F32", {}, Bytes(std::vector<float>{1}))})
                          ->Open({"a.weight", {2, 32}});
  std::vector<float> values(64);
  EXPECT_THAT(ErrorOf([&] { tensor->ReadRows(0, 2, values.data()); }),
              HasSubstr("a.weight_scale holds a NaN in row 1, column 1"));
  const TensorToWrite zero = {
      "a.weight_scale", "F8_E4M3", {2, 2}, std::string("\x38\x38\0\x38", 4)};
  const auto without = Open({pairs, zero, global("F32", {}, Bytes(std::vector<float>{1}))})
                           ->Open({"a.weight", {2, 32}});
  EXPECT_THAT(ErrorOf([&] { without->ReadRows(0, 2, values.data()); }),
              HasSubstr("a.weight_scale holds a scale of zero in row 1, column 0"));
  // Without scales of a known type it is just bytes.
  EXPECT_THAT(Problem({pairs}, 2, 32), HasSubstr("a.weight is [2, 16], not [2, 32]"));
}

TEST_F(QuantizedTensorsTest, Mxfp4) {
  for (const char* dtype : {"U8", "F8_E8M0"}) {
    const std::vector<float> values =
        Values({Pairs("a.weight_packed", "U8"),
                {"a.weight_scale", dtype, {2, 1}, Bytes(std::vector<uint8_t>{127, 125})}},
               2, 32);
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(values[i], kE2m1[i % 16] * (i < 32 ? 1 : 0.25)) << i;
    }
  }
  // As Ling-3.0 stores its experts.
  for (const char* of_codes : {"U8", "I8"}) {
    for (const char* dtype : {"U8", "F8_E8M0"}) {
      const std::vector<float> values =
          Values({Pairs("a.weight", of_codes),
                  {"a.weight_scale_inv", dtype, {2, 1}, Bytes(std::vector<uint8_t>{128, 126})}},
                 2, 32);
      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_EQ(values[i], kE2m1[i % 16] * (i < 32 ? 2 : 0.5)) << of_codes << dtype << i;
      }
    }
  }
  EXPECT_THAT(Problem({Pairs("a.weight_packed", "U8"),
                       {"a.weight_scale", "F32", {2, 1}, std::string(8, '\0')}},
                      2, 32),
              HasSubstr("(scales are \"F32\", not F8_E4M3, F8_E8M0 or U8)"));
}

TEST_F(QuantizedTensorsTest, Fp8ByTensorByRowAndByBlock) {
  std::vector<uint8_t> codes(3 * 130);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(0x30 + i % 16);
  const TensorToWrite weight = {"a.weight", "F8_E4M3", {3, 130}, Bytes(codes)};
  const auto check = [&](std::vector<int64_t> shape, std::vector<float> scales, auto&& scale_of) {
    const std::vector<float> values =
        Values({weight, {"a.weight_scale", "F32", std::move(shape), Bytes(scales)}}, 3, 130);
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(values[i], Float8E4M3ToFloat(codes[i]) * scale_of(i / 130, i % 130)) << i;
    }
  };
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{}, {1}, {1, 1}}) {
    check(shape, {0.3F}, [](size_t, size_t) { return 0.3F; });
  }
  const auto of_row = [](size_t r, size_t) { return 0.1F * static_cast<float>(r + 1); };
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{3}, {3, 1}}) {
    check(shape, {of_row(0, 0), of_row(1, 0), of_row(2, 0)}, of_row);
  }
  check({1, 2}, {0.3F, 0.7F}, [](size_t, size_t c) { return c < 128 ? 0.3F : 0.7F; });
  EXPECT_THAT(
      Problem({weight, {"a.weight_scale", "F32", {3, 2}, std::string(24, '\0')}}, 3, 130),
      HasSubstr("(scales are [3, 2]: one for the tensor, for each row, or for each block is"));
}

TEST_F(QuantizedTensorsTest, Int4OfAwqAndGptqIsRefused) {
  const std::string supported =
      "its INT4 (qweight, qzeros, scales) is not supported; of INT4, compressed-tensors' "
      "pack-quantized is, symmetric and in groups of 32 columns or a multiple";
  for (const std::string method : {"awq", "gptq"}) {
    ModelConfig config;
    config.quantization.method = method;
    EXPECT_EQ(ErrorOf([&] { OpenCheckpoint(directory_.path(), config); }),
              fmt::format("invalid_argument: {}: quantization \"{}\" cannot be loaded: {}",
                          directory_.path().string(), method, supported));
    EXPECT_EQ(ErrorOf([&] { MakeDummyWeights(config, 1); }),
              fmt::format("invalid_argument: config.json: quantization \"{}\" cannot be loaded: {}",
                          method, supported));
  }
  EXPECT_THAT(ErrorOf([&] { Open({{"a.qweight", "I32", {2, 8}, std::string(64, '\0')}}); }),
              HasSubstr(": holds a.qweight: " + supported));
}

TEST(QuantizationTest, NamesOfModules) {
  const std::string module = "model.layers.12.self_attn.q_proj";
  for (const char* pattern :
       {"model.layers.12.self_attn.q_proj", "re:.*self_attn.*", "re:^model.*q_proj$", "re:.*",
        "re:model\\.layers\\.12\\..*", "re:.*(k|q|v)_proj", "*self_attn*", "model.layers.12.*",
        "*q_proj", "re:model.layers", "re:.*layers.1*2.self"}) {
    EXPECT_TRUE(NamesModule(pattern, module)) << pattern;
  }
  for (const char* pattern :
       {"", "lm_head", "model.layers.12", "self_attn", "re:self_attn", "re:.*self_attn$",
        "re:^layers.*", "re:.*(k|v)_proj", "re:.*q_proj\\.weight", "*mlp*", "q_proj*",
        "model.layers.1.*", "re:[a-z]*", "re:.*(", "re:(model)+", "re:model{1}", "re:.**",
        "re:(model)*.layers"}) {
    EXPECT_FALSE(NamesModule(pattern, module)) << pattern;
  }
  // Work grows with the product of the lengths, whatever the stars.
  std::string stars = "re:";
  for (int i = 0; i < 200; ++i) stars += ".*";
  EXPECT_TRUE(NamesModule(stars, module));
  EXPECT_FALSE(NamesModule(stars + "z", std::string(10000, 'a')));
  EXPECT_FALSE(NamesModule("re:" + std::string(513, '.'), std::string(600, 'a')));
}

}  // namespace
}  // namespace outrider
