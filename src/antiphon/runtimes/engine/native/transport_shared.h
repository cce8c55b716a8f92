/* The transport between processes that are all on one host. */
#ifndef ANTIPHON_TRANSPORT_SHARED_H
#define ANTIPHON_TRANSPORT_SHARED_H

#include "shared.h"

/* `sockets`: as of ap_sockets_open (transport_sockets.h); no data goes over them, but they close when a process ends. They
 * and the memory belong to the wire from now on, also where this fails. */
ap_wire *ap_shared_open(ap_shared *shared, uint32_t ranks, const int32_t *sockets, ap_error *error);

#endif
