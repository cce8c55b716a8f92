/* Signals while a call waits. Python runs a program's handlers in its main thread, between two steps of its own: never,
 * while that thread waits in here. So who waits for long asks Python whether there is something to handle. */
#include "transport.h"

void ap_wire_hear(ap_wire *wire, ap_hearing *hearing) { wire->hearing = hearing; }

int ap_hear(ap_wire *wire, double time, ap_error *error) {
    ap_hearing *h = wire->hearing;
    if (!h || !h->wanted || time < wire->asked + AP_QUIET) return AP_OK;
    wire->asked = time;
    int state = h->ensure(), raised = h->check();
    if (raised) h->fetch(&h->raised[0], &h->raised[1], &h->raised[2]);
    h->release(state);
    return raised ? ap_fail(error, AP_STOPPED, "a handler of a signal ended this call") : AP_OK;
}
