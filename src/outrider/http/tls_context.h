// What a server needs to speak TLS: its certificate and key, and whose clients it takes. What a
// client needs: whom it trusts.
#pragma once

#include <boost/asio/ssl/context.hpp>

#include "outrider/http/http_server.h"

namespace outrider {

/// TLS 1.2 or later. Throws Error (kInvalidArgument) naming the option whose file cannot be read or
/// does not fit the others.
boost::asio::ssl::context MakeTlsContext(const TlsFiles& files);

/// TLS 1.2 or later; trusts the authorities that this machine trusts.
boost::asio::ssl::context MakeClientTlsContext();

}  // namespace outrider
