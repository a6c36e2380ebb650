// What routers ask of a server: prompts as token ids, answers for token ids, loads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/server/running_server.h"

namespace outrider {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class RouterApiTest : public testing::Test {
 protected:
  json Post(const std::string& path, const json& request, int status = 200) {
    const ClientResponse response = HttpClient(running_.port()).Post(path, request.dump());
    EXPECT_EQ(response.status, status) << response.body;
    return json::parse(response.body);
  }
  json Get(const std::string& path) {
    const ClientResponse response = HttpClient(running_.port()).Get(path);
    EXPECT_EQ(response.status, 200) << response.body;
    return json::parse(response.body);
  }

  RunningServer running_;
};

TEST_F(RouterApiTest, RendersChatsWithoutRunningThem) {
  const json rendered = Post("/v1/chat/completions/render",
                             {{"messages", json::array({{{"role", "user"}, {"content", "Hi"}}})},
                              {"temperature", 0.5},
                              {"seed", 7},
                              {"max_tokens", 5},
                              {"stop", "END"},
                              {"cache_salt", "salt"},
                              {"priority", 2},
                              {"logit_bias", {{"65", 1.5}}},
                              {"stream", true}});
  EXPECT_EQ(rendered["token_ids"], (json{'H', 'i', 257}));
  EXPECT_EQ(rendered["model"], "stub");
  EXPECT_EQ(rendered["cache_salt"], "salt");
  EXPECT_EQ(rendered["priority"], 2);
  EXPECT_EQ(rendered["stream"], true);
  const json& sampling = rendered["sampling_params"];
  EXPECT_EQ(sampling["temperature"], 0.5);
  EXPECT_EQ(sampling["seed"], 7);
  EXPECT_EQ(sampling["max_tokens"], 5);
  EXPECT_EQ(sampling["stop"], json::array({"END"}));
  EXPECT_EQ(sampling["logit_bias"], (json{{"65", 1.5}}));
  EXPECT_EQ(running_.engine.Counters().num_steps, 0);
}

// What a route renders, the other runs, with the same parameters.
TEST_F(RouterApiTest, RunsWhatItRendered) {
  const json request = {{"prompt", json::array({"ab", "cd"})},
                        {"max_tokens", 4},
                        {"temperature", 0.25},
                        {"top_k", 3},
                        {"min_p", 0.125},
                        {"presence_penalty", 0.5},
                        {"stop_token_ids", {9, 8}},
                        {"bad_words", {"no"}},
                        {"allowed_token_ids", {97, 98, 99, 100}},
                        {"logprobs", 1},
                        {"min_tokens", 2}};
  Post("/v1/completions", request);
  const SamplingParams direct = running_.engine.last_sampling();
  const json rendered = Post("/v1/completions/render", request);
  ASSERT_EQ(rendered.size(), 2);
  EXPECT_EQ(rendered[0]["token_ids"], (json{256, 'a', 'b'}));
  const json answer = Post("/inference/v1/generate", rendered[1]);
  EXPECT_EQ(answer["choices"][0]["token_ids"], (json{256, 'c', 'd', 256}));
  const SamplingParams again = running_.engine.last_sampling();
  EXPECT_EQ(again.temperature, direct.temperature);
  EXPECT_EQ(again.top_k, direct.top_k);
  EXPECT_EQ(again.top_p, direct.top_p);
  EXPECT_EQ(again.min_p, direct.min_p);
  EXPECT_EQ(again.presence_penalty, direct.presence_penalty);
  EXPECT_EQ(again.stop_token_ids, direct.stop_token_ids);
  EXPECT_EQ(again.bad_words, direct.bad_words);
  EXPECT_EQ(again.allowed_token_ids, direct.allowed_token_ids);
  EXPECT_EQ(again.logprobs, direct.logprobs);
  EXPECT_EQ(again.max_tokens, direct.max_tokens);
  EXPECT_EQ(again.min_tokens, direct.min_tokens);
}

TEST_F(RouterApiTest, RendersGrammarsOfTexts) {
  const json rendered = Post("/v1/completions/render",
                             {{"prompt", "a"}, {"structured_outputs", {{"regex", "[ab]+"}}}});
  EXPECT_EQ(rendered[0]["sampling_params"]["structured_outputs"], (json{{"regex", "[ab]+"}}));
  const json error = Post("/v1/chat/completions/render",
                          {{"messages", json::array({{{"role", "user"}, {"content", "Hi"}}})},
                           {"response_format", {{"type", "json_object"}}}},
                          400);
  EXPECT_THAT(error["error"]["message"].get<std::string>(), HasSubstr("cannot be rendered"));
}

TEST_F(RouterApiTest, GeneratesInVllmsShape) {
  const json answer =
      Post("/inference/v1/generate",
           {{"request_id", "r7"},
            {"token_ids", {'a', 'b'}},
            {"features", nullptr},
            {"kv_transfer_params", nullptr},
            {"sampling_params", {{"max_tokens", 3}, {"logprobs", 1}, {"prompt_logprobs", 0}}}});
  EXPECT_EQ(answer["request_id"], "r7");
  const json& choice = answer["choices"][0];
  EXPECT_EQ(choice["token_ids"], (json{'a', 'b', 'a'}));
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["logprobs"]["content"].size(), 3);
  EXPECT_EQ(choice["logprobs"]["content"][1]["token"], "token_id:98");
  EXPECT_EQ(choice["logprobs"]["content"][1]["logprob"], -0.5);
  EXPECT_EQ(choice["logprobs"]["content"][1]["top_logprobs"].size(), 1);
  EXPECT_EQ(answer["prompt_logprobs"][0], nullptr);
  EXPECT_EQ(answer["prompt_logprobs"][1]["98"]["logprob"], -0.25);
  EXPECT_EQ(answer["kv_transfer_params"], nullptr);
}

TEST_F(RouterApiTest, GeneratesInSglangsShape) {
  const json answer = Post("/generate", {{"input_ids", {'a', 'b', 'c'}},
                                         {"rid", "r8"},
                                         {"return_logprob", true},
                                         {"logprob_start_len", 1},
                                         {"top_logprobs_num", 1},
                                         {"return_text_in_logprobs", true},
                                         {"sampling_params",
                                          {{"max_new_tokens", 4},
                                           {"temperature", 0.5},
                                           {"sampling_seed", 11},
                                           {"stop", json::array({"END"})},
                                           {"ignore_eos", true}}}});
  EXPECT_EQ(answer["text"], "abca");
  EXPECT_EQ(answer["output_ids"], (json{'a', 'b', 'c', 'a'}));
  const json& meta = answer["meta_info"];
  EXPECT_EQ(meta["id"], "gen-r8");
  EXPECT_EQ(meta["finish_reason"], (json{{"type", "length"}, {"length", 4}}));
  EXPECT_EQ(meta["prompt_tokens"], 3);
  EXPECT_EQ(meta["completion_tokens"], 4);
  EXPECT_EQ(meta["cached_tokens"], 1);
  EXPECT_EQ(meta["output_token_logprobs"][1], (json{-0.5, 'b', "b"}));
  EXPECT_EQ(meta["output_top_logprobs"][1], json::array({json{-0.5, 'b', "b"}}));
  EXPECT_EQ(meta["input_token_logprobs"],
            json::array({json{nullptr, 'b', "b"}, json{-0.25, 'c', "c"}}));
  EXPECT_EQ(meta["input_top_logprobs"],
            json::array({nullptr, json::array({json{-0.125, 'x', "x"}})}));
  EXPECT_EQ(running_.engine.last_sampling().seed, 11U);
}

TEST_F(RouterApiTest, SglangsBatchesAndChoices) {
  const json batch = Post("/generate", {{"text", json::array({"ab.", "cd"})},
                                        {"sampling_params", {{"max_new_tokens", 5}}}});
  ASSERT_EQ(batch.size(), 2);
  EXPECT_EQ(batch[0]["text"], "ab.");
  EXPECT_EQ(batch[0]["meta_info"]["finish_reason"]["type"], "stop");
  EXPECT_EQ(batch[1]["meta_info"]["finish_reason"]["length"], 5);
  const json choices = Post("/generate", {{"text", "ab."}, {"sampling_params", {{"n", 2}}}});
  ASSERT_EQ(choices.size(), 2);
  EXPECT_EQ(choices[1]["index"], 1);
  // One prompt in a list is answered with a list.
  EXPECT_EQ(Post("/generate", {{"text", json::array({"a."})}}).size(), 1);
}

TEST_F(RouterApiTest, SglangsStreamsRepeatWhatTheyHave) {
  const ClientResponse response =
      HttpClient(running_.port())
          .Post("/generate", json{{"text", "abc."}, {"stream", true}}.dump());
  const std::vector<std::string> events = EventsOf(response.body);
  ASSERT_GE(events.size(), 2U);
  EXPECT_EQ(events.back(), "[DONE]");
  std::string before;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const std::string text = json::parse(events[i])["text"];
    EXPECT_TRUE(text.starts_with(before)) << text;
    before = text;
  }
  EXPECT_EQ(before, "abc.");
  EXPECT_EQ(json::parse(events[events.size() - 2])["meta_info"]["finish_reason"]["type"], "stop");
}

TEST_F(RouterApiTest, RefusesWhatSglangHasAndThisServerHasNot) {
  const auto message = [&](const json& request) {
    return Post("/generate", request, 400)["error"]["message"].get<std::string>();
  };
  EXPECT_THAT(message({{"text", "a"}, {"input_ids", {1}}}), HasSubstr("text: give either it or"));
  EXPECT_THAT(message({{"text", "a"}, {"lora_path", "x"}}), HasSubstr("lora_path: not supported"));
  EXPECT_THAT(message({{"text", "a"}, {"return_hidden_states", true}}),
              HasSubstr("return_hidden_states: not supported"));
  EXPECT_THAT(message({{"input_ids", json::array({json::array({1}), json::array({"b"})})}}),
              HasSubstr("input_ids[1]"));
  EXPECT_THAT(message({{"text", "a"}, {"sampling_params", {{"max_new_tokens", 0}}}}),
              HasSubstr("sampling_params.max_new_tokens: 0 is out of range"));
  EXPECT_THAT(message({{"text", "a"}, {"sampling_params", {{"sampling_seed", "x"}}}}),
              HasSubstr("sampling_params.sampling_seed: must be a 64-bit integer"));
}

// As sglang-router 0.3.2 and vllm-router 0.1.17 send them.
TEST_F(RouterApiTest, TakesTheDefaultsThatRoutersAdd) {
  const json chat = {{"messages", json::array({{{"role", "user"}, {"content", "ab."}}})},
                     {"max_completion_tokens", 3},
                     {"logprobs", false},
                     {"stream", false},
                     {"no_stop_trim", false},
                     {"ignore_eos", false},
                     {"continue_final_message", false},
                     {"skip_special_tokens", true},
                     {"separate_reasoning", true},
                     {"stream_reasoning", true},
                     {"include_reasoning", true},
                     {"return_hidden_states", false}};
  EXPECT_EQ(Post("/v1/chat/completions", chat)["choices"].size(), 1);
  json changed = chat;
  changed["separate_reasoning"] = false;
  EXPECT_THAT(Post("/v1/chat/completions", changed, 400)["error"]["message"].get<std::string>(),
              HasSubstr("separate_reasoning: reasoning always stands beside the text"));
  changed = chat;
  changed["return_hidden_states"] = true;
  EXPECT_THAT(Post("/v1/chat/completions", changed, 400)["error"]["message"].get<std::string>(),
              HasSubstr("return_hidden_states: not supported"));
  json text = {{"prompt", "ab. cd"}, {"no_stop_trim", false}, {"return_hidden_states", false},
               {"max_tokens", 6},    {"stop", "b"},           {"echo", false}};
  const auto keeps_stop = [&] {
    return Post("/v1/completions/render", text)[0]["sampling_params"]["include_stop_str_in_output"];
  };
  EXPECT_EQ(Post("/v1/completions", text)["choices"].size(), 1);
  EXPECT_EQ(keeps_stop(), false);
  text["no_stop_trim"] = true;
  EXPECT_EQ(keeps_stop(), true);
  json native = {
      {"text", "ab."},          {"model", nullptr},    {"return_text_in_logprobs", false},
      {"stream", false},        {"log_metrics", true}, {"return_hidden_states", false},
      {"background", false},    {"no_logs", false},    {"return_bytes", false},
      {"return_entropy", false}};
  EXPECT_EQ(Post("/generate", native)["text"], "ab.");
  native["return_entropy"] = true;
  EXPECT_THAT(Post("/generate", native, 400)["error"]["message"].get<std::string>(),
              HasSubstr("return_entropy: not supported"));
}

TEST_F(RouterApiTest, TellsLoadsAndFacts) {
  const json loads = Get("/v1/loads");
  EXPECT_EQ(loads["dp_rank_count"], 1);
  EXPECT_EQ(loads["loads"][0]["num_running_reqs"], 0);
  EXPECT_EQ(loads["loads"][0]["max_total_num_tokens"], 1600);
  EXPECT_EQ(loads["loads"][0]["num_used_tokens"], 400);
  EXPECT_EQ(loads["loads"][0]["token_usage"], 0.25);
  EXPECT_EQ(loads["aggregate"]["total_reqs"], 0);
  EXPECT_EQ(Get("/get_loads").size(), loads.size());
  const json old = Get("/get_load");
  ASSERT_EQ(old.size(), 1);
  EXPECT_EQ(old[0]["num_reqs"], 0);
  EXPECT_EQ(old[0]["num_tokens"], 400);
  const json server = Get("/server_info");
  EXPECT_EQ(server["served_model_name"], "stub");
  EXPECT_EQ(server["context_length"], 4096);
  EXPECT_EQ(server["max_running_requests"], 8);
  EXPECT_EQ(server["page_size"], 16);
  const json model = Get("/model_info");
  EXPECT_EQ(model["model_path"], "/models/stub");
  EXPECT_EQ(model["is_generation"], true);
  EXPECT_EQ(Get("/is_sleeping"), (json{{"is_sleeping", false}}));
}

}  // namespace
}  // namespace outrider
