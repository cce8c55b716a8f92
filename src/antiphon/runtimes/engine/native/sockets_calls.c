/* Comparing calls over sockets: a process that has waited for long sends all others a note that names the call it is in, and
 * compares this call with those that their notes and messages name. A call is identified by an ap_call_id (api.h); calls are
 * numbered, alike at all processes.
 *
 * Threading: a wire is used by one thread at a time, so there are no locks.
 * Ownership: notes are messages without memory of their own.
 */
#include <string.h>

#include "sockets_types.h"

/* Sends all others a note with the call that this process is in; once per call. */
static int notify_all(socket_wire *w, ap_error *error) {
    for (uint32_t r = 0; r < w->base.ranks; r++) {
        if (w->peers[r].by_rail[0].fd < 0) continue; /* not connected, as to this process itself */
        message *note = new_message(&w->spare);
        if (!note) return ap_fail(error, AP_MEMORY, "out of memory");
        note->head = (head){.channel = 0, .mark = NOTE, .bytes = 0, .call = w->base.current_call};
        ap_sockets_send(w, r, note);
    }
    w->has_notified = 1;
    return AP_OK;
}

/* Compares the head of a message that no receive was posted for. `call_done`: this process has completed its call. The sender may
 * be ahead, so a head of the next call or a later one is compared loosely: only with a call of the same number (transport.h). */
static int compare_head(socket_wire *w, const head *other, int call_done, ap_error *error) {
    uint64_t next = w->base.current_call.number + (call_done ? 1 : 0);
    return other->call.number < next ? ap_compare(&w->base, &other->call, error)
                                     : ap_compare_loosely(&w->base, &other->call, error);
}

/* Puts the next head from a rank into *next; 0 if it has not arrived, or a receive from that rank is open: then the socket is
 * read anyhow, and place_message (sockets_streams.c) compares the head. */
static int next_head(socket_wire *w, uint32_t rank, stream *s, head *next) {
    if (s->fd < 0 || s->incoming || w->peers[rank].receives.first) return 0;
    *next = s->head;
    if (!s->out_of_order) { /* else the head has arrived as a whole, and waits for its turn (sockets_types.h) */
        const size_t missing = sizeof *next - s->head_bytes;
        const size_t ahead = ap_sockets_bytes_ahead(s);
        if (ahead < missing && !s->ended) ap_sockets_pull(w, s, missing - ahead);
        if (ap_sockets_bytes_ahead(s) < missing) return 0;
        memcpy((unsigned char *)next + s->head_bytes, s->ahead + s->first, missing);
    }
    next->call.rank = rank; /* as place_message does: errors name the sender by its connection, not as it says */
    return 1;
}

/* Compares the calls that messages and notes of a rank name; an error if one is another call. Messages stay unread, for later
 * receives; notes are dropped. */
static int read_ahead(socket_wire *w, uint32_t rank, int call_done, ap_error *error) {
    peer *p = &w->peers[rank];
    int code = AP_OK;
    head next;
    for (const message *aside = p->aside.first; aside && !code; aside = aside->next)
        code = compare_head(w, &aside->head, call_done, error);
    while (!code && next_head(w, rank, ap_sockets_next_stream(w, p), &next)) {
        stream *s = ap_sockets_next_stream(w, p);
        if (next.mark == MESSAGE) return compare_head(w, &next, call_done, error);
        /* a note that came out of order is not among the bytes ahead: place_message takes it, once a receive is open */
        if (next.mark != NOTE || s->out_of_order) break;
        ap_sockets_skip_head(w, p, s);
        code = ap_compare_loosely(&w->base, &next.call, error);
    }
    return code;
}

/* Called after some time without progress: an error if another process is in another call. */
int ap_sockets_check_members(socket_wire *w, ap_error *error) {
    int code = w->has_notified ? AP_OK : notify_all(w, error);
    for (uint32_t r = 0; r < w->base.ranks && !code; r++) code = read_ahead(w, r, /* call_done */ 0, error);
    w->moved = 0; /* notes are no progress of the call, so they must not extend its timeout */
    return code;
}

/* Called before closing: an error if a message of a past call has arrived that no receive took. */
int ap_sockets_check_unreceived(ap_wire *self, ap_error *error) {
    socket_wire *w = (socket_wire *)self;
    int code = AP_OK;
    for (uint32_t r = 0; r < self->ranks && !code; r++) code = read_ahead(w, r, /* call_done */ 1, error);
    return code;
}
