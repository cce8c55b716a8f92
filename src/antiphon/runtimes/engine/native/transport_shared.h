/* The transport between processes that are all on one host.
 *
 * Threading: a wire is used by one thread at a time. Ownership: the wire takes over the shared memory and the sockets.
 */
#pragma once

#include "shared.h"

/* `sockets`: as for ap_sockets_open (transport_sockets.h). No data goes over them, but they close when a process ends. They and
 * the memory belong to the wire from now on, even if this fails. */
ap_wire *ap_shared_open(ap_shared *shared, uint32_t ranks, const int32_t *sockets, ap_error *error);
