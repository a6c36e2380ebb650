#include "outrider/server/admin_api.h"

#include <fmt/format.h>

#include <functional>
#include <string>
#include <utility>

#include "outrider/base/json_text.h"
#include "outrider/openai/api_error.h"
#include "outrider/server/admin_requests.h"
#include "outrider/server/deferred_response.h"

namespace outrider {
namespace {

HttpResponse Json(std::string body) {
  HttpResponse response;
  response.content_type = "application/json";
  response.body = std::move(body);
  return response;
}

// As trainers read it, with the error of other routes.
HttpResponse UpdateFailed(const Error& error) {
  HttpResponse response = openai::ErrorResponse(openai::FromError(error));
  response.body = fmt::format(R"({{"success":false,"message":{},{})", JsonString(error.what()),
                              response.body.substr(1));
  return response;
}

std::string UpdateDone(const std::string& version) {
  return fmt::format(
      R"({{"success":true,"message":"the weights are those of the folder","num_paused_requests":0{}}})",
      version.empty() ? std::string() : R"(,"weight_version":)" + JsonString(version));
}

}  // namespace

std::shared_ptr<HttpProducer> HandleAdminRoute(AdminRoute route, GenerationService& service,
                                               const std::vector<std::string>& weight_dirs,
                                               const HttpRequest& request, HttpWaker waker) {
  auto response = std::make_shared<DeferredResponse>(std::move(waker), openai::ErrorForm::kOpenAi);
  const auto answer = [response](const char* body) -> std::function<void()> {
    return [response, body] { response->Complete(Json(body)); };
  };
  const auto answer_or_error = [response](const char* body) -> ControlDone {
    return [response, body](const Error* error) {
      response->Complete(error == nullptr ? Json(body)
                                          : openai::ErrorResponse(openai::FromError(*error)));
    };
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
    case AdminRoute::kSleep: {
      const SleepRequest sleep = ParseSleepQuery(request.query);
      service.Sleep(sleep.memory, sleep.mode, answer_or_error(R"({"status":"asleep"})"));
      break;
    }
    case AdminRoute::kSleepSglang:
      service.Sleep(ParseMemoryBody(request.body), PauseMode::kKeep,
                    answer_or_error(R"({"status":"asleep"})"));
      break;
    case AdminRoute::kWakeUp:
      service.WakeUp(ParseWakeUpQuery(request.query), answer_or_error(R"({"status":"awake"})"));
      break;
    case AdminRoute::kWakeUpSglang:
      service.WakeUp(ParseMemoryBody(request.body), answer_or_error(R"({"status":"awake"})"));
      break;
    case AdminRoute::kUpdateWeights: {
      WeightUpdate update = ParseWeightUpdate(request.body, weight_dirs);
      const std::string done = UpdateDone(update.version);
      service.UpdateWeights(std::move(update), [response, done](const Error* error) {
        response->Complete(error == nullptr ? Json(done) : UpdateFailed(*error));
      });
      break;
    }
  }
  return response;
}

}  // namespace outrider
