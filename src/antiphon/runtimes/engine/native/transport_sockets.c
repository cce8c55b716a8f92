/* The transport over stream sockets: one for each pair of ranks, or several (rails), which messages use in turn. A message is
 * sent as a head (message_queue.h), then the elements.
 *
 * A socket is read only while a receive from its rank is open, so messages without a receive stay with the sender. Messages on
 * another channel that precede the wanted one are set aside. With several sockets heads are handled in the order in which they
 * were sent, while elements come by all of them.
 *
 * Threading: a wire is used by one thread at a time, so there are no locks.
 * Ownership: a wire owns its sockets, which are closed with it.
 */
#include "transport_sockets.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "sockets_types.h"

/* Functions with `error` return AP_OK or its code. */

static int check_connection(socket_wire *w, uint32_t rank, ap_error *error) {
    if (rank < w->base.ranks && w->peers[rank].by_rail->fd >= 0) return AP_OK;
    return ap_fail(error, AP_INVALID, "there is no connection to rank %u", rank);
}

static int send_message(ap_wire *self, uint32_t rank, uint32_t channel, const void *data, size_t bytes, uint32_t number,
                        ap_error *error) {
    socket_wire *w = (socket_wire *)self;
    int code = check_connection(w, rank, error);
    if (code) return code;
    message *m = new_message(&w->spare);
    if (!m) return ap_fail(error, AP_MEMORY, "out of memory");
    m->data = (unsigned char *)(uintptr_t)data, m->bytes = bytes, m->number = number;
    m->head = (head){channel, MESSAGE, bytes, w->base.current_call};
    ap_sockets_send(w, rank, m);
    return AP_OK;
}

/* The stream that a message is arriving by; NULL: it has arrived. */
static stream *stream_of(const socket_wire *w, const peer *p, const message *m) {
    for (uint32_t k = 0; k < w->rails; k++)
        if (p->by_rail[k].incoming == m) return &p->by_rail[k];
    return NULL;
}

/* Completes a receive by a message that was set aside, or directs the rest of that message to the receive's memory. */
static int claim_aside(socket_wire *w, uint32_t rank, message *set_aside, void *data, size_t bytes, uint32_t number,
                       ap_error *error) {
    peer *p = &w->peers[rank];
    stream *arriving_by = stream_of(w, p, set_aside); /* NULL if the message is complete */
    p->aside_bytes -= sizeof *set_aside + set_aside->capacity;
    int code = ap_compare(&w->base, &set_aside->head.call, error);
    if (!code && set_aside->bytes != bytes) code = ap_sockets_report_length(rank, set_aside->bytes, bytes, error);
    if (!code && !set_aside->complete) { /* the rest is received in place */
        memcpy(data, set_aside->data, arriving_by->received);
        free(set_aside->data);
        set_aside->data = data, set_aside->number = number, set_aside->own_memory = 0, set_aside->capacity = bytes;
        return AP_OK;
    }
    if (!code) {
        memcpy(data, set_aside->data, bytes);
        code = ap_completions_add(&w->done, number, error);
    }
    if (arriving_by) arriving_by->incoming = NULL;
    free(set_aside->data), recycle_message(&w->spare, set_aside);
    return code;
}

static int receive_message(ap_wire *self, uint32_t rank, uint32_t channel, void *data, size_t bytes, uint32_t number,
                           ap_error *error) {
    socket_wire *w = (socket_wire *)self;
    int code = check_connection(w, rank, error);
    if (code) return code;
    peer *p = &w->peers[rank];
    message *m = take_from_channel(&p->aside, channel);
    if (m) return claim_aside(w, rank, m, data, bytes, number, error);
    m = new_message(&w->spare);
    if (!m) return ap_fail(error, AP_MEMORY, "out of memory");
    m->data = data, m->bytes = m->capacity = bytes, m->channel = channel, m->number = number;
    push_message(&p->receives, m);
    return AP_OK;
}

/* Waits until sockets can be read or written, at most `seconds`, and reads and writes them. */
static int poll_once(socket_wire *w, double seconds, ap_error *error) {
    ap_sockets_use_ahead(w); /* bytes that were read before a receive was posted for them */
    if (ap_completions_any(&w->done) || w->fault.code) return AP_OK;
    const int has_low_water = ap_sockets_fill_polled(w);
    if (!w->polled_count) return ap_fail(error, AP_STUCK, "nothing is under way");
    /* fewer bytes than the low water wake nobody: look for them after MAX_QUIET seconds */
    if (has_low_water && seconds > MAX_QUIET) seconds = MAX_QUIET;
    /* rounded up, so that poll does not return before `seconds` are over; an int holds at most 24 days */
    const int milliseconds = seconds <= 0 ? 0 : seconds > 1e6 ? 1000000000 : (int)(seconds * 1e3) + 1;
    const int reported = poll(w->polled, w->polled_count, milliseconds);
    if (reported < 0 && errno != EINTR) return ap_fail(error, AP_TRANSPORT, "poll: %s", strerror(errno));
    if (reported >= 0) ap_sockets_handle_polled(w, !reported && has_low_water && milliseconds);
    return AP_OK;
}

/* The other ranks do not know yet which call this is (sockets_calls.c). */
static void begin_call(ap_wire *self) { ((socket_wire *)self)->has_notified = 0; }

/* Whether messages are under way. */
static int is_busy(const socket_wire *w) {
    for (uint32_t r = 0; r < w->base.ranks; r++) {
        const peer *p = &w->peers[r];
        for (uint32_t k = 0; k < w->rails; k++)
            if (p->by_rail[k].sends.first || p->receives.first || ap_sockets_is_wanted(w, p, &p->by_rail[k])) return 1;
    }
    return 0;
}

/* Polls once; with `block` until a message is done, as `completed` of the wire (transport.h). */
static int wait_for_one(socket_wire *w, int block, double timeout, ap_error *error) {
    double end = 0;
    int code = AP_OK;
    w->moved = 0;
    if (!block) code = poll_once(w, 0, error);
    while (!code && block && !ap_completions_any(&w->done) && !w->fault.code) {
        if (timeout > 0 && (w->moved || end == 0)) end = ap_now() + timeout;
        double remaining = timeout > 0 ? end - ap_now() : 1e7; /* no timeout: any large number */
        w->moved = 0;
        if (remaining <= 0)
            return ap_fail(error, AP_TIMEOUT, "nothing came or went for %g seconds, the timeout of the call", timeout);
        /* with `call`, after AP_QUIET seconds without progress see whether the others are in another call */
        code = poll_once(w, w->base.call && remaining > AP_QUIET ? AP_QUIET : remaining, error);
        if (!code && !w->moved && w->base.call) code = ap_sockets_check_members(w, error);
        if (!code && !w->moved) code = ap_check_signals(&w->base, ap_now(), error);
    }
    return code;
}

static int complete_messages(ap_wire *self, int block, double timeout, uint32_t *numbers, int capacity, int *count,
                             ap_error *error) {
    socket_wire *w = (socket_wire *)self;
    int code = AP_OK;
    if (!ap_completions_any(&w->done) && !w->fault.code && is_busy(w)) code = wait_for_one(w, block, timeout, error);
    if (code && !w->fault.code) w->fault = *error; /* from now on nothing is received or sent */
    if (!code && w->fault.code) *error = w->fault, code = w->fault.code;
    if (code) self->broken = 1;
    *count = code ? 0 : ap_completions_take(&w->done, numbers, capacity);
    return code;
}

/* From now on nothing is written to the memory of messages. */
static void fail_wire(ap_wire *self) {
    socket_wire *w = (socket_wire *)self;
    if (!w->fault.code) ap_fail(&w->fault, AP_TRANSPORT, "an earlier run failed; make a new connection");
}

/* ---- the end ---- */

static int any_sends(const socket_wire *w) {
    for (uint32_t i = 0; i < w->base.ranks * w->rails; i++)
        if (w->streams[i].sends.first) return 1;
    return 0;
}

static void free_wire(socket_wire *w) {
    for (uint32_t i = 0; w->streams && i < w->base.ranks * w->rails; i++) {
        stream *s = &w->streams[i];
        if (s->incoming && !s->incoming->own_memory) free(s->incoming); /* else it is in `aside` */
        free_queue(&s->sends, /* own */ 0);
        free(s->ahead);
    }
    for (uint32_t r = 0; w->peers && r < w->base.ranks; r++)
        free_queue(&w->peers[r].receives, /* own */ 0), free_queue(&w->peers[r].aside, /* own */ 1);
    for (message *m = w->spare, *next; m; m = next) next = m->next, free(m);
    free(w->peers), free(w->streams), free(w->done.number), free(w->polled), free(w->polled_stream), free(w);
}

static void close_wire(ap_wire *self) {
    socket_wire *w = (socket_wire *)self;
    ap_error ignored;
    const double end = ap_now() + FLUSH;
    const int forked = w->process != getpid(); /* the sockets are the parent's, too */
    while (!forked && !self->broken && !w->fault.code && any_sends(w) && ap_now() < end)
        if (poll_once(w, 1.0, &ignored)) self->broken = 1;
    for (uint32_t i = 0; i < self->ranks * w->rails; i++)
        if (w->streams[i].fd >= 0) close(w->streams[i].fd);
    free_wire(w);
}

/* ---- the beginning ---- */

/* Whether SO_RCVLOWAT delays poll until that many bytes have arrived, as for TCP under Linux. Elsewhere it has no
 * effect, or prevents reading fewer bytes. */
static int supports_low_water(int fd) {
    int family = 0;
#ifdef __linux__
    socklen_t bytes = sizeof family;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &bytes)) return 0;
#endif
    return fd >= 0 && (family == AF_INET || family == AF_INET6);
}

/* A wire without sockets yet; NULL: out of memory. */
static socket_wire *new_wire(uint32_t ranks, uint32_t rails) {
    socket_wire *w = calloc(1, sizeof *w);
    if (!w) return NULL;
    const size_t count = (size_t)ranks * rails;
    w->rails = rails, w->process = getpid();
    w->peers = calloc(ranks + 1, sizeof *w->peers), w->streams = calloc(count + 1, sizeof *w->streams);
    w->polled = calloc(count + 1, sizeof *w->polled), w->polled_stream = calloc(count + 1, sizeof *w->polled_stream);
    if (!w->peers || !w->streams || !w->polled || !w->polled_stream) {
        free(w->peers), free(w->streams), free(w->polled), free(w->polled_stream), free(w);
        return NULL;
    }
    for (uint32_t r = 0; r < ranks; r++) {
        peer *p = &w->peers[r];
        p->by_rail = &w->streams[r * rails];
        p->receives.end = &p->receives.first, p->aside.end = &p->aside.first;
    }
    return w;
}

/* Makes socket `i` (peer * rails + rail) of this rank non-blocking; false if it cannot be used. A peer has sockets on all rails or
 * on none, this rank itself on none. */
static int check_socket(const socket_wire *w, uint32_t rank, uint32_t i) {
    const int fd = w->streams[i].fd, flags = fd < 0 ? 0 : fcntl(fd, F_GETFL);
    if ((fd < 0) != (w->streams[i / w->rails * w->rails].fd < 0)) return 0;
    return fd < 0 || (i / w->rails != rank && flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) >= 0);
}

/* `fds`: for each rank `rails` sockets that are connected to it, -1: none. The wire owns them from now on, even if this
 * fails. */
ap_wire *ap_sockets_open(uint32_t rank, uint32_t ranks, uint32_t rails, const int32_t *fds, ap_error *error) {
    socket_wire *w = new_wire(ranks, rails);
    if (!w) {
        for (uint32_t i = 0; i < ranks * rails; i++)
            if (fds[i] >= 0) close(fds[i]);
        ap_fail(error, AP_MEMORY, "out of memory");
        return NULL;
    }
    w->base = (ap_wire){.send = send_message, .receive = receive_message, .completed = complete_messages, .close = close_wire,
                        .fail = fail_wire, .begin = begin_call, .unreceived = ap_sockets_check_unreceived, .ranks = ranks};
    for (uint32_t i = 0; i < ranks * rails; i++) {
        w->streams[i] = (stream){.fd = fds[i], .low_water_works = supports_low_water(fds[i]), .low_water = 1};
        w->streams[i].sends.end = &w->streams[i].sends.first;
    }
    for (uint32_t i = 0; i < ranks * rails; i++)
        if (!check_socket(w, rank, i)) {
            ap_fail(error, AP_INVALID, "rank %u: its socket to rank %u is not usable", rank, i / rails);
            close_wire(&w->base);
            return NULL;
        }
    return &w->base;
}
