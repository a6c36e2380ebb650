#include "outrider/kv/file_page_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/kv/page_store_checks.h"
#include "tests/temporary_directory.h"

namespace outrider {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(FilePageStoreTest, HoldsWhatWasWrittenLast) {
  const TemporaryDirectory directory;
  FilePageStore store(directory.path(), 3, 1003);
  EXPECT_EQ(store.num_places(), 3);
  EXPECT_EQ(store.page_bytes(), 1003);
  ExpectStores(store);
}

TEST(FilePageStoreTest, LeavesNothingBehindHoweverItEnds) {
  const TemporaryDirectory directory;
  FilePageStore store(directory.path(), 3, 100);
  WriteByte(store, 0, 1);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(FilePageStoreTest, GivesTheDiskBack) {
  const TemporaryDirectory directory;
  FilePageStore store(directory.path(), 3, 100);
  WriteByte(store, 2, 1);
  struct stat file = {};
  ASSERT_EQ(fstat(store.descriptor(), &file), 0);
  EXPECT_EQ(file.st_size, 300);
  store.Clear();
  ASSERT_EQ(fstat(store.descriptor(), &file), 0);
  EXPECT_EQ(file.st_size, 0);
}

TEST(FilePageStoreTest, ADirectoryThatIsNotThereIsAnError) {
  const TemporaryDirectory directory;
  EXPECT_THAT([&] { FilePageStore(directory.path() / "none", 3, 100); },
              ThrowsMessage<Error>(HasSubstr("--kv-offload-dir")));
}

TEST(FilePageStoreTest, OtherBytesThanWereWrittenAreAnErrorAndNotTaken) {
  const TemporaryDirectory directory;
  FilePageStore store(directory.path(), 3, 100);
  for (const int offset : {0, 31, 99}) {
    WriteByte(store, 1, 5);
    const char other = 'x';
    ASSERT_EQ(pwrite(store.descriptor(), &other, 1, 100 + offset), 1);
    EXPECT_THAT([&] { HoldsByte(store, 1, 5); },
                ThrowsMessage<PageStoreError>(HasSubstr("other bytes")));
  }
  // The bytes of another place.
  WriteByte(store, 0, 5);
  WriteByte(store, 1, 6);
  std::vector<char> first(100);
  ASSERT_EQ(pread(store.descriptor(), first.data(), 100, 0), 100);
  ASSERT_EQ(pwrite(store.descriptor(), first.data(), 100, 100), 100);
  bool taken = false;
  EXPECT_THROW(store.Read(1, [&](std::span<const std::byte>) { taken = true; }), PageStoreError);
  EXPECT_FALSE(taken);
}

TEST(FilePageStoreTest, AFileThatEndsEarlyIsAnError) {
  const TemporaryDirectory directory;
  FilePageStore store(directory.path(), 3, 100);
  WriteByte(store, 1, 5);
  ASSERT_EQ(ftruncate(store.descriptor(), 150), 0);
  EXPECT_THAT([&] { HoldsByte(store, 1, 5); },
              ThrowsMessage<PageStoreError>(HasSubstr("ends early")));
}

TEST(FilePageStoreTest, AFullDiskIsAnErrorOfTheStore) {
  const int full = open("/dev/full", O_RDWR);
  ASSERT_GE(full, 0);
  const TemporaryDirectory directory;
  FilePageStore store(directory.path(), 3, 100);
  ASSERT_EQ(dup2(full, store.descriptor()), store.descriptor());
  close(full);
  EXPECT_THAT([&] { WriteByte(store, 0, 1); },
              ThrowsMessage<PageStoreError>(HasSubstr("No space left")));
}

TEST(FilePageStoreTest, WhatTheDeviceThrowsIsNoErrorOfTheStore) {
  const TemporaryDirectory directory;
  FilePageStore store(directory.path(), 3, 100);
  const auto fails = [](std::span<std::byte>) { throw NotFound("the device"); };
  try {
    store.Write(0, fails);
    FAIL();
  } catch (const PageStoreError&) {
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "the device");
  }
}

}  // namespace
}  // namespace outrider
