/* Over sockets: who has waited for long tells all others which call it is in, and looks what they are in. */
#include <sys/socket.h>

#include "sockets_types.h"

/* To all, once in a call: which it is. */
static int tell_all(socket_wire *w, ap_error *error) {
    int code = AP_OK;
    for (uint32_t r = 0; r < w->base.ranks && !code; r++) {
        if (w->peers[r].rail->fd < 0) continue;
        letter *one = new_letter(&w->spare);
        if (!one) return ap_fail(error, AP_MEMORY, "out of memory");
        one->head = (head){0, TELLS, 0, w->base.now};
        code = ap_sockets_send(w, r, one, error);
    }
    w->quiet = 1;
    return code;
}

/* Of a message that nobody has asked for; `over`: this one's call is done. */
static int compare(socket_wire *w, const head *one, int over, ap_error *error) {
    uint64_t first = w->base.now.number + (over ? 1 : 0); /* what is for a later call may lie there */
    return one->call.number < first ? ap_compare(&w->base, &one->call, error)
                                    : ap_compare_loosely(&w->base, &one->call, error);
}

/* What has come from one without being asked for tells which call he is in, or was: what is kept aside, and, where nothing
 * is wanted of him, what lies in his socket. */
static int read_ahead(socket_wire *w, uint32_t rank, int over, ap_error *error) {
    peer *p = &w->peers[rank];
    int code = AP_OK;
    for (const letter *one = p->aside.first; one && !code; one = one->next) code = compare(w, &one->head, over, error);
    for (const stream *s = ap_sockets_next(w, p); !code; s = ap_sockets_next(w, p)) {
        head next = s->head;
        if (s->fd < 0 || s->coming || p->receives.first) break;
        if (!s->held && (s->head_bytes || recv(s->fd, &next, sizeof next, MSG_PEEK | MSG_DONTWAIT) != sizeof next)) break;
        next.call.rank = rank;
        if (next.mark == MARK) return compare(w, &next, over, error);
        if (next.mark != TELLS || s->held || recv(s->fd, &next, sizeof next, MSG_DONTWAIT) != sizeof next) break;
        next.call.rank = rank, p->next++;
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
    int code = AP_OK;
    for (uint32_t r = 0; r < self->ranks && !code; r++) code = read_ahead((socket_wire *)self, r, 1, error);
    return code;
}
