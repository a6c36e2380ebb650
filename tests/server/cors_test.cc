// Web pages of other origins: allowed by name, asked for before the key, and off by default.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "outrider/base/error.h"
#include "tests/server/running_server.h"

namespace outrider {
namespace {

using testing::HasSubstr;

constexpr const char* kOrigin = "Access-Control-Allow-Origin";

ServerOptions Allowing(std::vector<std::string> origins) {
  ServerOptions options = TestServerOptions();
  options.http.cors.allowed_origins = std::move(origins);
  options.api_keys = {"secret"};
  return options;
}

ClientResponse AskFrom(const std::string& origin, const RunningServer& running,
                       const std::string& method = "GET", const std::string& more = "") {
  HttpClient client(running.port());
  client.Send(method + " /v1/models HTTP/1.1\r\nHost: a\r\nOrigin: " + origin + "\r\n" + more +
              "\r\n");
  return client.Receive();
}

std::string Lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(c));
  return text;
}

std::string HeaderOf(const ClientResponse& response, const std::string& name) {
  const auto found = response.headers.find(Lower(name));
  return found == response.headers.end() ? "" : found->second;
}

TEST(CorsTest, IsOffByDefault) {
  RunningServer running;
  const ClientResponse response = AskFrom("https://a.test", running);
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(HeaderOf(response, kOrigin), "");
  EXPECT_EQ(HeaderOf(response, "Vary"), "");
}

TEST(CorsTest, NamesTheOriginsThatAreAllowed) {
  RunningServer running({}, Allowing({"https://a.test", "http://b.test:3000"}));
  const std::string key = "Authorization: Bearer secret\r\n";
  for (const char* origin : {"https://a.test", "http://b.test:3000"}) {
    const ClientResponse response = AskFrom(origin, running, "GET", key);
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(HeaderOf(response, kOrigin), origin);
    EXPECT_EQ(HeaderOf(response, "Vary"), "Origin");
  }
  for (const char* origin :
       {"https://a.test:444", "http://a.test", "https://a.test.evil", "null"}) {
    const ClientResponse response = AskFrom(origin, running, "GET", key);
    EXPECT_EQ(HeaderOf(response, kOrigin), "") << origin;
    EXPECT_EQ(HeaderOf(response, "Vary"), "Origin");
  }
}

TEST(CorsTest, PreflightNeedsNoKeyAndAnErrorCanBeRead) {
  RunningServer running({}, Allowing({"*"}));
  const std::string asks =
      "Access-Control-Request-Method: POST\r\n"
      "Access-Control-Request-Headers: authorization,content-type\r\n";
  const ClientResponse preflight = AskFrom("https://a.test", running, "OPTIONS", asks);
  EXPECT_EQ(preflight.status, 204);
  EXPECT_EQ(HeaderOf(preflight, kOrigin), "*");
  EXPECT_EQ(HeaderOf(preflight, "Access-Control-Allow-Methods"), "GET, POST, OPTIONS");
  EXPECT_EQ(HeaderOf(preflight, "Access-Control-Allow-Headers"), "authorization,content-type");
  const ClientResponse refused = AskFrom("https://a.test", running);
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(HeaderOf(refused, kOrigin), "*");
}

TEST(CorsTest, MethodsAndHeadersMayBeNamed) {
  ServerOptions options = Allowing({"https://a.test"});
  options.http.cors.allowed_methods = {"GET", "PUT"};
  options.http.cors.allowed_headers = {"Authorization", "X-Mine"};
  RunningServer running({}, std::move(options));
  const ClientResponse preflight = AskFrom("https://a.test", running, "OPTIONS",
                                           "Access-Control-Request-Method: POST\r\n"
                                           "Access-Control-Request-Headers: x-other\r\n");
  EXPECT_EQ(preflight.status, 204);
  EXPECT_EQ(HeaderOf(preflight, "Access-Control-Allow-Methods"), "GET, PUT");
  EXPECT_EQ(HeaderOf(preflight, "Access-Control-Allow-Headers"), "Authorization, X-Mine");
  EXPECT_EQ(HeaderOf(preflight, "Access-Control-Allow-Credentials"), "");
}

TEST(CorsTest, CredentialsGoWithOriginsByName) {
  ServerOptions options = Allowing({"https://a.test"});
  options.http.cors.allow_credentials = true;
  RunningServer running({}, std::move(options));
  for (const char* method : {"GET", "OPTIONS"}) {
    const std::string asks = "Access-Control-Request-Method: POST\r\n";
    EXPECT_EQ(HeaderOf(AskFrom("https://a.test", running, method, asks),
                       "Access-Control-Allow-Credentials"),
              "true");
    EXPECT_EQ(HeaderOf(AskFrom("https://b.test", running, method, asks),
                       "Access-Control-Allow-Credentials"),
              "");
  }
  try {
    const Cors every({.allowed_origins = {"*"}, .allow_credentials = true});
    ADD_FAILURE() << "credentials for every origin";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("--allow-credentials: browsers refuse"));
  }
  try {
    const Cors none({.allow_credentials = true});
    ADD_FAILURE() << "credentials for no origin";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("--allow-credentials: has no effect without origins"));
  }
}

TEST(CorsTest, PreflightOfOthersIsNotAnswered) {
  RunningServer running({}, Allowing({"https://a.test"}));
  const ClientResponse response =
      AskFrom("https://b.test", running, "OPTIONS", "Access-Control-Request-Method: POST\r\n");
  EXPECT_EQ(response.status, 401);
  EXPECT_EQ(HeaderOf(response, kOrigin), "");
}

}  // namespace
}  // namespace outrider
