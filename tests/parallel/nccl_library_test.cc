#include "outrider/parallel/nccl_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "outrider/base/error.h"

namespace outrider {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string RefusalOf(const std::string& name) {
  try {
    const NcclLibrary library(name);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    return error.what();
  }
}

TEST(NcclLibraryTest, WhereItIsMissingTheErrorSaysWhatToInstall) {
  const std::string text = RefusalOf("libnccl-that-is-not-there.so.2");
  EXPECT_THAT(text, StartsWith("NCCL cannot be loaded (libnccl-that-is-not-there.so.2: "));
  EXPECT_THAT(text, HasSubstr("libnccl2"));
  EXPECT_THAT(text, HasSubstr("LD_LIBRARY_PATH"));
}

TEST(NcclLibraryTest, ALibraryWithoutItsFunctionsIsRefusedByName) {
  EXPECT_EQ(RefusalOf("libm.so.6"),
            "libm.so.6 has no ncclGetVersion, which NCCL has: another version is needed");
}

TEST(NcclLibraryTest, ErrorsAreInNcclsWords) {
  if (!RefusalOf("libnccl.so.2").empty()) GTEST_SKIP() << "no NCCL on this machine";
  const NcclLibrary library;
  EXPECT_GE(library.version(), 20000);
  library.Check(0, "a call");
  try {
    library.Check(4, "a call");  // ncclInvalidArgument
    FAIL() << "it went well";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("a call: NCCL says: invalid argument"));
  }
}

}  // namespace
}  // namespace outrider
