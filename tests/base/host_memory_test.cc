// What memory is left, told from files as Linux has them, of both versions of control groups.
#include "outrider/base/host_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/temporary_directory.h"

namespace outrider {
namespace {

using testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

class HostMemoryTest : public testing::Test {
 protected:
  void Write(const std::string& file, const std::string& text) {
    const std::filesystem::path path = root_.path() / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  void WriteMachine(int64_t mib) {
    Write("proc/meminfo", "MemTotal:       99999999 kB\nMemFree:          1 kB\nMemAvailable:  " +
                              std::to_string(mib * 1024) + " kB\nBuffers: 7 kB\n");
  }
  HostMemory Left() { return AvailableHostMemoryIn(root_.path()).value(); }

  TemporaryDirectory root_;
};

TEST_F(HostMemoryTest, WithoutGroupsItIsTheMachines) {
  WriteMachine(3000);
  EXPECT_EQ(Left().available, 3000 * kMiB);
  EXPECT_EQ(Left().limit, "free on this machine");
}

TEST_F(HostMemoryTest, NobodyTells) {
  EXPECT_FALSE(AvailableHostMemoryIn(root_.path()).has_value());
}

TEST_F(HostMemoryTest, AGroupOfVersion2LeavesItsLimitLessWhatIsNoCache) {
  WriteMachine(9000);
  Write("proc/self/cgroup", "0::/pod/server\n");
  Write("sys/fs/cgroup/pod/server/memory.max", std::to_string(2000 * kMiB) + "\n");
  Write("sys/fs/cgroup/pod/server/memory.current", std::to_string(900 * kMiB) + "\n");
  Write("sys/fs/cgroup/pod/server/memory.stat", "anon 1\nfile 629145600\ninactive_file " +
                                                    std::to_string(500 * kMiB) + "\nactive_file " +
                                                    std::to_string(100 * kMiB) + "\n");
  EXPECT_EQ(Left().available, 1700 * kMiB);
  EXPECT_THAT(Left().limit, HasSubstr("/pod/server (memory.max)"));
  // A parent's limit counts as well.
  Write("sys/fs/cgroup/pod/memory.max", std::to_string(1000 * kMiB));
  Write("sys/fs/cgroup/pod/memory.current", std::to_string(400 * kMiB));
  EXPECT_EQ(Left().available, 600 * kMiB);
  EXPECT_THAT(Left().limit, HasSubstr("/pod (memory.max)"));
  // What is used already beyond the limit is not less than nothing.
  Write("sys/fs/cgroup/pod/memory.current", std::to_string(1400 * kMiB));
  EXPECT_EQ(Left().available, 0);
  Write("sys/fs/cgroup/pod/memory.max", "max\n");
  Write("sys/fs/cgroup/pod/server/memory.max", "max\n");
  EXPECT_EQ(Left().available, 9000 * kMiB);
}

// In a container the group is mounted where the top is elsewhere, whatever its name is outside.
TEST_F(HostMemoryTest, AContainersGroupIsTheTop) {
  WriteMachine(9000);
  for (const char* name : {"/", "/docker/0123abc"}) {
    Write("proc/self/cgroup", std::string("0::") + name + "\n");
    Write("sys/fs/cgroup/memory.max", std::to_string(512 * kMiB));
    Write("sys/fs/cgroup/memory.current", std::to_string(12 * kMiB));
    EXPECT_EQ(Left().available, 500 * kMiB) << name;
  }
}

TEST_F(HostMemoryTest, AGroupOfVersion1) {
  WriteMachine(9000);
  Write("proc/self/cgroup", "9:name=systemd:/\n5:cpu,cpuacct:/other\n4:memory:/a/b\n0::/\n");
  const std::string group = "sys/fs/cgroup/memory/a/b/";
  Write(group + "memory.limit_in_bytes", std::to_string(800 * kMiB));
  Write(group + "memory.usage_in_bytes", std::to_string(300 * kMiB));
  Write(group + "memory.stat", "inactive_file 1\ntotal_inactive_file " +
                                   std::to_string(100 * kMiB) + "\ntotal_active_file 0\n");
  EXPECT_EQ(Left().available, 600 * kMiB);
  EXPECT_THAT(Left().limit, HasSubstr("/a/b (memory.limit_in_bytes)"));
  Write(group + "memory.limit_in_bytes", "9223372036854771712\n");  // none
  EXPECT_EQ(Left().available, 9000 * kMiB);
}

TEST(AvailableHostMemoryTest, ThisMachineHasSome) {
  EXPECT_GT(AvailableHostMemory().value().available, 0);
}

}  // namespace
}  // namespace outrider
