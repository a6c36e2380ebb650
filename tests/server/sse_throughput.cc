// What HTTP and server-sent events cost: token events per second that one I/O thread delivers to
// streaming clients over loopback, with the stub engine behind it. Steps give each stream a token;
// an event holds one, unless the server is more than 64 steps behind.
// Usage: sse_throughput [STREAMS [TOKENS_PER_STREAM [STEP_MICROSECONDS]]]
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "outrider/server/server.h"
#include "tests/server/stub_generation_service.h"

namespace outrider {
namespace {

double ThreadSeconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

int OpenStream(uint16_t port, int tokens) {
  const int stream = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(stream, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) return -1;
  const std::string body = fmt::format(
      R"({{"messages":[{{"role":"user","content":"abcdefgh"}}],"stream":true,"max_tokens":{},)"
      R"("skip_special_tokens":false}})",
      tokens);
  const std::string request = fmt::format(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: "
      "application/json\r\nContent-Length: {}\r\n\r\n{}",
      body.size(), body);
  return send(stream, request.data(), request.size(), 0) > 0 ? stream : -1;
}

// Reads all streams until they end with "[DONE]"; counts events by their blank lines.
int64_t ReadStreams(std::vector<pollfd> streams) {
  std::array<char, 65536> buffer;
  std::vector<std::string> tails(streams.size());
  std::vector<char> last(streams.size(), 0);
  int64_t events = 0;
  size_t open = streams.size();
  while (open > 0) {
    poll(streams.data(), streams.size(), 5000);
    for (size_t i = 0; i < streams.size(); ++i) {
      if (streams[i].fd < 0 || streams[i].revents == 0) continue;
      const ssize_t size = recv(streams[i].fd, buffer.data(), buffer.size(), 0);
      if (size > 0) {
        for (const char c : std::string_view(buffer.data(), static_cast<size_t>(size))) {
          if (c == '\n' && last[i] == '\n') ++events;
          last[i] = c;
        }
        const auto keep = std::min<size_t>(static_cast<size_t>(size), 40);
        tails[i].append(buffer.data() + size - keep, keep);
        if (tails[i].size() > 80) tails[i].erase(0, tails[i].size() - 80);
        if (tails[i].find("[DONE]") == std::string::npos) continue;
      }
      close(streams[i].fd);
      streams[i].fd = -1;
      --open;
    }
  }
  return events;
}

void Measure(int num_streams, int tokens, int step_microseconds) {
  StubGenerationService engine({.tokens_per_step = 1,
                                .step_time = std::chrono::microseconds(step_microseconds),
                                .max_requests = std::nullopt});
  BytePromptEncoder encoder;
  ServerOptions options;
  options.http.port = 0;
  options.served_model_names = {"stub"};
  options.max_model_len = 1 << 20;
  Server server(options, engine, encoder);
  double io_seconds = 0;
  std::thread io([&] {
    server.Run();
    io_seconds = ThreadSeconds();
  });
  const auto start = std::chrono::steady_clock::now();
  std::vector<pollfd> streams;
  for (int i = 0; i < num_streams; ++i) {
    streams.push_back({.fd = OpenStream(server.port(), tokens), .events = POLLIN, .revents = 0});
  }
  const int64_t events = ReadStreams(std::move(streams));
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  server.Stop();
  io.join();
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto count = static_cast<double>(events);
  fmt::print(
      "{} streams x {} tokens, steps of {} us: {} events, {:.3f} per token, in {:.2f} s = {:.0f} "
      "events/s; I/O thread {:.2f} s of CPU = {:.0f} events per CPU second; {} MiB resident at "
      "most\n",
      num_streams, tokens, step_microseconds, events,
      count / (static_cast<double>(num_streams) * tokens), seconds, count / seconds, io_seconds,
      count / io_seconds, usage.ru_maxrss / 1024);
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) {
  const auto number = [&](int index, int fallback) {
    return index < argc ? std::stoi(argv[index]) : fallback;
  };
  outrider::Measure(number(1, 256), number(2, 2000), number(3, 0));
  return 0;
}
