// The server with the stub engine behind it, for tests with real clients.
// Usage: stub_server [PORT [TOKENS_PER_STEP [STEP_MICROSECONDS [REASONING [MAX_REQUESTS]]]]];
// prints the port it got. A prompt "hang" is never encoded; when it would be, that is printed.
// Reasoning and tool calls are GLM-4.5's; with REASONING 0 there is no reasoning. Requests beyond
// MAX_REQUESTS are refused as by a full queue.
#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/server/server.h"
#include "tests/server/stub_generation_service.h"

namespace {

class HangingEncoder : public outrider::BytePromptEncoder {
 public:
  std::vector<int32_t> EncodeText(std::string_view text, bool add_special_tokens) const override {
    if (text == "hang") {
      fmt::print("hangs\n");
      std::fflush(stdout);
    }
    while (text == "hang") std::this_thread::sleep_for(std::chrono::hours(1));
    return BytePromptEncoder::EncodeText(text, add_special_tokens);
  }
};

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const auto number = [&](size_t index, int fallback) {
    return index < arguments.size() ? std::stoi(arguments[index]) : fallback;
  };
  outrider::ServerOptions options;
  options.http.port = static_cast<uint16_t>(number(0, 0));
  options.http.handle_signals = true;
  options.http.shutdown_seconds = 2;
  options.served_model_names = {"stub"};
  options.model_root = "stub";
  options.max_model_len = 4096;
  options.allowed_hosts = {"*"};
  options.output_format =
      outrider::ChooseOutputFormat("glm45", number(3, 1) == 1 ? "glm45" : "none", "", "");
  try {
    HangingEncoder encoder;
    outrider::StubGenerationService engine({.tokens_per_step = number(1, 3),
                                            .step_time = std::chrono::microseconds(number(2, 1000)),
                                            .max_requests = static_cast<size_t>(number(4, 4096))});
    outrider::Server server(options, engine, encoder);
    fmt::print("{}\n", server.port());
    std::fflush(stdout);
    server.Run();
  } catch (const outrider::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
  return 0;
}
