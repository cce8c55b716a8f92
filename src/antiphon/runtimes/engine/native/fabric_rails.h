/* What transport_fabric.c knows of cards that fabric_rails.c has opened. */
#ifndef AP_FABRIC_RAILS_H
#define AP_FABRIC_RAILS_H

#include "fabric_layout.h"
#include "transport_fabric.h"

/* One card. `file`: to wait for, -1 where it can only be looked at. */
typedef struct {
    fabric_info *info;
    fabric_provider *provider;
    fabric_domain *domain;
    fabric_book *book;
    fabric_queue *queue;
    fabric_endpoint *end;
    int file;
} ap_rail;

struct ap_fabric {
    uint32_t rails;
    int over_tcp; /* its cards are no more than the kernel's sockets */
    ap_rail rail[AP_RAILS];
};

/* What libfabric says of a number that it returned, without its sign. */
const char *ap_fabric_says(int code);

#endif
