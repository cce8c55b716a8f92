/* One round of messages without a program: for what no plan can be made beforehand, as sizes are told by the call alone. */
#ifndef ANTIPHON_EXCHANGE_H
#define ANTIPHON_EXCHANGE_H

#include "shared.h"
#include "transport.h"

typedef struct ap_leg {
    uint32_t peer;
    int comes;
    void *data;
    size_t bytes; /* the same at both ends */
    /* Where ends may differ (ap_mpi_any_length): what was sent, or that it is only announced; memory of ours where that is too much. */
    ap_came came;
    void *scrap;
} ap_leg;

/* Starts all that come, then all that go, and waits for them. One message each way between two ranks at most. */
int ap_exchange(ap_wire *wire, const ap_leg *leg, uint32_t count, double timeout, ap_error *error);
/* Likewise in a call that has begun. */
int ap_move(ap_wire *wire, const ap_leg *leg, uint32_t count, double timeout, ap_error *error);

#endif
