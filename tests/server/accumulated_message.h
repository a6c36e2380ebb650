// What a client makes of a streamed chat answer.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace outrider {

// The message that a client puts together from a stream's deltas, with finish_reason and usage.
inline nlohmann::json Accumulate(const std::vector<std::string>& events) {
  using nlohmann::json;
  json message = {{"content", nullptr}};
  const auto append = [](json& to, const char* name, const json& from) {
    if (!from.contains(name)) return;
    if (!to.contains(name) || to[name].is_null()) to[name] = "";
    to[name] = to[name].get<std::string>() + from[name].get<std::string>();
  };
  for (const std::string& event : events) {
    if (event == "[DONE]") break;
    const json chunk = json::parse(event);
    if (chunk.contains("usage") && !chunk["usage"].is_null()) message["usage"] = chunk["usage"];
    for (const json& choice : chunk["choices"]) {
      if (!choice["finish_reason"].is_null()) message["finish_reason"] = choice["finish_reason"];
      const json& delta = choice["delta"];
      append(message, "content", delta);
      append(message, "reasoning", delta);
      append(message, "reasoning_content", delta);
      for (const json& call : delta.value("tool_calls", json::array())) {
        const size_t index = call["index"];
        json& calls = message["tool_calls"];
        EXPECT_EQ(call.contains("id"), index == calls.size()) << "a header comes once";
        if (index == calls.size()) calls.push_back({{"function", {{"arguments", ""}}}});
        if (call.contains("id")) {
          calls[index]["id"] = call["id"];
          calls[index]["type"] = call["type"];
          calls[index]["function"]["name"] = call["function"]["name"];
        }
        append(calls[index]["function"], "arguments", call["function"]);
      }
    }
  }
  return message;
}

}  // namespace outrider
