// KV events as subscribers read them off ZeroMQ.
#include "outrider/telemetry/kv_event_publisher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zmq.h>

#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "outrider/base/error.h"

// ThreadSanitizer reads this. Debian's libzmq is not instrumented: it does not see its atomics.
// NOLINTNEXTLINE(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp)
extern "C" const char* __tsan_default_suppressions() { return "race:libzmq.so\n"; }

namespace outrider {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr uint64_t kHash = 0xfedcba9876543210;

std::vector<KvEvent> SomeEvents() {
  return {{.kind = KvEvent::Kind::kStored,
           .hashes = {kHash, 2},
           .parent = 7,
           .token_ids = {1, 2, 3, 4},
           .block_size = 2,
           .cache_salt = "salt"},
          {.kind = KvEvent::Kind::kRemoved, .hashes = {2}},
          {.kind = KvEvent::Kind::kCleared}};
}

TEST(PackKvEventsTest, MapsHaveATypeAndNames) {
  const json batch =
      json::from_msgpack(PackKvEvents(SomeEvents(), 1.5, KvEventsConfig::Format::kMap));
  ASSERT_EQ(batch.size(), 3);
  EXPECT_EQ(batch[0], 1.5);
  EXPECT_EQ(batch[2], 0);
  EXPECT_EQ(batch[1][0], json::parse(R"({"type":"BlockStored",
      "block_hashes":[18364758544493064720,2],"parent_block_hash":7,"token_ids":[1,2,3,4],
      "block_size":2,"lora_id":null,"medium":"GPU","lora_name":null,
      "extra_keys":[["salt"],["salt"]],"group_idx":0,"kv_cache_spec_kind":"full_attention",
      "kv_cache_spec_sliding_window":null})"));
  EXPECT_EQ(
      batch[1][1],
      json::parse(R"({"type":"BlockRemoved","block_hashes":[2],"medium":"GPU","group_idx":0})"));
  EXPECT_EQ(batch[1][2], json::parse(R"({"type":"AllBlocksCleared"})"));
}

TEST(PackKvEventsTest, ArraysHaveTheirNameFirst) {
  std::vector<KvEvent> events = SomeEvents();
  events[0].parent.reset();
  events[0].cache_salt.clear();
  const json batch = json::from_msgpack(PackKvEvents(events, 1.5, KvEventsConfig::Format::kArray));
  EXPECT_EQ(batch[1][0],
            json::parse(R"(["BlockStored",[18364758544493064720,2],null,[1,2,3,4],2,null,"GPU",null,
                            null,0,"full_attention",null])"));
  EXPECT_EQ(batch[1][1], json::parse(R"(["BlockRemoved",[2],"GPU",0])"));
  EXPECT_EQ(batch[1][2], json::parse(R"(["AllBlocksCleared"])"));
}

// One socket of ZeroMQ; every wait ends after five seconds.
class Peer {
 public:
  Peer(int type, const std::string& endpoint, const std::string& topic = "") {
    socket_ = zmq_socket(context_, type);
    constexpr int kMilliseconds = 5000;
    zmq_setsockopt(socket_, ZMQ_RCVTIMEO, &kMilliseconds, sizeof kMilliseconds);
    if (type == ZMQ_SUB) zmq_setsockopt(socket_, ZMQ_SUBSCRIBE, topic.data(), topic.size());
    EXPECT_EQ(zmq_connect(socket_, endpoint.c_str()), 0);
  }
  ~Peer() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }

  std::vector<std::string> Receive() {
    std::vector<std::string> frames;
    for (;;) {
      std::string frame(65536, '\0');
      const int size = zmq_recv(socket_, frame.data(), frame.size(), 0);
      if (size < 0) return frames;
      frame.resize(static_cast<size_t>(size));
      frames.push_back(frame);
      int more = 0;
      size_t length = sizeof more;
      zmq_getsockopt(socket_, ZMQ_RCVMORE, &more, &length);
      if (more == 0) return frames;
    }
  }

  void Send(const std::vector<std::string>& frames) {
    for (size_t i = 0; i < frames.size(); ++i) {
      zmq_send(socket_, frames[i].data(), frames[i].size(),
               i + 1 < frames.size() ? ZMQ_SNDMORE : 0);
    }
  }

 private:
  void* context_ = zmq_ctx_new();
  void* socket_ = nullptr;
};

std::string Number(uint8_t last) { return std::string(7, '\0') + static_cast<char>(last); }

KvEventsConfig LoopbackConfig() {
  KvEventsConfig config;
  config.endpoint = "tcp://127.0.0.1:*";
  config.replay_endpoint = "tcp://127.0.0.1:*";
  config.topic = "kv@pod@model";
  config.buffer_steps = 3;
  return config;
}

TEST(KvEventPublisherTest, PublishesTopicNumberAndBatch) {
  KvEventPublisher publisher(LoopbackConfig());
  Peer subscriber(ZMQ_SUB, publisher.endpoint(), "kv@");
  // A subscription takes a while; what comes before it is missed.
  std::vector<std::string> frames;
  for (int tries = 0; tries < 100 && frames.empty(); ++tries) {
    publisher.Publish(SomeEvents());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (tries > 5) frames = subscriber.Receive();
  }
  ASSERT_EQ(frames.size(), 3U);
  EXPECT_EQ(frames[0], "kv@pod@model");
  EXPECT_EQ(frames[1].size(), 8U);
  const json batch = json::from_msgpack(frames[2]);
  EXPECT_GT(batch[0], 1.7e9);
  EXPECT_EQ(batch[1].size(), 3);
  const std::string next = subscriber.Receive().at(1);
  EXPECT_EQ(next.back() - frames[1].back(), 1);
}

TEST(KvEventPublisherTest, ReplaysTheLastBatches) {
  KvEventPublisher publisher(LoopbackConfig());
  for (int i = 0; i < 5; ++i) publisher.Publish(SomeEvents());
  Peer late(ZMQ_DEALER, publisher.replay_endpoint());
  const auto numbers = [&](uint8_t first) {
    late.Send({"", Number(first)});
    std::string seen;
    for (;;) {
      const std::vector<std::string> frames = late.Receive();
      if (frames.size() != 3) return std::string("broken");
      if (frames[2].empty()) {
        EXPECT_EQ(frames[1], std::string(8, '\xff'));
        return seen;
      }
      EXPECT_EQ(json::from_msgpack(frames[2])[1].size(), 3);
      seen += static_cast<char>('0' + frames[1].back());
    }
  };
  // The publishing thread may not have sent all of them yet.
  std::string all;
  for (int tries = 0; tries < 100 && all != "234"; ++tries) all = numbers(0);
  EXPECT_EQ(all, "234");  // of five, the last three
  EXPECT_EQ(numbers(4), "4");
  EXPECT_EQ(numbers(9), "");
  late.Send({"", "short"});  // is not answered, and breaks nothing
  EXPECT_EQ(numbers(3), "34");
}

TEST(KvEventPublisherTest, AnAddressThatIsTakenIsAnError) {
  KvEventPublisher first(LoopbackConfig());
  KvEventsConfig config = LoopbackConfig();
  config.replay_endpoint = first.replay_endpoint();
  EXPECT_THROW(KvEventPublisher second(config), Error);
}

TEST(ParseKvEventsConfigTest, ReadsVllmsNames) {
  const auto config = ParseKvEventsConfig(
      "--kv-events-config",
      R"({"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:9","replay_endpoint":
          "tcp://*:10","buffer_steps":5,"hwm":6,"max_queue_size":7,"topic":"t","format":"array"})");
  ASSERT_TRUE(config);
  EXPECT_EQ(config->endpoint, "tcp://*:9");
  EXPECT_EQ(config->replay_endpoint, "tcp://*:10");
  EXPECT_EQ(config->buffer_steps, 5);
  EXPECT_EQ(config->hwm, 6);
  EXPECT_EQ(config->max_queue_size, 7);
  EXPECT_EQ(config->topic, "t");
  EXPECT_EQ(config->format, KvEventsConfig::Format::kArray);
  EXPECT_EQ(ParseKvEventsConfig("x", "{}")->endpoint, "tcp://*:5557");
  EXPECT_FALSE(ParseKvEventsConfig("x", R"({"enable_kv_cache_events":false})"));
  EXPECT_FALSE(ParseKvEventsConfig("x", R"({"publisher":"null"})"));
}

TEST(ParseKvEventsConfigTest, RefusesWhatIsNone) {
  const auto message = [](const char* text) -> std::string {
    try {
      ParseKvEventsConfig("--kv-events-config", text);
    } catch (const Error& error) {
      return error.what();
    }
    return "taken";
  };
  EXPECT_THAT(message("[]"), HasSubstr("--kv-events-config: must be a JSON object"));
  EXPECT_THAT(message(R"({"topics":"x"})"), HasSubstr("\"topics\" is unknown; use"));
  EXPECT_THAT(message(R"({"hwm":0})"), HasSubstr("hwm is 0; must be a whole number"));
  EXPECT_THAT(message(R"({"format":"xml"})"), HasSubstr("use \"map\" or \"array\""));
  EXPECT_THAT(message(R"({"publisher":"kafka"})"), HasSubstr("use \"zmq\" or \"null\""));
  EXPECT_THAT(message(R"({"endpoint":5})"), HasSubstr("endpoint must be a string"));
}

}  // namespace
}  // namespace outrider
