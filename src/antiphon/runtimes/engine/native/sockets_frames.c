/* One socket: what goes and comes by it, in frames where mail goes by it, too; and which sockets are looked at for whom. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "mail_types.h"
#include "sockets_types.h"

/* ---- out ---- */

static const peer *peer_of(const sockets *n, const stream *s, int kind) { return &n->of[kind]->peers[ap_sockets_rank(n, s)]; }

/* Whether something of this kind can go. */
static int can_go(const sockets *n, const stream *s, int kind) {
    const flow *f = ap_sockets_flow(n, s, kind);
    return f && !n->of[kind]->fault.code && ap_sockets_may_go(peer_of(n, s, kind), f);
}

/* So many of what stands to go and may, at most. */
static size_t parts_of(const peer *p, const flow *f, uint64_t most, struct iovec *part, int space, uint64_t *bytes) {
    int count = 0;
    uint64_t skip = f->sent;
    *bytes = 0;
    for (letter *one = f->sends.first; one && count + 2 <= space && *bytes < most && one->room + skip < p->room; one = one->next) {
        if (most - *bytes > p->room - one->room - skip) most = *bytes + (p->room - one->room - skip);
        unsigned char *from[2] = {(unsigned char *)&one->head, one->data};
        const uint64_t length[2] = {sizeof(head), one->bytes};
        for (int k = 0; k < 2 && *bytes < most; k++) {
            uint64_t rest = skip < length[k] ? length[k] - skip : 0;
            if (rest > most - *bytes) rest = most - *bytes;
            if (rest) part[count++] = (struct iovec){from[k] + skip, rest};
            skip = skip < length[k] ? 0 : skip - length[k];
            *bytes += rest;
        }
    }
    return (size_t)count;
}

/* The next frame, if there is one to go: calls and mail take turns. */
static int begin_frame(sockets *n, stream *s) {
    const uint32_t rank = ap_sockets_rank(n, s);
    peer *calls = &n->of[CALLS]->peers[rank];
    struct iovec part[PARTS];
    uint64_t bytes = 0;
    const int kind = can_go(n, s, !s->goes) ? !s->goes : s->goes;
    if (!s->last_mail && can_go(n, s, kind)) {
        parts_of(peer_of(n, s, kind), ap_sockets_flow(n, s, kind), FRAME, part, PARTS - 1, &bytes);
    } else if (!s->last_mail && calls->asked < ROOM / 2) {
        return 0;
    }
    s->out = (frame){s->last_mail ? LAST_MAIL : OF + (uint32_t)kind, (uint32_t)bytes, calls->asked};
    s->out_head = sizeof(frame), s->out_left = bytes;
    calls->asked = 0, s->goes = kind, s->last_mail = 0;
    return 1;
}

/* Whether a frame follows the one that is going: its last bytes need no packet of their own. */
static int more_goes(const sockets *n, const stream *s) {
    const flow *f = ap_sockets_flow(n, s, s->goes);
    if (!f) return 0;
    const peer *p = peer_of(n, s, s->goes);
    uint64_t left = s->out_left + f->sent;
    const letter *one = f->sends.first;
    for (; one && left >= sizeof(head) + one->bytes; one = one->next) left -= sizeof(head) + one->bytes;
    return one && one->room + left < p->room;
}

/* So many bytes of messages have gone. */
static void went(sockets *n, stream *s, uint64_t bytes) {
    socket_wire *w = n->of[s->goes];
    peer *p = &w->peers[ap_sockets_rank(n, s)];
    flow *f = ap_sockets_flow(n, s, s->goes);
    w->moved = 1, p->gone_out += bytes, f->sent += bytes;
    while (f->sends.first && f->sent >= sizeof(head) + f->sends.first->bytes) {
        letter *one = pop(&f->sends);
        f->sent -= sizeof(head) + one->bytes;
        if (one->head.mark == MARK) ap_done_add(&w->done, one->number, &w->fault), w->news = 1;
        drop(&w->spare, one);
    }
}

/* It takes nothing any more. What was sent from there still comes, before its end. */
static void turns_deaf(sockets *n, stream *s, int why) {
    const flow *f = ap_sockets_flow(n, s, CALLS);
    if (!s->deaf) s->deaf = 1, s->why = why;
    if (f->sends.first) ap_sockets_gone(n->of[CALLS], ap_sockets_rank(n, s), s->why);
}

/* After a fault memory of messages is the program's again. Of calls nothing comes behind; of mail it is not yet, and calls do. */
static void stops_short(sockets *n, stream *s) {
    if (s->goes == MAIL)
        ap_sockets_abandon(n, s, MAIL);
    else
        s->deaf = 1;
}

void ap_sockets_push(sockets *n, stream *s) {
    while (s->fd >= 0) {
        struct iovec part[PARTS];
        uint64_t bytes = 0;
        size_t parts = 0;
        if (s->out_left && !s->rest && n->of[s->goes] && n->of[s->goes]->fault.code) stops_short(n, s);
        if (s->deaf) {
            turns_deaf(n, s, 0);
            return;
        }
        if (!s->out_head && !s->out_left && !begin_frame(n, s)) return;
        if (s->out_head)
            part[parts++] = (struct iovec){(unsigned char *)&s->out + sizeof(frame) - s->out_head, s->out_head};
        if (s->rest)
            part[parts++] = (struct iovec){s->rest + s->rest_at, s->out_left};
        else if (s->out_left)
            parts += parts_of(peer_of(n, s, s->goes), ap_sockets_flow(n, s, s->goes), s->out_left, part + parts, PARTS - 1, &bytes);
        if (!parts) return;
        struct msghdr message = {.msg_iov = part, .msg_iovlen = parts};
        const int more = n->framed && !s->rest && more_goes(n, s) ? MSG_MORE : 0;
        ssize_t sent = sendmsg(s->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT | more);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS)) return;
        if (sent < 0) {
            turns_deaf(n, s, errno);
            return;
        }
        uint64_t of_head = (uint64_t)sent < s->out_head ? (uint64_t)sent : s->out_head, rest = (uint64_t)sent - of_head;
        s->out_head -= (uint32_t)of_head, s->out_left -= rest;
        if (!s->rest && rest) went(n, s, rest);
        if (s->rest) s->rest_at += rest;
        if (s->rest && !s->out_left) free(s->rest), s->rest = NULL;
    }
}

void ap_sockets_abandon(sockets *n, stream *s, int kind) {
    struct iovec part[PARTS];
    uint64_t bytes = 0, at = 0;
    if (s->deaf || s->goes != kind || !s->out_left || s->rest) return;
    s->rest = malloc(s->out_left), s->rest_at = 0;
    if (!s->rest) { /* the other end could not tell where the next frame begins */
        shutdown(s->fd, SHUT_RDWR);
        s->deaf = 1;
        return;
    }
    size_t parts = parts_of(peer_of(n, s, kind), ap_sockets_flow(n, s, kind), s->out_left, part, PARTS, &bytes);
    for (size_t i = 0; i < parts; at += part[i++].iov_len) memcpy(s->rest + at, part[i].iov_base, part[i].iov_len);
}

void ap_sockets_tell_asked(sockets *n) {
    for (uint32_t r = 0; r < n->ranks && n->owing; r++)
        if (n->of[CALLS]->peers[r].asked >= ROOM / 2) ap_sockets_push(n, &n->streams[r * n->rails]);
    n->owing = 0;
}

/* ---- in ---- */

/* Nothing more comes by it. */
static void ended(sockets *n, stream *s, int why) {
    const uint32_t rank = ap_sockets_rank(n, s);
    socket_wire *calls = n->of[CALLS], *mail = n->of[MAIL];
    peer *p = &calls->peers[rank];
    const flow *f = ap_sockets_flow(n, s, CALLS);
    s->over = 1, s->why = why;
    if (mail && ap_sockets_rail(n, s) < mail->rails) mail->peers[rank].lost = 1, mail->news = 1;
    /* what was sent before may still come by another */
    if (!f->coming && !f->head_bytes && ap_sockets_next(calls, p) != f) return;
    if (ap_sockets_wanted(calls, p, f) || ap_sockets_starved(calls, p)) ap_sockets_gone(calls, rank, why);
}

static void frame_came(sockets *n, stream *s) {
    const uint32_t rank = ap_sockets_rank(n, s), kind = s->in.what - OF;
    socket_wire *mail = n->of[MAIL];
    n->of[CALLS]->peers[rank].room += s->in.asked, n->of[CALLS]->roused |= s->in.asked > 0;
    s->in_head = 0;
    if (s->in.what == LAST_MAIL && !s->in.bytes) {
        if (mail) mail->peers[rank].lost = 1, mail->news = 1;
    } else if (kind < KINDS && s->in.bytes <= FRAME) {
        s->comes = (int)kind, s->in_left = s->in.bytes;
    } else {
        for (int k = 0; k < KINDS; k++)
            if (n->of[k] && !n->of[k]->fault.code) {
                ap_fail(&n->of[k]->fault, AP_TRANSPORT, "rank %u sent what is no message", rank);
                n->of[k]->news = 1;
            }
        s->over = s->deaf = 1;
    }
}

static void take_in(sockets *n, stream *s, const unsigned char *data, size_t bytes) {
    while (bytes && !(s->over && s->deaf)) {
        size_t part = s->in_left ? (size_t)s->in_left : sizeof(frame) - s->in_head;
        if (part > bytes) part = bytes;
        if (!s->in_left) {
            memcpy((unsigned char *)&s->in + s->in_head, data, part);
            s->in_head += (uint32_t)part;
            if (s->in_head == sizeof(frame)) frame_came(n, s);
        } else {
            flow *f = ap_sockets_flow(n, s, s->comes);
            s->in_left -= part;
            if (f) ap_sockets_take(n->of[s->comes], ap_sockets_rank(n, s), f, data, part); /* else all mail is over */
        }
        data += part, bytes -= part;
    }
}

/* Where the next bytes go: those of a long message to their place, and the heads behind it to the stage; of a long one that is
 * awaited the heads, so that the rest can; else as many as there are, so many at most. */
static size_t places(sockets *n, stream *s, size_t most, struct iovec *part) {
    const uint32_t rank = ap_sockets_rank(n, s);
    const size_t before = n->framed && !s->in_left ? sizeof(frame) - s->in_head : 0;
    const int kind = before ? CALLS : s->comes;
    socket_wire *w = n->of[kind];
    flow *f = ap_sockets_flow(n, s, kind);
    const peer *p = w ? &w->peers[rank] : NULL;
    part[0] = (struct iovec){n->stage, most};
    if (!f || !ap_sockets_wanted(w, p, f) || ap_sockets_ahead(f)) return 1;
    if (!f->coming) {
        if (p->receives.first && p->receives.first->bytes >= DIRECT) part[0].iov_len = before + sizeof(head) - f->head_bytes;
        return 1;
    }
    if (before || f->coming->bytes < DIRECT || !ap_sockets_widened(w, rank, f)) return 1;
    uint64_t room = f->coming->room - f->come;
    part[0] = (struct iovec){f->coming->data + f->come, room < s->in_left ? room : s->in_left};
    part[1] = (struct iovec){n->stage, (n->framed ? sizeof(frame) : 0) + sizeof(head)};
    return room >= s->in_left || (p->receives.first && f->coming->room == f->coming->bytes) ? 2 : 1;
}

/* Whether what comes by it next is of use now. */
static int of_use(const sockets *n, const stream *s) {
    const uint32_t rank = ap_sockets_rank(n, s);
    const socket_wire *mail = n->of[MAIL];
    const flow *f = ap_sockets_flow(n, s, CALLS), *m = ap_sockets_flow(n, s, MAIL);
    const peer *p = &n->of[CALLS]->peers[rank];
    if (s->over || (m && ap_sockets_ahead(m))) return 0; /* mail that must be looked at first */
    return ap_sockets_wanted(n->of[CALLS], p, f) || ap_sockets_starved(n->of[CALLS], p) ||
           (m && ap_mail_awaits(mail->base.mail, rank));
}

void ap_sockets_pull(sockets *n, stream *s, size_t most) {
    uint64_t come = 0; /* the lock is let go of after a frame, as others wait for it */
    do {
        struct iovec part[2] = {{0}};
        struct msghdr message = {.msg_iov = part, .msg_iovlen = places(n, s, most, part)};
        const int straight = part[0].iov_base != n->stage;
        const size_t asked = part[0].iov_len + (message.msg_iovlen > 1 ? part[1].iov_len : 0);
        ssize_t got = message.msg_iovlen > 1 ? recvmsg(s->fd, &message, MSG_DONTWAIT)
                                             : recv(s->fd, part->iov_base, part->iov_len, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (got <= 0) {
            ended(n, s, got < 0 ? errno : 0);
            return;
        }
        size_t rest = (size_t)got;
        come += rest;
        if (straight) {
            const size_t first = rest < part[0].iov_len ? rest : part[0].iov_len;
            socket_wire *w = n->of[s->comes];
            const uint32_t rank = ap_sockets_rank(n, s);
            s->in_left -= first, rest -= first;
            w->peers[rank].come_in += first, w->news = 1;
            ap_sockets_came(w, rank, ap_sockets_flow(n, s, s->comes), first);
        }
        take_in(n, s, n->stage, rest);
        if ((size_t)got < asked) return; /* nothing more is there now */
    } while ((!n->framed || come < FRAME) && of_use(n, s));
}

/* ---- which are looked at ---- */

/* So many bytes must come from this rank before anything that is wanted of it is complete. */
static uint64_t sure(const socket_wire *w, const peer *of, const flow *f) {
    if (f->coming) return f->coming->bytes - f->come;
    if (w->rails > 1) return 1;
    uint64_t fewest = of->receives.first->bytes;
    for (const letter *one = of->receives.first; one && fewest >= DIRECT; one = one->next)
        if (one->bytes < fewest) fewest = one->bytes;
    return fewest < DIRECT ? 1 : sizeof(head) - f->head_bytes + fewest;
}

/* Called before every wait: a socket that waited for more than comes would never report it. */
static void set_least(stream *s, uint64_t bytes) {
    int least = bytes < DIRECT || !s->patient ? 1 : bytes < MANY ? (int)bytes : MANY;
    if (least == s->least) return;
    if (setsockopt(s->fd, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least))
        s->patient = 0;
    else
        s->least = least;
}

/* What is wanted by it: by calls, of which many bytes may be waited for; or by who carries mail. */
static int wanted_by(sockets *n, stream *s, int kind) {
    const uint32_t rank = ap_sockets_rank(n, s);
    const socket_wire *w = n->of[kind];
    const peer *p = &w->peers[rank];
    const flow *f = ap_sockets_flow(n, s, kind), *m = ap_sockets_flow(n, s, MAIL);
    const int mail = m && ap_mail_awaits(n->of[MAIL]->base.mail, rank);
    if (!f) return 0;
    if (kind == MAIL) {
        if (!mail || p->lost || s->over) return 0;
        set_least(s, 1);
        return 1;
    }
    const int starved = ap_sockets_starved(w, p);
    if ((!starved && !ap_sockets_wanted(w, p, f)) || (s->over && ap_sockets_next(w, p) != f)) return 0;
    set_least(s, mail || starved ? 1 : sure(w, p, f));
    return 1;
}

static int goes_out(const sockets *n, const stream *s) {
    if (s->deaf) return 0;
    if (!n->framed) return ap_sockets_flow(n, s, CALLS)->sends.first != NULL;
    return s->out_head || s->out_left || can_go(n, s, CALLS) || can_go(n, s, MAIL) || s->last_mail;
}

void ap_sockets_watch(sockets *n, int kind, watch *k) {
    const socket_wire *w = n->of[kind];
    k->count = 0, k->held = 0;
    if (w->bell >= 0 && k == &w->slept) k->whose[0] = NULL, k->of[k->count++] = (struct pollfd){.fd = w->bell, .events = POLLIN};
    for (uint32_t i = 0; i < n->ranks * n->rails; i++) {
        stream *s = &n->streams[i];
        if (s->fd < 0) continue;
        const int in = wanted_by(n, s, kind);
        const short events = (short)((in ? POLLIN : 0) | (goes_out(n, s) ? POLLOUT : 0));
        if (!events) continue;
        k->held |= in && s->least > 1;
        k->whose[k->count] = s;
        k->of[k->count++] = (struct pollfd){.fd = s->fd, .events = events};
    }
}

void ap_sockets_attend(sockets *n, int kind, watch *k, int found, int look) {
    for (nfds_t i = 0; i < k->count && found >= 0; i++) {
        const short what = k->of[i].revents;
        stream *s = k->whose[i];
        if (!s && what) ap_sockets_hush(n->of[kind]);
        if (!s || s->fd < 0) continue;
        if (what & POLLIN || ((what || look) && k->of[i].events & POLLIN)) ap_sockets_pull(n, s, STAGE);
        if (what) ap_sockets_push(n, s);
    }
}
