#include "outrider/http/tls_context.h"

#include <boost/system/error_code.hpp>
#include <cstdint>
#include <fstream>
#include <string>

#include "outrider/base/error.h"

namespace outrider {
namespace {

namespace ssl = boost::asio::ssl;
using boost::system::error_code;

// What OpenSSL says of a file that is not there helps nobody.
void RequireReadable(const char* option, const std::string& path) {
  if (!std::ifstream(path).good()) {
    throw InvalidArgument("{}: cannot read {}", option, path);
  }
}

}  // namespace

ssl::context MakeTlsContext(const TlsFiles& files) {
  ssl::context context(ssl::context::tls_server);
  context.set_options(ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1);
  error_code error;
  // An encrypted key must not stop the start-up to ask for its password.
  context.set_password_callback([](size_t, ssl::context::password_purpose) { return ""; }, error);
  RequireReadable("--ssl-certfile", files.certfile);
  if (context.use_certificate_chain_file(files.certfile, error)) {
    throw InvalidArgument("--ssl-certfile: {} has no certificate in PEM format: {}", files.certfile,
                          error.message());
  }
  const char* key_option = files.keyfile.empty() ? "--ssl-certfile" : "--ssl-keyfile";
  const std::string& keyfile = files.keyfile.empty() ? files.certfile : files.keyfile;
  RequireReadable(key_option, keyfile);
  if (context.use_private_key_file(keyfile, ssl::context::pem, error)) {
    const bool other =
        ERR_GET_REASON(static_cast<uint64_t>(error.value())) == X509_R_KEY_VALUES_MISMATCH;
    if (other) {
      throw InvalidArgument("{}: the key in {} is not that of the certificate in {}", key_option,
                            keyfile, files.certfile);
    }
    throw InvalidArgument("{}: {} has no private key in PEM format without a password: {}",
                          key_option, keyfile, error.message());
  }
  if (files.ca_certs.empty()) return context;
  RequireReadable("--ssl-ca-certs", files.ca_certs);
  if (context.load_verify_file(files.ca_certs, error)) {
    throw InvalidArgument("--ssl-ca-certs: {} has no certificates in PEM format: {}",
                          files.ca_certs, error.message());
  }
  context.set_verify_mode(ssl::verify_peer | ssl::verify_fail_if_no_peer_cert, error);
  return context;
}

ssl::context MakeClientTlsContext() {
  ssl::context context(ssl::context::tls_client);
  context.set_options(ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1);
  context.set_default_verify_paths();
  return context;
}

}  // namespace outrider
