#include "outrider/server/admin_api.h"

#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "outrider/openai/api_error.h"
#include "outrider/openai/field_reader.h"
#include "outrider/openai/request_json.h"
#include "outrider/server/deferred_response.h"

namespace outrider {
namespace {

using openai::FieldReader;

struct PauseRequest {
  PauseMode mode = PauseMode::kAbort;
  bool forget_prefixes = true;
};

[[noreturn]] void Refuse(const std::string& name, const std::string& what) {
  throw openai::RequestError(ErrorCode::kInvalidArgument, name, fmt::format("{}: {}", name, what));
}

bool BoolOf(const std::string& name, std::string_view value) {
  if (value == "true" || value == "1") return true;
  if (value == "false" || value == "0") return false;
  Refuse(name, fmt::format("must be true or false, not \"{}\"", value.substr(0, 48)));
}

// vLLM's: mode=abort|wait|keep, clear_cache, and the older wait_for_inflight_requests.
PauseRequest ParsePauseQuery(std::string_view query) {
  PauseRequest request;
  while (!query.empty()) {
    const std::string_view part = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), part.size() + 1));
    const size_t equals = std::min(part.find('='), part.size());
    const std::string name(part.substr(0, equals));
    const std::string_view value = part.substr(std::min(part.size(), equals + 1));
    if (name == "mode") {
      if (value == "abort") {
        request.mode = PauseMode::kAbort;
      } else if (value == "wait") {
        request.mode = PauseMode::kWait;
      } else if (value == "keep") {
        request.mode = PauseMode::kKeep;
      } else {
        Refuse("mode", fmt::format("must be abort, wait or keep, not \"{}\"", value.substr(0, 48)));
      }
    } else if (name == "clear_cache") {
      request.forget_prefixes = BoolOf(name, value);
    } else if (name == "wait_for_inflight_requests") {
      if (BoolOf(name, value)) request.mode = PauseMode::kWait;
    } else if (!part.empty()) {
      Refuse(name.substr(0, 48), "unknown; use mode, clear_cache or wait_for_inflight_requests");
    }
  }
  return request;
}

// SGLang's: {"mode": "abort" | "in_place" | "retract"}. Requests that are retracted are computed
// again; here they keep what they have, and go on with equal bits.
PauseRequest ParsePauseBody(const std::string& body) {
  PauseRequest request{.mode = PauseMode::kAbort, .forget_prefixes = false};
  if (body.empty()) return request;
  const openai::RequestJson parsed = openai::ParseRequestJson(body);
  FieldReader fields(*parsed, "");
  const std::string mode = fields.String("mode").value_or("abort");
  if (mode != "abort" && mode != "in_place" && mode != "retract") {
    fields.Refuse("mode", R"(must be "abort", "in_place" or "retract")");
  }
  request.mode = mode == "abort" ? PauseMode::kAbort : PauseMode::kKeep;
  fields.RefuseUnknown();
  return request;
}

HttpResponse Json(std::string body) {
  HttpResponse response;
  response.content_type = "application/json";
  response.body = std::move(body);
  return response;
}

}  // namespace

std::shared_ptr<HttpProducer> HandleAdminRoute(AdminRoute route, GenerationService& service,
                                               const HttpRequest& request, HttpWaker waker) {
  auto response = std::make_shared<DeferredResponse>(std::move(waker), openai::ErrorForm::kOpenAi);
  const auto answer = [response](const char* body) -> std::function<void()> {
    return [response, body] { response->Complete(Json(body)); };
  };
  switch (route) {
    case AdminRoute::kPause: {
      const PauseRequest pause = ParsePauseQuery(request.query);
      service.Pause(pause.mode, pause.forget_prefixes, answer(R"({"status":"paused"})"));
      break;
    }
    case AdminRoute::kPauseSglang: {
      const PauseRequest pause = ParsePauseBody(request.body);
      service.Pause(pause.mode, pause.forget_prefixes,
                    answer(R"({"status":"ok","message":"generation is paused"})"));
      break;
    }
    case AdminRoute::kResume:
      service.Resume(answer(R"({"status":"resumed"})"));
      break;
    case AdminRoute::kResumeSglang:
      service.Resume(answer(R"({"status":"ok","message":"generation goes on"})"));
      break;
    case AdminRoute::kResetPrefixCache:
      service.ForgetPrefixes(answer(R"({"status":"ok"})"));
      break;
    case AdminRoute::kFlushCache:
      service.ForgetPrefixes(
          answer(R"({"success":true,"message":"cached prefixes are forgotten"})"));
      break;
  }
  return response;
}

}  // namespace outrider
