#include "python/core/python_engine.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <mutex>
#include <thread>

#include "outrider/base/error.h"
#include "outrider/cli/engine_start.h"
#include "outrider/cli/server_options.h"

namespace outrider::python {
namespace {

openai::RequestLimits LimitsOf(const ServerOptions& options, const PromptEncoder& encoder) {
  openai::RequestLimits limits;
  limits.vocab_size = encoder.vocab_size();
  limits.max_model_len = options.max_model_len;
  limits.max_logprobs = options.max_logprobs;
  limits.num_speculative_tokens = options.num_speculative_tokens;
  limits.tells_experts = options.tells_experts;
  limits.defaults = options.sampling_defaults;
  return limits;
}

}  // namespace

ProcessCheck::ProcessCheck() : owner_(getpid()) {}

bool ProcessCheck::IsOwner() const { return getpid() == owner_; }

void ProcessCheck::Require() const {
  if (IsOwner()) return;
  throw Error(ErrorCode::kUnavailable,
              fmt::format("this engine belongs to process {}, from which this one was forked: its "
                          "threads are not here; make the engine after the fork, or start "
                          "processes with multiprocessing's method 'spawn'",
                          owner_));
}

struct PythonEngine::Parts {
  Parts(const Settings& settings, const LoadedEngine& loaded)
      : encoder(MakeRequestEncoder(loaded)),
        generator(*loaded.engine, *encoder, loaded.grammars.get(),
                  cli::MakeServerOptions(settings, loaded).output_format,
                  loaded.engine->max_model_len()),
        thread(*loaded.engine, [](const std::string& reason) {
          SPDLOG_ERROR("The engine has failed: {}", reason);
        }) {}

  std::unique_ptr<PromptEncoder> encoder;
  Generator generator;
  EngineThread thread;
};

class PythonEngine::Use {
 public:
  /// Throws Error (kUnavailable) in another process, and after Stop.
  explicit Use(PythonEngine& engine) : engine_(engine) {
    engine_.process_.Require();
    lock_ = std::shared_lock(engine_.stopping_);
    if (engine_.parts_ == nullptr) {
      throw Error(ErrorCode::kUnavailable, "the engine was shut down; make another one");
    }
  }
  Parts* operator->() const { return engine_.parts_.get(); }

 private:
  PythonEngine& engine_;
  std::shared_lock<std::shared_mutex> lock_;
};

PythonEngine::PythonEngine(const OptionTexts& options, const LoadProgress& progress) {
  const Settings settings = SettingsOf(options);
  loaded_ = cli::LoadAndLog(settings.engine, progress);
  for (const Decision& decision : loaded_.decisions) {
    SPDLOG_INFO("{}: {} ({})", decision.what, decision.value, decision.why);
  }
  parts_ = std::make_unique<Parts>(settings, loaded_);
  limits_ = LimitsOf(cli::MakeServerOptions(settings, loaded_), *parts_->encoder);
}

PythonEngine::~PythonEngine() {
  if (process_.IsOwner()) return;
  // Its threads are in another process and cannot be waited for; their memory stays.
  (void)parts_.release();
  (void)loaded_.engine.release();
}

void PythonEngine::Stop() {
  process_.Require();
  const std::lock_guard alone(stopping_);
  parts_.reset();
  loaded_.engine.reset();
}

openai::TokenRequest PythonEngine::Parse(const std::string& body, bool is_chat,
                                         Prompt prompt) const {
  if (is_chat) return openai::ParseChatRequest(body, limits_);
  openai::TokenRequest request = openai::ParseCompletionRequest(body, limits_);
  request.default_max_tokens = limits_.max_model_len;
  if (auto* text = std::get_if<std::string>(&prompt)) {
    request.prompts = {std::move(*text)};
  } else if (auto* ids = std::get_if<std::vector<int32_t>>(&prompt)) {
    request.prompts = {std::move(*ids)};
  }
  return request;
}

StartedRequest PythonEngine::Submit(const std::shared_ptr<EventQueue>& events, int64_t request,
                                    const std::string& body, bool is_chat, Prompt prompt,
                                    bool whole) {
  const Use running(*this);
  StartedRequest started =
      running->generator.Stream(Parse(body, is_chat, std::move(prompt)),
                                [events, request, whole](size_t choice, OutputDelta&& delta) {
                                  events->Add(request, choice, whole, std::move(delta));
                                });
  events->AddRequests(started.ids);
  return started;
}

StartedRequest PythonEngine::Score(const std::shared_ptr<EventQueue>& events, int64_t request,
                                   const std::string& body, Prompt prompt, Prompt answer) {
  const Use running(*this);
  std::vector<int32_t> tokens;
  if (auto* text = std::get_if<std::string>(&answer)) {
    tokens = running->encoder->EncodeText(*text, /*add_special_tokens=*/false);
  } else if (auto* ids = std::get_if<std::vector<int32_t>>(&answer)) {
    tokens = std::move(*ids);
  }
  StartedRequest started =
      running->generator.Score(Parse(body, /*is_chat=*/false, std::move(prompt)), std::move(tokens),
                               [events, request](size_t choice, OutputDelta&& delta) {
                                 events->Add(request, choice, /*whole=*/true, std::move(delta));
                               });
  events->AddRequests(started.ids);
  return started;
}

void PythonEngine::Abort(EventQueue& events) {
  process_.Require();
  const std::shared_lock lock(stopping_);
  if (parts_ == nullptr) return;  // they have ended with it
  for (const RequestId id : events.requests()) parts_->generator.Abort(id);
}

void PythonEngine::ResetPrefixCache() { Use(*this)->generator.ResetPrefixCache(); }

EngineCounters PythonEngine::Counters() {
  const Use running(*this);
  return loaded_.engine->CountersAfterStep();
}

std::vector<int32_t> PythonEngine::Encode(const std::string& text, bool add_special_tokens) {
  return Use(*this)->encoder->EncodeText(text, add_special_tokens);
}

std::string PythonEngine::Decode(const std::vector<int32_t>& ids, bool skip_special_tokens) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= limits_.vocab_size) {
      throw InvalidArgument("token id {} is out of range: ids of this model are 0 to {}", id,
                            limits_.vocab_size - 1);
    }
  }
  return Use(*this)->generator.preparer().TextOf(ids, skip_special_tokens);
}

EncodedChat PythonEngine::RenderChat(const std::string& body) {
  return Use(*this)->encoder->EncodeChat(openai::ParseChatRequest(body, limits_).chat);
}

std::string PythonEngine::TokenBytes(int32_t id) { return Use(*this)->encoder->TokenBytes(id); }
std::string PythonEngine::TokenizerInfo() { return Use(*this)->encoder->TokenizerInfoJson(); }

struct PythonServer::Parts {
  Parts(const Settings& settings, LoadedEngine engine)
      : loaded(std::move(engine)),
        encoder(MakePromptEncoder(loaded)),
        server(OptionsOf(settings, loaded), *loaded.engine, encoder, loaded.grammars.get()),
        thread(*loaded.engine,
               [this](const std::string& reason) {
                 SPDLOG_ERROR("The engine has failed, the server stops: {}", reason);
                 server.StopAfterFailure();
               }),
        serving([this] { server.Run(); }) {}
  ~Parts() {
    server.Stop();
    serving.join();
  }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  static ServerOptions OptionsOf(const Settings& settings, const LoadedEngine& loaded) {
    ServerOptions options = cli::MakeServerOptions(settings, loaded);
    options.http.handle_signals = false;  // the process is Python's
    return options;
  }

  LoadedEngine loaded;
  TextPromptEncoder encoder;
  Server server;
  EngineThread thread;
  std::thread serving;
};

PythonServer::PythonServer(const OptionTexts& options, const LoadProgress& progress) {
  const Settings settings = SettingsOf(options);
  HttpServer::CheckAddress(cli::MakeHttpOptions(settings.serve));
  parts_ = std::make_unique<Parts>(settings, cli::LoadAndLog(settings.engine, progress));
}

PythonServer::~PythonServer() {
  if (!process_.IsOwner()) (void)parts_.release();
}

void PythonServer::Stop() {
  process_.Require();
  parts_.reset();
}

uint16_t PythonServer::port() const {
  process_.Require();
  return parts_ == nullptr ? 0 : parts_->server.port();
}

}  // namespace outrider::python
