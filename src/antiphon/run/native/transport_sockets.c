/* Messages over one stream socket for each pair of ranks: a head of 16 bytes, then the elements.
 *
 * A socket is read only while a receive from its rank is open, so what nobody waits for stays with the sender. What comes
 * on another channel than that receive's is kept aside.
 */
#include "transport_sockets.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "transport.h"

enum { STAGE = 1 << 16, DIRECT = 1 << 14, PARTS = 64, FLUSH = 10 };

typedef struct {
    uint32_t channel, mark;
    uint64_t bytes;
} head;

static const uint32_t MARK = 0x41504d31;

typedef struct letter {
    struct letter *next;
    unsigned char *data; /* of a letter kept aside: its own */
    uint64_t bytes;
    uint32_t channel, number;
    head head;      /* of sends */
    int whole, own; /* kept aside: has come in full; nobody has asked for it yet */
} letter;

typedef struct {
    letter *first, **end;
} queue;

typedef struct {
    int fd;
    queue sends, receives, aside;
    uint64_t sent;         /* of the first send, its head included */
    head head;             /* of the message that is coming */
    uint32_t head_bytes;   /* of it there are */
    letter *coming;        /* where its elements go, NULL between messages */
    uint64_t come;
} peer;

typedef struct {
    ap_wire base;
    peer *peers;
    struct pollfd *asked;
    uint32_t *whose;     /* rank of each that is asked */
    uint32_t *done;      /* numbers that are done, from `told` up to `ready` */
    size_t told, ready, space;
    letter *spare;
    int moved; /* whether anything came or went */
    unsigned char stage[STAGE];
} socket_wire;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int gone(socket_wire *w, uint32_t rank, int code, ap_error *error) {
    w->base.broken = 1;
    return ap_fail(error, AP_TRANSPORT, "the connection to rank %u is lost: %s", rank,
                   code ? strerror(code) : "it has been closed");
}

static letter *new_letter(socket_wire *w) {
    letter *one = w->spare;
    if (one)
        w->spare = one->next;
    else
        one = malloc(sizeof *one);
    if (one) memset(one, 0, sizeof *one);
    return one;
}

static void drop(socket_wire *w, letter *one) { one->next = w->spare, w->spare = one; }

static void put(queue *q, letter *one) {
    one->next = NULL;
    *q->end = one;
    q->end = &one->next;
}

static letter *pop(queue *q) {
    letter *one = q->first;
    q->first = one->next;
    if (!q->first) q->end = &q->first;
    return one;
}

/* The first of a channel, taken out; NULL if there is none. */
static letter *take(queue *q, uint32_t channel) {
    for (letter **at = &q->first; *at; at = &(*at)->next)
        if ((*at)->channel == channel) {
            letter *one = *at;
            *at = one->next;
            if (!one->next) q->end = at;
            return one;
        }
    return NULL;
}

static int tell(socket_wire *w, uint32_t number, ap_error *error) {
    if (w->told == w->ready) w->told = w->ready = 0;
    if (w->ready == w->space) {
        size_t space = w->space ? 2 * w->space : 256;
        uint32_t *done = realloc(w->done, space * sizeof *done);
        if (!done) return ap_fail(error, AP_MEMORY, "out of memory");
        w->done = done, w->space = space;
    }
    w->done[w->ready++] = number;
    return AP_OK;
}

/* As many of the messages to a rank as its socket takes now. */
static int push(socket_wire *w, uint32_t rank, ap_error *error) {
    peer *p = &w->peers[rank];
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
        if (sent < 0) return gone(w, rank, errno, error);
        w->moved = 1;
        p->sent += (uint64_t)sent;
        while (p->sends.first && p->sent >= sizeof(head) + p->sends.first->bytes) {
            letter *one = pop(&p->sends);
            p->sent -= sizeof(head) + one->bytes;
            int code = tell(w, one->number, error);
            drop(w, one);
            if (code) return code;
        }
    }
    return AP_OK;
}

static int unfit(socket_wire *w, uint32_t rank, uint64_t come, uint64_t wanted, ap_error *error) {
    w->base.broken = 1;
    return ap_fail(error, AP_TRANSPORT, "rank %u sent a message of %llu bytes where %llu are expected", rank,
                   (unsigned long long)come, (unsigned long long)wanted);
}

/* A head has come in full: where do its elements go? */
static int begin_message(socket_wire *w, uint32_t rank, ap_error *error) {
    peer *p = &w->peers[rank];
    if (p->head.mark != MARK) {
        w->base.broken = 1;
        return ap_fail(error, AP_TRANSPORT, "rank %u sent what is no message", rank);
    }
    p->come = 0;
    p->coming = take(&p->receives, p->head.channel);
    if (p->coming) {
        if (p->coming->bytes != p->head.bytes) return unfit(w, rank, p->head.bytes, p->coming->bytes, error);
        return AP_OK;
    }
    letter *one = new_letter(w);
    unsigned char *data = one ? malloc(p->head.bytes ? p->head.bytes : 1) : NULL;
    if (!data) {
        free(one);
        return ap_fail(error, AP_MEMORY, "no memory for a message of %llu bytes", (unsigned long long)p->head.bytes);
    }
    one->data = data, one->bytes = p->head.bytes, one->channel = p->head.channel, one->own = 1;
    put(&p->aside, one);
    p->coming = one;
    return AP_OK;
}

/* The message that was coming is there. */
static int end_message(socket_wire *w, peer *p, ap_error *error) {
    letter *one = p->coming;
    p->coming = NULL, p->head_bytes = 0;
    if (one->own) {
        one->whole = 1;
        return AP_OK;
    }
    int code = tell(w, one->number, error);
    drop(w, one);
    return code;
}

static int digest(socket_wire *w, uint32_t rank, const unsigned char *data, size_t bytes, ap_error *error) {
    peer *p = &w->peers[rank];
    int code = AP_OK;
    while (!code && (bytes || (p->coming && p->come == p->coming->bytes))) {
        if (!p->coming) {
            size_t n = sizeof(head) - p->head_bytes;
            if (n > bytes) n = bytes;
            memcpy((unsigned char *)&p->head + p->head_bytes, data, n);
            p->head_bytes += (uint32_t)n, data += n, bytes -= n;
            if (p->head_bytes == sizeof(head)) code = begin_message(w, rank, error);
        } else {
            uint64_t n = p->coming->bytes - p->come;
            if (n > bytes) n = bytes;
            memcpy(p->coming->data + p->come, data, n);
            p->come += n, data += n, bytes -= n;
            if (p->come == p->coming->bytes) code = end_message(w, p, error);
        }
    }
    return code;
}

/* Whether anything from this rank is wanted. */
static int wanted(const peer *p) { return p->receives.first || (p->coming && !p->coming->own); }

static int pull(socket_wire *w, uint32_t rank, ap_error *error) {
    peer *p = &w->peers[rank];
    int code = AP_OK;
    while (!code && wanted(p)) {
        uint64_t left = p->coming ? p->coming->bytes - p->come : 0;
        int direct = left >= DIRECT;
        size_t room = direct ? (size_t)left : STAGE;
        ssize_t got = recv(p->fd, direct ? p->coming->data + p->come : w->stage, room, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return AP_OK;
        if (got <= 0) return gone(w, rank, got < 0 ? errno : 0, error);
        w->moved = 1;
        if (!direct) {
            code = digest(w, rank, w->stage, (size_t)got, error);
        } else {
            p->come += (uint64_t)got;
            if (p->come == p->coming->bytes) code = end_message(w, p, error);
        }
        if ((size_t)got < room) return code; /* nothing more is there now */
    }
    return code;
}

static int connected(socket_wire *w, uint32_t rank, ap_error *error) {
    if (rank < w->base.ranks && w->peers[rank].fd >= 0) return AP_OK;
    return ap_fail(error, AP_INVALID, "there is no connection to rank %u", rank);
}

static int send_message(ap_wire *self, uint32_t rank, uint32_t channel, const void *data, size_t bytes, uint32_t number,
                        ap_error *error) {
    socket_wire *w = (socket_wire *)self;
    int code = connected(w, rank, error);
    if (code) return code;
    letter *one = new_letter(w);
    if (!one) return ap_fail(error, AP_MEMORY, "out of memory");
    peer *p = &w->peers[rank];
    int idle = !p->sends.first;
    one->data = (unsigned char *)(uintptr_t)data, one->bytes = bytes, one->number = number;
    one->head = (head){channel, MARK, bytes};
    put(&p->sends, one);
    return idle ? push(w, rank, error) : AP_OK;
}

static int receive_message(ap_wire *self, uint32_t rank, uint32_t channel, void *data, size_t bytes, uint32_t number,
                           ap_error *error) {
    socket_wire *w = (socket_wire *)self;
    int code = connected(w, rank, error);
    if (code) return code;
    peer *p = &w->peers[rank];
    letter *there = take(&p->aside, channel);
    if (there) {
        if (there->bytes != bytes) {
            code = unfit(w, rank, there->bytes, bytes, error);
        } else if (there->whole) {
            memcpy(data, there->data, bytes);
            code = tell(w, number, error);
        } else { /* the rest goes where it belongs */
            memcpy(data, there->data, p->come);
            free(there->data);
            there->data = data, there->number = number, there->own = 0;
            return AP_OK;
        }
        free(there->data);
        if (p->coming == there) p->coming = NULL;
        drop(w, there);
        return code;
    }
    letter *one = new_letter(w);
    if (!one) return ap_fail(error, AP_MEMORY, "out of memory");
    one->data = data, one->bytes = bytes, one->channel = channel, one->number = number;
    put(&p->receives, one);
    return AP_OK;
}

/* Waits for any socket that has something to do, `patience` seconds at most, and does it. */
static int turn(socket_wire *w, double patience, ap_error *error) {
    nfds_t count = 0;
    int code = AP_OK;
    for (uint32_t r = 0; r < w->base.ranks; r++) {
        peer *p = &w->peers[r];
        short events = (short)((p->sends.first ? POLLOUT : 0) | (wanted(p) ? POLLIN : 0));
        if (p->fd < 0 || !events) continue;
        w->whose[count] = r;
        w->asked[count++] = (struct pollfd){.fd = p->fd, .events = events};
    }
    if (!count) return ap_fail(error, AP_STUCK, "nothing is under way");
    int milliseconds = patience <= 0 ? 0 : patience > 1e6 ? 1000000000 : (int)(patience * 1e3) + 1;
    int found = poll(w->asked, count, milliseconds);
    if (found < 0 && errno != EINTR) return ap_fail(error, AP_TRANSPORT, "poll: %s", strerror(errno));
    for (nfds_t i = 0; i < count && found > 0 && !code; i++) {
        short what = w->asked[i].revents;
        peer *p = &w->peers[w->whose[i]];
        if (what & POLLIN || (what && wanted(p))) code = pull(w, w->whose[i], error);
        if (!code && what && p->sends.first) code = push(w, w->whose[i], error);
    }
    return code;
}

static int busy(const socket_wire *w) {
    for (uint32_t r = 0; r < w->base.ranks; r++)
        if (w->peers[r].sends.first || wanted(&w->peers[r])) return 1;
    return 0;
}

static int completed(ap_wire *self, int block, double timeout, uint32_t *numbers, int most, int *count,
                     ap_error *error) {
    socket_wire *w = (socket_wire *)self;
    int code = AP_OK;
    double end = 0;
    *count = 0;
    if (w->told == w->ready && busy(w)) {
        w->moved = 0;
        code = turn(w, 0, error);
        while (!code && block && w->told == w->ready) {
            if (timeout > 0 && (w->moved || end == 0)) end = now() + timeout;
            double left = timeout > 0 ? end - now() : 1e7;
            w->moved = 0;
            if (left <= 0) {
                self->broken = 1;
                return ap_fail(error, AP_TIMEOUT, "nothing came or went for %g seconds", timeout);
            }
            code = turn(w, left, error);
        }
    }
    if (code) {
        self->broken = 1;
        return code;
    }
    while (w->told < w->ready && *count < most) numbers[(*count)++] = w->done[w->told++];
    return AP_OK;
}

static void forget(queue *q, int own) {
    while (q->first) {
        letter *one = pop(q);
        if (own) free(one->data);
        free(one);
    }
}

static void close_wire(ap_wire *self) {
    socket_wire *w = (socket_wire *)self;
    ap_error ignored;
    double end = now() + FLUSH;
    for (uint32_t r = 0; r < self->ranks; r++)
        while (!self->broken && w->peers[r].sends.first && now() < end)
            if (turn(w, 1.0, &ignored)) self->broken = 1;
    for (uint32_t r = 0; r < self->ranks; r++) {
        peer *p = &w->peers[r];
        if (p->coming && !p->coming->own) free(p->coming);
        forget(&p->sends, 0), forget(&p->receives, 0), forget(&p->aside, 1);
        if (p->fd >= 0) close(p->fd);
    }
    for (letter *one = w->spare, *next; one; one = next) next = one->next, free(one);
    free(w->peers), free(w->asked), free(w->whose), free(w->done);
    free(w);
}

ap_wire *ap_sockets_open(uint32_t rank, uint32_t ranks, const int32_t *sockets, ap_error *error) {
    socket_wire *w = calloc(1, sizeof *w);
    size_t n = ranks ? ranks : 1;
    if (w) w->peers = calloc(n, sizeof *w->peers), w->asked = calloc(n, sizeof *w->asked), w->whose = calloc(n, 4);
    if (!w || !w->peers || !w->asked || !w->whose) {
        if (w) free(w->peers), free(w->asked), free(w->whose), free(w);
        for (uint32_t r = 0; r < ranks; r++)
            if (sockets[r] >= 0) close(sockets[r]);
        ap_fail(error, AP_MEMORY, "out of memory");
        return NULL;
    }
    w->base = (ap_wire){.send = send_message, .receive = receive_message, .completed = completed, .close = close_wire,
                        .ranks = ranks};
    for (uint32_t r = 0; r < ranks; r++) {
        peer *p = &w->peers[r];
        p->fd = sockets[r];
        p->sends.end = &p->sends.first, p->receives.end = &p->receives.first, p->aside.end = &p->aside.first;
        int flags = p->fd < 0 ? 0 : fcntl(p->fd, F_GETFL);
        if (p->fd >= 0 && (r == rank || flags < 0 || fcntl(p->fd, F_SETFL, flags | O_NONBLOCK) < 0)) {
            ap_fail(error, AP_INVALID, "rank %u: its socket to rank %u is none", rank, r);
            close_wire(&w->base);
            return NULL;
        }
    }
    return &w->base;
}
