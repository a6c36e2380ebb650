// Work beside the host has one interface everywhere: Launch begins it and returns a ticket,
// Ready(ticket) says whether Wait(ticket) would return at once, Wait(ticket) ends it. The tickets
// of an object count up by one. They are waited for in that order.
#pragma once

#include <cstdint>

namespace outrider {

using Ticket = int64_t;

}  // namespace outrider
