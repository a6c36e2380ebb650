// Request bodies in, structs or errors out. One case per field makes it long.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "outrider/openai/api_error.h"
#include "outrider/openai/request.h"
#include "outrider/openai/request_json.h"
#include "tests/source_directory.h"

namespace outrider::openai {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

RequestLimits Limits() {
  RequestLimits limits;
  limits.vocab_size = 100;
  limits.max_model_len = 50;
  return limits;
}

TokenRequest Completion(const std::string& fields) {
  return ParseCompletionRequest(R"({"prompt":"p")" + fields + "}", Limits());
}

TokenRequest Chat(const std::string& fields) {
  return ParseChatRequest(R"({"messages":[{"role":"user","content":"hi"}])" + fields + "}",
                          Limits());
}

// "param | message" of the error that a body causes.
template <typename Parse>
std::string ErrorFrom(const Parse& parse) {
  try {
    parse();
  } catch (const RequestError& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.param() + " | " + error.what();
  }
  return "no error";
}

std::string CompletionError(const std::string& fields) {
  return ErrorFrom([&] { Completion(fields); });
}

std::string ChatError(const std::string& fields) {
  return ErrorFrom([&] { Chat(fields); });
}

std::string BodyError(const std::string& body) {
  return ErrorFrom([&] { ParseCompletionRequest(body, Limits()); });
}

TEST(ParseRequestTest, DefaultsAreOpenAis) {
  const TokenRequest request = Completion("");
  EXPECT_EQ(request.sampling.temperature, 1.0F);
  EXPECT_EQ(request.sampling.top_p, 1.0F);
  EXPECT_EQ(request.sampling.top_k, 0);
  EXPECT_EQ(request.sampling.min_p, 0.0F);
  EXPECT_FALSE(request.sampling.seed.has_value());
  EXPECT_FALSE(request.max_tokens.has_value());
  EXPECT_TRUE(request.add_special_tokens);
  EXPECT_TRUE(request.sampling.skip_special_tokens);
  EXPECT_FALSE(request.answer.stream);
  EXPECT_FALSE(request.answer.logprobs.has_value());
  EXPECT_EQ(request.answer.speculation_metrics, SpeculationMetrics::kOff);
}

TEST(ParseRequestTest, TheModelsDefaultsStandBetween) {
  RequestLimits limits = Limits();
  limits.defaults = {
      .temperature = 0.6F, .top_p = 0.95F, .min_p = 0.1F, .top_k = 7, .repetition_penalty = 1.1F};
  limits.speculation_metrics = SpeculationMetrics::kSummary;
  const TokenRequest request = ParseCompletionRequest(R"({"prompt":"p","top_p":0.5})", limits);
  EXPECT_EQ(request.sampling.temperature, 0.6F);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.1F);
  EXPECT_EQ(request.sampling.top_p, 0.5F);
  EXPECT_EQ(request.sampling.min_p, 0.1F);
  EXPECT_EQ(request.sampling.top_k, 7);
  EXPECT_EQ(request.answer.speculation_metrics, SpeculationMetrics::kSummary);
  const auto level = [&](const std::string& name) {
    return ParseCompletionRequest(
               R"({"prompt":"p","per_request_spec_decode_metrics":")" + name + "\"}", limits)
        .answer.speculation_metrics;
  };
  EXPECT_EQ(level("off"), SpeculationMetrics::kOff);
  EXPECT_EQ(level("detailed"), SpeculationMetrics::kDetailed);
}

TEST(ParseRequestTest, ReadsHowTheRequestRuns) {
  RequestLimits limits = Limits();
  limits.num_speculative_tokens = 3;
  const auto parse = [&](const std::string& fields) {
    return ParseCompletionRequest(R"({"prompt":"p",)" + fields + "}", limits);
  };
  const TokenRequest request =
      parse(R"("priority":-2,"cache_salt":"tenant","speculation":{"num_speculative_tokens":1})");
  EXPECT_EQ(request.priority, -2);
  EXPECT_EQ(request.cache_salt, "tenant");
  EXPECT_EQ(request.num_speculative_tokens, 1);
  EXPECT_FALSE(parse(R"("speculation":{})").num_speculative_tokens.has_value());
  for (const char* wrong :
       {R"("priority":"high")", R"("priority":1.5)", R"("cache_salt":"")", R"("cache_salt":7)",
        R"("speculation":3)", R"("speculation":{"num_speculative_tokens":4})",
        R"("speculation":{"num_speculative_tokens":-1})", R"("speculation":{"k":1})"}) {
    EXPECT_THROW(parse(wrong), RequestError) << wrong;
  }
}

TEST(ParseRequestTest, ReadsEverySamplingField) {
  const TokenRequest request = Completion(
      R"(,"model":"m","temperature":0,"top_p":0.25,"top_k":-1,"min_p":1,"seed":-1,"stop":"x",)"
      R"("stop_token_ids":[1,99],"ignore_eos":true,"include_stop_str_in_output":true,)"
      R"("skip_special_tokens":false,"max_tokens":7,"logprobs":20,"stream":true,)"
      R"("stream_options":{"include_usage":true,"continuous_usage_stats":true},)"
      R"("return_token_ids":true,"add_special_tokens":false,"user":"someone")");
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.sampling.temperature, 0.0F);
  EXPECT_EQ(request.sampling.top_p, 0.25F);
  EXPECT_GT(Completion(R"(,"top_p":1e-300)").sampling.top_p, 0.0F);
  EXPECT_EQ(request.sampling.top_k, 0);
  EXPECT_EQ(request.sampling.min_p, 1.0F);
  EXPECT_EQ(request.sampling.seed, ~uint64_t{0});
  EXPECT_THAT(request.sampling.stop, ElementsAre("x"));
  EXPECT_THAT(request.sampling.stop_token_ids, ElementsAre(1, 99));
  EXPECT_TRUE(request.sampling.ignore_eos);
  EXPECT_TRUE(request.sampling.include_stop_str_in_output);
  EXPECT_FALSE(request.sampling.skip_special_tokens);
  EXPECT_EQ(request.max_tokens, 7);
  EXPECT_EQ(request.sampling.logprobs, 20);
  EXPECT_EQ(request.answer.logprobs, 20);
  EXPECT_TRUE(request.answer.include_usage);
  EXPECT_TRUE(request.answer.continuous_usage);
  EXPECT_TRUE(request.answer.return_token_ids);
  EXPECT_FALSE(request.add_special_tokens);
}

TEST(ParseRequestTest, ReadsTheFieldsThatProcessLogits) {
  const TokenRequest request = Completion(
      R"(,"n":3,"repetition_penalty":1.25,"presence_penalty":-2,"frequency_penalty":0.5,)"
      R"("logit_bias":{"7":-100,"99":1.5},"bad_words":["no"," never"],"min_tokens":4,)"
      R"("allowed_token_ids":[5,6],"prompt_logprobs":2)");
  const SamplingParams& sampling = request.sampling;
  EXPECT_EQ(request.n, 3);
  EXPECT_EQ(sampling.repetition_penalty, 1.25F);
  EXPECT_EQ(sampling.presence_penalty, -2.0F);
  EXPECT_EQ(sampling.frequency_penalty, 0.5F);
  ASSERT_EQ(sampling.logit_bias.size(), 2U);
  EXPECT_EQ(sampling.logit_bias[0].token, 7);
  EXPECT_EQ(sampling.logit_bias[0].value, -100.0F);
  EXPECT_EQ(sampling.logit_bias[1].token, 99);
  EXPECT_THAT(request.bad_words, ElementsAre("no", " never"));
  EXPECT_EQ(sampling.min_tokens, 4);
  EXPECT_THAT(*sampling.allowed_token_ids, ElementsAre(5, 6));
  EXPECT_EQ(sampling.prompt_logprobs, 2);
  EXPECT_EQ(request.answer.prompt_logprobs, 2);
  EXPECT_EQ(Chat(R"(,"n":128)").n, 128);
  // An echo with logprobs scores the prompt.
  EXPECT_EQ(Completion(R"(,"echo":true,"logprobs":1)").sampling.prompt_logprobs, 1);
  EXPECT_FALSE(Completion(R"(,"echo":true)").sampling.prompt_logprobs.has_value());
  EXPECT_FALSE(Completion(R"(,"logprobs":1)").sampling.prompt_logprobs.has_value());
  EXPECT_TRUE(Completion(R"(,"echo":true,"max_tokens":0)").answer.echo_only);
  EXPECT_EQ(ResolveMaxTokens(Completion(R"(,"echo":true,"max_tokens":0)"), 10, 50), 1);
}

TEST(ParseRequestTest, RefusesWrongFieldsThatProcessLogits) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"(,"n":0)", "n | n: 0 is out of range: must be from 1 to 128"},
      {R"(,"n":129)", "n | n: 129 is out of range: must be from 1 to 128"},
      {R"(,"n":"2")", "n | n: must be an integer, not \"2\""},
      {R"(,"repetition_penalty":0)",
       "repetition_penalty | repetition_penalty: 0 is out of range: must be from 0.01 to 100"},
      {R"(,"presence_penalty":2.1)",
       "presence_penalty | presence_penalty: 2.1 is out of range: must be from -2 to 2"},
      {R"(,"frequency_penalty":"x")",
       "frequency_penalty | frequency_penalty: must be a number, not \"x\""},
      {R"(,"logit_bias":[1])",
       "logit_bias | logit_bias: must be an object of token ids with numbers, not an array of 1"},
      {R"(,"logit_bias":{"100":1})",
       "logit_bias | logit_bias: \"100\" is not a token id: must be an integer from 0 to 99, as a "
       "string"},
      {R"(,"logit_bias":{"-1":1})",
       "logit_bias | logit_bias: \"-1\" is not a token id: must be an integer from 0 to 99, as a "
       "string"},
      {R"(,"logit_bias":{"5x":1})",
       "logit_bias | logit_bias: \"5x\" is not a token id: must be an integer from 0 to 99, as a "
       "string"},
      {R"(,"logit_bias":{"5":100.5})",
       "logit_bias | logit_bias: 100.5 of token 5 is out of range: must be a number from -100 to "
       "100"},
      {R"(,"logit_bias":{"5":true})",
       "logit_bias | logit_bias: true of token 5 is out of range: must be a number from -100 to "
       "100"},
      {R"(,"logit_bias":{"5":1,"05":1})", "logit_bias | logit_bias: token 5 is given twice"},
      {R"(,"bad_words":"no")", "bad_words | bad_words: must be an array of strings, not \"no\""},
      {R"(,"bad_words":["a"," "])",
       "bad_words | bad_words: must hold strings that are not blank, not \" \""},
      {R"(,"bad_words":[5])", "bad_words | bad_words: must hold strings that are not blank, not 5"},
      {R"(,"allowed_token_ids":[])",
       "allowed_token_ids | allowed_token_ids: is an empty array: must hold at least one token id"},
      {R"(,"allowed_token_ids":[100])",
       "allowed_token_ids[0] | allowed_token_ids[0]: 100 is not a token id: must be an integer "
       "from 0 to 99"},
      {R"(,"min_tokens":-1)",
       "min_tokens | min_tokens: -1 is out of range: must be from 0 to 2147483647"},
      {R"(,"prompt_logprobs":21)",
       "prompt_logprobs | prompt_logprobs: 21 is out of range: must be from 0 to 20"},
      {R"(,"prompt_logprobs":1,"stream":true)",
       "prompt_logprobs | prompt_logprobs: is only allowed without \"stream\": true"},
      {R"(,"echo":1)", "echo | echo: must be true or false, not 1"},
      {R"(,"echo":true,"max_tokens":-1)",
       "max_tokens | max_tokens: -1 is out of range: must be from 0 to 2147483647"}};
  for (const auto& [fields, expected] : cases) EXPECT_EQ(CompletionError(fields), expected);
  std::string many = R"(,"bad_words":["a")";
  for (int i = 0; i < 512; ++i) many += R"(,"a")";
  EXPECT_EQ(CompletionError(many + "]"),
            "bad_words | bad_words: has 513 strings; at most 512 are allowed");
  EXPECT_EQ(BodyError(R"({"prompt":["a","b","c","d","e","f","g","h","i"],"n":128})"),
            "n | n: 128 choices for each of 9 prompts; at most 1024 choices are allowed in all");
}

TEST(ParseRequestTest, RefusesMoreMinTokensThanMaxTokens) {
  const auto error = [](const std::string& fields) {
    return ErrorFrom([&] { ResolveMaxTokens(Completion(fields), 10, 50); });
  };
  EXPECT_EQ(error(R"(,"min_tokens":7,"max_tokens":7)"), "no error");
  EXPECT_EQ(error(R"(,"min_tokens":8,"max_tokens":7)"),
            "min_tokens | min_tokens: 8 is out of range: must be from 0 to max_tokens, which is 7");
  EXPECT_THAT(error(R"(,"min_tokens":17)"), HasSubstr("which is 16"));
  EXPECT_THAT(error(R"(,"min_tokens":1,"echo":true,"max_tokens":0)"), HasSubstr("which is 0"));
}

TEST(ParseRequestTest, NullIsTheSameAsLeavingOut) {
  const TokenRequest request =
      Completion(R"(,"temperature":null,"stop":null,"stream":null,"stream_options":null,"n":null)");
  EXPECT_EQ(request.sampling.temperature, 1.0F);
  EXPECT_TRUE(request.sampling.stop.empty());
}

TEST(ParseRequestTest, RefusesWrongTypesAndRanges) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"(,"temperature":"1")", "temperature | temperature: must be a number, not \"1\""},
      {R"(,"temperature":-0.1)",
       "temperature | temperature: -0.1 is out of range: must be a finite number, at least 0"},
      {R"(,"temperature":1e39)",
       "temperature | temperature: 1e+39 is out of range: must be a finite number, at least 0"},
      {R"(,"top_p":0)", "top_p | top_p: 0 is out of range: must be above 0, at most 1"},
      {R"(,"top_p":1.01)", "top_p | top_p: 1.01 is out of range: must be from 0 to 1"},
      {R"(,"top_k":-2)", "top_k | top_k: -2 is out of range: must be from -1 to 2147483647"},
      {R"(,"top_k":1.5)", "top_k | top_k: must be an integer, not 1.5"},
      {R"(,"top_k":18446744073709551615)",
       "top_k | top_k: 18446744073709551615 is out of range: must be from -1 to 2147483647"},
      {R"(,"max_tokens":0)",
       "max_tokens | max_tokens: 0 is out of range: must be from 1 to 2147483647"},
      {R"(,"max_tokens":true)", "max_tokens | max_tokens: must be an integer, not true"},
      {R"(,"max_tokens":1e300)", "max_tokens | max_tokens: must be an integer, not 1e+300"},
      {R"(,"seed":1.5)", "seed | seed: must be a 64-bit integer, not 1.5"},
      {R"(,"stream":1)", "stream | stream: must be true or false, not 1"},
      {R"(,"logprobs":21)", "logprobs | logprobs: 21 is out of range: must be from 0 to 20"},
      {R"(,"logprobs":true)", "logprobs | logprobs: must be an integer, not true"},
      {R"(,"stop":[""])", "stop | stop: must hold strings that are not empty, not \"\""},
      {R"(,"stop":{})", "stop | stop: must be a string or an array of strings, not an object"},
      {R"(,"stop_token_ids":[5,100])",
       "stop_token_ids[1] | stop_token_ids[1]: 100 is not a token id: must be an integer from 0 to "
       "99"},
      {R"(,"stop_token_ids":[-1])",
       "stop_token_ids[0] | stop_token_ids[0]: -1 is not a token id: must be an integer from 0 to "
       "99"},
      {R"(,"stream_options":{"include_usage":true})",
       "stream_options | stream_options: is only allowed with \"stream\": true"},
      {R"(,"stream":true,"stream_options":{"include_usag":true})",
       "stream_options.include_usag | stream_options.include_usag: unknown field; did you mean "
       "\"include_usage\"?"},
      {R"(,"model":7)", "model | model: must be a string, not 7"},
      {R"(,"user":7)", "user | user: must be a string, not 7"},
      {R"(,"per_request_spec_decode_metrics":"all")",
       "per_request_spec_decode_metrics | per_request_spec_decode_metrics: must be \"detailed\", "
       "\"summary\" or \"off\", not \"all\""},
  };
  for (const auto& [fields, expected] : cases) EXPECT_EQ(CompletionError(fields), expected);
  std::string many = R"(,"stop":["a")";
  for (int i = 0; i < 16; ++i) many += R"(,"a")";
  EXPECT_EQ(CompletionError(many + "]"), "stop | stop: has 17 strings; at most 16 are allowed");
}

TEST(ParseRequestTest, RefusesUnknownFieldsAndSuggests) {
  EXPECT_EQ(CompletionError(R"(,"max_token":1)"),
            "max_token | max_token: unknown field; did you mean \"max_tokens\"?");
  EXPECT_EQ(CompletionError(R"(,"wholly_different":1)"),
            "wholly_different | wholly_different: unknown field");
  EXPECT_THAT(CompletionError(",\"" + std::string(100000, 'x') + "\":1"), HasSubstr("xxx...: unk"));
  EXPECT_THAT(CompletionError(R"(,"messages":[])"), HasSubstr("messages: unknown field"));
  EXPECT_THAT(ChatError(R"(,"prompt":"x")"), HasSubstr("prompt: unknown field"));
}

TEST(ParseRequestTest, RefusesWhatIsNotSupportedYetUnlessNeutral) {
  const std::string not_yet = ": not supported yet by this server; leave it out";
  EXPECT_EQ(CompletionError(R"(,"use_beam_search":true)"),
            "use_beam_search | use_beam_search" + not_yet);
  // With a reason where there is one.
  EXPECT_THAT(CompletionError(R"(,"best_of":2)"), HasSubstr("best_of: not supported: ask for n"));
  EXPECT_THAT(CompletionError(R"(,"suffix":"x")"), HasSubstr("do not fill in the middle"));
  EXPECT_THAT(CompletionError(R"(,"thinking_token_budget":5)"), HasSubstr("reasoning_effort"));
  EXPECT_EQ(CompletionError(R"(,"n":1,"echo":false,"presence_penalty":0,"frequency_penalty":0.0,)"
                            R"("repetition_penalty":1.0,"logit_bias":{},"min_tokens":0,)"
                            R"("best_of":1,"suffix":null,"response_format":{"type":"text"})"),
            "no error");
  for (const char* field :
       {R"("functions":[{"name":"f"}])", R"("chat_template":"x")", R"("vllm_xargs":{"a":1})",
        R"("logits_processors":["a"])", R"("modalities":["audio"])"}) {
    EXPECT_THAT(ChatError(std::string(",") + field), HasSubstr(not_yet)) << field;
  }
  EXPECT_EQ(ChatError(R"(,"tools":[],"tool_choice":"auto","parallel_tool_calls":true,)"
                      R"("modalities":["text"],"service_tier":"auto",)"
                      R"("vllm_xargs":{},"logits_processors":[],"media_io_kwargs":{},)"
                      R"("mm_processor_kwargs":{"num_crops":4})"),
            "no error");
  EXPECT_EQ(CompletionError(R"(,"vllm_xargs":{},"logits_processors":[])"), "no error");
  EXPECT_THAT(ChatError(R"(,"mm_processor_kwargs":4)"), HasSubstr("must be an object, not 4"));
}

// What clients send of themselves, whatever they ask for.
TEST(ParseRequestTest, TakesWhatServersMayKeepOfARequest) {
  const std::string records =
      R"(,"store":true,"metadata":{"run":"7"},"prompt_cache_retention":"24h","user":"u",)"
      R"("prompt_cache_key":"k","safety_identifier":"s")";
  EXPECT_EQ(CompletionError(records), "no error");
  EXPECT_EQ(ChatError(records), "no error");
  const auto response = [](const std::string& more) -> std::string {
    try {
      ParseResponseRequest(R"({"input":"hi")" + more + "}", Limits());
    } catch (const RequestError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(response(records), "no error");
  EXPECT_EQ(response(R"(,"include":["reasoning.encrypted_content"],"truncation":"auto")"),
            "no error");
  EXPECT_EQ(response(R"(,"include":[],"truncation":"disabled")"), "no error");
  EXPECT_THAT(response(R"(,"include":["message.output_text.logprobs"])"),
              HasSubstr("include: \"message.output_text.logprobs\" is not supported yet"));
  EXPECT_THAT(response(R"(,"include":"reasoning.encrypted_content")"),
              HasSubstr("include: must be a list of strings"));
  EXPECT_THAT(response(R"(,"truncation":"always")"), HasSubstr("truncation: not supported"));
  for (const char* wrong :
       {R"(,"store":1)", R"(,"metadata":[])", R"(,"prompt_cache_retention":4)"}) {
    EXPECT_NE(CompletionError(wrong), "no error") << wrong;
    EXPECT_NE(ChatError(wrong), "no error") << wrong;
    EXPECT_NE(response(wrong), "no error") << wrong;
  }
}

TEST(ParseRequestTest, AnyFiniteTemperatureThatIsNotNegative) {
  EXPECT_EQ(Completion(R"(,"temperature":2.5)").sampling.temperature, 2.5F);
  EXPECT_EQ(Completion(R"(,"temperature":1e38)").sampling.temperature, 1e38F);
  EXPECT_EQ(Completion(R"(,"temperature":1e-300)").sampling.temperature, 0.0F);
  EXPECT_EQ(Completion(R"(,"temperature":1e-40)").sampling.temperature, 0.0F) << "1 / it: infinity";
}

TEST(ParseRequestTest, VerbosityGoesToTheTemplate) {
  EXPECT_EQ(Chat(R"(,"verbosity":"low")").chat.template_arguments_json, R"({"verbosity":"low"})");
  EXPECT_EQ(Chat("").chat.template_arguments_json, "{}");
  EXPECT_EQ(ChatError(R"(,"verbosity":"loud")"),
            R"(verbosity | verbosity: "loud" is unknown; use "low", "medium" or "high")");
  const auto response = [](const std::string& text) {
    return ParseResponseRequest(R"({"input":"hi","text":)" + text + "}", Limits());
  };
  EXPECT_EQ(response(R"({"verbosity":"high"})").chat.template_arguments_json,
            R"({"verbosity":"high"})");
}

TEST(ParseRequestTest, AnEchoIsTheAssistantsLastMessage) {
  const auto echoed = [](const std::string& last) {
    return ParseChatRequest(
               R"({"echo":true,"messages":[{"role":"user","content":"q"},)" + last + "]}", Limits())
        .answer.echoed_message;
  };
  EXPECT_EQ(echoed(R"({"role":"assistant","content":"So"})"), "So");
  EXPECT_EQ(echoed(R"({"role":"assistant","content":[{"type":"text","text":"So"}]})"), "So");
  EXPECT_EQ(echoed(R"({"role":"user","content":"So"})"), "");
}

TEST(ParseRequestTest, UnknownFieldsCanBeIgnored) {
  RequestLimits limits = Limits();
  limits.ignore_unknown_fields = true;
  const TokenRequest chat = ParseChatRequest(
      R"({"messages":[{"role":"user","content":"hi","when":1}],"max_token":1,"top_p":0.5})",
      limits);
  EXPECT_EQ(chat.sampling.top_p, 0.5F);
  EXPECT_EQ(ParseResponseRequest(R"({"input":[{"role":"user","content":"hi","mood":1}]})", limits)
                .chat.messages_json,
            R"([{"role":"user","content":"hi"}])");
  // So can those that are known and not supported.
  const auto chat_takes = [&](const std::string& field) {
    return ParseChatRequest(
               R"({"messages":[{"role":"user","content":"hi"}],"top_p":0.5,)" + field + "}", limits)
        .sampling.top_p;
  };
  for (const char* field :
       {R"("functions":[{"name":"f"}])", R"("chat_template":"x")", R"("vllm_xargs":{"a":1})",
        R"("service_tier":"flex")", R"("web_search_options":{})", R"("prediction":{"type":"x"})",
        R"("thinking_token_budget":5)", R"("audio":{"voice":"x"})", R"("use_beam_search":true)"}) {
    EXPECT_EQ(chat_takes(field), 0.5F) << field;
  }
  EXPECT_EQ(ParseCompletionRequest(R"({"prompt":"p","best_of":7,"suffix":"x"})", limits).n, 1);
  EXPECT_EQ(ParseResponseRequest(
                R"({"input":"hi","previous_response_id":"r","background":true,"max_tool_calls":2,)"
                R"("include":["message.output_text.logprobs"]})",
                limits)
                .chat.messages_json,
            R"([{"role":"user","content":"hi"}])");
  // What is supported is as strict as ever.
  EXPECT_THROW(ParseCompletionRequest(R"({"prompt":"p","top_p":7})", limits), RequestError);
  EXPECT_THROW(chat_takes(R"("tool_choice":"sometimes")"), RequestError);
}

TEST(ParseRequestTest, ReadsIdsIntervalsAndTruncation) {
  const TokenRequest request =
      Completion(R"(,"request_id":"a.b:c","stream_interval":4,"truncate_prompt_tokens":-1)");
  EXPECT_EQ(request.request_id, "a.b:c");
  EXPECT_EQ(request.stream_interval, 4);
  EXPECT_EQ(request.truncate_prompt_tokens, -1);
  for (const char* wrong :
       {R"("request_id":"")", R"("request_id":"a\nb")", R"("stream_interval":0)",
        R"("truncate_prompt_tokens":0)", R"("truncate_prompt_tokens":-2)"}) {
    EXPECT_NE(CompletionError(std::string(",") + wrong), "no error") << wrong;
  }
}

TEST(ParseRequestTest, ReadsPromptsOfEveryShape) {
  const auto prompts = [](const std::string& prompt) {
    return ParseCompletionRequest(R"({"prompt":)" + prompt + "}", Limits()).prompts;
  };
  using Ids = std::vector<int32_t>;
  EXPECT_THAT(prompts(R"("abc")"), ElementsAre(CompletionPrompt("abc")));
  EXPECT_THAT(prompts(R"(["abc",""])"), ElementsAre(CompletionPrompt("abc"), CompletionPrompt("")));
  EXPECT_THAT(prompts("[1,2]"), ElementsAre(CompletionPrompt(Ids{1, 2})));
  EXPECT_THAT(prompts("[[1],[2,3]]"),
              ElementsAre(CompletionPrompt(Ids{1}), CompletionPrompt(Ids{2, 3})));
}

TEST(ParseRequestTest, RefusesPromptsOfOtherShapes) {
  EXPECT_THAT(BodyError("{}"), HasSubstr("prompt: is missing"));
  EXPECT_THAT(BodyError(R"({"prompt":null})"), HasSubstr("prompt: is missing"));
  EXPECT_THAT(BodyError(R"({"prompt":5})"), HasSubstr("prompt: must be a string, an array"));
  EXPECT_THAT(BodyError(R"({"prompt":[]})"), HasSubstr("empty array"));
  EXPECT_THAT(BodyError(R"({"prompt":[1,"a"]})"), HasSubstr("prompt[1]: \"a\" is not a token id"));
  EXPECT_THAT(BodyError(R"({"prompt":["a",1]})"), HasSubstr("prompt[1]: must be a string or an"));
  EXPECT_THAT(BodyError(R"({"prompt":[[1,100]]})"),
              HasSubstr("prompt[0][1]: 100 is not a token id"));
  EXPECT_THAT(BodyError(R"({"prompt":[1.5]})"), HasSubstr("prompt[0]: 1.5 is not a token id"));
  std::string many = R"({"prompt":["a")";
  for (int i = 0; i < 1024; ++i) many += R"(,"a")";
  EXPECT_THAT(BodyError(many + "]}"), HasSubstr("has 1025 prompts; at most 1024"));
}

TEST(ParseRequestTest, RefusesWhatIsNotAJsonObject) {
  EXPECT_THAT(BodyError(""), HasSubstr("the request body is empty"));
  EXPECT_THAT(BodyError("{\n\"prompt\":"), HasSubstr("not valid JSON: line 2, column 10: "));
  EXPECT_THAT(BodyError(R"({"prompt":)"),
              AllOf(HasSubstr("line 1, column 11: "), HasSubstr("unexpected end of input")));
  EXPECT_THAT(BodyError(R"({'prompt':1})"), HasSubstr("line 1, column 2: "));
  EXPECT_LT(BodyError("{\"" + std::string(10000, 'x')).size(), 400U) << "quotes it all";
  EXPECT_THAT(BodyError("[1]"), HasSubstr("must be a JSON object, not an array"));
  EXPECT_THAT(BodyError("{} {}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(BodyError("{\"prompt\":\"\xff\"}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(BodyError(R"({"prompt":"\ud800"})"), HasSubstr("not valid JSON"));
  EXPECT_THAT(BodyError(R"({"prompt":"a","temperature":1e999})"),
              HasSubstr("no floating-point type can hold"));
  EXPECT_THAT(BodyError(R"({"prompt":"a","prompt":"b"})"),
              HasSubstr("prompt | prompt: is given twice"));
  EXPECT_THAT(BodyError(std::string(100000, '[')), HasSubstr("more than 128 levels"));
  EXPECT_THAT(BodyError(R"({"logit_bias":)" + std::string(200, '[') + std::string(200, ']') + "}"),
              HasSubstr("more than 128 levels"));
}

TEST(ParseRequestTest, BodiesNestAsDeepAsDocumented) {
  const auto error = [](size_t levels) {
    return BodyError(std::string(levels, '[') + std::string(levels, ']'));
  };
  EXPECT_THAT(error(128), HasSubstr("must be a JSON object"));
  EXPECT_THAT(error(129), HasSubstr("more than 128 levels"));
  std::ifstream page(SourceDirectory() / "docs/http-api.md");
  EXPECT_THAT(std::string(std::istreambuf_iterator<char>(page), {}),
              HasSubstr("nested 128 levels deep"));
}

// Ten levels of nullable lists of objects: as deep as OpenAI's schemas go, and 5 levels of JSON
// each.
TEST(ParseRequestTest, ToolsNestAsDeepAsOpenAis) {
  std::string schema = R"({"type":"string"})";
  for (int level = 0; level < 10; ++level) {
    schema = R"({"type":"object","properties":{"x":{"anyOf":[{"type":"array","items":)" + schema +
             R"(},{"type":"null"}]}},"required":["x"],"additionalProperties":false})";
  }
  const std::string body = R"({"messages":[{"role":"user","content":"a"}],"tools":[)"
                           R"({"type":"function","function":{"name":"f","parameters":)" +
                           schema + "}}]}";
  const TokenRequest request = ParseChatRequest(body, Limits());
  EXPECT_THAT(request.chat.tools_json, HasSubstr(schema));
}

TEST(ParseRequestTest, BodiesHaveAsManyValuesAsDocumented) {
  std::string members = "{}";
  for (size_t i = 1; i < kMaxRequestValues; ++i) members += ",{}";
  EXPECT_THAT(BodyError(R"({"prompt":"a","zzz":[)" + members + "]}"),
              HasSubstr("has more than 2097152 values"));
  members.resize(members.size() - 3 * 16);
  EXPECT_THAT(BodyError(R"({"prompt":"a","zzz":[)" + members + "]}"), HasSubstr("zzz: unknown"));
  std::ifstream page(SourceDirectory() / "docs/http-api.md");
  EXPECT_THAT(std::string(std::istreambuf_iterator<char>(page), {}),
              HasSubstr("at most 2,097,152 values"));
}

// Each choice of a request has its own copy of these.
TEST(ParseRequestTest, LimitsTheSizeOfWhatEveryChoiceKeeps) {
  const auto error = [](const std::string& fields) {
    return BodyError(R"({"prompt":"a",)" + fields + "}");
  };
  const auto quoted = [](size_t bytes) { return '"' + std::string(bytes, 'x') + '"'; };
  EXPECT_EQ(Completion(R"(,"stop":)" + quoted(1024)).sampling.stop.size(), 1U);
  EXPECT_THAT(error(R"("stop":[)" + quoted(1025) + "]"),
              HasSubstr("stop | stop: has a string of 1025 bytes; at most 1024 are allowed"));
  EXPECT_EQ(Completion(R"(,"bad_words":[)" + quoted(32768) + "]").bad_words.size(), 1U);
  EXPECT_THAT(error(R"("bad_words":[)" + quoted(32768) + ",\"y\"]"),
              HasSubstr("bad_words: have 32769 bytes in all; at most 32768 are allowed"));
  // Repeated ids are one.
  const SamplingParams sampling =
      Completion(R"(,"stop_token_ids":[7,3,7,3],"allowed_token_ids":[9,9,2])").sampling;
  EXPECT_THAT(sampling.stop_token_ids, ElementsAre(3, 7));
  EXPECT_THAT(*sampling.allowed_token_ids, ElementsAre(2, 9));
  RequestLimits limits = Limits();
  limits.vocab_size = 5000;
  std::string ids = "0";
  for (int id = 1; id < 1025; ++id) ids += "," + std::to_string(id);
  EXPECT_THAT(ErrorFrom([&] {
                ParseCompletionRequest(R"({"prompt":"a","stop_token_ids":[)" + ids + "]}", limits);
              }),
              HasSubstr("stop_token_ids: has 1025 tokens; at most 1024 are allowed"));
}

TEST(ParseRequestTest, BringsMessagesIntoOneForm) {
  const TokenRequest request = ParseChatRequest(
      R"({"messages":[{"role":"developer","content":"be kind"},)"
      R"({"role":"user","name":null,"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},)"
      R"({"role":"assistant","content":"c","refusal":null,"tool_calls":[],"annotations":[]},)"
      R"({"role":"user","name":"me","content":"d"}],)"
      R"("add_generation_prompt":false,"chat_template_kwargs":{"enable_thinking":false}})",
      Limits());
  EXPECT_EQ(json::parse(request.chat.messages_json),
            (json{{{"role", "system"}, {"content", "be kind"}},
                  {{"role", "user"}, {"content", "a\nb"}},
                  {{"role", "assistant"}, {"content", "c"}},
                  {{"role", "user"}, {"content", "d"}, {"name", "me"}}}));
  EXPECT_FALSE(request.chat.add_generation_prompt);
  EXPECT_EQ(request.chat.template_arguments_json, R"({"enable_thinking":false})");
}

TEST(ParseRequestTest, RefusesBadMessages) {
  const auto error = [](const std::string& messages) {
    return ErrorFrom([&] { ParseChatRequest(R"({"messages":)" + messages + "}", Limits()); });
  };
  EXPECT_THAT(ErrorFrom([&] { ParseChatRequest("{}", Limits()); }),
              HasSubstr("messages: must be an array of at least one message"));
  EXPECT_THAT(error("[]"), HasSubstr("messages: must be an array of at least one message"));
  EXPECT_THAT(error(R"(["hi"])"), HasSubstr("messages[0] must be a JSON object, not a string"));
  EXPECT_THAT(error(R"([{"content":"a"}])"), HasSubstr("messages[0].role: is missing"));
  EXPECT_THAT(error(R"([{"role":"bot","content":"a"}])"), HasSubstr("\"bot\" is unknown"));
  EXPECT_THAT(error(R"([{"role":"function","content":"a"}])"), HasSubstr("\"tool\""));
  EXPECT_THAT(error(R"([{"role":"tool"}])"), HasSubstr("messages[0].content: is missing"));
  EXPECT_THAT(error(R"([{"role":"assistant"}])"), HasSubstr("messages[0].content: is missing"));
  EXPECT_THAT(error(R"([{"role":"user","content":"a","tool_call_id":"x"}])"),
              HasSubstr("messages[0].tool_call_id: unknown field"));
  EXPECT_THAT(error(R"([{"role":"user"}])"), HasSubstr("messages[0].content: is missing"));
  EXPECT_THAT(error(R"([{"role":"user","content":5}])"), HasSubstr("must be a string or an array"));
  EXPECT_THAT(error(R"([{"role":"user","content":[{"type":"image_url","image_url":{}}]}])"),
              HasSubstr("messages[0].content[0].type: \"image_url\" is not supported"));
  EXPECT_THAT(error(R"([{"role":"user","content":[{"type":"text"}]}])"),
              HasSubstr("messages[0].content[0].text: is missing"));
  EXPECT_THAT(error(R"([{"role":"user","content":"a","contents":1}])"),
              HasSubstr("messages[0].contents: unknown field; did you mean \"content\"?"));
  EXPECT_THAT(error(R"([{"role":"assistant","content":"a","tool_calls":[{}]}])"),
              HasSubstr("messages[0].tool_calls[0].id: is missing"));
  EXPECT_THAT(error(R"([{"role":"assistant","tool_calls":[{"id":"1","function":{}}]}])"),
              HasSubstr("messages[0].tool_calls[0].function.name: is missing"));
  EXPECT_THAT(error(R"([{"role":"assistant","tool_calls":[{"id":"1","type":"custom"}]}])"),
              HasSubstr("messages[0].tool_calls[0].type: \"custom\" is unknown"));
}

// Templates print calls with all their members, so these keep the client's order.
TEST(ParseRequestTest, TakesCallsAndTheirResultsAsAnswersHaveThem) {
  const TokenRequest request = ParseChatRequest(
      R"({"messages":[{"role":"user","content":"a"},)"
      R"({"role":"assistant","content":null,"reasoning":"r","reasoning_content":"r","tool_calls":[)"
      R"({"index":0,"id":"c1","type":"function","function":{"name":"f","arguments":"{\"b\":1,\"a\":2}"}},)"
      R"({"type":"function","function":{"arguments":"","name":"g"},"id":"c2"}]},)"
      R"({"tool_call_id":"c1","role":"tool","content":[{"type":"text","text":"x"}]},)"
      R"({"role":"assistant","reasoning":"s","content":"done"}]})",
      Limits());
  EXPECT_EQ(
      request.chat.messages_json,
      R"([{"role":"user","content":"a"},)"
      R"({"role":"assistant","content":"","reasoning_content":"r","tool_calls":[)"
      R"({"id":"c1","type":"function","function":{"name":"f","arguments":"{\"b\":1,\"a\":2}"}},)"
      R"({"type":"function","function":{"arguments":"{}","name":"g"},"id":"c2"}]},)"
      R"({"tool_call_id":"c1","role":"tool","content":"x"},)"
      R"({"role":"assistant","content":"done","reasoning_content":"s"}])");
}

constexpr const char* kTools =
    R"(,"tools":[{"type":"function","function":{"name":"f","description":"d","strict":true,)"
    R"( "parameters":{"type":"object","properties":{"z":{"type":"string"},"a":{"type":"integer"},)"
    R"("e":{"enum":["x","y"]},"m":{"type":["string","null"]}}}}},)"
    R"({"type":"function","function":{"name":"g.h-1"}}])";

TEST(ParseRequestTest, ReadsTools) {
  const TokenRequest request = Chat(kTools);
  EXPECT_THAT(request.tools.functions, ElementsAre("f", "g.h-1"));
  EXPECT_EQ(request.tools.choice, ToolChoice::kAuto);
  EXPECT_TRUE(request.tools.parallel);
  EXPECT_THAT(request.tools.strict, ElementsAre("f"));
  EXPECT_FALSE(request.tools.allowed);
  const ParameterTypes& types = request.tools.types.at("f");
  EXPECT_EQ(types.at("z"), (ValueTypes{ValueTypes::kString, {}}));
  EXPECT_EQ(types.at("a"), (ValueTypes{ValueTypes::kInteger, {}}));
  EXPECT_EQ(types.at("e"), (ValueTypes{0, {"\"x\"", "\"y\""}}));
  EXPECT_EQ(types.at("m"), (ValueTypes{ValueTypes::kString | ValueTypes::kNull, {}}));
  // By the letter: not sorted, not respelled.
  EXPECT_EQ(R"(,"tools":)" + request.chat.tools_json, kTools);
  const auto choice = [](const std::string& value) {
    return Chat(std::string(kTools) + R"(,"tool_choice":)" + value).tools;
  };
  EXPECT_EQ(choice(R"("none")").choice, ToolChoice::kNone);
  EXPECT_EQ(choice(R"("auto")").choice, ToolChoice::kAuto);
  EXPECT_EQ(choice(R"("required")").choice, ToolChoice::kRequired);
  const ToolUse named = choice(R"({"type":"function","function":{"name":"f"}})");
  EXPECT_EQ(named.choice, ToolChoice::kNamed);
  EXPECT_EQ(named.named, "f");
  const auto allowed = [&](const std::string& mode) {
    return choice(R"({"type":"allowed_tools","allowed_tools":{"mode":")" + mode +
                  R"(","tools":[{"type":"function","function":{"name":"g.h-1"}}]}})");
  };
  EXPECT_EQ(allowed("auto").choice, ToolChoice::kAuto);
  EXPECT_EQ(allowed("required").choice, ToolChoice::kRequired);
  EXPECT_THAT(*allowed("auto").allowed, ElementsAre("g.h-1"));
  EXPECT_FALSE(Chat(std::string(kTools) + R"(,"parallel_tool_calls":false)").tools.parallel);
  EXPECT_EQ(Chat("").tools.choice, ToolChoice::kNone);
  EXPECT_EQ(Chat(R"(,"tools":[])").chat.tools_json, "");
}

TEST(ParseRequestTest, RefusesBadTools) {
  const auto tool = [](const std::string& function) {
    return ChatError(R"(,"tools":[{"type":"function","function":)" + function + "}]");
  };
  EXPECT_THAT(ChatError(R"(,"tools":{})"), HasSubstr("tools: must be an array"));
  EXPECT_THAT(ChatError(R"(,"tools":[{}])"), HasSubstr("tools[0].type: is missing"));
  EXPECT_THAT(ChatError(R"(,"tools":[{"type":"web_search"}])"),
              HasSubstr("tools[0].type: \"web_search\" is not supported"));
  EXPECT_THAT(ChatError(R"(,"tools":[{"type":"function"}])"),
              HasSubstr("tools[0].function: is missing"));
  EXPECT_THAT(tool("{}"), HasSubstr("tools[0].function.name: is missing"));
  EXPECT_THAT(tool(R"({"name":"a b"})"), HasSubstr("tools[0].function.name: \"a b\" must have"));
  EXPECT_THAT(tool(R"({"name":"f","parameters":[]})"),
              HasSubstr("tools[0].function.parameters: must be a JSON schema"));
  EXPECT_THAT(tool(R"({"name":"f","params":{}})"),
              HasSubstr("tools[0].function.params: unknown field"));
  EXPECT_THAT(tool(R"({"name":"f"}},{"type":"function","function":{"name":"f"})"),
              HasSubstr("tools[1].function.name: \"f\" is the name of another tool"));
  EXPECT_THAT(ChatError(R"(,"tool_choice":"required")"), HasSubstr("there are no tools"));
  const auto choice = [](const std::string& value) {
    return ChatError(std::string(kTools) + R"(,"tool_choice":)" + value);
  };
  EXPECT_THAT(choice(R"("any")"), HasSubstr("tool_choice: must be \"none\", \"auto\""));
  EXPECT_THAT(choice("5"), HasSubstr("not 5"));
  EXPECT_THAT(choice(R"({"type":"function"})"), HasSubstr("tool_choice: must be"));
  EXPECT_THAT(choice(R"({"type":"function","function":{"name":"x"}})"),
              HasSubstr("tool_choice.function.name: \"x\" is not among the tools"));
  const auto allowed = [&](const std::string& inside) {
    return choice(R"({"type":"allowed_tools","allowed_tools":)" + inside + "}");
  };
  EXPECT_THAT(choice(R"({"type":"allowed_tools"})"), HasSubstr("tool_choice: must be"));
  EXPECT_THAT(allowed(R"({"mode":"none","tools":[]})"),
              HasSubstr("tool_choice.allowed_tools.mode: must be \"auto\" or \"required\""));
  EXPECT_THAT(allowed(R"({"mode":"auto","tools":[]})"),
              HasSubstr("tool_choice.allowed_tools.tools: must be an array"));
  EXPECT_THAT(allowed(R"({"mode":"auto","tools":[{"type":"function"}]})"),
              HasSubstr("tool_choice.allowed_tools.tools[0].function: is missing"));
  EXPECT_THAT(allowed(R"({"mode":"auto","tools":[{"type":"function","function":{"name":"x"}}]})"),
              HasSubstr("tools[0].function.name: \"x\" is not among the tools"));
}

TEST(ParseRequestTest, ReadsWhatGoesToTheChatTemplate) {
  const auto arguments = [](const std::string& fields) {
    return json::parse(Chat(fields).chat.template_arguments_json);
  };
  EXPECT_EQ(arguments(""), json::object());
  EXPECT_EQ(arguments(R"(,"reasoning_effort":"none")"),
            (json{{"reasoning_effort", "none"}, {"thinking", false}, {"enable_thinking", false}}));
  EXPECT_EQ(arguments(R"(,"reasoning_effort":"high","chat_template_kwargs":{"thinking":false})"),
            (json{{"reasoning_effort", "high"}, {"thinking", false}, {"enable_thinking", true}}));
  EXPECT_THAT(ChatError(R"(,"reasoning_effort":"much")"), HasSubstr("\"much\" is unknown"));
  EXPECT_TRUE(Chat("").chat.add_generation_prompt);
  EXPECT_FALSE(Chat(R"(,"continue_final_message":true)").chat.add_generation_prompt);
  EXPECT_TRUE(Chat(R"(,"continue_final_message":true)").chat.continue_final_message);
  EXPECT_THAT(ChatError(R"(,"continue_final_message":true,"add_generation_prompt":true)"),
              HasSubstr("must be false with"));
}

TEST(ParseRequestTest, ReadsChatLogprobsAndTokenLimits) {
  EXPECT_FALSE(Chat("").answer.logprobs.has_value());
  EXPECT_EQ(Chat(R"(,"logprobs":true)").answer.logprobs, 0);
  EXPECT_EQ(Chat(R"(,"logprobs":true,"top_logprobs":5)").sampling.logprobs, 5);
  EXPECT_FALSE(Chat(R"(,"logprobs":false,"top_logprobs":0)").answer.logprobs.has_value());
  EXPECT_THAT(ChatError(R"(,"top_logprobs":5)"), HasSubstr("only allowed with \"logprobs\""));
  EXPECT_THAT(ChatError(R"(,"logprobs":5)"), HasSubstr("must be true or false"));
  EXPECT_EQ(Chat(R"(,"max_tokens":3)").max_tokens, 3);
  EXPECT_EQ(Chat(R"(,"max_tokens":3,"max_completion_tokens":4)").max_tokens, 4);
}

TEST(ParseRequestTest, FitsTokensIntoTheContext) {
  EXPECT_EQ(ResolveMaxTokens(Completion(""), 10, 50), 16);
  EXPECT_EQ(ResolveMaxTokens(Completion(""), 40, 50), 10);
  EXPECT_EQ(ResolveMaxTokens(Completion(R"(,"max_tokens":40)"), 10, 50), 40);
  EXPECT_EQ(ResolveMaxTokens(Chat(""), 10, 50), 40);
  EXPECT_EQ(ResolveMaxTokens(Chat(""), 49, 50), 1);
  EXPECT_EQ(ErrorFrom([] { ResolveMaxTokens(Completion(R"(,"max_tokens":41)"), 10, 50); }),
            "max_tokens | max_tokens: 41 do not fit; the prompt has 10 tokens, so at most 40 are "
            "left of the model's context of 50");
  EXPECT_EQ(ErrorFrom([] { ResolveMaxTokens(Chat(""), 50, 50); }),
            "messages | messages: has 50 tokens; the model's context of 50 holds prompts of at "
            "most 49");
  EXPECT_THAT(ErrorFrom([] { ResolveMaxTokens(Completion(""), 0, 50); }), HasSubstr("is empty"));
}

}  // namespace
}  // namespace outrider::openai
