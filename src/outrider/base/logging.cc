#include "outrider/base/logging.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <memory>
#include <string_view>

#include "outrider/base/error.h"

namespace outrider {

namespace {

// Of the request that the thread logs about; empty when it is none.
thread_local std::string_view logged_request_id;

/// Appends `text` as the inside of a JSON string.
void AppendEscaped(std::string_view text, spdlog::memory_buf_t& out) {
  for (const char c : text) {
    const auto u = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (u < 0x20) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", u);
    } else {
      out.push_back(c);
    }
  }
}

/// %Q: the message as the inside of a JSON string.
class JsonMessageFlag : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm& /*time*/,
              spdlog::memory_buf_t& out) override {
    AppendEscaped(std::string_view(message.payload.data(), message.payload.size()), out);
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<JsonMessageFlag>();
  }
};

/// %R: `,"request_id":"..."`, or nothing for a message about no request.
class JsonRequestIdFlag : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& /*message*/, const std::tm& /*time*/,
              spdlog::memory_buf_t& out) override {
    if (logged_request_id.empty()) return;
    const std::string_view name = R"(,"request_id":")";
    out.append(name.begin(), name.end());
    AppendEscaped(logged_request_id, out);
    out.push_back('"');
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<JsonRequestIdFlag>();
  }
};

/// %U: the level in upper case, as vLLM prints it.
class UpperLevelFlag : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm& /*time*/,
              spdlog::memory_buf_t& out) override {
    for (const char c : spdlog::level::to_string_view(message.level)) {
      out.push_back(c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c);
    }
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<UpperLevelFlag>();
  }
};

/// %K: "[file.cc:12] ", or nothing for a message that does not say where it comes from.
class SourceFlag : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm& /*time*/,
              spdlog::memory_buf_t& out) override {
    if (message.source.empty()) return;
    const std::string_view path = message.source.filename;
    fmt::format_to(std::back_inserter(out), "[{}:{}] ", path.substr(path.rfind('/') + 1),
                   message.source.line);
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<SourceFlag>();
  }
};

}  // namespace

void InitLogging(const std::string& level, LogFormat format) {
  spdlog::level::level_enum parsed = spdlog::level::info;
  if (level == "debug") {
    parsed = spdlog::level::debug;
  } else if (level == "warning") {
    parsed = spdlog::level::warn;
  } else if (level == "error") {
    parsed = spdlog::level::err;
  } else if (level != "info") {
    throw InvalidArgument("log level '{}' is unknown: use debug, info, warning or error", level);
  }
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<JsonMessageFlag>('Q')
      .add_flag<JsonRequestIdFlag>('R')
      .add_flag<UpperLevelFlag>('U')
      .add_flag<SourceFlag>('K');
  formatter->set_pattern(
      format == LogFormat::kText
          ? "%U %m-%d %H:%M:%S %K%v"
          : R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l"%R,"message":"%Q"})");
  auto logger = std::make_shared<spdlog::logger>("outrider",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_formatter(std::move(formatter));
  logger->set_level(parsed);
  spdlog::set_default_logger(std::move(logger));
}

LogRequestId::LogRequestId(std::string_view id) { logged_request_id = id; }
LogRequestId::~LogRequestId() { logged_request_id = {}; }

}  // namespace outrider
