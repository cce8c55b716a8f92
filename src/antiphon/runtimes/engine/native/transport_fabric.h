/* The transport over libfabric: InfiniBand, RoCE, EFA, Slingshot, Omni-Path and what else it knows, by one or several cards. */
#ifndef ANTIPHON_TRANSPORT_FABRIC_H
#define ANTIPHON_TRANSPORT_FABRIC_H

#include "api.h"

/* Cards of one process, and bytes of the address of one at most. */
enum { AP_RAILS = 8, AP_ADDRESS = 128 };

/* What others need to reach this process: all tell it all. */
typedef struct {
    char provider[64];
    uint32_t rails, unused;
    uint64_t longest; /* bytes of one message */
    unsigned char address[AP_RAILS][AP_ADDRESS];
} ap_fabric_name;

typedef struct ap_fabric ap_fabric;

/* Opens cards. `provider`: as libfabric calls it, or a part of that between semicolons (tcp); "": the first for which
 * there is more than TCP. `places`: addresses of this host, or names of cards, with commas between; "": of a provider for TCP
 * the first, else all cards, AP_RAILS at most. NULL: AP_UNSUPPORTED where there is no libfabric or no such card. */
ap_fabric *ap_fabric_make(const char *provider, const char *places, ap_fabric_name *name, ap_error *error);
/* Of one of which no wire was made. */
void ap_fabric_close(ap_fabric *fabric);

/* `names`: of each rank. `sockets`: as of ap_sockets_open; nothing but a farewell goes over them: they tell when a process is
 * gone. They and the cards belong to the wire from now on, also where this fails. All processes go by as many rails as the one
 * that has fewest. Collective: all greet all, and have `timeout` seconds for it. */
ap_wire *ap_fabric_open(ap_fabric *fabric, uint32_t rank, uint32_t ranks, const ap_fabric_name *names, const int32_t *sockets,
                        double timeout, ap_error *error);

#endif
