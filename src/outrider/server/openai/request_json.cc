#include "outrider/server/openai/request_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "outrider/server/openai/api_error.h"

namespace outrider::openai {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 32;

RequestError BadJson(std::string_view body, size_t byte) {
  const std::string_view before = body.substr(0, std::min(byte, body.size()));
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  return {ErrorCode::kInvalidArgument, "",
          body.empty()
              ? "the request body is empty; it must be a JSON object"
              : fmt::format("the request body is not valid JSON: error at line {}, byte {} "
                            "of {}",
                            line, byte, body.size()),
          "invalid_json"};
}

}  // namespace

json ParseRequestJson(std::string_view body) {
  std::set<std::string> names;
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth) {
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
    throw BadJson(body, error.byte);
  } catch (const json::out_of_range&) {
    throw RequestError(ErrorCode::kInvalidArgument, "",
                       "the request body has a number that no floating-point type can hold",
                       "invalid_json");
  }
}

}  // namespace outrider::openai
