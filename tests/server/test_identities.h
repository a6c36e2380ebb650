// Certificates with their keys for tests of TLS, in a directory of their own.
#pragma once

#include <string>

#include "tests/temporary_directory.h"

namespace outrider {

/// PEM files of a key and a certificate that it signed itself, for 127.0.0.1 and localhost.
struct TestIdentity {
  std::string cert;
  std::string key;
};

/// The files live as long as this object.
class TestIdentities {
 public:
  /// `alternative_names` as OpenSSL's configuration writes them.
  TestIdentity Make(const std::string& name,
                    const std::string& alternative_names = "IP:127.0.0.1,DNS:localhost") const;
  std::string Path(const std::string& name) const { return (directory_.path() / name).string(); }

 private:
  TemporaryDirectory directory_;
};

}  // namespace outrider
