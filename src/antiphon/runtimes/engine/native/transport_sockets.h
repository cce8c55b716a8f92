/* The transport over connected stream sockets: TCP, or Unix-domain.
 *
 * Threading: a wire is used by one thread at a time. Ownership: the wire takes over the sockets and closes them.
 */
#pragma once

#include "api.h"

/* `sockets`: for each rank, `rails` sockets that are connected to it, in the same order at both ends; -1: none (as for the rank
 * itself). They belong to the wire from now on, even if this fails, and are closed with it. */
ap_wire *ap_sockets_open(uint32_t rank, uint32_t ranks, uint32_t rails, const int32_t *sockets, ap_error *error);
