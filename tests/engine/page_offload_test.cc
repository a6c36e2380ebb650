#include "outrider/engine/page_offload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "outrider/engine/engine_loader.h"
#include "tests/networks/loaded_model.h"
#include "tests/temporary_directory.h"

namespace outrider {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

EngineOptions OffloadOptions() {
  EngineOptions options;
  options.model = TinyModelDirectory().string();
  options.device = DeviceKind::kCpu;
  options.kv_offload_memory_bytes = int64_t{1} << 20;
  return options;
}

TEST(PageOffloadTest, OptionsThatDoNotGoTogetherAreRefusedByName) {
  EngineOptions options = OffloadOptions();
  EXPECT_NO_THROW(CheckOffloadOptions(options));
  options.enable_prefix_caching = false;
  EXPECT_THAT([&] { CheckOffloadOptions(options); },
              ThrowsMessage<Error>(AllOf(HasSubstr("--kv-offload-memory-bytes"),
                                         HasSubstr("--no-enable-prefix-caching"))));
  options = OffloadOptions();
  options.kv_offload_memory_bytes = 0;
  EXPECT_THAT([&] { CheckOffloadOptions(options); }, ThrowsMessage<Error>(HasSubstr("at least 1")));
  options.kv_offload_memory_bytes.reset();
  EXPECT_NO_THROW(CheckOffloadOptions(options));
  options.kv_offload_dir = "/";
  EXPECT_THAT([&] { CheckOffloadOptions(options); },
              ThrowsMessage<Error>(HasSubstr("give --kv-offload-memory-bytes")));
  options = OffloadOptions();
  options.kv_offload_dir = options.model + "/config.json";
  EXPECT_THAT([&] { CheckOffloadOptions(options); },
              ThrowsMessage<Error>(HasSubstr("is no directory")));
  if (geteuid() != 0) {  // who may write everywhere
    options.kv_offload_dir = "/";
    EXPECT_THAT([&] { CheckOffloadOptions(options); },
                ThrowsMessage<Error>(HasSubstr("no file can be made there")));
  }
}

TEST(PageOffloadTest, BytesThatHoldNoPageAreRefused) {
  EngineOptions options = OffloadOptions();
  EXPECT_EQ(MakePageStore(options, 1 << 10, DeviceKind::kCpu)->num_places(), 1 << 10);
  EXPECT_THAT([&] { MakePageStore(options, (1 << 20) + 1, DeviceKind::kCpu); },
              ThrowsMessage<Error>(AllOf(HasSubstr("--kv-offload-memory-bytes is 1048576"),
                                         HasSubstr("1048577 bytes"))));
  // Before weights are read.
  options.kv_offload_memory_bytes = 100;
  EXPECT_THAT([&] { ExplainEngine(options); },
              ThrowsMessage<Error>(HasSubstr("a page of the KV cache has")));
}

TEST(PageOffloadTest, PagesGoWhereTheOptionsSay) {
  const TemporaryDirectory directory;
  EngineOptions options = OffloadOptions();
  EXPECT_EQ(MakePageStore(options, 100, DeviceKind::kCpu)->name(), "host memory");
  EXPECT_EQ(OffloadBytesInMemory(options), 1 << 20);
  options.kv_offload_dir = directory.path();
  EXPECT_THAT(MakePageStore(options, 100, DeviceKind::kCpu)->name(),
              HasSubstr(directory.path().string()));
  EXPECT_EQ(OffloadBytesInMemory(options), 0);
  options.kv_offload_dir.clear();
  options.kv_offload_memory_bytes.reset();
  EXPECT_EQ(MakePageStore(options, 100, DeviceKind::kCpu), nullptr);
  EXPECT_EQ(OffloadText(options), "none");
}

TEST(PageOffloadTest, ExplainSaysWherePagesGoAndWhetherTheyFit) {
  const TemporaryDirectory directory;
  EngineOptions options = OffloadOptions();
  options.kv_offload_memory_bytes = int64_t{8} << 20;
  const auto decision = [&](const std::string& what) {
    for (const Decision& d : ExplainEngine(options).decisions) {
      if (d.what == what) return d.value;
    }
    return std::string("none");
  };
  const std::string what = "pages that leave the KV cache";
  EXPECT_THAT(decision(what), HasSubstr("of host memory"));
  EXPECT_EQ(decision("memory"), "fits");
  options.kv_offload_memory_bytes = int64_t{1} << 50;
  EXPECT_EQ(decision("memory"), "DOES NOT FIT");
  EXPECT_THAT([&] { LoadEngine(options, nullptr); },
              ThrowsMessage<Error>(HasSubstr("--kv-offload-memory-bytes")));
  options.kv_offload_dir = directory.path();
  EXPECT_THAT(decision(what), HasSubstr("a temporary file in " + directory.path().string()));
  EXPECT_EQ(decision("memory"), "fits");
  options.kv_offload_memory_bytes.reset();
  options.kv_offload_dir.clear();
  EXPECT_EQ(decision(what), "none");
}

}  // namespace
}  // namespace outrider
