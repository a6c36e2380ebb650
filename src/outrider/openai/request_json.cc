#include "outrider/openai/request_json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "outrider/openai/api_error.h"

namespace outrider::openai {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 32;

constexpr size_t kMaxReasonBytes = 200;  // the parser's reason quotes the body

// `what` is "[json.exception.parse_error.101] parse error at line 1, column 8: syntax error while
// ...": what follows "at" is for the client.
RequestError BadJson(std::string_view body, std::string_view what) {
  constexpr std::string_view kBefore = "parse error at ";
  const size_t before = what.find(kBefore);
  if (before != std::string_view::npos) what.remove_prefix(before + kBefore.size());
  const char* const cut = what.size() > kMaxReasonBytes ? "..." : "";
  return {ErrorCode::kInvalidArgument, "",
          body.empty() ? "the request body is empty; it must be a JSON object"
                       : fmt::format("the request body is not valid JSON: {}{}",
                                     what.substr(0, kMaxReasonBytes), cut),
          "invalid_json"};
}

}  // namespace

json ParseRequestJson(std::string_view body) {
  std::set<std::string> names;
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    const bool opens =
        event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
    if (depth + (opens ? 1 : 0) > kMaxDepth) {  // an empty level is one too
      throw RequestError(
          ErrorCode::kInvalidArgument, "",
          fmt::format("the request body is nested more than {} levels deep", kMaxDepth));
    }
    if (depth == 1 && event == json::parse_event_t::key) {
      const auto& name = parsed.get_ref<const std::string&>();
      if (!names.insert(name).second) {
        throw RequestError(ErrorCode::kInvalidArgument, name.substr(0, 64),
                           fmt::format("{}: is given twice", name.substr(0, 64)));
      }
    }
    return true;
  };
  try {
    return json::parse(body, check);
  } catch (const json::parse_error& error) {
    throw BadJson(body, error.what());
  } catch (const json::out_of_range&) {
    throw RequestError(ErrorCode::kInvalidArgument, "",
                       "the request body has a number that no floating-point type can hold",
                       "invalid_json");
  }
}

}  // namespace outrider::openai
