/* The interface of a transport (struct ap_wire). Messages from one rank to another on one channel arrive in the order in
 * which they were sent, and match receives in the order in which these were started.
 *
 * Threading: a wire is used by one thread at a time. Ownership: ap_wire_close frees a wire with what its transport allocated;
 *   buffers of a message belong to the caller, and stay unchanged until its number comes back from `completed`.
 */
#pragma once

#include <string.h>

#include "api.h"

enum { AP_MESSAGE_OVERHEAD = 128 }; /* bytes of memory that a transport may take for a message beside its data */

struct ap_wire {
    /* Both start a message, and return AP_OK or an error code. `completed` reports `number` once; the caller must not change the
     * memory before. */
    int (*send)(ap_wire *self, uint32_t peer, uint32_t channel, const void *data, size_t bytes, uint32_t number,
                ap_error *error);
    int (*receive)(ap_wire *self, uint32_t peer, uint32_t channel, void *data, size_t bytes, uint32_t number, ap_error *error);
    /* Reports messages that are done: at most `capacity` numbers, their count in *count. With `block`, waits for at least one;
     * after `timeout` seconds without progress, if that is above 0, AP_TIMEOUT. */
    int (*completed)(ap_wire *self, int block, double timeout, uint32_t *numbers, int capacity, int *count, ap_error *error);
    void (*close)(ap_wire *self);
    /* Bytes that the run receives, and AP_MESSAGE_OVERHEAD for each of its messages. The engine sets it before a run; a
     * transport may limit by it the memory for messages that arrive before their receive. */
    uint64_t expected;
    void (*begin)(ap_wire *self); /* ap_begin_call calls it: `current_call` has begun; may be NULL */
    /* Before closing: AP_MISMATCH if a message has arrived that no receive took (ap_wire_check_unreceived, api.h);
     * may be NULL. */
    int (*unreceived)(ap_wire *self, ap_error *error);
    /* A run has failed: write no more to the memory of its messages. NULL: this transport writes only during runs. */
    void (*fail)(ap_wire *self);
    uint32_t ranks;
    int broken;                 /* after a failure: the wire can only be closed */
    const ap_call_id *call;     /* the caller's (ap_wire_call); NULL: calls are not compared between processes */
    ap_call_id current_call, other; /* the call under way; after AP_MISMATCH: that of the other process */
    ap_trace *trace;            /* the caller's; NULL: nothing is recorded */
    ap_python_signals *signals; /* the caller's; NULL: signals are not checked */
    double signal_check_time;   /* seconds (ap_now) of the last check */
};

/* Seconds without any progress until a waiting process checks whether the others are in another call. */
#define AP_QUIET 0.1

/* Called after AP_QUIET seconds without progress: AP_STOPPED if a signal handler has raised an exception. `now`:
 * seconds (ap_now); checks at most every AP_QUIET. */
int ap_check_signals(ap_wire *wire, double now, ap_error *error);

/* Whether two processes are in the same call. The rank, the last member, differs. */
static inline int ap_same_call(const ap_call_id *first, const ap_call_id *second) {
    return !memcmp(first, second, offsetof(ap_call_id, rank));
}

/* Marks a wire as broken after a failure. */
void ap_wire_break(ap_wire *wire);

/* To be called before the first message of a call: copies `call` to `current_call`, then calls `begin`. Does nothing if
 * `call` is NULL. */
void ap_begin_call(ap_wire *wire);
/* Compares the call that a received message belongs to with that of `wire`: AP_MISMATCH if they differ. */
int ap_compare(ap_wire *wire, const ap_call_id *other, ap_error *error);
/* Compares a call that another process has announced without a message. That process may be ahead or behind, so it is
 * AP_MISMATCH only if both calls have the same number and differ. */
int ap_compare_loosely(ap_wire *wire, const ap_call_id *other, ap_error *error);

/* transport_threads.c: a wire for each rank, each to be closed; false: out of memory. */
int ap_threads_open(uint32_t ranks, ap_wire **wires);

/* Fills `error`, unless it is NULL; returns the code. */
int ap_fail(ap_error *error, int code, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 3, 4)))
#endif
    ;
