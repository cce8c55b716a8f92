/* Messages over one stream socket for each pair of ranks, or over several, to which they are dealt round: a head, then the
 * elements.
 *
 * A socket is read only while a receive from its rank is open, so what nobody waits for stays with the sender. What
 * comes on another channel than that receive's is kept aside. Of several sockets heads are looked at in the order in which they
 * were sent, while elements come by all of them.
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

int ap_sockets_send(socket_wire *w, uint32_t rank, letter *one, ap_error *error) {
    peer *p = &w->peers[rank];
    stream *s = &p->rail[p->out++ % w->rails];
    int idle = !s->sends.first;
    put(&s->sends, one);
    return idle ? ap_sockets_push(w, s, error) : AP_OK;
}

/* So many bytes must come from this rank before anything that is wanted of it is complete. */
static uint64_t sure(const socket_wire *w, const peer *of, const stream *p) {
    if (p->coming) return p->coming->bytes - p->come;
    if (w->rails > 1) return 1;
    uint64_t fewest = of->receives.first->bytes;
    for (const letter *one = of->receives.first; one && fewest >= DIRECT; one = one->next)
        if (one->bytes < fewest) fewest = one->bytes;
    return fewest < DIRECT ? 1 : sizeof(head) - p->head_bytes + fewest;
}

/* Called before every wait: a socket that waited for more than comes would never report it. */
static void set_least(const socket_wire *w, const peer *of, stream *p) {
    uint64_t bytes = p->patient ? sure(w, of, p) : 1;
    int least = bytes < DIRECT ? 1 : bytes < MANY ? (int)bytes : MANY;
    if (least == p->least) return;
    if (setsockopt(p->fd, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least))
        p->patient = 0;
    else
        p->least = least;
}

static int connected(socket_wire *w, uint32_t rank, ap_error *error) {
    if (rank < w->base.ranks && w->peers[rank].rail->fd >= 0) return AP_OK;
    return ap_fail(error, AP_INVALID, "there is no connection to rank %u", rank);
}

static int send_message(ap_wire *self, uint32_t rank, uint32_t channel, const void *data, size_t bytes, uint32_t number,
                        ap_error *error) {
    socket_wire *w = (socket_wire *)self;
    int code = connected(w, rank, error);
    if (code) return code;
    letter *one = new_letter(&w->spare);
    if (!one) return ap_fail(error, AP_MEMORY, "out of memory");
    one->data = (unsigned char *)(uintptr_t)data, one->bytes = bytes, one->number = number;
    one->head = (head){channel, MARK, bytes, w->base.now};
    return ap_sockets_send(w, rank, one, error);
}

/* The socket that it is coming by; NULL: it has come. */
static stream *comes_by(const socket_wire *w, const peer *p, const letter *one) {
    for (uint32_t k = 0; k < w->rails; k++)
        if (p->rail[k].coming == one) return &p->rail[k];
    return NULL;
}

static int receive_message(ap_wire *self, uint32_t rank, uint32_t channel, void *data, size_t bytes, uint32_t number,
                           ap_error *error) {
    socket_wire *w = (socket_wire *)self;
    int code = connected(w, rank, error);
    if (code) return code;
    peer *p = &w->peers[rank];
    letter *there = take(&p->aside, channel);
    if (there) {
        stream *by = comes_by(w, p, there);
        p->kept -= sizeof *there + there->room;
        code = ap_compare(&w->base, &there->head.call, error);
        if (code) {
            if (!by) free(there->data), drop(&w->spare, there);
            return code;
        }
        if (there->bytes != bytes) {
            code = ap_sockets_unfit(w, rank, there->bytes, bytes, error);
        } else if (there->whole) {
            memcpy(data, there->data, bytes);
            code = ap_done_add(&w->done, number, error);
        } else { /* the rest goes where it belongs */
            memcpy(data, there->data, by->come);
            free(there->data);
            there->data = data, there->number = number, there->own = 0, there->room = bytes;
            return AP_OK;
        }
        free(there->data);
        if (by) by->coming = NULL;
        drop(&w->spare, there);
        return code;
    }
    letter *one = new_letter(&w->spare);
    if (!one) return ap_fail(error, AP_MEMORY, "out of memory");
    one->data = data, one->bytes = one->room = bytes, one->channel = channel, one->number = number;
    put(&p->receives, one);
    return AP_OK;
}

/* Waits for any socket that has something to do, `patience` seconds at most, and does it. */
static int turn(socket_wire *w, double patience, ap_error *error) {
    nfds_t count = 0;
    int code = AP_OK, held = 0; /* back: some sockets wait for many bytes */
    for (uint32_t r = 0; r < w->base.ranks && w->rails > 1; r++) {
        code = ap_sockets_place_held(w, &w->peers[r], error);
        if (code || ap_done_any(&w->done)) return code;
    }
    for (uint32_t i = 0; i < w->base.ranks * w->rails; i++) {
        stream *s = &w->streams[i];
        const peer *p = &w->peers[i / w->rails];
        int in = ap_sockets_wanted(w, p, s);
        short events = (short)((ap_sockets_sends(w, s) ? POLLOUT : 0) | (in ? POLLIN : 0));
        if (s->fd < 0 || !events || p->lost) continue;
        if (in) set_least(w, p, s), held |= s->least > 1;
        w->whose[count] = s;
        w->asked[count++] = (struct pollfd){.fd = s->fd, .events = events};
    }
    if (!count) return w->mail ? AP_OK : ap_fail(error, AP_STUCK, "nothing is under way");
    if (held && patience > LOOK) patience = LOOK;
    int milliseconds = patience <= 0 ? 0 : patience > 1e6 ? 1000000000 : (int)(patience * 1e3) + 1;
    int found = poll(w->asked, count, milliseconds);
    if (found < 0 && errno != EINTR) return ap_fail(error, AP_TRANSPORT, "poll: %s", strerror(errno));
    for (nfds_t i = 0; i < count && found >= 0 && !code; i++) {
        short what = w->asked[i].revents;
        stream *s = w->whose[i];
        int look = !found && held && milliseconds;
        if (what & POLLIN || ((what || look) && ap_sockets_wanted(w, &w->peers[ap_sockets_rank(w, s)], s)))
            code = ap_sockets_pull(w, s, error);
        if (!code && what) code = ap_sockets_push(w, s, error);
    }
    return code;
}

static void begin(ap_wire *self) { ((socket_wire *)self)->quiet = 0; }

static int busy(const socket_wire *w) {
    for (uint32_t i = 0; i < w->base.ranks * w->rails; i++) {
        const peer *p = &w->peers[i / w->rails];
        if (w->streams[i].sends.first || p->receives.first || ap_sockets_wanted(w, p, &w->streams[i])) return 1;
    }
    return 0;
}

static int completed(ap_wire *self, int block, double timeout, uint32_t *numbers, int most, int *count,
                     ap_error *error) {
    socket_wire *w = (socket_wire *)self;
    int code = AP_OK;
    double end = 0;
    *count = 0;
    if (!ap_done_any(&w->done) && busy(w)) {
        w->moved = 0;
        if (!block) code = turn(w, 0, error);
        while (!code && block && !ap_done_any(&w->done)) {
            if (timeout > 0 && (w->moved || end == 0)) end = ap_now() + timeout;
            double left = timeout > 0 ? end - ap_now() : 1e7;
            w->moved = 0;
            if (left <= 0) {
                self->broken = 1;
                return ap_fail(error, AP_TIMEOUT, "nothing came or went for %g seconds, the timeout of the call", timeout);
            }
            code = turn(w, self->call && left > AP_QUIET ? AP_QUIET : left, error);
            if (!code && !w->moved && self->call) code = ap_sockets_look_around(w, error);
            if (!code && !w->moved) code = ap_hear(self, ap_now(), error);
        }
    }
    if (code) {
        self->broken = 1;
        return code;
    }
    *count = ap_done_take(&w->done, numbers, most);
    return AP_OK;
}

static void close_wire(ap_wire *self) {
    socket_wire *w = (socket_wire *)self;
    ap_error ignored;
    double end = ap_now() + FLUSH;
    for (uint32_t i = 0; i < self->ranks * w->rails; i++)
        while (!self->broken && ap_sockets_sends(w, &w->streams[i]) && ap_now() < end)
            if (turn(w, 1.0, &ignored)) self->broken = 1;
    for (uint32_t i = 0; i < self->ranks * w->rails; i++) {
        stream *s = &w->streams[i];
        if (s->coming && !s->coming->own) free(s->coming);
        forget(&s->sends, 0);
        if (s->fd >= 0) close(s->fd);
    }
    for (uint32_t r = 0; r < self->ranks; r++) forget(&w->peers[r].receives, 0), forget(&w->peers[r].aside, 1);
    for (letter *one = w->spare, *next; one; one = next) next = one->next, free(one);
    if (w->mail && w->bell >= 0) close(w->bell);
    free(w->peers), free(w->streams), free(w->asked), free(w->whose), free(w->done.number), free(w->slept);
    free(w);
}

/* Of TCP under Linux: others report single bytes all the same, or do not let fewer be read. */
static int can_wait(int fd) {
    int family = 0;
#ifdef __linux__
    socklen_t bytes = sizeof family;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &bytes)) return 0;
#endif
    return fd >= 0 && (family == AF_INET || family == AF_INET6);
}

static socket_wire *new_wire(uint32_t ranks, uint32_t rails) {
    socket_wire *w = calloc(1, sizeof *w);
    size_t n = ranks ? ranks : 1, all = n * rails;
    if (!w) return NULL;
    w->peers = calloc(n, sizeof *w->peers), w->streams = calloc(all, sizeof *w->streams);
    w->asked = calloc(all, sizeof *w->asked), w->whose = calloc(all, sizeof *w->whose);
    if (w->peers && w->streams && w->asked && w->whose) return w;
    free(w->peers), free(w->streams), free(w->asked), free(w->whose), free(w);
    return NULL;
}

ap_wire *ap_sockets_open(uint32_t rank, uint32_t ranks, uint32_t rails, const int32_t *sockets, ap_error *error) {
    socket_wire *w = new_wire(ranks, rails);
    if (!w) {
        for (uint32_t i = 0; i < ranks * rails; i++)
            if (sockets[i] >= 0) close(sockets[i]);
        ap_fail(error, AP_MEMORY, "out of memory");
        return NULL;
    }
    w->base = (ap_wire){.send = send_message, .receive = receive_message, .completed = completed, .close = close_wire,
                        .begin = begin, .left = ap_sockets_left, .ranks = ranks};
    w->rails = rails;
    for (uint32_t r = 0; r < ranks; r++) {
        peer *p = &w->peers[r];
        p->rail = &w->streams[r * rails];
        p->receives.end = &p->receives.first, p->aside.end = &p->aside.first;
    }
    for (uint32_t i = 0; i < ranks * rails; i++) {
        stream *s = &w->streams[i];
        s->fd = sockets[i], s->sends.end = &s->sends.first;
        s->patient = can_wait(s->fd), s->least = 1;
    }
    for (uint32_t i = 0; i < ranks * rails; i++) {
        int fd = w->streams[i].fd, flags = fd < 0 ? 0 : fcntl(fd, F_GETFL), other = (fd < 0) != (w->streams[i / rails * rails].fd < 0);
        if (other || (fd >= 0 && (i / rails == rank || flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0))) {
            ap_fail(error, AP_INVALID, "rank %u: its socket to rank %u is none", rank, i / rails);
            close_wire(&w->base);
            return NULL;
        }
    }
    return &w->base;
}
