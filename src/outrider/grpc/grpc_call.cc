#include "outrider/grpc/grpc_call.h"

#include <fmt/format.h>

#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "outrider/base/error.h"
#include "outrider/base/memory_shortage.h"
#include "outrider/grpc/grpc_status.h"
#include "outrider/grpc/request_head.h"
#include "outrider/openai/api_error.h"

namespace outrider {
namespace {

using ::grpc::Status;
using ::grpc::StatusCode;

constexpr size_t kFreeBodyBytes = size_t{64} << 10;  // requests up to this are taken in any case

std::string TextOf(const ::grpc::ByteBuffer& buffer) {
  std::vector<::grpc::Slice> slices;
  std::string text;
  if (!buffer.Dump(&slices).ok()) return text;
  text.reserve(buffer.Length());
  for (const ::grpc::Slice& slice : slices) {
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return text;
}

::grpc::ByteBuffer BufferOf(const std::string& text) {
  const ::grpc::Slice slice(text);
  return {&slice, 1};
}

Status ShuttingDown() { return {StatusCode::UNAVAILABLE, "the server is shutting down"}; }

}  // namespace

void GrpcCall::Post(void (GrpcCall::*step)()) {
  // The step may be the last thing that the server waits for.
  const std::shared_ptr<GrpcLoop> loop = calls_.loop;
  loop->Post([self = shared_from_this(), step] { (self.get()->*step)(); });
}

void GrpcCall::Open(::grpc::CallbackServerContext* context, const char* path,
                    const ::grpc::ByteBuffer& request) {
  ++calls_.num_open;
  self_ = shared_from_this();
  context_ = context;
  request_ = HeadOf(*context, path);
  request_.body = TextOf(request);
  Post(&GrpcCall::Begin);
}

void GrpcCall::Sent(bool ok) { Post(ok ? &GrpcCall::GoOn : &GrpcCall::GiveUp); }
void GrpcCall::Left() { Post(&GrpcCall::Leave); }
void GrpcCall::Over() { Post(&GrpcCall::Close); }

void GrpcCall::Begin() {
  if (finished_) return;
  ++calls_.num_admitted;  // before `draining` is read: whoever sets it then counts
  if (const std::optional<Status> refusal = Start()) {
    --calls_.num_admitted;
    return Stop(*refusal);
  }
  Advance();
}

// Why the call is refused; nothing where it is not.
std::optional<Status> GrpcCall::Start() {
  const ServerParts& parts = calls_.parts;
  if (!parts.keys.IsAuthorized(request_)) {
    return Status{StatusCode::UNAUTHENTICATED,
                  "a valid API key is needed: send it as metadata \"authorization: Bearer KEY\""};
  }
  if (calls_.draining) return ShuttingDown();
  if (const auto rank = request_.Header("x-data-parallel-rank"); rank && *rank != "0") {
    return Status{StatusCode::INVALID_ARGUMENT,
                  "x-data-parallel-rank: must be 0: this server is one engine"};
  }
  const auto share = std::make_shared<HttpBodyShare>(calls_.bodies, kFreeBodyBytes);
  if (!share->GrowTo(request_.body.size())) {
    return Status{StatusCode::RESOURCE_EXHAUSTED,
                  "too many large requests wait to be read; try again later"};
  }
  request_.body_share = share;
  std::optional<KeyAdmission> admission = parts.keys.Admit(request_);
  if (!admission) {
    return Status{StatusCode::RESOURCE_EXHAUSTED,
                  fmt::format("this API key has {} requests already, which is the most it may have "
                              "at a time; try again later",
                              *parts.keys.max_requests_per_key())};
  }
  const std::string client =
      admission->caller == 0 ? request_.peer : std::to_string(admission->caller);
  HttpWaker waker([loop = calls_.loop, call = weak_from_this()] {
    loop->Post([call] {
      if (const auto self = call.lock()) self->Advance();
    });
  });
  calls_.admitted.insert(this);
  producer_ = parts.starter.Start(form_, client, std::move(request_), std::move(waker),
                                  *std::move(admission));
  return std::nullopt;
}

void GrpcCall::CancelByServer() {
  producer_->Cancel();
  Advance();
}

void GrpcCall::GoOn() {
  sending_ = false;
  Advance();
}

void GrpcCall::GiveUp() {
  sending_ = false;
  Leave();
}

void GrpcCall::Advance() {
  try {
    const FailsAlone scope;
    while (!finished_ && !sending_) {
      if (frames_.empty() && !end_status_ && !Produce()) return;
      if (frames_.empty()) {
        if (end_status_) Stop(*end_status_);
        continue;
      }
      const AnswerFrame frame = std::move(frames_.front());
      frames_.pop_front();
      if (frame.kind == FrameKind::kError) {
        frames_.clear();
        end_status_ = StatusOfErrorFrame(frame.bytes);
      } else {
        sending_ = Send(BufferOf(frame.bytes));
      }
    }
  } catch (const std::bad_alloc&) {
    Stop(GrpcStatusOf(openai::TooLittleMemory()));
  }
}

bool GrpcCall::Produce() {
  if (producer_ended_) return false;
  HttpOutput output;
  producer_->Produce(&output);
  producer_ended_ = output.end;
  if (output.head) TakeHead(*output.head, output.body);
  const bool is_error = end_status_.has_value();
  for (std::string_view body = is_error ? std::string_view() : output.body; !body.empty();) {
    frames_.push_back(*TakeFrame(&body));
  }
  if (output.end && !is_error) end_status_ = Status::OK;
  return output.end || !frames_.empty();
}

void GrpcCall::TakeHead(const HttpResponse& head, const std::string& body) {
  for (const HttpHeader& header : head.headers) {
    if (header.name == "X-Request-Id") context_->AddInitialMetadata("x-request-id", header.value);
  }
  if (head.status != 200) end_status_ = GrpcStatusOf(head.status, body);
}

// The client is gone, or its connection.
void GrpcCall::Leave() { Stop({StatusCode::CANCELLED, "the client has left"}); }

// Nothing more is sent than what is being sent.
void GrpcCall::Stop(const Status& status) {
  if (producer_ && !std::exchange(producer_ended_, true)) producer_->Abandon();
  frames_.clear();
  end_status_ = status;
  if (!sending_ && !std::exchange(finished_, true)) FinishWith(status);
}

void GrpcCall::Close() {
  if (producer_ && !std::exchange(producer_ended_, true)) producer_->Abandon();
  if (calls_.admitted.erase(this) != 0) --calls_.num_admitted;
  --calls_.num_open;
  self_.reset();  // the job that runs this still holds it
}

bool UnaryCall::Send(const ::grpc::ByteBuffer& message) {
  *response_ = message;
  return false;
}

bool StreamCall::Send(const ::grpc::ByteBuffer& message) {
  message_ = message;
  StartWrite(&message_);
  return true;
}

}  // namespace outrider
