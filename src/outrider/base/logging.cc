#include "outrider/base/logging.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <chrono>
#include <iterator>
#include <memory>
#include <mutex>
#include <string_view>

#include "outrider/base/error.h"
#include "outrider/base/json_text.h"
#include "outrider/base/line_writer.h"

namespace outrider {

namespace {

// The id of the request that the thread logs about; empty when it is none.
thread_local std::string_view logged_request_id;

/// %Q: the message as a JSON string.
class JsonMessageFlag : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm& /*time*/,
              spdlog::memory_buf_t& out) override {
    const std::string text = JsonString({message.payload.data(), message.payload.size()});
    out.append(text.data(), text.data() + text.size());
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
    fmt::format_to(std::back_inserter(out), R"(,"request_id":{})", JsonString(logged_request_id));
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

/// Never destroyed: its thread may be in a write that the reader of standard error holds up.
LineWriter& StandardError() {
  static auto* const kWriter = new LineWriter(STDERR_FILENO);
  return *kWriter;
}

std::unique_ptr<spdlog::pattern_formatter> MakeFormatter(LogFormat format) {
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<JsonMessageFlag>('Q')
      .add_flag<JsonRequestIdFlag>('R')
      .add_flag<UpperLevelFlag>('U')
      .add_flag<SourceFlag>('K');
  formatter->set_pattern(format == LogFormat::kText
                             ? "%U %m-%d %H:%M:%S %K%v"
                             : R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l"%R,"message":%Q})");
  return formatter;
}

/// Formats lines and hands them to StandardError.
class StandardErrorSink : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const std::string line = Format(message);
    dropped_ += StandardError().TakeDropped();
    if (dropped_ > 0 && StandardError().HasRoom(line.size() + kLostLineBytes)) {
      const std::string lost =
          fmt::format("{} log lines were dropped: standard error took no more", dropped_);
      StandardError().Write(Format({{}, "outrider", spdlog::level::warn, lost}));
      dropped_ = 0;
    }
    StandardError().Write(line);
  }
  void flush_() override {}

 private:
  static constexpr size_t kLostLineBytes = 512;  // more than the line about lost lines has

  std::string Format(const spdlog::details::log_msg& message) {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    return fmt::to_string(line);
  }

  int64_t dropped_ = 0;  // lines, since a line said how many
};

LogFormat current_format = LogFormat::kText;

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
  auto logger = std::make_shared<spdlog::logger>("outrider", std::make_shared<StandardErrorSink>());
  logger->set_formatter(MakeFormatter(format));
  logger->set_level(parsed);
  spdlog::set_default_logger(std::move(logger));
  current_format = format;
}

std::string StandardErrorLine(spdlog::level::level_enum level, std::string_view text) {
  if (current_format == LogFormat::kText) return fmt::format("{}\n", text);
  spdlog::memory_buf_t object;
  MakeFormatter(current_format)->format({{}, "outrider", level, text}, object);
  return fmt::to_string(object);
}

void PrintLine(spdlog::level::level_enum level, std::string_view text) {
  StandardError().Write(StandardErrorLine(level, text));
}

void FlushLog() { StandardError().Flush(std::chrono::seconds(1)); }

LogRequestId::LogRequestId(std::string_view id) { logged_request_id = id; }
LogRequestId::~LogRequestId() { logged_request_id = {}; }

}  // namespace outrider
