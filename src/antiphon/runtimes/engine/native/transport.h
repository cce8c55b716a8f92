/* The interface of a transport (struct ap_wire). Messages from one rank to another on one channel arrive in the order in
 * which they were sent, and match receives in the order in which these were started.
 *
 * Threading: a wire is used by one thread at a time. Ownership: ap_wire_close frees a wire with what its transport allocated;
 *   buffers of a message belong to the caller, and stay unchanged until its number comes back from `completed`.
 */
#ifndef ANTIPHON_TRANSPORT_H
#define ANTIPHON_TRANSPORT_H

#include <string.h>

#include "api.h"

enum { AP_MESSAGE_OVERHEAD = 128 };

struct ap_wire {
    /* Start a message; `number` comes back from `completed` once. The memory stays as it is until then. */
    int (*send)(ap_wire *self, uint32_t peer, uint32_t channel, const void *data, size_t bytes, uint32_t number,
                ap_error *error);
    int (*receive)(ap_wire *self, uint32_t peer, uint32_t channel, void *data, size_t bytes, uint32_t number, ap_error *error);
    /* Numbers of messages that are done: at most `capacity`, their count in *count. With `block`, waits until there is one;
     * with `timeout` > 0 not longer than so many seconds (then AP_TIMEOUT). */
    int (*completed)(ap_wire *self, int block, double timeout, uint32_t *numbers, int capacity, int *count, ap_error *error);
    void (*close)(ap_wire *self);
    uint64_t expected;            /* bytes that the run receives, and AP_MESSAGE_OVERHEAD for each of its messages */
    void (*begin)(ap_wire *self); /* a call has begun: `now` is another; may be NULL */
    int (*unreceived)(ap_wire *self, ap_error *error); /* ap_wire_left; may be NULL */
    /* A run has failed: nothing is written to memory of its messages any more; NULL: nothing is written between runs. */
    void (*fail)(ap_wire *self);
    uint32_t ranks;
    int broken;
    const ap_called *call; /* the caller's; NULL: nothing is compared */
    ap_called now, other;  /* the call under way; after AP_MISMATCH that of another */
    ap_trace *trace;       /* the caller's; NULL: nothing is recorded */
    ap_hearing *hearing;   /* the caller's; NULL: signals are not checked */
    double signal_check_time;
};

/* Seconds without any progress until a waiting process checks whether the others are in another call. */
#define AP_QUIET 0.1

/* Called after AP_QUIET seconds without progress: AP_STOPPED where a signal's handler has raised something. */
int ap_check_signals(ap_wire *wire, double time, ap_error *error);

static inline int ap_same_call(const ap_called *first, const ap_called *second) {
    return !memcmp(first, second, offsetof(ap_called, rank));
}

/* After a failure: it can only be closed. */
void ap_wire_break(ap_wire *wire);

/* Called before the first message of a call. */
void ap_begin_call(ap_wire *wire);
/* What a message came for: AP_MISMATCH where this is not the call that `wire` is in. */
int ap_compare(ap_wire *wire, const ap_called *other, ap_error *error);
/* What another says to be in, or was in, and no message: only what cannot be is AP_MISMATCH. */
int ap_compare_loosely(ap_wire *wire, const ap_called *other, ap_error *error);

/* transport_threads.c: a wire for each rank, to be closed each; false where there is no memory. */
int ap_threads_open(uint32_t ranks, ap_wire **wires);

/* Fills `error`, unless it is NULL; returns the code. */
int ap_fail(ap_error *error, int code, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 3, 4)))
#endif
    ;

#endif
