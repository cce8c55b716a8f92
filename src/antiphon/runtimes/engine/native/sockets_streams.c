/* What has come by a socket for one wire: where its bytes belong, and what stays ahead until somebody wants it. */
#include <stdlib.h>
#include <string.h>

#include "sockets_types.h"

void ap_sockets_gone(socket_wire *w, uint32_t rank, int why) {
    if (w->fault.code) return;
    ap_fail(&w->fault, AP_TRANSPORT, "the connection to rank %u is lost: %s", rank, why ? strerror(why) : "it has been closed");
    w->news = 1;
}

int ap_sockets_unfit(uint32_t rank, uint64_t come, uint64_t wanted, ap_error *error) {
    return ap_fail(error, AP_TRANSPORT, "rank %u sent a message of %llu bytes where %llu are expected", rank,
                   (unsigned long long)come, (unsigned long long)wanted);
}

void ap_sockets_asked(socket_wire *w, peer *p, uint64_t bytes) {
    if (!w->on->framed || w->kind != CALLS) return;
    p->asked += bytes;
    if (p->asked >= ROOM / 2) w->on->owing = 1;
}

/* The message that was coming is there. */
static void end_message(socket_wire *w, flow *f) {
    letter *one = f->coming;
    f->coming = NULL;
    if (one->own) {
        one->whole = 1;
        return;
    }
    ap_done_add(&w->done, one->number, &w->fault);
    drop(&w->spare, one);
    w->news = 1;
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

int ap_sockets_widened(socket_wire *w, uint32_t rank, flow *f) {
    letter *one = f->coming;
    return f->come < one->room || one->room == one->bytes || !widen(w, rank, one, one->bytes);
}

/* Nobody has asked for it yet, but it is in the way of something that was. */
static void put_aside(socket_wire *w, uint32_t rank, flow *f) {
    peer *p = &w->peers[rank];
    letter *one = new_letter(&w->spare);
    if (!one) {
        ap_fail(&w->fault, AP_MEMORY, "out of memory");
        return;
    }
    one->bytes = f->head.bytes, one->channel = f->head.channel, one->own = 1, one->head = f->head;
    put(&p->aside, one);
    f->coming = one, p->kept += sizeof *one;
    ap_sockets_asked(w, p, sizeof(head) + one->bytes);
    widen(w, rank, one, one->bytes < STAGE ? one->bytes : STAGE);
}

/* The next head is there: where do its elements go? */
static void place(socket_wire *w, uint32_t rank, flow *f) {
    peer *p = &w->peers[rank];
    f->held = 0, p->next++, f->head_bytes = 0, f->come = 0, w->roused |= w->rails > 1;
    f->head.call.rank = rank;
    if (f->head.mark == TELLS) {
        ap_sockets_asked(w, p, sizeof(head));
        ap_compare_loosely(&w->base, &f->head.call, &w->fault);
        return;
    }
    /* with a receive open, what is for a later call cannot come yet */
    if ((p->receives.first || f->head.call.number < w->base.now.number) && ap_compare(&w->base, &f->head.call, &w->fault)) return;
    f->coming = take(&p->receives, f->head.channel);
    if (!f->coming)
        put_aside(w, rank, f);
    else if (f->coming->bytes != f->head.bytes)
        ap_sockets_unfit(rank, f->head.bytes, f->coming->bytes, &w->fault);
    if (!w->fault.code && !f->head.bytes) end_message(w, f);
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
static void head_came(socket_wire *w, uint32_t rank, flow *f, size_t bytes) {
    peer *p = &w->peers[rank];
    f->head_bytes += (uint32_t)bytes;
    if (f->head_bytes >= offsetof(head, bytes) && f->head.mark != MARK && f->head.mark != TELLS) {
        ap_fail(&w->fault, AP_TRANSPORT, "rank %u sent what is no message", rank);
        return;
    }
    if (f->head_bytes < sizeof(head)) return;
    f->held = ap_sockets_next(w, p) != f;
    if (!f->held) place(w, rank, f);
    place_held(w, rank);
}

void ap_sockets_came(socket_wire *w, uint32_t rank, flow *f, size_t bytes) {
    (void)rank;
    w->moved = 1, f->come += bytes;
    if (f->come == f->coming->bytes) end_message(w, f);
}

/* As many of these bytes as are wanted. */
static size_t digest(socket_wire *w, uint32_t rank, flow *f, const unsigned char *data, size_t bytes) {
    const peer *p = &w->peers[rank];
    size_t taken = 0;
    while (taken < bytes && ap_sockets_wanted(w, p, f)) {
        letter *one = f->coming;
        if (one && !ap_sockets_widened(w, rank, f)) break;
        size_t n = one ? (size_t)(one->room - f->come) : sizeof(head) - f->head_bytes;
        if (n > bytes - taken) n = bytes - taken;
        memcpy(one ? one->data + f->come : (unsigned char *)&f->head + f->head_bytes, data + taken, n);
        taken += n, w->moved = 1;
        if (one)
            ap_sockets_came(w, rank, f, n);
        else
            head_came(w, rank, f, n);
    }
    return taken;
}

/* Until it is wanted. */
static void keep(socket_wire *w, uint32_t rank, flow *f, const unsigned char *data, size_t bytes) {
    const size_t ahead = ap_sockets_ahead(f);
    if (bytes > w->most || ahead > w->most - bytes) {
        ap_fail(&w->fault, AP_TRANSPORT, "rank %u sent more than it was asked for", rank);
        return;
    }
    if (f->last + bytes > f->space && f->first) memmove(f->ahead, f->ahead + f->first, ahead), f->first = 0, f->last = ahead;
    if (f->last + bytes > f->space) {
        size_t space = 2 * f->space > ahead + bytes ? 2 * f->space : ahead + bytes;
        unsigned char *more = realloc(f->ahead, space);
        if (!more) {
            ap_fail(&w->fault, AP_MEMORY, "no memory for %zu bytes that came ahead", space);
            return;
        }
        w->aheads += !f->ahead;
        f->ahead = more, f->space = space;
    }
    memcpy(f->ahead + f->last, data, bytes);
    f->last += bytes;
}

void ap_sockets_take(socket_wire *w, uint32_t rank, flow *f, const unsigned char *data, size_t bytes) {
    peer *p = &w->peers[rank];
    if (w->fault.code || p->lost) return; /* nobody wants it any more */
    p->come_in += bytes;
    size_t taken = ap_sockets_ahead(f) ? 0 : digest(w, rank, f, data, bytes);
    if (taken < bytes && !w->fault.code) keep(w, rank, f, data + taken, bytes - taken);
    w->news = 1;
}

void ap_sockets_skip_head(socket_wire *w, peer *p, flow *f) {
    ap_sockets_asked(w, p, sizeof(head));
    f->first += sizeof(head) - f->head_bytes;
    f->head_bytes = 0, p->next++;
    if (!ap_sockets_ahead(f)) ap_sockets_forget_ahead(w, f);
}

void ap_sockets_forget_ahead(socket_wire *w, flow *f) {
    if (!f->ahead) return;
    free(f->ahead);
    f->ahead = NULL, f->first = f->last = f->space = 0, w->aheads--;
}

static int settle_flow(socket_wire *w, uint32_t rank, flow *f) {
    if (!ap_sockets_ahead(f) || !ap_sockets_wanted(w, &w->peers[rank], f)) return 0;
    f->first += digest(w, rank, f, f->ahead + f->first, ap_sockets_ahead(f));
    if (!ap_sockets_ahead(f)) ap_sockets_forget_ahead(w, f);
    return 1;
}

void ap_sockets_settle(socket_wire *w) {
    for (int some = w->rails > 1 || w->aheads; some && !w->fault.code;) {
        some = 0;
        for (uint32_t r = 0; r < w->base.ranks; r++) {
            some |= w->rails > 1 && place_held(w, r);
            for (uint32_t k = 0; k < w->rails && w->aheads; k++) some |= settle_flow(w, r, &w->peers[r].by[k]);
        }
    }
}
