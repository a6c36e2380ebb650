#include "outrider/grpc/parse_grpc_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

#include "inference.pb.h"
#include "outrider/openai/api_error.h"

namespace outrider {
namespace {

using openai::TokenRequest;
using testing::ElementsAre;
using testing::HasSubstr;

openai::RequestLimits Limits() {
  openai::RequestLimits limits;
  limits.vocab_size = 300;
  limits.max_model_len = 4096;
  limits.defaults.temperature = 0.6F;
  limits.defaults.top_p = 0.95F;
  return limits;
}

vllm::GenerateRequest Request() {
  vllm::GenerateRequest request;
  request.set_text("hi");
  return request;
}

TokenRequest Parse(const vllm::GenerateRequest& request, bool stream = false) {
  return ParseGrpcRequest(request.SerializeAsString(), stream, Limits());
}

std::string ErrorOf(const std::string& bytes) {
  try {
    ParseGrpcRequest(bytes, false, Limits());
  } catch (const openai::RequestError& error) {
    return error.what();
  }
  return "";
}

TEST(ParseGrpcRequestTest, WhatIsLeftOutHasVllmsDefaults) {
  const TokenRequest request = Parse(Request());
  EXPECT_EQ(std::get<std::string>(request.prompts.at(0)), "hi");
  EXPECT_EQ(request.sampling.temperature, 0);  // not the model's
  EXPECT_EQ(request.sampling.top_p, 0.95F);    // the model's
  EXPECT_FALSE(request.max_tokens);
  EXPECT_EQ(openai::ResolveMaxTokens(request, 96, 4096), 4000);
  EXPECT_FALSE(request.sampling.seed);
  EXPECT_FALSE(request.sampling.logprobs);
  EXPECT_TRUE(request.sampling.skip_special_tokens);
  EXPECT_TRUE(request.answer.text);
  EXPECT_FALSE(request.answer.return_token_ids);
  EXPECT_FALSE(request.answer.stream);
  EXPECT_EQ(request.cache_salt, "");
}

TEST(ParseGrpcRequestTest, ReadsEveryField) {
  vllm::GenerateRequest given;
  for (const uint32_t id : {256, 7}) given.mutable_token_ids()->add_ids(id);
  given.set_request_id("my-id");
  given.set_model("m");
  given.set_priority(-4);
  given.set_truncate_prompt_tokens(9);
  given.set_temperature(0.5F);
  given.mutable_sampling()->set_num_sequences(3);
  given.mutable_sampling()->set_top_k(11);
  given.mutable_sampling()->set_top_p(0.75F);
  given.mutable_sampling()->set_min_p(0.125F);
  given.mutable_sampling()->set_seed(-1);
  given.mutable_decoding()->set_presence_penalty(0.25F);
  given.mutable_decoding()->set_frequency_penalty(-0.25F);
  given.mutable_decoding()->set_repetition_penalty(1.5F);
  (*given.mutable_decoding()->mutable_logit_bias())[8] = -1.5F;
  given.mutable_decoding()->add_allowed_token_ids(9);
  given.mutable_decoding()->set_json(R"({"b": 1, "a": 2})");
  given.mutable_stopping()->set_max_new_tokens(100);
  given.mutable_stopping()->set_min_new_tokens(5);
  given.mutable_stopping()->add_stop_token_ids(12);
  given.mutable_stopping()->add_stop_strings("END");
  given.mutable_stopping()->set_include_stop_strings(true);
  given.mutable_stopping()->set_ignore_eos(true);
  vllm::ResponseOptions* const response = given.mutable_response();
  response->set_prompt_token_ids(true);
  response->set_prompt_logprobs(true);
  response->mutable_prompt_candidates()->set_top_n(2);
  response->set_output_text(false);
  response->set_output_token_ids(true);
  response->set_output_logprobs(true);
  response->mutable_output_candidates()->set_top_n(4);
  response->set_skip_special_tokens(false);
  given.mutable_kv()->set_cache_salt("salt");
  const TokenRequest request = Parse(given, /*stream=*/true);
  EXPECT_THAT(std::get<std::vector<int32_t>>(request.prompts.at(0)), ElementsAre(256, 7));
  EXPECT_EQ(request.request_id, "my-id");
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.priority, -4);
  EXPECT_EQ(request.truncate_prompt_tokens, 9);
  EXPECT_EQ(request.n, 3);
  EXPECT_EQ(request.max_tokens, 100);
  EXPECT_EQ(request.cache_salt, "salt");
  ASSERT_TRUE(request.grammar);
  EXPECT_EQ(request.grammar->text, R"({"b": 1, "a": 2})");  // its members in their order
  const SamplingParams& sampling = request.sampling;
  EXPECT_EQ(sampling.temperature, 0.5F);
  EXPECT_EQ(sampling.top_k, 11);
  EXPECT_EQ(sampling.top_p, 0.75F);
  EXPECT_EQ(sampling.min_p, 0.125F);
  EXPECT_EQ(sampling.seed, ~uint64_t{0});
  EXPECT_EQ(sampling.presence_penalty, 0.25F);
  EXPECT_EQ(sampling.frequency_penalty, -0.25F);
  EXPECT_EQ(sampling.repetition_penalty, 1.5F);
  ASSERT_EQ(sampling.logit_bias.size(), 1);
  EXPECT_EQ(sampling.allowed_token_ids->at(0), 9);
  EXPECT_EQ(sampling.min_tokens, 5);
  EXPECT_THAT(sampling.stop_token_ids, ElementsAre(12));
  EXPECT_THAT(sampling.stop, ElementsAre("END"));
  EXPECT_TRUE(sampling.include_stop_str_in_output);
  EXPECT_TRUE(sampling.ignore_eos);
  EXPECT_FALSE(sampling.skip_special_tokens);
  EXPECT_EQ(sampling.logprobs, 4);
  EXPECT_EQ(sampling.prompt_logprobs, 2);
  EXPECT_EQ(request.answer.logprobs, 4);
  EXPECT_EQ(request.answer.prompt_logprobs, 2);
  EXPECT_TRUE(request.answer.stream);
  EXPECT_FALSE(request.answer.text);
  EXPECT_TRUE(request.answer.return_token_ids);
  EXPECT_TRUE(request.answer.prompt_token_ids);
}

TEST(ParseGrpcRequestTest, BypassingThePrefixCacheIsASaltThatNobodyHas) {
  vllm::GenerateRequest given = Request();
  given.mutable_kv()->set_bypass_prefix_cache(true);
  const std::string first = Parse(given).cache_salt;
  EXPECT_NE(first, "");
  EXPECT_NE(first, Parse(given).cache_salt);
}

TEST(ParseGrpcRequestTest, RefusesUnknownFieldsAtAnyDepth) {
  const std::string whole = Request().SerializeAsString();
  EXPECT_EQ(ErrorOf(whole), "");
  EXPECT_THAT(ErrorOf(whole + "\x82\x01\x01x"), HasSubstr("field 16 of vllm.GenerateRequest"));
  EXPECT_THAT(ErrorOf(whole + "\x32\x02\x78\x01"), HasSubstr("field 15 of vllm.RandomSampling"));
  EXPECT_THAT(ErrorOf("\x1a"), HasSubstr("no vllm.GenerateRequest"));
  openai::RequestLimits limits = Limits();
  limits.ignore_unknown_fields = true;
  EXPECT_EQ(ParseGrpcRequest(whole + "\x82\x01\x01x", false, limits).prompts.size(), 1);
}

TEST(ParseGrpcRequestTest, OnlyStreamsHaveSeveralSequences) {
  vllm::GenerateRequest given = Request();
  given.mutable_sampling()->set_num_sequences(2);
  EXPECT_THAT(ErrorOf(given.SerializeAsString()), HasSubstr("GenerateStream"));
  EXPECT_EQ(Parse(given, /*stream=*/true).n, 2);
}

}  // namespace
}  // namespace outrider
