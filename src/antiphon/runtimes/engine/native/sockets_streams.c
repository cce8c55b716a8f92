/* One socket: as many bytes of messages as it takes, and where those belong that come by it. */
#include "sockets_types.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

static int gone(socket_wire *w, uint32_t rank, int code, ap_error *error) {
    if (w->mail) { /* who has something to do with it finds out, and others go on */
        w->peers[rank].lost = 1;
        return AP_OK;
    }
    w->base.broken = 1;
    return ap_fail(error, AP_TRANSPORT, "the connection to rank %u is lost: %s", rank,
                   code ? strerror(code) : "it has been closed");
}

/* As many of the messages as a socket takes now. */
int ap_sockets_push(socket_wire *w, stream *p, ap_error *error) {
    peer *to = &w->peers[ap_sockets_rank(w, p)];
    while (ap_sockets_sends(w, p)) {
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
        if (sent < 0 && w->mail) return to->deaf = 1, AP_OK; /* what was sent from there still comes, before its end */
        if (sent < 0) return gone(w, ap_sockets_rank(w, p), errno, error);
        w->moved = 1, to->gone_out += (uint64_t)sent;
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

int ap_sockets_unfit(socket_wire *w, uint32_t rank, uint64_t come, uint64_t wanted, ap_error *error) {
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
    int now = p->receives.first || s->head.call.number < w->base.now.number;
    int code = now ? ap_compare(&w->base, &s->head.call, error) : AP_OK;
    if (code) return code;
    s->coming = take(&p->receives, s->head.channel);
    if (s->coming && s->coming->bytes != s->head.bytes)
        return ap_sockets_unfit(w, rank, s->head.bytes, s->coming->bytes, error);
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

int ap_sockets_place_held(socket_wire *w, peer *p, ap_error *error) {
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
    return code ? code : ap_sockets_place_held(w, p, error);
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

int ap_sockets_pull(socket_wire *w, stream *p, ap_error *error) {
    const uint32_t rank = ap_sockets_rank(w, p);
    peer *of = &w->peers[rank];
    int code = AP_OK;
    while (!code && ap_sockets_wanted(w, of, p)) {
        struct iovec part[2] = {{0}};
        if (p->coming && p->come == p->coming->room && (code = widen(w, p, p->coming->bytes, error))) return code;
        struct msghdr message = {.msg_iov = part, .msg_iovlen = places(w, of, p, part)};
        ssize_t got = part[1].iov_len ? recvmsg(p->fd, &message, MSG_DONTWAIT)
                                      : recv(p->fd, part->iov_base, part->iov_len, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return AP_OK;
        /* what was sent before may still come by another */
        if (got <= 0 && !p->coming && !p->head_bytes && ap_sockets_next(w, of) != p) return p->over = 1, AP_OK;
        if (got <= 0) return gone(w, rank, got < 0 ? errno : 0, error);
        w->moved = 1, of->come_in += (uint64_t)got;
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
