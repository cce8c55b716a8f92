/* Messages over one stream socket for each pair of ranks, or over several, to which they are dealt round: a head, then the
 * elements.
 *
 * Without mail a socket is read only while a receive from its rank is open, so what nobody waits for stays with the sender. What
 * comes on another channel than that receive's is kept aside. Of several sockets heads are looked at in the order in which they
 * were sent, while elements come by all of them.
 */
#include "transport_sockets.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "mail_types.h"
#include "sockets_types.h"

void ap_sockets_send(socket_wire *w, uint32_t rank, letter *one) {
    peer *p = &w->peers[rank];
    flow *f = &p->by[p->out++ % w->rails];
    int idle = !f->sends.first;
    put(&f->sends, one);
    one->room = p->put, p->put += sizeof(head) + one->bytes;
    if (idle) ap_sockets_push(w->on, ap_sockets_stream(w, rank, f));
}

static int connected(socket_wire *w, uint32_t rank, ap_error *error) {
    if (rank < w->base.ranks && w->on->streams[rank * w->on->rails].fd >= 0) return AP_OK;
    return ap_fail(error, AP_INVALID, "there is no connection to rank %u", rank);
}

int ap_sockets_send_message(ap_wire *self, uint32_t rank, uint32_t channel, const void *data, size_t bytes, uint32_t number,
                            ap_error *error) {
    socket_wire *w = (socket_wire *)self;
    int code = connected(w, rank, error);
    if (code) return code;
    letter *one = new_letter(&w->spare);
    if (!one) return ap_fail(error, AP_MEMORY, "out of memory");
    one->data = (unsigned char *)(uintptr_t)data, one->bytes = bytes, one->number = number;
    one->head = (head){channel, MARK, bytes, w->base.now};
    ap_sockets_send(w, rank, one);
    return AP_OK;
}

/* By which it is coming; NULL: it has come. */
static flow *comes_by(const socket_wire *w, const peer *p, const letter *one) {
    for (uint32_t k = 0; k < w->rails; k++)
        if (p->by[k].coming == one) return &p->by[k];
    return NULL;
}

/* One that was put aside is asked for. */
static int claim(socket_wire *w, uint32_t rank, letter *there, void *data, size_t bytes, uint32_t number, ap_error *error) {
    peer *p = &w->peers[rank];
    flow *by = comes_by(w, p, there);
    p->kept -= sizeof *there + there->room;
    int code = ap_compare(&w->base, &there->head.call, error);
    if (!code && there->bytes != bytes) code = ap_sockets_unfit(rank, there->bytes, bytes, error);
    if (!code && !there->whole) { /* the rest goes where it belongs */
        memcpy(data, there->data, by->come);
        free(there->data);
        there->data = data, there->number = number, there->own = 0, there->room = bytes;
        return AP_OK;
    }
    if (!code) memcpy(data, there->data, bytes), code = ap_done_add(&w->done, number, error);
    if (by) by->coming = NULL;
    free(there->data), drop(&w->spare, there);
    return code;
}

int ap_sockets_receive_message(ap_wire *self, uint32_t rank, uint32_t channel, void *data, size_t bytes, uint32_t number,
                               ap_error *error) {
    socket_wire *w = (socket_wire *)self;
    int code = connected(w, rank, error);
    if (code) return code;
    peer *p = &w->peers[rank];
    letter *one = take(&p->aside, channel);
    if (one) return claim(w, rank, one, data, bytes, number, error);
    if (!(one = new_letter(&w->spare))) return ap_fail(error, AP_MEMORY, "out of memory");
    one->data = data, one->bytes = one->room = bytes, one->channel = channel, one->number = number;
    put(&p->receives, one);
    w->most = ROOM + w->base.expected + BEYOND;
    ap_sockets_asked(w, p, sizeof(head) + bytes);
    return AP_OK;
}

/* ---- calls: under the lock ---- */

static int send_message(ap_wire *self, uint32_t rank, uint32_t channel, const void *data, size_t bytes, uint32_t number,
                        ap_error *error) {
    sockets *n = ((socket_wire *)self)->on;
    ap_sockets_lock(n);
    int code = ap_sockets_send_message(self, rank, channel, data, bytes, number, error);
    ap_sockets_unlock(n);
    return code;
}

static int receive_message(ap_wire *self, uint32_t rank, uint32_t channel, void *data, size_t bytes, uint32_t number,
                           ap_error *error) {
    sockets *n = ((socket_wire *)self)->on;
    ap_sockets_lock(n);
    int code = ap_sockets_receive_message(self, rank, channel, data, bytes, number, error);
    ap_sockets_unlock(n);
    return code;
}

/* Waits for any socket that has something to do, `patience` seconds at most, and does it. */
static int turn(socket_wire *w, double patience, ap_error *error) {
    sockets *n = w->on;
    watch *k = &w->slept;
    ap_sockets_settle(w);
    ap_sockets_tell_asked(n);
    if (ap_done_any(&w->done) || w->fault.code) return AP_OK;
    ap_sockets_watch(n, CALLS, k);
    if (k->count == (w->bell >= 0)) return ap_fail(error, AP_STUCK, "nothing is under way");
    if (k->held && patience > LOOK) patience = LOOK;
    int milliseconds = patience <= 0 ? 0 : patience > 1e6 ? 1000000000 : (int)(patience * 1e3) + 1;
    w->asleep = milliseconds > 0, w->roused = 0;
    if (w->asleep) ap_sockets_unlock(n);
    int found = poll(k->of, k->count, milliseconds), why = errno;
    if (w->asleep) ap_sockets_lock(n);
    w->asleep = 0;
    if (found < 0 && why != EINTR) return ap_fail(error, AP_TRANSPORT, "poll: %s", strerror(why));
    ap_sockets_attend(n, CALLS, k, found, !found && k->held && milliseconds);
    if (n->of[MAIL] && n->of[MAIL]->news) ap_mail_pass(n->of[MAIL]->base.mail);
    return AP_OK;
}

static void begin(ap_wire *self) { ((socket_wire *)self)->quiet = 0; }

static int busy(const socket_wire *w) {
    for (uint32_t r = 0; r < w->base.ranks; r++) {
        const peer *p = &w->peers[r];
        for (uint32_t k = 0; k < w->rails; k++)
            if (p->by[k].sends.first || p->receives.first || ap_sockets_wanted(w, p, &p->by[k])) return 1;
    }
    return 0;
}

/* Handlers of signals may do anything, send messages too. */
static int hear(socket_wire *w, ap_error *error) {
    ap_sockets_unlock(w->on);
    int code = ap_hear(&w->base, ap_now(), error);
    ap_sockets_lock(w->on);
    return code;
}

static int wait_for_one(socket_wire *w, int block, double timeout, ap_error *error) {
    double end = 0;
    int code = AP_OK;
    w->moved = 0;
    if (!block) code = turn(w, 0, error);
    while (!code && block && !ap_done_any(&w->done) && !w->fault.code) {
        if (timeout > 0 && (w->moved || end == 0)) end = ap_now() + timeout;
        double left = timeout > 0 ? end - ap_now() : 1e7;
        w->moved = 0;
        if (left <= 0) return ap_fail(error, AP_TIMEOUT, "nothing came or went for %g seconds, the timeout of the call", timeout);
        code = turn(w, w->base.call && left > AP_QUIET ? AP_QUIET : left, error);
        if (!code && !w->moved && w->base.call) code = ap_sockets_look_around(w, error);
        if (!code && !w->moved) code = hear(w, error);
    }
    return code;
}

static int completed(ap_wire *self, int block, double timeout, uint32_t *numbers, int most, int *count,
                     ap_error *error) {
    socket_wire *w = (socket_wire *)self;
    int code = AP_OK;
    ap_sockets_lock(w->on);
    if (!ap_done_any(&w->done) && !w->fault.code && busy(w)) code = wait_for_one(w, block, timeout, error);
    if (code && !w->fault.code) w->fault = *error;
    if (!code && w->fault.code) *error = w->fault, code = w->fault.code;
    if (code) self->broken = 1;
    *count = code ? 0 : ap_done_take(&w->done, numbers, most);
    ap_sockets_unlock(w->on);
    return code;
}

/* From now on nothing is written to memory of messages. */
static void fail(ap_wire *self) {
    socket_wire *w = (socket_wire *)self;
    ap_sockets_lock(w->on);
    if (!w->fault.code) ap_fail(&w->fault, AP_TRANSPORT, "an earlier run failed; make a new connection");
    ap_sockets_unlock(w->on);
}

int ap_sockets_heard(ap_wire *self, uint32_t rank) {
    socket_wire *w = (socket_wire *)self;
    sockets *n = w->on;
    ap_sockets_lock(n);
    const flow *f = w->peers[rank].by;
    stream *s = ap_sockets_stream(w, rank, f);
    if (!ap_sockets_ahead(f) && !s->over) ap_sockets_pull(n, s, n->framed ? STAGE : sizeof(head));
    if (n->of[MAIL] && n->of[MAIL]->news) ap_mail_pass(n->of[MAIL]->base.mail);
    const int heard = ap_sockets_ahead(f) ? 1 : s->over ? 2 : 0;
    ap_sockets_unlock(n);
    return heard;
}

/* ---- the end ---- */

static int of_internet(int fd) {
    struct sockaddr_storage own;
    socklen_t bytes = sizeof own;
    return !getsockname(fd, (struct sockaddr *)&own, &bytes) && own.ss_family != AF_UNIX;
}

/* Whether some of what was sent is not yet with the other's system, where it stays whatever becomes of this end: what lies here
 * is lost once the other sends something to a socket that is closed. Of a socket within a host nothing lies here. */
static int lies_here(int fd) {
    int bytes = 0;
    return of_internet(fd) && !ioctl(fd, TIOCOUTQ, &bytes) && bytes > 0;
}

static void see_off(const sockets *n, double seconds) {
    const double end = ap_now() + seconds;
    for (uint32_t i = 0; i < n->ranks * n->rails; i++)
        if (n->streams[i].fd >= 0) shutdown(n->streams[i].fd, SHUT_WR);
    for (uint32_t i = 0; i < n->ranks * n->rails; i++) {
        struct pollfd one = {.fd = n->streams[i].fd};
        while (one.fd >= 0 && !one.revents && lies_here(one.fd) && ap_now() < end) poll(&one, 1, 1);
    }
}

static int any_sends(const socket_wire *w) {
    for (uint32_t i = 0; i < w->base.ranks * w->rails; i++)
        if (w->flows[i].sends.first) return 1;
    return 0;
}

void ap_sockets_free(socket_wire *w) {
    for (uint32_t i = 0; i < w->base.ranks * w->rails; i++) {
        flow *f = &w->flows[i];
        if (f->coming && !f->coming->own) free(f->coming);
        forget(&f->sends, 0);
        free(f->ahead);
    }
    for (uint32_t r = 0; r < w->base.ranks; r++) forget(&w->peers[r].receives, 0), forget(&w->peers[r].aside, 1);
    for (letter *one = w->spare, *next; one; one = next) next = one->next, free(one);
    if (w->bell >= 0) close(w->bell);
    free(w->peers), free(w->flows), free(w->done.number), free(w->slept.of), free(w->slept.whose), free(w);
}

/* Mail, if there is any, has ended. */
static void close_wire(ap_wire *self) {
    socket_wire *w = (socket_wire *)self;
    sockets *n = w->on;
    ap_error ignored;
    const double end = ap_now() + FLUSH;
    const int forked = n->process != getpid(); /* the sockets are the parent's, too */
    if (!forked) {
        ap_sockets_lock(n);
        while (!self->broken && !w->fault.code && any_sends(w) && ap_now() < end)
            if (turn(w, 1.0, &ignored)) self->broken = 1;
        ap_sockets_unlock(n);
    }
    ap_sockets_stop(n);
    if (n->framed && !forked) see_off(n, self->broken || w->fault.code ? SHORTLY : FLUSH);
    for (uint32_t i = 0; i < n->ranks * n->rails; i++) {
        if (n->streams[i].fd >= 0) close(n->streams[i].fd);
        free(n->streams[i].rest);
    }
    ap_sockets_free(w);
    ap_lock_leave(n->lock);
    free(n->streams), free(n->looks.of), free(n->looks.whose), free(n);
}

/* ---- the beginning ---- */

/* Of TCP under Linux: others report single bytes all the same, or do not let fewer be read. */
static int can_wait(int fd) {
    int family = 0;
#ifdef __linux__
    socklen_t bytes = sizeof family;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &bytes)) return 0;
#endif
    return fd >= 0 && (family == AF_INET || family == AF_INET6);
}

int ap_sockets_new_watch(watch *k, uint32_t most) {
    k->of = calloc(most, sizeof *k->of), k->whose = calloc(most, sizeof *k->whose);
    return k->of && k->whose;
}

socket_wire *ap_sockets_wire(sockets *n, int kind, uint32_t rails) {
    const uint32_t ranks = n->ranks;
    socket_wire *w = calloc(1, sizeof *w);
    if (!w) return NULL;
    w->bell = -1;
    w->peers = calloc(ranks + 1, sizeof *w->peers), w->flows = calloc((size_t)ranks * rails + 1, sizeof *w->flows);
    if (!w->peers || !w->flows || !ap_sockets_new_watch(&w->slept, ranks * n->rails + 1)) {
        ap_sockets_free(w);
        return NULL;
    }
    w->on = n, w->kind = kind, w->rails = rails, w->base.ranks = ranks, w->most = ROOM + BEYOND;
    for (uint32_t r = 0; r < ranks; r++) {
        peer *p = &w->peers[r];
        p->by = &w->flows[r * rails], p->room = UINT64_MAX;
        p->receives.end = &p->receives.first, p->aside.end = &p->aside.first;
    }
    for (uint32_t i = 0; i < ranks * rails; i++) w->flows[i].sends.end = &w->flows[i].sends.first;
    return w;
}

static sockets *new_sockets(uint32_t ranks, uint32_t rails) {
    sockets *n = calloc(1, sizeof *n);
    if (!n) return NULL;
    n->ranks = ranks, n->rails = rails, n->process = getpid(), n->off_bell = -1;
    n->streams = calloc((size_t)ranks * rails + 1, sizeof *n->streams);
    if (!n->streams || !(n->of[CALLS] = ap_sockets_wire(n, CALLS, rails))) {
        free(n->streams), free(n);
        return NULL;
    }
    return n;
}

static int fits(const sockets *n, uint32_t rank, uint32_t i) {
    const int fd = n->streams[i].fd, flags = fd < 0 ? 0 : fcntl(fd, F_GETFL);
    if ((fd < 0) != (n->streams[i / n->rails * n->rails].fd < 0)) return 0;
    return fd < 0 || (i / n->rails != rank && flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) >= 0);
}

ap_wire *ap_sockets_open(uint32_t rank, uint32_t ranks, uint32_t rails, const int32_t *fds, ap_error *error) {
    sockets *n = new_sockets(ranks, rails);
    if (!n) {
        for (uint32_t i = 0; i < ranks * rails; i++)
            if (fds[i] >= 0) close(fds[i]);
        ap_fail(error, AP_MEMORY, "out of memory");
        return NULL;
    }
    ap_wire *self = &n->of[CALLS]->base;
    *self = (ap_wire){.send = send_message, .receive = receive_message, .completed = completed, .close = close_wire,
                      .fail = fail, .begin = begin, .left = ap_sockets_left, .beside = ap_sockets_beside, .ranks = ranks};
    for (uint32_t i = 0; i < ranks * rails; i++)
        n->streams[i] = (stream){.fd = fds[i], .patient = can_wait(fds[i]), .least = 1, .in_left = UINT64_MAX, .out_left = UINT64_MAX};
    for (uint32_t i = 0; i < ranks * rails; i++)
        if (!fits(n, rank, i)) {
            ap_fail(error, AP_INVALID, "rank %u: its socket to rank %u is none", rank, i / rails);
            close_wire(self);
            return NULL;
        }
    return self;
}
