// HTTPS: a self-signed certificate, clients with and without one of their own, bad files, and a
// client that speaks plain HTTP.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/write.hpp>
#include <fstream>
#include <string>

#include "outrider/base/error.h"
#include "outrider/http/tls_context.h"
#include "tests/server/running_server.h"
#include "tests/server/test_identities.h"

namespace outrider {
namespace {

namespace asio = boost::asio;
using testing::HasSubstr;

class TlsTest : public testing::Test {
 protected:
  TestIdentity MakeIdentity(const std::string& name) const { return identities_.Make(name); }
  std::string Path(const std::string& name) const { return identities_.Path(name); }

  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name)) << text;
    return Path(name);
  }

 private:
  const TestIdentities identities_;
};

ServerOptions Serving(TlsFiles files) {
  ServerOptions options = TestServerOptions();
  options.http.tls = std::move(files);
  return options;
}

// Sends one request and reads to the end of the connection. Throws when TLS fails.
std::string Ask(uint16_t port, const std::string& trusted, const TestIdentity* identity,
                const std::string& request) {
  asio::io_context io;
  asio::ssl::context context(asio::ssl::context::tls_client);
  context.load_verify_file(trusted);
  context.set_verify_mode(asio::ssl::verify_peer);
  if (identity != nullptr) {
    context.use_certificate_chain_file(identity->cert);
    context.use_private_key_file(identity->key, asio::ssl::context::pem);
  }
  asio::ssl::stream<asio::ip::tcp::socket> stream(io, context);
  stream.next_layer().connect({asio::ip::make_address("127.0.0.1"), port});
  stream.handshake(asio::ssl::stream_base::client);
  asio::write(stream, asio::buffer(request));
  std::string answer;
  boost::system::error_code error;
  asio::read(stream, asio::dynamic_buffer(answer), error);
  // TLS's own end, not a connection that was cut.
  if (error != asio::error::eof) throw boost::system::system_error(error);
  return answer;
}

const std::string kHealth = "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

std::string CompletionRequest(const std::string& body) {
  return "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: "
         "application/json\r\nConnection: close\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

TEST_F(TlsTest, AnswersAndStreams) {
  const TestIdentity own = MakeIdentity("server");
  RunningServer running({.tokens_per_step = 3}, Serving({own.cert, own.key, ""}));
  EXPECT_THAT(Ask(running.port(), own.cert, nullptr, kHealth), HasSubstr("HTTP/1.1 200"));
  const std::string text = Ask(running.port(), own.cert, nullptr,
                               CompletionRequest(R"({"prompt":"abc","max_tokens":6})"));
  EXPECT_THAT(text, HasSubstr(R"("text":"abca")"));
  const std::string stream = Ask(
      running.port(), own.cert, nullptr,
      CompletionRequest(R"({"prompt":"abc","max_tokens":3000,"stream":true,"ignore_eos":true})"));
  EXPECT_THAT(stream, HasSubstr("data: [DONE]"));
}

TEST_F(TlsTest, AKeyMayBeInTheCertificatesFile) {
  const TestIdentity own = MakeIdentity("server");
  std::ifstream key(own.key);
  std::ofstream(own.cert, std::ios::app) << key.rdbuf();
  RunningServer running({}, Serving({own.cert, "", ""}));
  EXPECT_THAT(Ask(running.port(), own.cert, nullptr, kHealth), HasSubstr("HTTP/1.1 200"));
}

TEST_F(TlsTest, ClientsMayHaveToShowACertificate) {
  const TestIdentity own = MakeIdentity("server");
  const TestIdentity friendly = MakeIdentity("friend");
  const TestIdentity other = MakeIdentity("other");
  RunningServer running({}, Serving({own.cert, own.key, friendly.cert}));
  EXPECT_THAT(Ask(running.port(), own.cert, &friendly, kHealth), HasSubstr("HTTP/1.1 200"));
  EXPECT_ANY_THROW(Ask(running.port(), own.cert, &other, kHealth));
  EXPECT_ANY_THROW(Ask(running.port(), own.cert, nullptr, kHealth));
  EXPECT_ANY_THROW(Ask(running.port(), other.cert, &friendly, kHealth));  // the client's own doubt
}

TEST_F(TlsTest, PlainHttpIsToldSo) {
  const TestIdentity own = MakeIdentity("server");
  RunningServer running({}, Serving({own.cert, own.key, ""}));
  HttpClient client(running.port());
  client.Send(kHealth);
  const ClientResponse answer = client.Receive();
  EXPECT_EQ(answer.status, 400);
  EXPECT_THAT(answer.body, HasSubstr("https://"));
  EXPECT_THAT(answer.body, HasSubstr(R"("code":null)"));
  // And serves on.
  EXPECT_THAT(Ask(running.port(), own.cert, nullptr, kHealth), HasSubstr("HTTP/1.1 200"));
}

TEST_F(TlsTest, AHandshakeThatDoesNotComeEnds) {
  const TestIdentity own = MakeIdentity("server");
  ServerOptions options = Serving({own.cert, own.key, ""});
  options.http.limits.header_seconds = 0.2;
  RunningServer running({}, options);
  HttpClient silent(running.port());
  EXPECT_TRUE(silent.AtEnd());
}

TEST_F(TlsTest, ADisconnectEndsTheRequest) {
  const TestIdentity own = MakeIdentity("server");
  RunningServer running({.step_time = std::chrono::milliseconds(1)},
                        Serving({own.cert, own.key, ""}));
  {
    asio::io_context io;
    asio::ssl::context context(asio::ssl::context::tls_client);
    asio::ssl::stream<asio::ip::tcp::socket> stream(io, context);
    stream.next_layer().connect({asio::ip::make_address("127.0.0.1"), running.port()});
    stream.handshake(asio::ssl::stream_base::client);
    asio::write(
        stream,
        asio::buffer(CompletionRequest(R"({"prompt":"abc","max_tokens":4000,"ignore_eos":true})")));
    ASSERT_TRUE(Eventually([&] { return running.engine.num_running() == 1; }));
  }
  EXPECT_TRUE(Eventually([&] { return running.engine.num_aborted() == 1; }));
}

TEST_F(TlsTest, BadFilesAreNamed) {
  const TestIdentity own = MakeIdentity("server");
  const TestIdentity other = MakeIdentity("other");
  const auto error = [](const TlsFiles& files) -> std::string {
    try {
      MakeTlsContext(files);
    } catch (const Error& caught) {
      return caught.what();
    }
    return "none";
  };
  const std::string text = Write("text.pem", "no PEM\n");
  EXPECT_EQ(error({own.cert, own.key, ""}), "none");
  EXPECT_EQ(error({Path("none.pem"), own.key, ""}),
            "--ssl-certfile: cannot read " + Path("none.pem"));
  EXPECT_THAT(error({text, own.key, ""}), HasSubstr("--ssl-certfile: " + text + " has no cert"));
  EXPECT_EQ(error({own.cert, Path("none.key"), ""}),
            "--ssl-keyfile: cannot read " + Path("none.key"));
  EXPECT_THAT(error({own.cert, text, ""}), HasSubstr("--ssl-keyfile: " + text + " has no private"));
  EXPECT_THAT(error({own.cert, other.key, ""}), HasSubstr("is not that of the certificate"));
  EXPECT_THAT(error({own.cert, "", ""}), HasSubstr("--ssl-certfile: " + own.cert + " has no priv"));
  EXPECT_THAT(error({own.cert, own.key, text}), HasSubstr("--ssl-ca-certs: " + text));
}

}  // namespace
}  // namespace outrider
