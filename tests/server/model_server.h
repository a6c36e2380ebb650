// A server with the bundled model behind it, in the test's process. Its chat template writes the
// tools' names and the messages' texts.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "outrider/text/text_prompt_encoder.h"
#include "tests/engine/test_engine.h"
#include "tests/grammar/bundled_grammars.h"
#include "tests/server/running_server.h"

namespace outrider {

/// Compiled once for all servers.
inline GrammarCompiler& GrammarsOf(const Tokenizer& tokenizer) {
  static std::map<const Tokenizer*, GrammarCompiler> compilers;
  static const std::vector<int32_t> eos = {kBundledEos};
  return compilers.try_emplace(&tokenizer, tokenizer, kBundledVocab, eos).first->second;
}

class ModelServer {
 public:
  /// `format`: how the model writes tool calls; `reasoning`: how its reasoning.
  explicit ModelServer(DrafterKind drafter, const char* format = "none",
                       const Tokenizer& tokenizer = BundledTokenizer(),
                       const char* reasoning = "none")
      : ModelServer(TestEngineOptions{.drafter = drafter}, format, tokenizer, reasoning) {}

  /// With an engine of its own options.
  explicit ModelServer(const TestEngineOptions& engine, const char* format = "none",
                       const Tokenizer& tokenizer = BundledTokenizer(),
                       const char* reasoning = "none")
      : engine_(MakeTestEngine(engine, &tokenizer)),
        chat_template_(ChatTemplate::FromString(
            "{{ bos_token }}{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}"
            "{% for message in messages %}{{ message.content }}{% endfor %}",
            {{"bos_token", ""}})),
        encoder_(tokenizer, &chat_template_, kBundledVocab,
                 {{"eos_token", std::string(tokenizer.TokenBytes(kBundledEos))}}),
        server_(Options(format, reasoning), *engine_, encoder_, &GrammarsOf(tokenizer)),
        steps_([this] {
          while (!stopping_) {
            if (!engine_->Step()) engine_->WaitForWork(1);
          }
        }),
        io_([this] { server_.Run(); }) {}

  ~ModelServer() {
    server_.Stop();
    io_.join();
    stopping_ = true;
    engine_->Wake();
    steps_.join();
  }
  ModelServer(const ModelServer&) = delete;
  ModelServer& operator=(const ModelServer&) = delete;

  uint16_t port() const { return server_.port(); }

  ClientResponse Post(const nlohmann::json& request,
                      const char* path = "/v1/chat/completions") const {
    return HttpClient(server_.port()).Post(path, request.dump());
  }

  EngineCounters Counters() const { return engine_->Counters(); }

 private:
  static ServerOptions Options(const char* format, const char* reasoning) {
    ServerOptions options = TestServerOptions();
    options.max_model_len = 1024;
    options.output_format = ChooseOutputFormat(format, reasoning, "", "");
    return options;
  }

  std::unique_ptr<Engine> engine_;
  ChatTemplate chat_template_;
  TextPromptEncoder encoder_;
  Server server_;
  std::atomic<bool> stopping_{false};
  std::thread steps_;
  std::thread io_;
};

}  // namespace outrider
