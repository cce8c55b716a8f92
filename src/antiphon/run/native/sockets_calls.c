/* Over sockets: who has waited for long tells all others which call it is in, and looks what they are in. */
#include <sys/socket.h>

#include "sockets_types.h"

/* To all, once in a call: which it is. */
static int tell_all(socket_wire *w, ap_error *error) {
    int code = AP_OK;
    for (uint32_t r = 0; r < w->base.ranks && !code; r++) {
        if (w->peers[r].fd < 0) continue;
        letter *one = new_letter(&w->spare);
        if (!one) return ap_fail(error, AP_MEMORY, "out of memory");
        int idle = !w->peers[r].sends.first;
        one->head = (head){0, TELLS, 0, w->base.now};
        put(&w->peers[r].sends, one);
        if (idle) code = ap_sockets_push(w, r, error);
    }
    w->quiet = 1;
    return code;
}

/* What lies in the sockets of those of whom nothing is wanted tells it too. */
int ap_sockets_look_around(socket_wire *w, ap_error *error) {
    int code = w->quiet ? AP_OK : tell_all(w, error);
    for (uint32_t r = 0; r < w->base.ranks && !code; r++) {
        peer *p = &w->peers[r];
        if (p->fd < 0 || p->coming || p->head_bytes || ap_sockets_wanted(p)) continue;
        for (head next; !code && recv(p->fd, &next, sizeof next, MSG_PEEK | MSG_DONTWAIT) == sizeof next;) {
            next.call.rank = r;
            if (next.mark != TELLS && next.mark != MARK) break;
            code = next.mark == MARK && next.call.number < w->base.now.number
                       ? ap_compare(&w->base, &next.call, error)
                       : ap_compare_loosely(&w->base, &next.call, error);
            if (next.mark == MARK || recv(p->fd, &next, sizeof next, MSG_DONTWAIT) != sizeof next) break;
        }
    }
    w->moved = 0;
    return code;
}
