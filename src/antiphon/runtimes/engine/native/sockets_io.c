/* One socket: what is sent and read by it, and which sockets are polled. */
#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "sockets_types.h"

/* ---- out ---- */

/* The next bytes to send, in at most PARTS parts. */
static size_t gather(const stream *s, struct iovec *part) {
    size_t count = 0;
    uint64_t skip = s->sent;
    for (letter *one = s->sends.first; one && count + 2 <= PARTS; one = one->next) {
        unsigned char *from[2] = {(unsigned char *)&one->head, one->data};
        const uint64_t length[2] = {sizeof(head), one->bytes};
        for (int k = 0; k < 2; k++) {
            const uint64_t rest = skip < length[k] ? length[k] - skip : 0;
            if (rest) part[count++] = (struct iovec){from[k] + skip, rest};
            skip = skip < length[k] ? 0 : skip - length[k];
        }
    }
    return count;
}

/* Count bytes that were sent; messages sent in full are done. */
static void count_sent(socket_wire *w, stream *s, uint64_t bytes) {
    w->moved = 1, s->sent += bytes;
    while (s->sends.first && s->sent >= sizeof(head) + s->sends.first->bytes) {
        letter *one = pop(&s->sends);
        s->sent -= sizeof(head) + one->bytes;
        if (one->head.mark == MARK) ap_done_add(&w->done, one->number, &w->fault);
        drop(&w->spare, one);
    }
}

/* It takes nothing any more. What was sent from there still comes, before its end. */
static void turn_deaf(socket_wire *w, stream *s, int why) {
    if (!s->deaf) s->deaf = 1, s->why = why;
    if (s->sends.first) ap_sockets_gone(w, ap_sockets_rank(w, s), s->why);
}

/* Sends as much as the socket takes now. */
static void push_stream(socket_wire *w, stream *s) {
    while (s->fd >= 0 && s->sends.first) {
        struct iovec part[PARTS];
        if (w->fault.code) s->deaf = 1; /* memory of messages is the program's again */
        if (s->deaf) {
            turn_deaf(w, s, 0);
            return;
        }
        struct msghdr message = {.msg_iov = part, .msg_iovlen = gather(s, part)};
        const ssize_t sent = sendmsg(s->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS)) return;
        if (sent < 0) {
            turn_deaf(w, s, errno);
            return;
        }
        count_sent(w, s, (uint64_t)sent);
    }
}

void ap_sockets_send(socket_wire *w, uint32_t rank, letter *one) {
    peer *p = &w->peers[rank];
    stream *s = &p->by[p->out++ % w->rails];
    const int idle = !s->sends.first;
    put(&s->sends, one);
    if (idle) push_stream(w, s);
}

/* ---- in ---- */

/* Nothing more comes by it. What was sent before may still come by another rail. */
static void end_stream(socket_wire *w, stream *s, int why) {
    const uint32_t rank = ap_sockets_rank(w, s);
    const peer *p = &w->peers[rank];
    s->over = 1, s->why = why;
    if (!s->coming && !s->head_bytes && ap_sockets_next(w, p) != s) return;
    if (ap_sockets_wanted(w, p, s)) ap_sockets_gone(w, rank, why);
}

/* Where the next bytes go: those of a long message into its memory, and the head behind it to the stage; of a long message that
 * is awaited the head alone, so that the rest can follow into its memory; else `most` bytes to the stage. */
static size_t places(socket_wire *w, stream *s, size_t most, struct iovec *part) {
    const uint32_t rank = ap_sockets_rank(w, s);
    const peer *p = &w->peers[rank];
    part[0] = (struct iovec){w->stage, most};
    if (!ap_sockets_wanted(w, p, s) || ap_sockets_ahead(s)) return 1;
    if (!s->coming) {
        if (p->receives.first && p->receives.first->bytes >= DIRECT) part[0].iov_len = sizeof(head) - s->head_bytes;
        return 1;
    }
    if (s->coming->bytes < DIRECT || !ap_sockets_widened(w, rank, s)) return 1;
    part[0] = (struct iovec){s->coming->data + s->come, s->coming->room - s->come};
    part[1] = (struct iovec){w->stage, sizeof(head)};
    return p->receives.first && s->coming->room == s->coming->bytes ? 2 : 1;
}

void ap_sockets_pull(socket_wire *w, stream *s, size_t most) {
    const peer *p = &w->peers[ap_sockets_rank(w, s)];
    do {
        struct iovec part[2] = {{0}};
        struct msghdr message = {.msg_iov = part, .msg_iovlen = places(w, s, most, part)};
        const int straight = part[0].iov_base != w->stage;
        const size_t asked = part[0].iov_len + (message.msg_iovlen > 1 ? part[1].iov_len : 0);
        const ssize_t got = message.msg_iovlen > 1 ? recvmsg(s->fd, &message, MSG_DONTWAIT)
                                                   : recv(s->fd, part->iov_base, part->iov_len, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (got <= 0) {
            end_stream(w, s, got < 0 ? errno : 0);
            return;
        }
        size_t staged = (size_t)got;
        if (straight) {
            const size_t in_place = staged < part[0].iov_len ? staged : part[0].iov_len;
            staged -= in_place;
            ap_sockets_came(w, s, in_place);
        }
        if (staged) ap_sockets_take(w, s, w->stage, staged);
        if ((size_t)got < asked) return; /* nothing more is there now */
    } while (!s->over && ap_sockets_wanted(w, p, s));
}

/* ---- which are polled ---- */

/* So many bytes must come by it before anything that is wanted of its rank is complete. */
static uint64_t sure_bytes(const socket_wire *w, const peer *p, const stream *s) {
    if (s->coming) return s->coming->bytes - s->come;
    if (w->rails > 1) return 1;
    uint64_t fewest = p->receives.first->bytes;
    for (const letter *one = p->receives.first; one && fewest >= DIRECT; one = one->next)
        if (one->bytes < fewest) fewest = one->bytes;
    return fewest < DIRECT ? 1 : sizeof(head) - s->head_bytes + fewest;
}

/* Called before every wait: a socket that waited for more than comes would never report it. */
static void set_least(stream *s, uint64_t bytes) {
    const int least = bytes < DIRECT || !s->patient ? 1 : bytes < MANY ? (int)bytes : MANY;
    if (least == s->least) return;
    if (setsockopt(s->fd, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least))
        s->patient = 0;
    else
        s->least = least;
}

static int wants_input(const socket_wire *w, stream *s) {
    const peer *p = &w->peers[ap_sockets_rank(w, s)];
    if (!ap_sockets_wanted(w, p, s) || (s->over && ap_sockets_next(w, p) != s)) return 0;
    set_least(s, sure_bytes(w, p, s));
    return 1;
}

int ap_sockets_watch(socket_wire *w) {
    int waits_for_many = 0;
    w->polled_count = 0;
    for (uint32_t i = 0; i < w->base.ranks * w->rails; i++) {
        stream *s = &w->streams[i];
        if (s->fd < 0) continue;
        const int in = wants_input(w, s), out = !s->deaf && s->sends.first;
        if (!in && !out) continue;
        waits_for_many |= in && s->least > 1;
        w->polled_stream[w->polled_count] = s;
        w->polled[w->polled_count++] = (struct pollfd){.fd = s->fd, .events = (short)((in ? POLLIN : 0) | (out ? POLLOUT : 0))};
    }
    return waits_for_many;
}

void ap_sockets_attend(socket_wire *w, int look) {
    for (nfds_t i = 0; i < w->polled_count; i++) {
        const short reported = w->polled[i].revents;
        stream *s = w->polled_stream[i];
        if (reported & POLLIN || ((reported || look) && w->polled[i].events & POLLIN)) ap_sockets_pull(w, s, STAGE);
        if (reported) push_stream(w, s);
    }
}
