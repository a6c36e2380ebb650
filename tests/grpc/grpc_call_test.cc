// Calls from their first byte to their end, in front of the stub engine.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "control.grpc.pb.h"
#include "inference.grpc.pb.h"
#include "outrider/grpc/grpc_server.h"
#include "tests/server/running_server.h"

namespace outrider {
namespace {

using ::grpc::ClientContext;
using ::grpc::Status;
using ::grpc::StatusCode;
using std::chrono::milliseconds;
using testing::HasSubstr;

vllm::GenerateRequest RequestOf(const std::string& text, uint32_t max_new_tokens) {
  vllm::GenerateRequest request;
  request.set_text(text);
  request.mutable_stopping()->set_max_new_tokens(max_new_tokens);
  return request;
}

// HTTP and gRPC in front of the stub, as `outrider serve` starts them.
class Running {
 public:
  explicit Running(StubOptions stub = {}, ServerOptions options = TestServerOptions())
      : engine(stub),
        server_(std::move(options), engine, encoder_),
        grpc(GrpcOptions{}, server_.parts()) {
    server_.Join(grpc);
    thread_ = std::thread([this] { server_.Run(); });
    const auto channel =
        ::grpc::CreateChannel(grpc.address(), ::grpc::InsecureChannelCredentials());
    inference = vllm::Inference::NewStub(channel);
    control = vllm::Control::NewStub(channel);
  }
  ~Running() { Stop(); }

  void BeginStop() { server_.Stop(); }
  void Stop() {
    server_.Stop();
    if (thread_.joinable()) thread_.join();
    grpc.Stop();
  }

  Status Generate(const vllm::GenerateRequest& request, vllm::GenerateResponse* response) {
    ClientContext context;
    return inference->Generate(&context, request, response);
  }

 private:
  BytePromptEncoder encoder_;

 public:
  StubGenerationService engine;

 private:
  Server server_;

 public:
  GrpcServer grpc;
  std::unique_ptr<vllm::Inference::Stub> inference;
  std::unique_ptr<vllm::Control::Stub> control;

 private:
  std::thread thread_;
};

// A stream that has begun.
struct Stream {
  Stream(Running& running, const vllm::GenerateRequest& request, bool reads = true)
      : reader(running.inference->GenerateStream(&context, request)) {
    vllm::GenerateResponse first;
    if (!reads) return;
    begun = reader->Read(&first) && first.has_prompt_info();
  }
  /// The last message.
  vllm::SequenceOutput ReadAll() {
    vllm::GenerateResponse message;
    vllm::SequenceOutput last;
    while (reader->Read(&message)) {
      num_tokens += message.outputs().num_tokens();
      last = message.outputs();
    }
    return last;
  }

  ClientContext context;
  std::unique_ptr<::grpc::ClientReader<vllm::GenerateResponse>> reader;
  bool begun = false;
  uint32_t num_tokens = 0;
};

TEST(GrpcCallTest, AnswersAtOnceAndInAStream) {
  Running running;
  vllm::GenerateResponse whole;
  const Status status = running.Generate(RequestOf("abc", 4), &whole);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(whole.prompt_info().num_prompt_tokens(), 4);
  EXPECT_EQ(whole.outputs().num_tokens(), 4);
  Stream stream(running, RequestOf("abc", 200));
  EXPECT_TRUE(stream.begun);
  EXPECT_EQ(stream.ReadAll().finish_info().num_output_tokens(), 200);
  EXPECT_EQ(stream.num_tokens, 200);
  EXPECT_TRUE(stream.reader->Finish().ok());
  EXPECT_TRUE(Eventually([&] { return running.grpc.CountRequests() == 0; }));
}

TEST(GrpcCallTest, WhoeverLeavesHasNoRequestLeft) {
  Running running({.step_time = milliseconds(5)});
  Stream stream(running, RequestOf("abc", 4000));
  ASSERT_TRUE(stream.begun);
  stream.context.TryCancel();
  EXPECT_TRUE(Eventually([&] { return running.engine.num_aborted() == 1; }));
  EXPECT_EQ(stream.reader->Finish().error_code(), StatusCode::CANCELLED);
  ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + milliseconds(100));
  vllm::GenerateResponse whole;
  EXPECT_EQ(running.inference->Generate(&context, RequestOf("abc", 4000), &whole).error_code(),
            StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(Eventually([&] { return running.engine.num_aborted() == 2; }));
  EXPECT_TRUE(Eventually([&] { return running.grpc.CountRequests() == 0; }));
}

TEST(GrpcCallTest, CallsMayBeLeftAtAnyTime) {
  Running running({.step_time = std::chrono::microseconds(500)});
  for (int round = 0; round < 40; ++round) {
    std::vector<std::unique_ptr<Stream>> streams;
    for (int i = 0; i < 8; ++i) {
      // Read up to its first message, or not at all.
      streams.push_back(std::make_unique<Stream>(running, RequestOf("abc", 4000), i % 2 == 0));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(round * 50));
    for (const auto& stream : streams) stream->context.TryCancel();
    for (const auto& stream : streams) {
      stream->ReadAll();
      EXPECT_EQ(stream->reader->Finish().error_code(), StatusCode::CANCELLED);
    }
  }
  EXPECT_TRUE(Eventually([&] { return running.engine.num_running() == 0; }));
  EXPECT_TRUE(Eventually([&] { return running.grpc.CountRequests() == 0; }));
  vllm::GenerateResponse whole;
  EXPECT_TRUE(running.Generate(RequestOf("abc", 4), &whole).ok());
}

TEST(GrpcCallTest, AnAbortedRequestTellsWhatItHas) {
  Running running({.step_time = milliseconds(5)});
  vllm::GenerateRequest request = RequestOf("abc", 4000);
  request.set_request_id("mine");
  Stream stream(running, request);
  ASSERT_TRUE(stream.begun);
  vllm::AbortRequest abort;
  abort.add_request_ids("other");
  abort.add_request_ids("mine");
  vllm::AbortResponse aborted;
  ClientContext context;
  EXPECT_TRUE(running.control->Abort(&context, abort, &aborted).ok());
  const vllm::FinishInfo finish = stream.ReadAll().finish_info();
  EXPECT_EQ(finish.finish_reason(), vllm::FinishInfo::ABORTED);
  EXPECT_EQ(finish.num_output_tokens(), stream.num_tokens);
  EXPECT_TRUE(stream.reader->Finish().ok());
}

TEST(GrpcCallTest, AFaultInTheMiddleIsTheStreamsStatus) {
  Running running({.fail_after = 3});
  Stream stream(running, RequestOf("abc", 100));
  stream.ReadAll();
  const Status status = stream.reader->Finish();
  EXPECT_EQ(status.error_code(), StatusCode::INTERNAL);
  EXPECT_THAT(status.error_message(), HasSubstr(std::string(kGrammarFailed)));
}

TEST(GrpcCallTest, AFullEngineRefuses) {
  Running running({.step_time = milliseconds(5), .max_requests = 1});
  Stream stream(running, RequestOf("abc", 4000));
  ASSERT_TRUE(stream.begun);
  vllm::GenerateResponse whole;
  EXPECT_EQ(running.Generate(RequestOf("abc", 4), &whole).error_code(),
            StatusCode::RESOURCE_EXHAUSTED);
}

TEST(GrpcCallTest, StopsAsHttpDoes) {
  ServerOptions options = TestServerOptions();
  options.http.shutdown_seconds = 60;
  Running running({.step_time = milliseconds(10)}, options);
  Stream stream(running, RequestOf("abc", 100));
  ASSERT_TRUE(stream.begun);
  running.BeginStop();
  vllm::GenerateResponse whole;
  ASSERT_TRUE(Eventually([&] {
    return running.Generate(RequestOf("abc", 1), &whole).error_code() == StatusCode::UNAVAILABLE;
  }));
  EXPECT_EQ(stream.ReadAll().finish_info().num_output_tokens(), 100);
  EXPECT_TRUE(stream.reader->Finish().ok());
  const auto start = std::chrono::steady_clock::now();
  running.Stop();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_EQ(running.engine.num_aborted(), 0);
}

TEST(GrpcCallTest, WhatTakesTooLongIsCancelled) {
  ServerOptions options = TestServerOptions();
  options.http.shutdown_seconds = 0.2;
  Running running({.step_time = milliseconds(10)}, options);
  Stream stream(running, RequestOf("abc", 4000));
  ASSERT_TRUE(stream.begun);
  running.BeginStop();
  stream.ReadAll();
  const Status status = stream.reader->Finish();
  EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("shutting down"));
  running.Stop();
  EXPECT_EQ(running.engine.num_aborted(), 1);
}

// With a client that never reads; the engine goes on without the answers' objects.
TEST(GrpcCallTest, EndsWhateverRuns) {
  StubGenerationService engine({.step_time = milliseconds(1)});
  BytePromptEncoder encoder;
  ServerOptions options = TestServerOptions();
  std::vector<std::unique_ptr<ClientContext>> contexts;
  std::vector<std::unique_ptr<::grpc::ClientReader<vllm::GenerateResponse>>> readers;
  std::unique_ptr<vllm::Inference::Stub> inference;
  {
    Server server(options, engine, encoder);
    GrpcServer grpc(GrpcOptions{}, server.parts());
    inference = vllm::Inference::NewStub(
        ::grpc::CreateChannel(grpc.address(), ::grpc::InsecureChannelCredentials()));
    for (int i = 0; i < 20; ++i) {
      contexts.push_back(std::make_unique<ClientContext>());
      readers.push_back(inference->GenerateStream(contexts.back().get(), RequestOf("abc", 4000)));
    }
    ASSERT_TRUE(Eventually([&] { return engine.num_running() == 20; }));
  }
  EXPECT_TRUE(Eventually([&] { return engine.num_running() == 0; }));
  for (const auto& reader : readers) {
    vllm::GenerateResponse message;
    while (reader->Read(&message)) {
    }
    EXPECT_FALSE(reader->Finish().ok());
  }
}

TEST(GrpcCallTest, KeysAreThoseOfHttp) {
  ServerOptions options = TestServerOptions();
  options.api_keys = {"one"};
  Running running({}, options);
  vllm::GenerateResponse whole;
  EXPECT_EQ(running.Generate(RequestOf("abc", 4), &whole).error_code(),
            StatusCode::UNAUTHENTICATED);
  vllm::ServerInfo info;
  ClientContext without;
  EXPECT_EQ(running.control->GetServerInfo(&without, {}, &info).error_code(),
            StatusCode::UNAUTHENTICATED);
  ClientContext with;
  with.AddMetadata("authorization", "Bearer one");
  EXPECT_TRUE(running.inference->Generate(&with, RequestOf("abc", 4), &whole).ok());
  // A key has its own cached prefixes, as over HTTP.
  EXPECT_THAT(running.engine.last_cache_salt(), HasSubstr("key 1"));
}

}  // namespace
}  // namespace outrider
