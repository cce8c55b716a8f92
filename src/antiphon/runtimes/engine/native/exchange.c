/* One round of messages between ranks that all know what comes. */
#include "exchange.h"

enum { BATCH = 64 };

static int start(ap_wire *wire, const ap_leg *leg, uint32_t number, ap_error *error) {
    if (leg->comes) return wire->receive(wire, leg->peer, 0, leg->data, leg->bytes, number, error);
    return wire->send(wire, leg->peer, 0, leg->data, leg->bytes, number, error);
}

int ap_move(ap_wire *wire, const ap_leg *leg, uint32_t count, double timeout, ap_error *error) {
    uint32_t numbers[BATCH];
    int code = AP_OK;
    for (int comes = 1; comes >= 0; comes--) /* receives first: what comes finds its place */
        for (uint32_t i = 0; i < count && !code; i++)
            if (leg[i].comes == comes) code = start(wire, &leg[i], i, error);
    for (uint32_t left = count; left && !code;) {
        int done = 0;
        code = wire->completed(wire, 1, timeout, numbers, BATCH, &done, error);
        left -= (uint32_t)done;
    }
    return code;
}

int ap_exchange(ap_wire *wire, const ap_leg *leg, uint32_t count, double timeout, ap_error *error) {
    if (wire->broken) return ap_fail(error, AP_TRANSPORT, "an earlier run failed; make a new connection");
    wire->expected = 0;
    for (uint32_t i = 0; i < count; i++)
        if (leg[i].comes) wire->expected += leg[i].bytes + AP_LETTER;
    ap_begin(wire);
    int code = ap_move(wire, leg, count, timeout, error);
    if (code) ap_wire_fails(wire);
    return code;
}
