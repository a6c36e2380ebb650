#include "outrider/http/http_address.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

void ExpectAddress(std::string_view url, const HttpAddress& expected) {
  const std::optional<HttpAddress> address = ParseHttpAddress(url, "80");
  ASSERT_TRUE(address) << url;
  EXPECT_EQ(address->host, expected.host) << url;
  EXPECT_EQ(address->port, expected.port) << url;
  EXPECT_EQ(address->path, expected.path) << url;
  EXPECT_EQ(address->tls, expected.tls) << url;
}

TEST(HttpAddressTest, IsTakenApart) {
  ExpectAddress("http://host", {"host", "80", "", false});
  ExpectAddress("https://host", {"host", "443", "", true});
  ExpectAddress("http://127.0.0.1:8000/", {"127.0.0.1", "8000", "/", false});
  ExpectAddress("https://a.example:8443/v1/x", {"a.example", "8443", "/v1/x", true});
  ExpectAddress("http://[::1]", {"::1", "80", "", false});
  ExpectAddress("http://[::1]:8000/v1", {"::1", "8000", "/v1", false});
}

TEST(HttpAddressTest, OthersAreNone) {
  for (const char* url :
       {"", "host:8000", "ftp://host", "http://", "http://:8000",
        "http://host:", "http://host:http", "http://host:123456", "http://a b", "http://host/\n"}) {
    EXPECT_FALSE(ParseHttpAddress(url, "80")) << url;
  }
}

}  // namespace
}  // namespace outrider
