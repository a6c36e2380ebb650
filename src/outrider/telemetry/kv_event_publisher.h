// Publishes what happens to cached blocks over ZeroMQ, as vLLM does, for routers that know which
// server has a prefix (llm-d, Dynamo).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "outrider/engine/kv_events.h"

namespace outrider {

/// --kv-events-config, with vLLM's names and defaults.
struct KvEventsConfig {
  /// How an event is written: as a map with "type", or, older, as an array with its name first.
  enum class Format : uint8_t { kMap, kArray };

  std::string endpoint = "tcp://*:5557";  // to publish on
  std::string replay_endpoint;            // "": nobody can ask for batches again
  int32_t buffer_steps = 10'000;          // batches that can be asked for again
  int32_t hwm = 100'000;                  // messages that wait for a slow subscriber
  int32_t max_queue_size = 100'000;       // batches that wait to be sent
  std::string topic;
  Format format = Format::kMap;
};

/// Nothing where the configuration switches events off. Throws Error that begins with `where` for
/// what is no such configuration.
std::optional<KvEventsConfig> ParseKvEventsConfig(const std::string& where, std::string_view text);

/// The msgpack payload of a batch: [seconds since 1970, [events], data-parallel rank 0].
std::vector<uint8_t> PackKvEvents(const std::vector<KvEvent>& events, double seconds,
                                  KvEventsConfig::Format format);

class KvEventPublisher {
 public:
  /// Binds or connects. Throws Error (kUnavailable) when that fails.
  explicit KvEventPublisher(KvEventsConfig config);
  /// Sends what waits, for a second at most.
  ~KvEventPublisher();
  KvEventPublisher(const KvEventPublisher&) = delete;
  KvEventPublisher& operator=(const KvEventPublisher&) = delete;

  /// Queues a batch. Does not block: when too many wait, the oldest is dropped, which subscribers
  /// see by its number that is missing. Any thread.
  void Publish(std::vector<KvEvent>&& events);

  /// The endpoints in the end, with the ports that were chosen for "*"; for tests.
  const std::string& endpoint() const { return endpoint_; }
  const std::string& replay_endpoint() const { return replay_endpoint_; }

 private:
  struct Sockets;

  void Run();

  const KvEventsConfig config_;
  std::unique_ptr<Sockets> sockets_;
  std::string endpoint_;
  std::string replay_endpoint_;
};

}  // namespace outrider
