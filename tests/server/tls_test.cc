// HTTPS: a self-signed certificate, clients with and without one of their own, bad files, and a
// client that speaks plain HTTP.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <unistd.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/write.hpp>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "outrider/base/error.h"
#include "outrider/server/tls_context.h"
#include "tests/server/running_server.h"

namespace outrider {
namespace {

namespace asio = boost::asio;
using testing::HasSubstr;

// PEM files of a key and a certificate that it signed itself.
struct Identity {
  std::string cert;
  std::string key;
};

class TlsTest : public testing::Test {
 protected:
  TlsTest() {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }
  ~TlsTest() override { std::filesystem::remove_all(directory_); }

  std::string Path(const std::string& name) const { return (directory_ / name).string(); }

  Identity MakeIdentity(const std::string& name) const {
    const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_EC_gen("P-256"),
                                                                  EVP_PKEY_free);
    const std::unique_ptr<X509, decltype(&X509_free)> cert(X509_new(), X509_free);
    X509_set_version(cert.get(), 2);
    ASN1_INTEGER_set(X509_get_serialNumber(cert.get()), 1);
    X509_gmtime_adj(X509_getm_notBefore(cert.get()), -3600);
    X509_gmtime_adj(X509_getm_notAfter(cert.get()), 3600);
    X509_set_pubkey(cert.get(), key.get());
    X509_NAME* subject = X509_get_subject_name(cert.get());
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
    X509_set_issuer_name(cert.get(), subject);
    X509_sign(cert.get(), key.get(), EVP_sha256());
    const Identity identity = {Path(name + ".pem"), Path(name + ".key")};
    const std::unique_ptr<FILE, decltype(&fclose)> cert_file(fopen(identity.cert.c_str(), "w"),
                                                             fclose);
    PEM_write_X509(cert_file.get(), cert.get());
    const std::unique_ptr<FILE, decltype(&fclose)> key_file(fopen(identity.key.c_str(), "w"),
                                                            fclose);
    PEM_write_PrivateKey(key_file.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    return identity;
  }

  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name)) << text;
    return Path(name);
  }

 private:
  const std::filesystem::path directory_ =
      std::filesystem::temp_directory_path() / ("outrider_tls_test_" + std::to_string(getpid()));
};

ServerOptions Serving(TlsFiles files) {
  ServerOptions options = TestServerOptions();
  options.http.tls = std::move(files);
  return options;
}

// Sends one request and reads to the end of the connection. Throws when TLS fails.
std::string Ask(uint16_t port, const std::string& trusted, const Identity* identity,
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
  return "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

TEST_F(TlsTest, AnswersAndStreams) {
  const Identity own = MakeIdentity("server");
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
  const Identity own = MakeIdentity("server");
  std::ifstream key(own.key);
  std::ofstream(own.cert, std::ios::app) << key.rdbuf();
  RunningServer running({}, Serving({own.cert, "", ""}));
  EXPECT_THAT(Ask(running.port(), own.cert, nullptr, kHealth), HasSubstr("HTTP/1.1 200"));
}

TEST_F(TlsTest, ClientsMayHaveToShowACertificate) {
  const Identity own = MakeIdentity("server");
  const Identity friendly = MakeIdentity("friend");
  const Identity other = MakeIdentity("other");
  RunningServer running({}, Serving({own.cert, own.key, friendly.cert}));
  EXPECT_THAT(Ask(running.port(), own.cert, &friendly, kHealth), HasSubstr("HTTP/1.1 200"));
  EXPECT_ANY_THROW(Ask(running.port(), own.cert, &other, kHealth));
  EXPECT_ANY_THROW(Ask(running.port(), own.cert, nullptr, kHealth));
  EXPECT_ANY_THROW(Ask(running.port(), other.cert, &friendly, kHealth));  // the client's own doubt
}

TEST_F(TlsTest, PlainHttpIsToldSo) {
  const Identity own = MakeIdentity("server");
  RunningServer running({}, Serving({own.cert, own.key, ""}));
  HttpClient client(running.port());
  client.Send(kHealth);
  const ClientResponse answer = client.Receive();
  EXPECT_EQ(answer.status, 400);
  EXPECT_THAT(answer.body, HasSubstr("https://"));
  // And serves on.
  EXPECT_THAT(Ask(running.port(), own.cert, nullptr, kHealth), HasSubstr("HTTP/1.1 200"));
}

TEST_F(TlsTest, AHandshakeThatDoesNotComeEnds) {
  const Identity own = MakeIdentity("server");
  ServerOptions options = Serving({own.cert, own.key, ""});
  options.http.limits.header_seconds = 0.2;
  RunningServer running({}, options);
  HttpClient silent(running.port());
  EXPECT_TRUE(silent.AtEnd());
}

TEST_F(TlsTest, ADisconnectEndsTheRequest) {
  const Identity own = MakeIdentity("server");
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
  const Identity own = MakeIdentity("server");
  const Identity other = MakeIdentity("other");
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
