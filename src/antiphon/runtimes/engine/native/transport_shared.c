/* The transport between processes that are all on one host: through memory that they share. For every other process there is
 * a socket to poll, which closes when that process ends; and one for this process, which closes when its calls must be aborted.
 *
 * Threading: a wire is used by one thread at a time, so there are no locks.
 * Ownership: a wire owns the shared memory and the sockets given to it.
 */
#include "transport_shared.h"

#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "clock.h"
#include "transport.h"

/* Fruitless polls until a process sleeps; microseconds that it sleeps at most until it checks whether others have ended. */
enum { MAX_POLLS = 16, MAX_NAP = 20000 };

typedef struct {
    ap_wire base;
    ap_shared *shared;
    uint32_t count; /* of sockets that are polled: nothing is ever sent by them, so poll reports one when it is closed */
    uint32_t *rank_of; /* per socket, its rank */
    struct pollfd *polled;
} shared_wire;

static int send_message(ap_wire *self, uint32_t peer, uint32_t channel, const void *data, size_t bytes, uint32_t number,
                        ap_error *error) {
    return ap_shared_send(((shared_wire *)self)->shared, peer, channel, data, bytes, number, error);
}

static int receive_message(ap_wire *self, uint32_t peer, uint32_t channel, void *data, size_t bytes, uint32_t number,
                           ap_error *error) {
    return ap_shared_receive(((shared_wire *)self)->shared, peer, channel, data, bytes, number, error);
}

/* Finds the rank of a process that has ended while a message to or from it is under way; or this one, if its calls are aborted.
 * False: there is none. The last messages of an ended process may still be in memory, so the caller polls once more. */
static int find_gone(const shared_wire *w, uint32_t *rank) {
    if (poll(w->polled, w->count, 0) <= 0) return 0;
    for (uint32_t i = 0; i < w->count; i++)
        if (w->polled[i].revents) {
            *rank = w->rank_of[i];
            if (*rank == ap_shared_member(w->shared) || ap_shared_has_messages_with(w->shared, *rank)) return 1;
        }
    return 0;
}

/* `completed` of the wire (transport.h). */
static int complete_messages(ap_wire *self, int block, double timeout, uint32_t *numbers, int capacity, int *count,
                             ap_error *error) {
    shared_wire *w = (shared_wire *)self;
    double end = 0, quiet = 0; /* times: of the timeout (0: not set yet), and of the check after AP_QUIET seconds */
    uint32_t gone_rank = 0;
    int code = AP_OK, moved, is_gone = 0;
    *count = 0;
    if (!ap_shared_busy(w->shared)) return AP_OK;
    for (unsigned turn = 0; !code; turn++) {
        code = ap_shared_progress(w->shared, numbers, capacity, count, &moved, error);
        if (code || *count || !block) break;
        if (moved) {
            turn = 0, end = 0, is_gone = 0;
        } else if (is_gone) {
            if (gone_rank == ap_shared_member(w->shared))
                code = ap_fail(error, AP_TRANSPORT, "the group has been aborted here");
            else
                code = ap_fail(error, AP_TRANSPORT, "the connection to rank %u is lost: it has been closed", gone_rank);
        } else if (turn < MAX_POLLS) {
            sched_yield();
        } else {
            double time = ap_now();
            if (end == 0) end = time + timeout, quiet = time + AP_QUIET;
            if (time >= quiet) code = ap_shared_check_members(w->shared, error);
            if (!code && time >= quiet) code = ap_check_signals(self, time, error);
            if (!code && timeout > 0 && time >= end)
                code = ap_fail(error, AP_TIMEOUT, "nothing came or went for %g seconds, the timeout of the call", timeout);
            if (!code) is_gone = find_gone(w, &gone_rank);
            if (!code && !is_gone)
                ap_shared_sleep(w->shared, timeout > 0 && end - time < 1e-6 * MAX_NAP ? (int)(1e6 * (end - time)) + 1 : MAX_NAP);
        }
    }
    if (code) self->broken = 1;
    return code;
}

static void begin_call(ap_wire *self) { ap_shared_begin(((shared_wire *)self)->shared, self); }

static int check_unreceived(ap_wire *self, ap_error *error) {
    return ap_shared_check_unreceived(((shared_wire *)self)->shared, error);
}

static void close_wire(ap_wire *self) {
    shared_wire *w = (shared_wire *)self;
    if (w->shared) ap_shared_close(w->shared);
    for (uint32_t i = 0; i < w->count; i++) close(w->polled[i].fd);
    free(w->rank_of), free(w->polled), free(w);
}

/* `polled`: per rank the socket to poll, -1: none. The wire owns these and the memory from now on, even if this
 * fails. */
ap_wire *ap_shared_open(ap_shared *shared, uint32_t ranks, const int32_t *polled, ap_error *error) {
    shared_wire *w = calloc(1, sizeof *w);
    if (w) w->polled = calloc(ranks ? ranks : 1, sizeof *w->polled), w->rank_of = calloc(ranks ? ranks : 1, sizeof *w->rank_of);
    if (!w || !w->polled || !w->rank_of) {
        if (w) free(w->polled), free(w->rank_of), free(w);
        ap_shared_close(shared);
        for (uint32_t r = 0; r < ranks; r++)
            if (polled[r] >= 0) close(polled[r]);
        ap_fail(error, AP_MEMORY, "out of memory");
        return NULL;
    }
    for (uint32_t r = 0; r < ranks; r++)
        if (polled[r] >= 0) {
            w->rank_of[w->count] = r;
            w->polled[w->count++] = (struct pollfd){.fd = polled[r], .events = POLLIN};
        }
    w->base = (ap_wire){.send = send_message, .receive = receive_message, .completed = complete_messages, .close = close_wire,
                        .begin = begin_call, .unreceived = check_unreceived, .ranks = ranks};
    w->shared = shared;
    return &w->base;
}
