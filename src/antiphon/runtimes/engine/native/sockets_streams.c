/* What has come by a socket for one wire: where its bytes belong, and what stays ahead until somebody wants it. */
#include <stdlib.h>
#include <string.h>

#include "sockets_types.h"

void ap_sockets_gone(socket_wire *w, uint32_t rank, int why) {
    if (w->fault.code) return;
    ap_fail(&w->fault, AP_TRANSPORT, "the connection to rank %u is lost: %s", rank, why ? strerror(why) : "it has been closed");
}

int ap_sockets_unfit(uint32_t rank, uint64_t come, uint64_t wanted, ap_error *error) {
    return ap_fail(error, AP_TRANSPORT, "rank %u sent a message of %llu bytes where %llu are expected", rank,
                   (unsigned long long)come, (unsigned long long)wanted);
}

/* The message that was coming is there. */
static void end_message(socket_wire *w, stream *s) {
    letter *one = s->coming;
    s->coming = NULL;
    if (one->own) {
        one->whole = 1;
        return;
    }
    ap_done_add(&w->done, one->number, &w->fault);
    drop(&w->spare, one);
}

/* Room for so many bytes of what is coming and kept aside: never more than can be meant for this run. */
static int widen(socket_wire *w, uint32_t rank, letter *one, uint64_t bytes) {
    peer *p = &w->peers[rank];
    uint64_t most = w->base.expected + BEYOND, others = p->kept - one->room;
    if (others > most || bytes > most - others)
        return ap_fail(&w->fault, AP_TRANSPORT, "rank %u sent a message of %llu bytes that nobody expects", rank,
                       (unsigned long long)one->bytes);
    unsigned char *data = realloc(one->data, bytes ? bytes : 1);
    if (!data) return ap_fail(&w->fault, AP_MEMORY, "no memory for a message of %llu bytes", (unsigned long long)bytes);
    one->data = data, p->kept = others + bytes, one->room = bytes;
    return AP_OK;
}

int ap_sockets_widened(socket_wire *w, uint32_t rank, stream *s) {
    letter *one = s->coming;
    return s->come < one->room || one->room == one->bytes || !widen(w, rank, one, one->bytes);
}

/* Nobody has asked for it yet, but it is in the way of something that was. */
static void put_aside(socket_wire *w, uint32_t rank, stream *s) {
    peer *p = &w->peers[rank];
    letter *one = new_letter(&w->spare);
    if (!one) {
        ap_fail(&w->fault, AP_MEMORY, "out of memory");
        return;
    }
    one->bytes = s->head.bytes, one->channel = s->head.channel, one->own = 1, one->head = s->head;
    put(&p->aside, one);
    s->coming = one, p->kept += sizeof *one;
    widen(w, rank, one, one->bytes < STAGE ? one->bytes : STAGE);
}

/* The next head is there: where do its elements go? */
static void place(socket_wire *w, uint32_t rank, stream *s) {
    peer *p = &w->peers[rank];
    s->held = 0, p->next++, s->head_bytes = 0, s->come = 0;
    s->head.call.rank = rank;
    if (s->head.mark == TELLS) {
        ap_compare_loosely(&w->base, &s->head.call, &w->fault);
        return;
    }
    /* with a receive open, what is for a later call cannot come yet */
    if ((p->receives.first || s->head.call.number < w->base.now.number) && ap_compare(&w->base, &s->head.call, &w->fault)) return;
    s->coming = take(&p->receives, s->head.channel);
    if (!s->coming)
        put_aside(w, rank, s);
    else if (s->coming->bytes != s->head.bytes)
        ap_sockets_unfit(rank, s->head.bytes, s->coming->bytes, &w->fault);
    if (!w->fault.code && !s->head.bytes) end_message(w, s);
}

/* Heads that came before those which were sent before them: whether there were any. */
static int place_held(socket_wire *w, uint32_t rank) {
    peer *p = &w->peers[rank];
    int some = 0;
    for (; !w->fault.code && p->receives.first && ap_sockets_next(w, p)->held; some = 1)
        place(w, rank, ap_sockets_next(w, p)), w->moved = 1;
    return some;
}

/* Some of a head has come. */
static void head_came(socket_wire *w, uint32_t rank, stream *s, size_t bytes) {
    peer *p = &w->peers[rank];
    s->head_bytes += (uint32_t)bytes;
    if (s->head_bytes >= offsetof(head, bytes) && s->head.mark != MARK && s->head.mark != TELLS) {
        ap_fail(&w->fault, AP_TRANSPORT, "rank %u sent what is no message", rank);
        return;
    }
    if (s->head_bytes < sizeof(head)) return;
    s->held = ap_sockets_next(w, p) != s;
    if (!s->held) place(w, rank, s);
    place_held(w, rank);
}

void ap_sockets_came(socket_wire *w, stream *s, size_t bytes) {
    w->moved = 1, s->come += bytes;
    if (s->come == s->coming->bytes) end_message(w, s);
}

/* As many of these bytes as are wanted. */
static size_t digest(socket_wire *w, uint32_t rank, stream *s, const unsigned char *data, size_t bytes) {
    const peer *p = &w->peers[rank];
    size_t taken = 0;
    while (taken < bytes && ap_sockets_wanted(w, p, s)) {
        letter *one = s->coming;
        if (one && !ap_sockets_widened(w, rank, s)) break;
        size_t n = one ? (size_t)(one->room - s->come) : sizeof(head) - s->head_bytes;
        if (n > bytes - taken) n = bytes - taken;
        memcpy(one ? one->data + s->come : (unsigned char *)&s->head + s->head_bytes, data + taken, n);
        taken += n, w->moved = 1;
        if (one)
            ap_sockets_came(w, s, n);
        else
            head_came(w, rank, s, n);
    }
    return taken;
}

/* Until it is wanted. */
static void keep(socket_wire *w, stream *s, const unsigned char *data, size_t bytes) {
    const size_t ahead = ap_sockets_ahead(s);
    if (s->last + bytes > s->space && s->first) memmove(s->ahead, s->ahead + s->first, ahead), s->first = 0, s->last = ahead;
    if (s->last + bytes > s->space) {
        size_t space = 2 * s->space > ahead + bytes ? 2 * s->space : ahead + bytes;
        unsigned char *more = realloc(s->ahead, space);
        if (!more) {
            ap_fail(&w->fault, AP_MEMORY, "no memory for %zu bytes that came ahead", space);
            return;
        }
        w->aheads += !s->ahead;
        s->ahead = more, s->space = space;
    }
    memcpy(s->ahead + s->last, data, bytes);
    s->last += bytes;
}

void ap_sockets_take(socket_wire *w, stream *s, const unsigned char *data, size_t bytes) {
    const uint32_t rank = ap_sockets_rank(w, s);
    if (w->fault.code) return; /* nobody wants it any more */
    size_t taken = ap_sockets_ahead(s) ? 0 : digest(w, rank, s, data, bytes);
    if (taken < bytes && !w->fault.code) keep(w, s, data + taken, bytes - taken);
}

static void forget_ahead(socket_wire *w, stream *s) {
    if (!s->ahead) return;
    free(s->ahead);
    s->ahead = NULL, s->first = s->last = s->space = 0, w->aheads--;
}

void ap_sockets_skip_head(socket_wire *w, peer *p, stream *s) {
    s->first += sizeof(head) - s->head_bytes;
    s->head_bytes = 0, p->next++;
    if (!ap_sockets_ahead(s)) forget_ahead(w, s);
}

static int settle_stream(socket_wire *w, uint32_t rank, stream *s) {
    if (!ap_sockets_ahead(s) || !ap_sockets_wanted(w, &w->peers[rank], s)) return 0;
    s->first += digest(w, rank, s, s->ahead + s->first, ap_sockets_ahead(s));
    if (!ap_sockets_ahead(s)) forget_ahead(w, s);
    return 1;
}

void ap_sockets_settle(socket_wire *w) {
    for (int some = w->rails > 1 || w->aheads; some && !w->fault.code;) {
        some = 0;
        for (uint32_t r = 0; r < w->base.ranks; r++) {
            some |= w->rails > 1 && place_held(w, r);
            for (uint32_t k = 0; k < w->rails && w->aheads; k++) some |= settle_stream(w, r, &w->peers[r].by[k]);
        }
    }
}
