// What runs beside the host has one shape: Launch begins it and returns a ticket, Wait(ticket) ends
// it and has its results. Tickets of one object count up by one, and are waited for in their order.
// WaitReady(ticket) returns when Wait(ticket) would return at once, and changes nothing: a thread
// may call it while another launches more.
#pragma once

#include <cstdint>

namespace outrider {

using Ticket = int64_t;

}  // namespace outrider
