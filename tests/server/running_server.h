// A server with the stub engine behind it, running on a thread of its own while the object lives.
#pragma once

#include <memory>
#include <thread>
#include <utility>

#include "outrider/server/server.h"
#include "tests/server/http_client.h"
#include "tests/server/stub_generation_service.h"

namespace outrider {

inline ServerOptions TestServerOptions() {
  ServerOptions options;
  options.http.port = 0;
  options.http.shutdown_seconds = 5;
  options.served_model_names = {"stub", "stub-alias"};
  options.model_root = "/models/stub";
  options.max_model_len = 4096;
  options.allowed_hosts = {"*"};
  return options;
}

class RunningServer {
 public:
  explicit RunningServer(StubOptions stub = {}, ServerOptions options = TestServerOptions(),
                         GrammarCompiler* grammars = nullptr,
                         const PromptEncoder* encoder = nullptr)
      : engine(stub),
        server(std::make_unique<Server>(std::move(options), engine,
                                        encoder == nullptr ? encoder_ : *encoder, grammars)),
        thread_([this] { server->Run(); }) {}

  ~RunningServer() {
    server->Stop();
    if (thread_.joinable()) thread_.join();
  }
  RunningServer(const RunningServer&) = delete;
  RunningServer& operator=(const RunningServer&) = delete;

  uint16_t port() const { return server->port(); }
  void Join() { thread_.join(); }

 private:
  BytePromptEncoder encoder_;

 public:
  StubGenerationService engine;
  std::unique_ptr<Server> server;

 private:
  std::thread thread_;
};

/// Polls until `condition` holds; false after `seconds`.
template <typename Condition>
bool Eventually(const Condition& condition, double seconds = 5) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace outrider
