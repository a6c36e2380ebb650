// The experts of tokens in answers, in the forms of vLLM and SGLang. The stub's token t has experts
// 10 t and 10 t + 300 in its first layer, one more in its second.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/server/running_server.h"

namespace outrider {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

ServerOptions TellingOptions() {
  ServerOptions options = TestServerOptions();
  options.tells_experts = true;
  return options;
}

std::string FromBase64(const std::string& text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t group = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    group = group << 6U | (text[i] == '=' ? 0U : static_cast<uint32_t>(digits.find(text[i])));
    if (i % 4 < 3) continue;
    for (const uint32_t shift : {16U, 8U, 0U}) bytes += static_cast<char>(group >> shift & 255U);
    group = 0;
  }
  EXPECT_EQ(text.size() % 4, 0);
  const auto padding = static_cast<size_t>(std::count(text.begin(), text.end(), '='));
  return bytes.substr(0, bytes.size() - padding);
}

template <typename T>
std::vector<T> NumbersOf(std::string_view bytes) {
  EXPECT_EQ(bytes.size() % sizeof(T), 0);
  std::vector<T> numbers(bytes.size() / sizeof(T));
  if (!numbers.empty()) std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

/// What NumPy reads of a .npy file.
struct Array {
  std::string header;
  std::vector<int16_t> numbers;
};

Array ArrayOf(const json& choice) {
  const std::string file = FromBase64(choice.at("routed_experts").get<std::string>());
  EXPECT_EQ(file.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  const size_t length = static_cast<uint8_t>(file[8]) + 256 * static_cast<uint8_t>(file[9]);
  EXPECT_EQ((10 + length) % 64, 0);
  EXPECT_EQ(file[10 + length - 1], '\n');
  return {file.substr(10, length), NumbersOf<int16_t>(std::string_view(file).substr(10 + length))};
}

class RoutedExpertsApiTest : public testing::Test {
 protected:
  json Post(const std::string& path, const json& request, int status = 200) {
    const ClientResponse response = HttpClient(running_.port()).Post(path, request.dump());
    EXPECT_EQ(response.status, status) << response.body;
    return json::parse(response.body);
  }
  /// The last choice that events tell of.
  json LastChoice(const std::string& path, json request) {
    request["stream"] = true;
    json choice;
    int64_t told = 0;
    for (const std::string& event :
         EventsOf(HttpClient(running_.port()).Post(path, request.dump()).body)) {
      if (event == "[DONE]") break;
      const json chunk = json::parse(event);
      if (chunk["choices"].empty()) continue;
      choice = chunk["choices"][0];
      told += choice.contains("routed_experts") ? 1 : 0;
    }
    EXPECT_EQ(told, 1);
    return choice;
  }

  RunningServer running_{{.tokens_per_step = 2}, TellingOptions()};
};

constexpr const char* kThreeRows = "'shape': (3, 2, 2), }";
const std::vector<int16_t> kFirstThree = {0, 300, 1, 301, 10, 310, 11, 311, 20, 320, 21, 321};

TEST_F(RoutedExpertsApiTest, AreInAnswersInVllmsForm) {
  const json completion = {{"prompt", json{97, 98}}, {"max_tokens", 2}};
  for (const json& choice : {Post("/v1/completions", completion)["choices"][0],
                             LastChoice("/v1/completions", completion)}) {
    const Array array = ArrayOf(choice);
    EXPECT_THAT(array.header, HasSubstr("{'descr': '<i2', 'fortran_order': False, "));
    EXPECT_THAT(array.header, HasSubstr(kThreeRows));
    EXPECT_EQ(array.numbers, kFirstThree);
    EXPECT_FALSE(choice.contains("sgl_ext"));
  }
  const json chat = {{"messages", json::array({{{"role", "user"}, {"content", "a"}}})},
                     {"max_tokens", 2}};
  for (const json& choice : {Post("/v1/chat/completions", chat)["choices"][0],
                             LastChoice("/v1/chat/completions", chat)}) {
    EXPECT_EQ(ArrayOf(choice).numbers, kFirstThree);
  }
  const json tokens = {{"token_ids", json{97, 98}}, {"sampling_params", {{"max_tokens", 2}}}};
  for (const char* path : {"/inference/v1/generate", "/generate"}) {
    EXPECT_EQ(ArrayOf(Post(path, tokens)["choices"][0]).numbers, kFirstThree) << path;
    EXPECT_EQ(ArrayOf(LastChoice(path, tokens)).numbers, kFirstThree) << path;
  }
}

TEST_F(RoutedExpertsApiTest, AreInAnswersInSglangsForm) {
  json request = {{"input_ids", json{97, 98}},
                  {"sampling_params", {{"max_new_tokens", 2}}},
                  {"return_routed_experts", true}};
  const std::vector<int32_t> wanted(kFirstThree.begin(), kFirstThree.end());
  const json meta = Post("/generate", request)["meta_info"];
  EXPECT_EQ(NumbersOf<int32_t>(FromBase64(meta["routed_experts"])), wanted);
  request["routed_experts_start_len"] = 2;
  EXPECT_THAT(
      NumbersOf<int32_t>(FromBase64(Post("/generate", request)["meta_info"]["routed_experts"])),
      ElementsAre(20, 320, 21, 321));
  request["stream"] = true;
  const auto events = EventsOf(HttpClient(running_.port()).Post("/generate", request.dump()).body);
  ASSERT_GE(events.size(), 2);
  EXPECT_TRUE(json::parse(events[events.size() - 2])["meta_info"].contains("routed_experts"));
  // Nobody gets them unasked.
  request.erase("routed_experts_start_len");
  request["stream"] = false;
  request.erase("return_routed_experts");
  EXPECT_FALSE(Post("/generate", request)["meta_info"].contains("routed_experts"));
  // SGLang's clients of OpenAI's routes ask, and look elsewhere.
  const json choice = Post(
      "/v1/completions",
      {{"prompt", json{97, 98}}, {"max_tokens", 2}, {"return_routed_experts", true}})["choices"][0];
  EXPECT_EQ(NumbersOf<int32_t>(FromBase64(choice["sgl_ext"]["routed_experts"])), wanted);
  EXPECT_EQ(ArrayOf(choice).numbers, kFirstThree);
}

TEST_F(RoutedExpertsApiTest, BeginWithTheTokenThatIsAskedFor) {
  const auto rows = [&](const std::string& path, const json& request) {
    return ArrayOf(Post(path, request)["choices"][0]).numbers;
  };
  const json prompt = json{97, 98};
  EXPECT_THAT(rows("/v1/completions",
                   {{"prompt", prompt}, {"max_tokens", 2}, {"routed_experts_prompt_start", 2}}),
              ElementsAre(20, 320, 21, 321));
  EXPECT_THAT(rows("/inference/v1/generate",
                   {{"token_ids", prompt},
                    {"sampling_params", {{"max_tokens", 2}, {"routed_experts_prompt_start", 2}}}}),
              ElementsAre(20, 320, 21, 321));
  // One prompt token, one drawn: the drawn one has gone through no layer.
  EXPECT_THAT(rows("/v1/completions",
                   {{"prompt", json{97}}, {"max_tokens", 1}, {"routed_experts_prompt_start", 1}}),
              ElementsAre());
  const json choices =
      Post("/v1/completions",
           {{"prompt", json::array({"a", "bc"})}, {"n", 2}, {"max_tokens", 2}})["choices"];
  ASSERT_EQ(choices.size(), 4);
  EXPECT_THAT(ArrayOf(choices[1]).header, HasSubstr("(3, 2, 2)"));  // with the stub's first token
  EXPECT_THAT(ArrayOf(choices[3]).header, HasSubstr("(4, 2, 2)"));
}

TEST_F(RoutedExpertsApiTest, AreLeftOutWhereTheyAreNotWanted) {
  const json choice =
      Post("/v1/completions",
           {{"prompt", "a"}, {"max_tokens", 2}, {"return_routed_experts", false}})["choices"][0];
  EXPECT_FALSE(choice.contains("routed_experts"));
  const json refused = Post(
      "/v1/completions",
      {{"prompt", "a"}, {"return_routed_experts", false}, {"routed_experts_prompt_start", 1}}, 400);
  EXPECT_THAT(refused["error"]["message"].get<std::string>(),
              HasSubstr("routed_experts_prompt_start: is only allowed with"));
  EXPECT_THAT(
      Post("/v1/completions",
           {{"prompt", "a"}, {"routed_experts_start_len", 1}, {"routed_experts_prompt_start", 2}},
           400)["error"]["message"]
          .get<std::string>(),
      HasSubstr("is another name of"));
  EXPECT_FALSE(
      Post("/v1/messages",
           {{"messages", json::array({{{"role", "user"}, {"content", "a"}}})}, {"max_tokens", 2}})
          .dump()
          .find("routed_experts") != std::string::npos);
}

TEST(RoutedExpertsOffTest, AreRefusedByName) {
  RunningServer running;
  HttpClient client(running.port());
  const auto message = [&](const std::string& path, const json& request) {
    const ClientResponse response = client.Post(path, request.dump());
    EXPECT_EQ(response.status, 400) << response.body;
    return json::parse(response.body)["error"]["message"].get<std::string>();
  };
  for (const json& request : {json{{"prompt", "a"}, {"return_routed_experts", true}},
                              json{{"prompt", "a"}, {"routed_experts_prompt_start", 1}}}) {
    EXPECT_THAT(message("/v1/completions", request), HasSubstr("--enable-return-routed-experts"));
  }
  EXPECT_THAT(message("/generate", {{"text", "a"}, {"return_routed_experts", true}}),
              HasSubstr("return_routed_experts: is off"));
  const json choice =
      json::parse(client.Post("/v1/completions", R"({"prompt":"a","max_tokens":2})").body);
  EXPECT_FALSE(choice["choices"][0].contains("routed_experts"));
}

TEST(RoutedExpertsFactsTest, ServersSayWhatTheyAre) {
  ServerOptions options = TellingOptions();
  options.tensor_parallel_size = 2;
  RunningServer running({}, options);
  const json info = json::parse(HttpClient(running.port()).Get("/server_info").body);
  EXPECT_EQ(info["tp_size"], 2);
  EXPECT_EQ(info["enable_return_routed_experts"], true);
}

}  // namespace
}  // namespace outrider
