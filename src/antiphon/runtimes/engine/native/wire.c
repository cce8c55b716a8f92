/* What all transports share: comparing the calls of processes, agreeing on a call, and signals while a call waits.
 *
 * Role: above the transports' own files; reaches them through the functions of ap_wire.
 * Threading: a wire is used by one thread at a time. ap_check_signals takes Python's lock while it asks.
 * Ownership: `call`, `trace` and `signals` are the caller's and outlive their use.
 */
#include "transport.h"

/* From now on calls over this wire are compared between processes: each is the call that *call identifies when it
 * begins. */
void ap_wire_call(ap_wire *wire, const ap_call_id *call) { wire->call = call; }

/* After AP_MISMATCH: the call that the other process made. */
void ap_wire_other_call(const ap_wire *wire, ap_call_id *other) { *other = wire->other; }

/* Before closing: AP_MISMATCH if a message has arrived that no receive took. */
int ap_wire_check_unreceived(ap_wire *wire, ap_error *error) {
    return wire->call && wire->unreceived && !wire->broken ? wire->unreceived(wire, error) : AP_OK;
}

/* After a failure: the wire can only be closed, and writes no more to the memory of messages. */
void ap_wire_break(ap_wire *wire) {
    wire->broken = 1;
    if (wire->fail) wire->fail(wire);
}

/* Called before the first message of a call: messages carry `current_call`, a copy of the caller's *call as it is
 * now. */
void ap_begin_call(ap_wire *wire) {
    if (!wire->call) return;
    wire->current_call = *wire->call;
    if (wire->begin) wire->begin(wire);
}

/* AP_MISMATCH if a message came from another call than this one. */
int ap_compare(ap_wire *wire, const ap_call_id *other, ap_error *error) {
    if (ap_same_call(&wire->current_call, other)) return AP_OK;
    wire->other = *other;
    return ap_fail(error, AP_MISMATCH, "rank %u makes another call (its number %llu) than this one (%llu)", other->rank,
                   (unsigned long long)other->number, (unsigned long long)wire->current_call.number);
}

/* The same between processes that need not be equally far: a call of another number, or stage, is no mismatch. Nor is another
 * `group`: its digest changes within a call when a book has been sent, at each process in its turn. */
int ap_compare_loosely(ap_wire *wire, const ap_call_id *other, ap_error *error) {
    ap_call_id adapted = *other;
    adapted.stage = wire->current_call.stage, adapted.group = wire->current_call.group;
    return other->number == wire->current_call.number ? ap_compare(wire, &adapted, error) : AP_OK;
}

/* Returns when all ranks have begun the same call. A dissemination barrier: in round k each rank receives from the one
 * 2^k before it and sends to the one 2^k after it. */
int ap_agree(ap_wire *wire, double timeout, ap_error *error) {
    const uint32_t ranks = wire->ranks, me = wire->call ? wire->call->rank : 0;
    enum { CHANNEL = 0, BYTES = 0, RECEIVE = 0, SEND = 1 }; /* messages are empty: the calls that they name are compared */
    uint32_t numbers[2];
    unsigned char nothing[1];
    int code = AP_OK;
    if (wire->broken) return ap_fail(error, AP_TRANSPORT, "an earlier run failed; make a new connection");
    if (!wire->call || me >= ranks) return ap_fail(error, AP_INVALID, "this wire compares no calls");
    wire->expected = 0; /* bytes to receive */
    ap_begin_call(wire);
    for (uint32_t step = 1; step < ranks && !code; step *= 2) {
        code = wire->receive(wire, (me + ranks - step) % ranks, CHANNEL, nothing, BYTES, RECEIVE, error);
        if (!code) code = wire->send(wire, (me + step) % ranks, CHANNEL, nothing, BYTES, SEND, error);
        for (int pending = 2, count = 0; pending > 0 && !code; pending -= count)
            code = wire->completed(wire, /* block */ 1, timeout, numbers, 2, &count, error);
    }
    if (code) ap_wire_break(wire);
    return code;
}

/* ---- signals ---- */

void ap_wire_set_signals(ap_wire *wire, ap_python_signals *signals) { wire->signals = signals; }

/* AP_STOPPED if a signal handler has raised an exception. Python runs handlers in its main thread, between two
 * bytecodes: never while that thread waits in here. So a call that waits for long asks Python to run them, every
 * AP_QUIET seconds. `now`: seconds (ap_now). */
int ap_check_signals(ap_wire *wire, double now, ap_error *error) {
    ap_python_signals *h = wire->signals;
    if (!h || !h->in_main_thread || now < wire->signal_check_time + AP_QUIET) return AP_OK;
    wire->signal_check_time = now;
    int state = h->ensure(), raised = h->check();
    if (raised) h->fetch(&h->raised[0], &h->raised[1], &h->raised[2]);
    h->release(state);
    return raised ? ap_fail(error, AP_STOPPED, "a handler of a signal ended this call") : AP_OK;
}
