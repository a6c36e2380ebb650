// What runs beside the host has one shape: Launch begins it and returns a ticket, Ready(ticket)
// says whether Wait(ticket) would return at once. Tickets of one object count up by one, and are
// waited for in their order.
#pragma once

#include <cstdint>

namespace outrider {

using Ticket = int64_t;

}  // namespace outrider
