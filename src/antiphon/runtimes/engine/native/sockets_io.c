/* Sending and receiving by the sockets of a wire (ap_wire of api.h: this process's connection to all ranks), and choosing the
 * sockets to poll. sockets_types.h explains stage, DIRECT, rails (several sockets per pair of ranks) and low water.
 *
 * Threading: a wire is used by one thread at a time, so there are no locks.
 * Ownership: nothing is allocated here; what is received goes to messages or through sockets_streams.c.
 */
#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "sockets_types.h"

/* ---- out ---- */

/* Fills `parts` with the areas of memory to send next, heads and data of messages, without what was sent of the first one; returns
 * their count, at most PARTS. */
static size_t gather_parts(const stream *s, struct iovec *parts) {
    size_t count = 0;
    uint64_t skip = s->sent;
    for (message *m = s->sends.first; m && count + 2 <= PARTS; m = m->next) {
        unsigned char *from[2] = {(unsigned char *)&m->head, m->data};
        const uint64_t length[2] = {sizeof(head), m->bytes};
        for (int k = 0; k < 2; k++) {
            const uint64_t remaining = skip < length[k] ? length[k] - skip : 0;
            if (remaining) parts[count++] = (struct iovec){from[k] + skip, remaining};
            skip = skip < length[k] ? 0 : skip - length[k];
        }
    }
    return count;
}

/* Counts bytes that were sent; messages sent in full are done. */
static void count_sent(socket_wire *w, stream *s, uint64_t bytes) {
    w->moved = 1, s->sent += bytes;
    while (s->sends.first && s->sent >= sizeof(head) + s->sends.first->bytes) {
        message *m = pop_message(&s->sends);
        s->sent -= sizeof(head) + m->bytes;
        if (m->head.mark == MESSAGE) /* the other mark is NOTE, which the engine does not know of */
            ap_completions_add(&w->done, m->number, &w->fault);
        recycle_message(&w->spare, m);
    }
}

/* The socket accepts nothing any more. Data that the other end sent before can still be read. */
static void stop_sending(socket_wire *w, stream *s, int error_number) {
    if (!s->stopped_sending) s->stopped_sending = 1, s->error_number = error_number;
    if (s->sends.first) ap_sockets_report_lost(w, ap_sockets_rank(w, s), s->error_number);
}

/* Sends as much as the socket takes now. */
static void push_stream(socket_wire *w, stream *s) {
    while (s->fd >= 0 && s->sends.first) {
        struct iovec parts[PARTS];
        if (w->fault.code) s->stopped_sending = 1; /* the run has failed: its buffers are the program's again */
        if (s->stopped_sending) {
            stop_sending(w, s, 0);
            return;
        }
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = gather_parts(s, parts)};
        const ssize_t sent = sendmsg(s->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS)) return;
        if (sent < 0) {
            stop_sending(w, s, errno);
            return;
        }
        count_sent(w, s, (uint64_t)sent);
    }
}

/* Queues a message to a rank, on the next of its rails, and sends what an idle socket takes at once. */
void ap_sockets_send(socket_wire *w, uint32_t rank, message *m) {
    peer *p = &w->peers[rank];
    stream *s = &p->by_rail[p->sent_count++ % w->rails];
    const int idle = !s->sends.first;
    push_message(&s->sends, m);
    if (idle) push_stream(w, s);
}

/* ---- in ---- */

/* The other end has closed the socket. Messages sent before may still arrive by another rail. */
static void end_stream(socket_wire *w, stream *s, int error_number) {
    const uint32_t rank = ap_sockets_rank(w, s);
    const peer *p = &w->peers[rank];
    s->ended = 1, s->error_number = error_number;
    /* between two messages, and the next one comes by another rail: no loss unless one should come by this socket */
    if (!s->incoming && !s->head_bytes && ap_sockets_next_stream(w, p) != s) return;
    if (ap_sockets_is_wanted(w, p, s)) ap_sockets_report_lost(w, rank, error_number);
}

/* Chooses where to read the next bytes to. Within a long message: into its memory, and the head behind it into the stage.
 * Before a long message for which a receive is open: its head alone, so that its data can follow into its memory. Else:
 * `max_bytes` bytes into the stage. */
static size_t choose_parts(socket_wire *w, stream *s, size_t max_bytes, struct iovec *parts) {
    const uint32_t rank = ap_sockets_rank(w, s);
    const peer *p = &w->peers[rank];
    parts[0] = (struct iovec){w->stage, max_bytes};
    if (!ap_sockets_is_wanted(w, p, s) || ap_sockets_bytes_ahead(s)) return 1; /* what was read too early is used first */
    if (!s->incoming) {
        if (p->receives.first && p->receives.first->bytes >= DIRECT) parts[0].iov_len = sizeof(head) - s->head_bytes;
        return 1;
    }
    /* A message set aside has memory for `capacity` of its bytes, until it is wanted: then make_room allocates the rest. */
    if (s->incoming->bytes < DIRECT || !ap_sockets_make_room(w, rank, s)) return 1;
    parts[0] = (struct iovec){s->incoming->data + s->received, s->incoming->capacity - s->received};
    parts[1] = (struct iovec){w->stage, sizeof(head)};
    /* the next head is wanted only if another receive is open, and follows only if all of this message fits */
    return p->receives.first && s->incoming->capacity == s->incoming->bytes ? 2 : 1;
}

/* Reads what has arrived by a socket while it is wanted; into the stage at most `max_bytes` at a time. */
void ap_sockets_pull(socket_wire *w, stream *s, size_t max_bytes) {
    const peer *p = &w->peers[ap_sockets_rank(w, s)];
    do {
        struct iovec parts[2] = {{0}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = choose_parts(w, s, max_bytes, parts)};
        const int in_message = parts[0].iov_base != w->stage;
        const size_t requested = parts[0].iov_len + (message.msg_iovlen > 1 ? parts[1].iov_len : 0);
        const ssize_t got = message.msg_iovlen > 1 ? recvmsg(s->fd, &message, MSG_DONTWAIT)
                                                   : recv(s->fd, parts->iov_base, parts->iov_len, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (got <= 0) {
            end_stream(w, s, got < 0 ? errno : 0);
            return;
        }
        size_t staged = (size_t)got;
        if (in_message) {
            const size_t in_place = staged < parts[0].iov_len ? staged : parts[0].iov_len;
            staged -= in_place;
            ap_sockets_count_received(w, s, in_place);
        }
        if (staged) ap_sockets_take(w, s, w->stage, staged);
        if ((size_t)got < requested) return; /* nothing more has arrived */
    } while (!s->ended && ap_sockets_is_wanted(w, p, s));
}

/* ---- which are polled ---- */

/* The least number of bytes that will arrive by a socket before any receive from its rank can be complete. */
static uint64_t min_bytes_to_come(const socket_wire *w, const peer *p, const stream *s) {
    if (s->incoming) return s->incoming->bytes - s->received;
    if (w->rails > 1) return 1; /* which message comes by which rail is known only from its head */
    uint64_t fewest = p->receives.first->bytes;
    for (const message *m = p->receives.first; m && fewest >= DIRECT; m = m->next)
        if (m->bytes < fewest) fewest = m->bytes;
    return fewest < DIRECT ? 1 : sizeof(head) - s->head_bytes + fewest;
}

/* Called before every wait: a socket that waits for more bytes than will arrive would never report. */
static void set_low_water(stream *s, uint64_t bytes) {
    const int low_water = bytes < DIRECT || !s->low_water_works ? 1 : bytes < MAX_LOW_WATER ? (int)bytes : MAX_LOW_WATER;
    if (low_water == s->low_water) return;
    if (setsockopt(s->fd, SOL_SOCKET, SO_RCVLOWAT, &low_water, sizeof low_water))
        s->low_water_works = 0;
    else
        s->low_water = low_water;
}

/* Whether a socket is to be polled for reading; then also sets its low water. One that has ended is read again only
 * when the next message should come by it: then the connection is lost. */
static int wants_input(const socket_wire *w, stream *s) {
    const peer *p = &w->peers[ap_sockets_rank(w, s)];
    if (!ap_sockets_is_wanted(w, p, s) || (s->ended && ap_sockets_next_stream(w, p) != s)) return 0;
    set_low_water(s, min_bytes_to_come(w, p, s));
    return 1;
}

/* Fills in the sockets to poll. Returns 1 if low water may hide bytes of one: then the caller waits only MAX_QUIET
 * seconds, and has all of them read afterwards (`look` of ap_sockets_handle_polled). */
int ap_sockets_fill_polled(socket_wire *w) {
    int has_low_water = 0;
    w->polled_count = 0;
    for (uint32_t i = 0; i < w->base.ranks * w->rails; i++) {
        stream *s = &w->streams[i];
        if (s->fd < 0) continue;
        const int in = wants_input(w, s), out = !s->stopped_sending && s->sends.first;
        if (!in && !out) continue;
        has_low_water |= in && s->low_water > 1;
        w->polled_stream[w->polled_count] = s;
        w->polled[w->polled_count++] = (struct pollfd){.fd = s->fd, .events = (short)((in ? POLLIN : 0) | (out ? POLLOUT : 0))};
    }
    return has_low_water;
}

/* Reads and writes the sockets that poll has reported; with `look` reads all that were polled for reading. */
void ap_sockets_handle_polled(socket_wire *w, int look) {
    for (nfds_t i = 0; i < w->polled_count; i++) {
        const short reported = w->polled[i].revents;
        stream *s = w->polled_stream[i];
        if (reported & POLLIN || ((reported || look) && w->polled[i].events & POLLIN)) ap_sockets_pull(w, s, STAGE);
        if (reported) push_stream(w, s);
    }
}
