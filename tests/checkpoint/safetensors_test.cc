#include "outrider/checkpoint/safetensors.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <string>

#include "tests/checkpoint/checkpoint_writer.h"
#include "tests/source_directory.h"
#include "tests/temporary_directory.h"

namespace outrider {
namespace {

using test_checkpoints::ErrorOf;
using test_checkpoints::SafetensorsBytes;
using test_checkpoints::WriteFile;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<TensorInfo> ParseBytes(std::string_view bytes) {
  return ParseSafetensorsHeader(std::as_bytes(std::span(bytes)), bytes.size(), "f");
}

std::vector<TensorInfo> Parse(std::string_view header, size_t data_bytes) {
  return ParseBytes(SafetensorsBytes(header, std::string(data_bytes, 'x')));
}

std::string ParseError(std::string_view header, size_t data_bytes) {
  return ErrorOf([&] { Parse(header, data_bytes); });
}

TEST(SafetensorsTest, ReadsTensorsInFileOrder) {
  const std::string header = R"({"__metadata__":{"format":"pt"},)"
                             R"("b":{"shape":[2,3],"dtype":"BF16","data_offsets":[4,16]},)"
                             R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                             R"("c":{"dtype":"F4","shape":[9],"data_offsets":[16,21]},)"
                             R"("empty":{"dtype":"F32","shape":[0,7],"data_offsets":[21,21]}}   )";
  const auto tensors = Parse(header, 21);
  const uint64_t data = 8 + header.size();
  ASSERT_EQ(tensors.size(), 4);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[0].dtype, DType::kF32);
  EXPECT_TRUE(tensors[0].shape.empty());
  EXPECT_EQ(tensors[0].begin, data);
  EXPECT_EQ(tensors[0].end, data + 4);
  EXPECT_EQ(tensors[1].name, "b");
  EXPECT_EQ(tensors[1].dtype, DType::kBF16);
  EXPECT_THAT(tensors[1].shape, ElementsAre(2, 3));
  EXPECT_EQ(tensors[2].dtype, std::nullopt);
  EXPECT_EQ(tensors[2].dtype_name, "F4");
  EXPECT_EQ(tensors[3].begin, tensors[3].end);
}

TEST(SafetensorsTest, AnEmptyFileOfTensorsIsFine) { EXPECT_TRUE(Parse("{}", 0).empty()); }

TEST(SafetensorsTest, ReadsTheBundledModel) {
  const std::filesystem::path directory = SourceDirectory() / "models/tiny-v3-mtp3";
  const auto tensors = ReadSafetensorsHeader(directory / "model-00001-of-00002.safetensors");
  EXPECT_EQ(tensors.size(), 448);
  EXPECT_EQ(tensors.front().begin, 8 + 51656);
  EXPECT_EQ(tensors.back().end, 15599136);
}

TEST(SafetensorsTest, FileTooShortForItsLength) {
  EXPECT_THAT(ErrorOf([] { ParseBytes("1234567"); }), HasSubstr("f: has 7 bytes, too few"));
  EXPECT_THAT(ErrorOf([] { ParseBytes(""); }), HasSubstr("f: has 0 bytes, too few"));
}

TEST(SafetensorsTest, TruncatedHeader) {
  const std::string bytes = SafetensorsBytes("{}", "");
  EXPECT_THAT(ErrorOf([&] { ParseBytes(bytes.substr(0, 9)); }),
              HasSubstr("header of 2 bytes in a file of 9 bytes; was it cut off?"));
}

TEST(SafetensorsTest, OversizedHeader) {
  std::string bytes(16, '\xff');
  EXPECT_THAT(ErrorOf([&] { ParseBytes(bytes); }),
              HasSubstr("header of 18446744073709551615 bytes; at most 100000000 are allowed"));
}

TEST(SafetensorsTest, NotJson) {
  EXPECT_THAT(ParseError("", 0), HasSubstr("header is not valid JSON at byte"));
  EXPECT_THAT(ParseError("{\"a\":", 0), HasSubstr("header is not valid JSON at byte 14"));
  EXPECT_THAT(ParseError("{} {}", 0), HasSubstr("not valid JSON"));
  EXPECT_THAT(ParseError("{\"\xff\":{}}", 0), HasSubstr("not valid JSON"));
  EXPECT_THAT(ParseError(R"({"a":{"dtype":"F32","shape":[1e999],"data_offsets":[0,4]}})", 4),
              HasSubstr("not valid JSON"));
}

TEST(SafetensorsTest, WrongStructure) {
  EXPECT_THAT(ParseError("[]", 0), HasSubstr("f: header has a list where"));
  EXPECT_THAT(ParseError("7", 0), HasSubstr("f: header has a number where"));
  EXPECT_THAT(ParseError(R"({"a":null})", 0), HasSubstr("tensor \"a\" has null where"));
  EXPECT_THAT(ParseError(R"({"a":"F32"})", 0), HasSubstr("tensor \"a\" has a string where"));
  EXPECT_THAT(ParseError(R"({"a":{}})", 0),
              HasSubstr("tensor \"a\" lacks dtype, shape or data_offsets"));
  EXPECT_THAT(ParseError(R"({"a":{"dtype":"F32","shape":[1],"size":4}})", 4),
              HasSubstr("tensor \"a\" has an unknown key \"size\""));
  EXPECT_THAT(ParseError(R"({"a":{"dtype":"F32","dtype":"F32"}})", 4),
              HasSubstr("tensor \"a\" has two keys \"dtype\""));
  EXPECT_THAT(ParseError(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4),
              HasSubstr("tensor \"a\" needs two data_offsets"));
  EXPECT_THAT(ParseError(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,4]}})", 4),
              HasSubstr("has a number where"));
  EXPECT_THAT(ParseError(R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", 4),
              HasSubstr("has a list where"));
  EXPECT_THAT(ParseError(R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", 4),
              HasSubstr("has a fraction where"));
  EXPECT_THAT(ParseError(R"({"__metadata__":{"a":{"b":"c"}}})", 0),
              HasSubstr("f: header has an object where"));
  EXPECT_THAT(ParseError(R"({"__metadata__":{"a":[]}})", 0), HasSubstr("has a list where"));
}

TEST(SafetensorsTest, NegativeNumbers) {
  EXPECT_THAT(ParseError(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4),
              HasSubstr("tensor \"a\" has a negative number where"));
  EXPECT_THAT(ParseError(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})", 4),
              HasSubstr("tensor \"a\" has a negative number where"));
}

TEST(SafetensorsTest, DuplicateNames) {
  EXPECT_THAT(ParseError(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                         R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                         8),
              HasSubstr("tensor \"a\" appears twice"));
}

TEST(SafetensorsTest, NestedTenThousandDeep) {
  EXPECT_THAT(ParseError(std::string(10000, '['), 0), HasSubstr("has a list where"));
  std::string objects;
  for (int i = 0; i < 10000; ++i) objects += R"({"a":)";
  EXPECT_THAT(ParseError(objects, 0), HasSubstr("has an unknown key"));
  EXPECT_THAT(ParseError(R"({"__metadata__":{"a":)" + objects, 0),
              HasSubstr("has an object where"));
}

TEST(SafetensorsTest, OffsetsOutsideOfTheFile) {
  EXPECT_THAT(ParseError(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4),
              HasSubstr("tensor \"a\" has data_offsets [0, 8], outside of the 4 bytes of data"));
  EXPECT_THAT(ParseError(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4),
              HasSubstr("data_offsets [4, 0]"));
  EXPECT_THAT(ParseError(R"({"a":{"dtype":"F32","shape":[1],)"
                         R"("data_offsets":[18446744073709551612,18446744073709551615]}})",
                         4),
              HasSubstr("outside of the 4 bytes"));
}

TEST(SafetensorsTest, OverlapsAndHoles) {
  EXPECT_THAT(ParseError(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                         R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                         8),
              HasSubstr("tensor \"b\" begins at byte 4 of the data, inside the one before; it "
                        "should be 8"));
  EXPECT_THAT(ParseError(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8),
              HasSubstr("tensor \"a\" begins at byte 4 of the data, after a hole; it should be 0"));
  EXPECT_THAT(ParseError(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 9),
              HasSubstr("5 bytes of data follow the last tensor"));
}

TEST(SafetensorsTest, ShapesThatDoNotFitTheBytes) {
  EXPECT_THAT(ParseError(R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,8]}})", 8),
              HasSubstr("tensor \"a\" has 8 bytes, but 4 elements of type F32"));
  EXPECT_THAT(ParseError(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,1],)"
                         R"("data_offsets":[0,0]}})",
                         0),
              HasSubstr("more elements than can be counted"));
  // 2^62 elements of 4 bytes: the bytes overflow to 0.
  EXPECT_THAT(ParseError(R"({"a":{"dtype":"F32","shape":[4611686018427387904],)"
                         R"("data_offsets":[0,0]}})",
                         0),
              HasSubstr("has 0 bytes, but 4611686018427387904 elements"));
  EXPECT_THAT(ParseError(R"({"a":{"dtype":"F32","shape":[18446744073709551615],)"
                         R"("data_offsets":[0,0]}})",
                         0),
              HasSubstr("a dimension above 2^63 - 1"));
  EXPECT_THAT(ParseError(R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],)"
                         R"("data_offsets":[0,4]}})",
                         4),
              HasSubstr("more than 16 dimensions"));
}

TEST(SafetensorsTest, NamesInMessagesAreEscaped) {
  const std::string message = ParseError(R"({"a\n\u0007b":null})", 0);
  EXPECT_THAT(message, HasSubstr(R"("a\n\u0007b")"));
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

TEST(SafetensorsTest, FilesThatCannotBeRead) {
  const TemporaryDirectory directory;
  EXPECT_THAT(ErrorOf([&] { ReadSafetensorsHeader(directory.path() / "none"); }),
              HasSubstr("none: cannot be opened: No such file"));
  EXPECT_THAT(ErrorOf([&] { ReadSafetensorsHeader(directory.path()); }),
              HasSubstr("is not a regular file"));
  WriteFile(directory.path() / "short", "abc");
  EXPECT_THAT(ErrorOf([&] { ReadSafetensorsHeader(directory.path() / "short"); }),
              HasSubstr("short: has 3 bytes, too few"));
}

}  // namespace
}  // namespace outrider
