/* Over sockets: who has waited for long tells all others which call it is in, and looks what they are in. */
#include <string.h>

#include "sockets_types.h"

/* To all, once in a call: which it is. */
static int tell_all(socket_wire *w, ap_error *error) {
    for (uint32_t r = 0; r < w->base.ranks; r++) {
        if (w->peers[r].by->fd < 0) continue;
        letter *one = new_letter(&w->spare);
        if (!one) return ap_fail(error, AP_MEMORY, "out of memory");
        one->head = (head){0, TELLS, 0, w->base.now};
        ap_sockets_send(w, r, one);
    }
    w->quiet = 1;
    return AP_OK;
}

/* Of a message that nobody has asked for; `over`: this one's call is done. */
static int compare(socket_wire *w, const head *one, int over, ap_error *error) {
    uint64_t first = w->base.now.number + (over ? 1 : 0); /* what is for a later call may lie there */
    return one->call.number < first ? ap_compare(&w->base, &one->call, error)
                                    : ap_compare_loosely(&w->base, &one->call, error);
}

/* The next head from there, if it has come and nothing is wanted of him: what is missing of it is read. */
static int next_head(socket_wire *w, uint32_t rank, stream *s, head *next) {
    if (s->fd < 0 || s->coming || w->peers[rank].receives.first) return 0;
    *next = s->head;
    if (s->held) return 1;
    const size_t missing = sizeof *next - s->head_bytes;
    if (ap_sockets_ahead(s) < missing && !s->over) ap_sockets_pull(w, s, missing - ap_sockets_ahead(s));
    if (ap_sockets_ahead(s) < missing) return 0;
    memcpy((unsigned char *)next + s->head_bytes, s->ahead + s->first, missing);
    next->call.rank = rank;
    return 1;
}

/* What has come from one without being asked for tells which call he is in, or was. */
static int read_ahead(socket_wire *w, uint32_t rank, int over, ap_error *error) {
    peer *p = &w->peers[rank];
    int code = AP_OK;
    head next;
    for (const letter *one = p->aside.first; one && !code; one = one->next) code = compare(w, &one->head, over, error);
    while (!code && next_head(w, rank, ap_sockets_next(w, p), &next)) {
        stream *s = ap_sockets_next(w, p);
        if (next.mark == MARK) return compare(w, &next, over, error);
        if (next.mark != TELLS || s->held) break;
        ap_sockets_skip_head(w, p, s);
        code = ap_compare_loosely(&w->base, &next.call, error);
    }
    return code;
}

int ap_sockets_look_around(socket_wire *w, ap_error *error) {
    int code = w->quiet ? AP_OK : tell_all(w, error);
    for (uint32_t r = 0; r < w->base.ranks && !code; r++) code = read_ahead(w, r, 0, error);
    w->moved = 0;
    return code;
}

int ap_sockets_left(ap_wire *self, ap_error *error) {
    socket_wire *w = (socket_wire *)self;
    int code = AP_OK;
    for (uint32_t r = 0; r < self->ranks && !code; r++) code = read_ahead(w, r, 1, error);
    return code;
}
