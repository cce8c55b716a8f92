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
#include <sys/uio.h>
#include <unistd.h>

#include "clock.h"
#include "sockets_types.h"

static int gone(socket_wire *w, uint32_t rank, int code, ap_error *error) {
    w->base.broken = 1;
    return ap_fail(error, AP_TRANSPORT, "the connection to rank %u is lost: %s", rank,
                   code ? strerror(code) : "it has been closed");
}

/* As many of the messages as a socket takes now. */
static int push(socket_wire *w, stream *p, ap_error *error) {
    while (p->sends.first) {
        struct iovec part[PARTS];
        int parts = 0;
        uint64_t skip = p->sent;
        for (letter *one = p->sends.first; one && parts + 2 <= PARTS; one = one->next, skip = 0) {
            if (skip < sizeof(head))
                part[parts++] = (struct iovec){(unsigned char *)&one->head + skip, sizeof(head) - skip}, skip = 0;
            else
                skip -= sizeof(head);
            if (one->bytes > skip) part[parts++] = (struct iovec){one->data + skip, one->bytes - skip};
        }
        struct msghdr message = {.msg_iov = part, .msg_iovlen = (size_t)parts};
        ssize_t sent = sendmsg(p->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS)) return AP_OK;
        if (sent < 0) return gone(w, ap_sockets_rank(w, p), errno, error);
        w->moved = 1;
        p->sent += (uint64_t)sent;
        while (p->sends.first && p->sent >= sizeof(head) + p->sends.first->bytes) {
            letter *one = pop(&p->sends);
            p->sent -= sizeof(head) + one->bytes;
            int code = one->head.mark == MARK ? ap_done_add(&w->done, one->number, error) : AP_OK;
            drop(&w->spare, one);
            if (code) return code;
        }
    }
    return AP_OK;
}

int ap_sockets_send(socket_wire *w, uint32_t rank, letter *one, ap_error *error) {
    peer *p = &w->peers[rank];
    stream *s = &p->rail[p->out++ % w->rails];
    int idle = !s->sends.first;
    put(&s->sends, one);
    return idle ? push(w, s, error) : AP_OK;
}

static int unfit(socket_wire *w, uint32_t rank, uint64_t come, uint64_t wanted, ap_error *error) {
    w->base.broken = 1;
    return ap_fail(error, AP_TRANSPORT, "rank %u sent a message of %llu bytes where %llu are expected", rank,
                   (unsigned long long)come, (unsigned long long)wanted);
}

/* The message that was coming is there. */
static int end_message(socket_wire *w, stream *p, ap_error *error) {
    letter *one = p->coming;
    p->coming = NULL;
    if (one->own) {
        one->whole = 1;
        return AP_OK;
    }
    int code = ap_done_add(&w->done, one->number, error);
    drop(&w->spare, one);
    return code;
}

/* Room for so many bytes of what is coming and kept aside: never more than can be meant for this run. */
static int widen(socket_wire *w, stream *s, uint64_t bytes, ap_error *error) {
    uint32_t rank = ap_sockets_rank(w, s);
    peer *p = &w->peers[rank];
    letter *one = s->coming;
    uint64_t most = w->base.expected + BEYOND, others = p->kept - one->room;
    if (others > most || bytes > most - others) {
        w->base.broken = 1;
        return ap_fail(error, AP_TRANSPORT, "rank %u sent a message of %llu bytes that nobody expects", rank,
                       (unsigned long long)one->bytes);
    }
    unsigned char *data = realloc(one->data, bytes ? bytes : 1);
    if (!data) return ap_fail(error, AP_MEMORY, "no memory for a message of %llu bytes", (unsigned long long)bytes);
    one->data = data, p->kept = others + bytes, one->room = bytes;
    return AP_OK;
}

/* The next head is there: where do its elements go? */
static int place(socket_wire *w, stream *s, ap_error *error) {
    uint32_t rank = ap_sockets_rank(w, s);
    peer *p = &w->peers[rank];
    s->held = 0, p->next++;
    s->head_bytes = 0, s->come = 0;
    s->head.call.rank = rank;
    if (s->head.mark == TELLS) return ap_compare_loosely(&w->base, &s->head.call, error);
    /* with a receive open, what is for a later call cannot come yet */
    int code = p->receives.first || s->head.call.number < w->base.now.number ? ap_compare(&w->base, &s->head.call, error) : AP_OK;
    if (code) return code;
    s->coming = take(&p->receives, s->head.channel);
    if (s->coming && s->coming->bytes != s->head.bytes) return unfit(w, rank, s->head.bytes, s->coming->bytes, error);
    if (!s->coming) {
        letter *one = new_letter(&w->spare);
        if (!one) return ap_fail(error, AP_MEMORY, "out of memory");
        one->bytes = s->head.bytes, one->channel = s->head.channel, one->own = 1;
        one->head = s->head;
        put(&p->aside, one);
        s->coming = one, p->kept += sizeof *one;
        int code = widen(w, s, one->bytes < STAGE ? one->bytes : STAGE, error);
        if (code) return code;
    }
    return s->head.bytes ? AP_OK : end_message(w, s, error);
}

/* Heads that came before those which were sent before them. */
static int place_held(socket_wire *w, peer *p, ap_error *error) {
    int code = AP_OK;
    while (!code && p->receives.first && ap_sockets_next(w, p)->held)
        code = place(w, ap_sockets_next(w, p), error), w->moved = 1;
    return code;
}

/* Some of a head has come. */
static int head_came(socket_wire *w, stream *s, size_t bytes, ap_error *error) {
    peer *p = &w->peers[ap_sockets_rank(w, s)];
    s->head_bytes += (uint32_t)bytes;
    if (s->head_bytes >= offsetof(head, bytes) && s->head.mark != MARK && s->head.mark != TELLS) {
        w->base.broken = 1;
        return ap_fail(error, AP_TRANSPORT, "rank %u sent what is no message", ap_sockets_rank(w, s));
    }
    if (s->head_bytes < sizeof(head)) return AP_OK;
    s->held = ap_sockets_next(w, p) != s;
    int code = s->held ? AP_OK : place(w, s, error);
    return code ? code : place_held(w, p, error);
}

static int elements_came(socket_wire *w, stream *p, size_t bytes, ap_error *error) {
    p->come += bytes;
    return p->come == p->coming->bytes ? end_message(w, p, error) : AP_OK;
}

static int digest(socket_wire *w, stream *p, const unsigned char *data, size_t bytes, ap_error *error) {
    int code = AP_OK;
    while (!code && bytes) {
        if (p->coming && p->come == p->coming->room && (code = widen(w, p, p->coming->bytes, error))) return code;
        size_t n = p->coming ? (size_t)(p->coming->room - p->come) : sizeof(head) - p->head_bytes;
        if (n > bytes) n = bytes;
        memcpy(p->coming ? p->coming->data + p->come : (unsigned char *)&p->head + p->head_bytes, data, n);
        data += n, bytes -= n;
        code = p->coming ? elements_came(w, p, n, error) : head_came(w, p, n, error);
    }
    return code;
}

/* Where the next bytes go: those of a long message to their place, and the head behind it; of short ones as many as
 * there are to the stage, which is then the only part. Of several sockets nothing beyond one head, which may have to wait. */
static size_t places(socket_wire *w, const peer *of, stream *p, struct iovec *part) {
    const int alone = w->rails == 1;
    if (alone && (p->coming ? p->coming : of->receives.first)->bytes < DIRECT) {
        part[0] = (struct iovec){w->stage, STAGE};
        return 1;
    }
    size_t parts = 0;
    if (p->coming) part[parts++] = (struct iovec){p->coming->data + p->come, p->coming->room - p->come};
    if (of->receives.first && (!p->coming || (alone && p->coming->room == p->coming->bytes)))
        part[parts++] = (struct iovec){(unsigned char *)&p->head + p->head_bytes, sizeof(head) - p->head_bytes};
    return parts;
}

static int pull(socket_wire *w, stream *p, ap_error *error) {
    const uint32_t rank = ap_sockets_rank(w, p);
    const peer *of = &w->peers[rank];
    int code = AP_OK;
    while (!code && ap_sockets_wanted(of, p)) {
        struct iovec part[2] = {{0}};
        if (p->coming && p->come == p->coming->room && (code = widen(w, p, p->coming->bytes, error))) return code;
        struct msghdr message = {.msg_iov = part, .msg_iovlen = places(w, of, p, part)};
        ssize_t got = part[1].iov_len ? recvmsg(p->fd, &message, MSG_DONTWAIT)
                                      : recv(p->fd, part->iov_base, part->iov_len, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return AP_OK;
        if (got <= 0) return gone(w, rank, got < 0 ? errno : 0, error);
        w->moved = 1;
        size_t came = (size_t)got, first = came < part->iov_len ? came : part->iov_len;
        if (part->iov_base == w->stage)
            code = digest(w, p, w->stage, came, error);
        else
            code = p->coming ? elements_came(w, p, first, error) : head_came(w, p, first, error);
        if (!code && came > first) code = head_came(w, p, came - first, error);
        if (came < part[0].iov_len + part[1].iov_len) return code; /* nothing more is there now */
    }
    return code;
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
            code = unfit(w, rank, there->bytes, bytes, error);
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
        code = place_held(w, &w->peers[r], error);
        if (code || ap_done_any(&w->done)) return code;
    }
    for (uint32_t i = 0; i < w->base.ranks * w->rails; i++) {
        stream *s = &w->streams[i];
        const peer *p = &w->peers[i / w->rails];
        int in = ap_sockets_wanted(p, s);
        short events = (short)((s->sends.first ? POLLOUT : 0) | (in ? POLLIN : 0));
        if (s->fd < 0 || !events) continue;
        if (in) set_least(w, p, s), held |= s->least > 1;
        w->whose[count] = s;
        w->asked[count++] = (struct pollfd){.fd = s->fd, .events = events};
    }
    if (!count) return ap_fail(error, AP_STUCK, "nothing is under way");
    if (held && patience > LOOK) patience = LOOK;
    int milliseconds = patience <= 0 ? 0 : patience > 1e6 ? 1000000000 : (int)(patience * 1e3) + 1;
    int found = poll(w->asked, count, milliseconds);
    if (found < 0 && errno != EINTR) return ap_fail(error, AP_TRANSPORT, "poll: %s", strerror(errno));
    for (nfds_t i = 0; i < count && found >= 0 && !code; i++) {
        short what = w->asked[i].revents;
        stream *s = w->whose[i];
        int look = !found && held && milliseconds;
        if (what & POLLIN || ((what || look) && ap_sockets_wanted(&w->peers[ap_sockets_rank(w, s)], s))) code = pull(w, s, error);
        if (!code && what && s->sends.first) code = push(w, s, error);
    }
    return code;
}

static void begin(ap_wire *self) { ((socket_wire *)self)->quiet = 0; }

static int busy(const socket_wire *w) {
    for (uint32_t i = 0; i < w->base.ranks * w->rails; i++) {
        const peer *p = &w->peers[i / w->rails];
        if (w->streams[i].sends.first || p->receives.first || ap_sockets_wanted(p, &w->streams[i])) return 1;
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
        while (!self->broken && w->streams[i].sends.first && ap_now() < end)
            if (turn(w, 1.0, &ignored)) self->broken = 1;
    for (uint32_t i = 0; i < self->ranks * w->rails; i++) {
        stream *s = &w->streams[i];
        if (s->coming && !s->coming->own) free(s->coming);
        forget(&s->sends, 0);
        if (s->fd >= 0) close(s->fd);
    }
    for (uint32_t r = 0; r < self->ranks; r++) forget(&w->peers[r].receives, 0), forget(&w->peers[r].aside, 1);
    for (letter *one = w->spare, *next; one; one = next) next = one->next, free(one);
    free(w->peers), free(w->streams), free(w->asked), free(w->whose), free(w->done.number);
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
