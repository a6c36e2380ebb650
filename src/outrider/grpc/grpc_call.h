// One call for tokens: between gRPC, which calls back on its own threads, and the answer that a
// producer makes on the loop's thread.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>

#include "outrider/grpc/answer_frames.h"
#include "outrider/grpc/grpc_loop.h"
#include "outrider/http/http_body_budget.h"
#include "outrider/http/http_message.h"
#include "outrider/server/answer_form.h"
#include "outrider/server/server_companion.h"

namespace outrider {

class GrpcCall;

/// What all calls share.
struct GrpcCalls {
  GrpcCalls(ServerParts server, int64_t max_bodies_bytes)
      : parts(server),
        bodies(std::make_shared<HttpBodyBudget>(static_cast<size_t>(max_bodies_bytes))) {}

  const ServerParts parts;
  /// Outlives the server in wakers that the engine keeps.
  const std::shared_ptr<GrpcLoop> loop = std::make_shared<GrpcLoop>();
  const std::shared_ptr<HttpBodyBudget> bodies;  // requests that nobody has read yet
  std::atomic<bool> draining = false;
  std::atomic<size_t> num_open = 0;        // calls that gRPC has not done with
  std::atomic<size_t> num_admitted = 0;    // of these, that were not refused
  std::unordered_set<GrpcCall*> admitted;  // loop's thread
};

/// Keeps itself alive until gRPC is done with it. Without a comment, a member function runs on the
/// loop's thread.
class GrpcCall : public std::enable_shared_from_this<GrpcCall> {
 public:
  GrpcCall(GrpcCalls& calls, const AnswerForm& form) : calls_(calls), form_(form) {}
  virtual ~GrpcCall() = default;
  GrpcCall(const GrpcCall&) = delete;
  GrpcCall& operator=(const GrpcCall&) = delete;

  /// The first thing, on gRPC's thread. `context` lives until Over.
  void Open(::grpc::CallbackServerContext* context, const char* path,
            const ::grpc::ByteBuffer& request);
  /// The server stops and has waited long enough.
  void CancelByServer();

 protected:
  // From reactors, on any thread.
  void Sent(bool ok);
  void Left();
  void Over();

  /// Begins to send a serialized message. False: it waits for Finish, and Sent will not be called.
  virtual bool Send(const ::grpc::ByteBuffer& message) = 0;
  virtual void FinishWith(const ::grpc::Status& status) = 0;

 private:
  void Post(void (GrpcCall::*step)());
  void Begin();
  std::optional<::grpc::Status> Start();
  void GoOn();    // after Sent
  void GiveUp();  // after Sent
  void Advance();
  /// False: there is nothing to send now.
  bool Produce();
  void TakeHead(const HttpResponse& head, const std::string& body);
  void Leave();
  void Stop(const ::grpc::Status& status);
  void Close();

  GrpcCalls& calls_;
  const AnswerForm& form_;
  std::shared_ptr<GrpcCall> self_;  // until gRPC is done with it
  ::grpc::CallbackServerContext* context_ = nullptr;
  HttpRequest request_;
  std::shared_ptr<HttpProducer> producer_;
  std::deque<AnswerFrame> frames_;            // to be sent
  std::optional<::grpc::Status> end_status_;  // after them
  bool producer_ended_ = false;
  bool sending_ = false;
  bool finished_ = false;
};

/// Generate: one message.
class UnaryCall final : public GrpcCall, public ::grpc::ServerUnaryReactor {
 public:
  /// `response`: where the answer goes.
  UnaryCall(GrpcCalls& calls, const AnswerForm& form, ::grpc::ByteBuffer* response)
      : GrpcCall(calls, form), response_(response) {}

 private:
  void OnCancel() override { Left(); }
  void OnDone() override { Over(); }
  bool Send(const ::grpc::ByteBuffer& message) override;
  void FinishWith(const ::grpc::Status& status) override { ServerUnaryReactor::Finish(status); }

  ::grpc::ByteBuffer* const response_;
};

/// GenerateStream: a message for what each step gave.
class StreamCall final : public GrpcCall, public ::grpc::ServerWriteReactor<::grpc::ByteBuffer> {
 public:
  using GrpcCall::GrpcCall;

 private:
  void OnCancel() override { Left(); }
  void OnDone() override { Over(); }
  void OnWriteDone(bool ok) override { Sent(ok); }
  bool Send(const ::grpc::ByteBuffer& message) override;
  void FinishWith(const ::grpc::Status& status) override { ServerWriteReactor::Finish(status); }

  ::grpc::ByteBuffer message_;  // that is being sent
};

}  // namespace outrider
