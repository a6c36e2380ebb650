#include "outrider/telemetry/kv_event_publisher.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <zmq.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <deque>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <span>
#include <thread>
#include <utility>

#include "outrider/base/error.h"

namespace outrider {
namespace {

using nlohmann::json;

constexpr int kLingerMilliseconds = 1000;

std::array<uint8_t, 8> BigEndian(uint64_t value) {
  std::array<uint8_t, 8> bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(value >> (56 - 8 * i));
  return bytes;
}

// By vLLM's rule.
bool Binds(const std::string& endpoint) {
  return endpoint.find('*') != std::string::npos || endpoint.find("::") != std::string::npos ||
         endpoint.starts_with("ipc://") || endpoint.starts_with("inproc://");
}

json MembersOf(const KvEvent& event) {
  switch (event.kind) {
    case KvEvent::Kind::kStored: {
      json extra;
      if (!event.cache_salt.empty()) {
        extra = json::array();
        for (size_t i = 0; i < event.hashes.size(); ++i) {
          extra.push_back(json::array({event.cache_salt}));
        }
      }
      return json::array({{{"block_hashes", event.hashes}},
                          {{"parent_block_hash", event.parent ? json(*event.parent) : json()}},
                          {{"token_ids", event.token_ids}},
                          {{"block_size", event.block_size}},
                          {{"lora_id", nullptr}},
                          {{"medium", "GPU"}},
                          {{"lora_name", nullptr}},
                          {{"extra_keys", extra}},
                          {{"group_idx", 0}},
                          {{"kv_cache_spec_kind", "full_attention"}},
                          {{"kv_cache_spec_sliding_window", nullptr}}});
    }
    case KvEvent::Kind::kRemoved:
      return json::array(
          {{{"block_hashes", event.hashes}}, {{"medium", "GPU"}}, {{"group_idx", 0}}});
    case KvEvent::Kind::kCleared:
      return json::array();
  }
  OUTRIDER_CHECK(false);
}

const char* NameOf(KvEvent::Kind kind) {
  switch (kind) {
    case KvEvent::Kind::kStored:
      return "BlockStored";
    case KvEvent::Kind::kRemoved:
      return "BlockRemoved";
    case KvEvent::Kind::kCleared:
      return "AllBlocksCleared";
  }
  OUTRIDER_CHECK(false);
}

json EventJson(const KvEvent& event, KvEventsConfig::Format format) {
  const json members = MembersOf(event);
  const bool is_map = format == KvEventsConfig::Format::kMap;
  json result = is_map ? json{{"type", NameOf(event.kind)}} : json::array({NameOf(event.kind)});
  for (const json& member : members) {
    for (const auto& [name, value] : member.items()) {
      if (is_map) {
        result[name] = value;
      } else {
        result.push_back(value);
      }
    }
  }
  return result;
}

int32_t CountOf(const std::string& where, const std::string& name, const json& value) {
  if (!value.is_number_integer() || value < 1 || value > std::numeric_limits<int32_t>::max()) {
    throw InvalidArgument("{}: {} is {}; must be a whole number of at least 1", where, name,
                          value.dump());
  }
  return value.get<int32_t>();
}

std::string TextOf(const std::string& where, const std::string& name, const json& value) {
  if (!value.is_string()) throw InvalidArgument("{}: {} must be a string", where, name);
  return value.get<std::string>();
}

}  // namespace

std::optional<KvEventsConfig> ParseKvEventsConfig(const std::string& where, std::string_view text) {
  const json value = json::parse(text, nullptr, false);
  if (!value.is_object()) {
    throw InvalidArgument(
        R"({}: must be a JSON object, like {{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557"}})",
        where);
  }
  KvEventsConfig config;
  bool enabled = true;
  std::string publisher = "zmq";
  for (const auto& [name, member] : value.items()) {
    if (name == "enable_kv_cache_events") {
      if (!member.is_boolean()) throw InvalidArgument("{}: {} must be true or false", where, name);
      enabled = member.get<bool>();
    } else if (name == "publisher") {
      publisher = TextOf(where, name, member);
    } else if (name == "endpoint") {
      config.endpoint = TextOf(where, name, member);
    } else if (name == "replay_endpoint") {
      if (!member.is_null()) config.replay_endpoint = TextOf(where, name, member);
    } else if (name == "topic") {
      config.topic = TextOf(where, name, member);
    } else if (name == "buffer_steps") {
      config.buffer_steps = CountOf(where, name, member);
    } else if (name == "hwm") {
      config.hwm = CountOf(where, name, member);
    } else if (name == "max_queue_size") {
      config.max_queue_size = CountOf(where, name, member);
    } else if (name == "format") {
      const std::string format = TextOf(where, name, member);
      if (format != "map" && format != "array") {
        throw InvalidArgument(R"({}: format is "{}"; use "map" or "array")", where, format);
      }
      config.format =
          format == "map" ? KvEventsConfig::Format::kMap : KvEventsConfig::Format::kArray;
    } else {
      throw InvalidArgument(
          "{}: \"{}\" is unknown; use enable_kv_cache_events, publisher, endpoint, "
          "replay_endpoint, buffer_steps, hwm, max_queue_size, topic or format",
          where, name);
    }
  }
  if (publisher != "zmq" && publisher != "null") {
    throw InvalidArgument(R"({}: publisher is "{}"; use "zmq" or "null")", where, publisher);
  }
  if (!enabled || publisher == "null") return std::nullopt;
  return config;
}

std::vector<uint8_t> PackKvEvents(const std::vector<KvEvent>& events, double seconds,
                                  KvEventsConfig::Format format) {
  json list = json::array();
  for (const KvEvent& event : events) list.push_back(EventJson(event, format));
  return json::to_msgpack(json::array({seconds, list, 0}));
}

struct KvEventPublisher::Sockets {
  struct Batch {
    uint64_t number;
    double seconds;
    std::vector<KvEvent> events;
  };
  struct Sent {
    uint64_t number;
    std::vector<uint8_t> payload;
  };

  void* context = zmq_ctx_new();
  void* publisher = nullptr;
  void* replay = nullptr;
  void* wake = nullptr;  // the publishing thread's end of a pair of sockets

  std::mutex mutex;
  // Guarded by mutex.
  std::deque<Batch> queue;
  uint64_t next_number = 0;
  bool stopping = false;
  void* waker = nullptr;  // the other end

  std::deque<Sent> sent;  // the publishing thread's
  std::thread thread;

  ~Sockets() {
    for (void* socket : {publisher, replay, wake, waker}) {
      if (socket != nullptr) zmq_close(socket);
    }
    zmq_ctx_term(context);
  }

  // With `mutex`.
  void Wake() { zmq_send(waker, nullptr, 0, ZMQ_DONTWAIT); }

  void* Open(int type, const std::string& endpoint, int32_t hwm, bool bind, std::string* bound) {
    void* socket = zmq_socket(context, type);
    OUTRIDER_CHECK(socket != nullptr);
    zmq_setsockopt(socket, ZMQ_SNDHWM, &hwm, sizeof hwm);
    zmq_setsockopt(socket, ZMQ_LINGER, &kLingerMilliseconds, sizeof kLingerMilliseconds);
    const int status =
        bind ? zmq_bind(socket, endpoint.c_str()) : zmq_connect(socket, endpoint.c_str());
    if (status != 0) {
      const std::string reason = zmq_strerror(zmq_errno());
      zmq_close(socket);
      throw Error(ErrorCode::kUnavailable,
                  fmt::format("--kv-events-config: cannot {} {}: {}",
                              bind ? "listen on" : "connect to", endpoint, reason));
    }
    std::array<char, 256> name{};
    size_t size = name.size();
    zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, name.data(), &size);
    *bound = name.data();
    return socket;
  }

  static void Send(void* socket, std::span<const uint8_t> bytes, bool more) {
    zmq_send(socket, bytes.data(), bytes.size(), more ? ZMQ_SNDMORE : 0);
  }

  // A request is [who asks, empty, first number]; the answer, batches and then an end without
  // payload.
  void AnswerReplay() {
    std::vector<std::vector<uint8_t>> frames;
    int more = 1;
    while (more != 0) {
      zmq_msg_t message;
      zmq_msg_init(&message);
      if (zmq_msg_recv(&message, replay, 0) < 0) {
        zmq_msg_close(&message);
        return;
      }
      const auto* data = static_cast<const uint8_t*>(zmq_msg_data(&message));
      frames.emplace_back(data, data + zmq_msg_size(&message));
      more = zmq_msg_more(&message);
      zmq_msg_close(&message);
    }
    if (frames.size() != 3 || frames[2].size() != 8) {
      SPDLOG_WARN(
          "KV events: a request for a replay has {} frames where 3 are right, the last of "
          "8 bytes; nothing is answered",
          frames.size());
      return;
    }
    uint64_t first = 0;
    for (const uint8_t byte : frames[2]) first = first << 8 | byte;
    const auto answer = [&](uint64_t number, std::span<const uint8_t> payload) {
      Send(replay, frames[0], true);
      Send(replay, {}, true);
      Send(replay, BigEndian(number), true);
      Send(replay, payload, false);
    };
    for (const Sent& batch : sent) {
      if (batch.number >= first) answer(batch.number, batch.payload);
    }
    answer(std::numeric_limits<uint64_t>::max(), {});
  }
};

KvEventPublisher::KvEventPublisher(KvEventsConfig config)
    : config_(std::move(config)), sockets_(std::make_unique<Sockets>()) {
  sockets_->publisher =
      sockets_->Open(ZMQ_PUB, config_.endpoint, config_.hwm, Binds(config_.endpoint), &endpoint_);
  if (!config_.replay_endpoint.empty()) {
    sockets_->replay = sockets_->Open(ZMQ_ROUTER, config_.replay_endpoint, config_.hwm,
                                      /*bind=*/true, &replay_endpoint_);
  }
  std::string pair;
  sockets_->wake = sockets_->Open(ZMQ_PAIR, "inproc://wake", 1, /*bind=*/true, &pair);
  sockets_->waker = sockets_->Open(ZMQ_PAIR, "inproc://wake", 1, /*bind=*/false, &pair);
  sockets_->thread = std::thread([this] { Run(); });
}

KvEventPublisher::~KvEventPublisher() {
  {
    const std::lock_guard lock(sockets_->mutex);
    sockets_->stopping = true;
    sockets_->Wake();
  }
  sockets_->thread.join();
}

void KvEventPublisher::Publish(std::vector<KvEvent>&& events) {
  if (events.empty()) return;
  const double seconds =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  const std::lock_guard lock(sockets_->mutex);
  if (sockets_->queue.size() >= static_cast<size_t>(config_.max_queue_size)) {
    sockets_->queue.pop_front();
  }
  sockets_->queue.push_back({sockets_->next_number++, seconds, std::move(events)});
  sockets_->Wake();
}

void KvEventPublisher::Run() {
  Sockets& sockets = *sockets_;
  for (;;) {
    std::deque<Sockets::Batch> batches;
    bool stopping = false;
    {
      const std::lock_guard lock(sockets.mutex);
      batches.swap(sockets.queue);
      stopping = sockets.stopping;
    }
    for (const Sockets::Batch& batch : batches) {
      std::vector<uint8_t> payload = PackKvEvents(batch.events, batch.seconds, config_.format);
      const auto* topic = reinterpret_cast<const uint8_t*>(config_.topic.data());
      Sockets::Send(sockets.publisher, {topic, config_.topic.size()}, true);
      Sockets::Send(sockets.publisher, BigEndian(batch.number), true);
      Sockets::Send(sockets.publisher, payload, false);
      sockets.sent.push_back({batch.number, std::move(payload)});
      if (sockets.sent.size() > static_cast<size_t>(config_.buffer_steps)) {
        sockets.sent.pop_front();
      }
    }
    if (stopping) return;
    std::array<zmq_pollitem_t, 2> items = {
        {{sockets.wake, 0, ZMQ_POLLIN, 0}, {sockets.replay, 0, ZMQ_POLLIN, 0}}};
    zmq_poll(items.data(), sockets.replay == nullptr ? 1 : 2, -1);
    while (zmq_recv(sockets.wake, nullptr, 0, ZMQ_DONTWAIT) >= 0) {
    }
    if (items[1].revents != 0) sockets.AnswerReplay();
  }
}

}  // namespace outrider
