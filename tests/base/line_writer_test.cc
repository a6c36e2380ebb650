// Lines for a reader that stalls, goes away and comes back: the writer's caller never waits for it.
#include "outrider/base/line_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <string>

namespace outrider {
namespace {

using std::chrono::milliseconds;

/// A pipe of one page that nobody reads until Read is called.
class Pipe {
 public:
  Pipe() {
    EXPECT_EQ(pipe(ends_.data()), 0);
    capacity_ = static_cast<size_t>(fcntl(ends_[1], F_SETPIPE_SZ, 4096));
  }
  ~Pipe() {
    CloseReader();
    close(ends_[1]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  int writer() const { return ends_[1]; }
  size_t capacity() const { return capacity_; }
  void CloseReader() {
    if (ends_[0] >= 0) close(ends_[0]);
    ends_[0] = -1;
  }
  /// Reads until so many bytes have come.
  std::string Read(size_t bytes) {
    std::string text(bytes, '\0');
    for (size_t done = 0; done < bytes;) {
      const ssize_t got = read(ends_[0], text.data() + done, bytes - done);
      EXPECT_GT(got, 0);
      if (got <= 0) return text.substr(0, done);
      done += static_cast<size_t>(got);
    }
    return text;
  }

 private:
  std::array<int, 2> ends_{};
  size_t capacity_ = 0;
};

TEST(LineWriterTest, LinesComeInOrder) {
  Pipe pipe;
  LineWriter writer(pipe.writer());
  std::string all;
  for (int i = 0; i < 100; ++i) {
    const std::string line = "line " + std::to_string(i) + "\n";
    all += line;
    EXPECT_TRUE(writer.Write(line));
  }
  EXPECT_EQ(pipe.Read(all.size()), all);
  EXPECT_TRUE(writer.Flush(milliseconds(10000)));
  EXPECT_EQ(writer.TakeDropped(), 0);
}

TEST(LineWriterTest, AReaderThatStallsCostsLinesAndNoTime) {
  Pipe pipe;
  const std::string line(1000, 'x');
  const size_t room = 10 * line.size();
  LineWriter writer(pipe.writer(), room);
  int64_t taken = 0;
  constexpr int64_t kLines = 5000;
  for (int64_t i = 0; i < kLines; ++i) taken += writer.Write(line) ? 1 : 0;
  // What the pipe holds and what may wait, and not one line more: nobody has read.
  EXPECT_GE(taken, 10);
  EXPECT_LE(taken * line.size(), pipe.capacity() + room + line.size());
  EXPECT_FALSE(writer.HasRoom(room));
  EXPECT_FALSE(writer.Flush(milliseconds(1)));
  EXPECT_EQ(writer.TakeDropped(), kLines - taken);
  EXPECT_EQ(writer.TakeDropped(), 0);
  // The reader goes on: so do lines.
  pipe.Read(static_cast<size_t>(taken) * line.size());
  EXPECT_TRUE(writer.Flush(milliseconds(10000)));
  EXPECT_TRUE(writer.Write("again\n"));
  EXPECT_EQ(pipe.Read(6), "again\n");
  EXPECT_EQ(writer.TakeDropped(), 0);
}

TEST(LineWriterTest, AReaderThatIsGoneCostsLines) {
  std::signal(SIGPIPE, SIG_IGN);
  Pipe pipe;
  LineWriter writer(pipe.writer());
  pipe.CloseReader();
  EXPECT_TRUE(writer.Write("lost\n"));
  EXPECT_TRUE(writer.Flush(milliseconds(10000)));
  EXPECT_EQ(writer.TakeDropped(), 1);
  std::signal(SIGPIPE, SIG_DFL);
}

}  // namespace
}  // namespace outrider
