/* Distributes bytes that have arrived by a socket: to the head of the next message, to the memory of the message that is
 * arriving, or to `ahead`, if no receive wants them yet (sockets_types.h: stream). sockets_io.c calls.
 *
 * Threading: a wire is used by one thread at a time, so there are no locks.
 * Ownership: messages set aside own their memory, streams that of bytes read ahead.
 */
#include <stdlib.h>
#include <string.h>

#include "sockets_types.h"

/* Sets the fault of the wire, unless it has one. `error_number`: an errno; 0: the other end has closed the socket. */
void ap_sockets_report_lost(socket_wire *w, uint32_t rank, int error_number) {
    if (w->fault.code) return;
    ap_fail(&w->fault, AP_TRANSPORT, "the connection to rank %u is lost: %s", rank,
            error_number ? strerror(error_number) : "it has been closed");
}

int ap_sockets_report_length(uint32_t rank, uint64_t received, uint64_t expected, ap_error *error) {
    return ap_fail(error, AP_TRANSPORT, "rank %u sent a message of %llu bytes where %llu are expected", rank,
                   (unsigned long long)received, (unsigned long long)expected);
}

/* Ends the arriving message, which is complete: reports it, unless it was set aside. */
static void end_message(socket_wire *w, stream *s) {
    message *m = s->incoming;
    s->incoming = NULL;
    if (m->own_memory) {
        m->complete = 1;
        return;
    }
    ap_completions_add(&w->done, m->number, &w->fault);
    recycle_message(&w->spare, m);
}

/* Allocates memory for `bytes` of a message that is set aside while it arrives: never more than a message of this run can need.
 * AP_OK, or the code of the wire's fault. */
static int widen_message(socket_wire *w, uint32_t rank, message *m, uint64_t bytes) {
    peer *p = &w->peers[rank];
    uint64_t max_bytes = w->base.expected + BEYOND, other_bytes = p->aside_bytes - m->capacity;
    if (other_bytes > max_bytes || bytes > max_bytes - other_bytes)
        return ap_fail(&w->fault, AP_TRANSPORT, "rank %u sent a message of %llu bytes that nobody expects", rank,
                       (unsigned long long)m->bytes);
    unsigned char *data = realloc(m->data, bytes ? bytes : 1);
    if (!data) return ap_fail(&w->fault, AP_MEMORY, "no memory for a message of %llu bytes", (unsigned long long)bytes);
    m->data = data, p->aside_bytes = other_bytes + bytes, m->capacity = bytes;
    return AP_OK;
}

/* Whether there is memory for more of the arriving message; allocates all of it for one that was set aside with
 * less. */
int ap_sockets_make_room(socket_wire *w, uint32_t rank, stream *s) {
    message *m = s->incoming;
    return s->received < m->capacity || m->capacity == m->bytes || !widen_message(w, rank, m, m->bytes);
}

/* Sets the arriving message aside: no receive was posted for it, but messages behind it may have one. */
static void set_aside(socket_wire *w, uint32_t rank, stream *s) {
    peer *p = &w->peers[rank];
    message *m = new_message(&w->spare);
    if (!m) {
        ap_fail(&w->fault, AP_MEMORY, "out of memory");
        return;
    }
    m->bytes = s->head.bytes, m->channel = s->head.channel, m->own_memory = 1, m->head = s->head;
    push_message(&p->aside, m);
    s->incoming = m, p->aside_bytes += sizeof *m;
    widen_message(w, rank, m, m->bytes < STAGE ? m->bytes : STAGE);
}

/* Chooses where the elements of the arriving message go, once its head is complete. */
static void place_message(socket_wire *w, uint32_t rank, stream *s) {
    peer *p = &w->peers[rank];
    s->out_of_order = 0, p->received_count++, s->head_bytes = 0, s->received = 0;
    s->head.call.rank = rank; /* errors name the sender by its connection, not by what it says */
    if (s->head.mark == NOTE) {
        ap_compare_loosely(&w->base, &s->head.call, &w->fault);
        return;
    }
    /* while a receive is open, no message of a later call can arrive: its sender first sends the one for the receive */
    if ((p->receives.first || s->head.call.number < w->base.current_call.number) && ap_compare(&w->base, &s->head.call, &w->fault))
        return;
    s->incoming = take_from_channel(&p->receives, s->head.channel);
    if (!s->incoming)
        set_aside(w, rank, s);
    else if (s->incoming->bytes != s->head.bytes)
        ap_sockets_report_length(rank, s->head.bytes, s->incoming->bytes, &w->fault);
    if (!w->fault.code && !s->head.bytes) end_message(w, s);
}

/* Handles heads that arrived before others that had been sent earlier; returns whether there were any. */
static int place_out_of_order(socket_wire *w, uint32_t rank) {
    peer *p = &w->peers[rank];
    int progress = 0;
    for (; !w->fault.code && p->receives.first && ap_sockets_next_stream(w, p)->out_of_order; progress = 1)
        place_message(w, rank, ap_sockets_next_stream(w, p)), w->moved = 1;
    return progress;
}

/* Counts bytes of a head that have arrived, and acts on it when it is complete. */
static void accept_head_bytes(socket_wire *w, uint32_t rank, stream *s, size_t bytes) {
    peer *p = &w->peers[rank];
    s->head_bytes += (uint32_t)bytes;
    /* `mark` lies before `bytes`: it has arrived */
    if (s->head_bytes >= offsetof(head, bytes) && s->head.mark != MESSAGE && s->head.mark != NOTE) {
        ap_fail(&w->fault, AP_TRANSPORT, "rank %u sent what is no message", rank);
        return;
    }
    if (s->head_bytes < sizeof(head)) return;
    s->out_of_order = ap_sockets_next_stream(w, p) != s;
    if (!s->out_of_order) place_message(w, rank, s);
    place_out_of_order(w, rank);
}

/* Counts bytes that are now in the memory of the arriving message. */
void ap_sockets_count_received(socket_wire *w, stream *s, size_t bytes) {
    w->moved = 1, s->received += bytes;
    if (s->received == s->incoming->bytes) end_message(w, s);
}

/* Uses these bytes as far as they are wanted; returns the number of those used. */
static size_t use_bytes(socket_wire *w, uint32_t rank, stream *s, const unsigned char *data, size_t bytes) {
    const peer *p = &w->peers[rank];
    size_t used = 0;
    while (used < bytes && ap_sockets_is_wanted(w, p, s)) {
        message *m = s->incoming;
        if (m && !ap_sockets_make_room(w, rank, s)) break;
        size_t n = m ? (size_t)(m->capacity - s->received) : sizeof(head) - s->head_bytes;
        if (n > bytes - used) n = bytes - used;
        memcpy(m ? m->data + s->received : (unsigned char *)&s->head + s->head_bytes, data + used, n);
        used += n, w->moved = 1;
        if (m)
            ap_sockets_count_received(w, s, n);
        else
            accept_head_bytes(w, rank, s, n);
    }
    return used;
}

/* Stores bytes until they are wanted. */
static void store_ahead(socket_wire *w, stream *s, const unsigned char *data, size_t bytes) {
    const size_t ahead = ap_sockets_bytes_ahead(s);
    if (s->last + bytes > s->space && s->first) memmove(s->ahead, s->ahead + s->first, ahead), s->first = 0, s->last = ahead;
    if (s->last + bytes > s->space) {
        size_t space = 2 * s->space > ahead + bytes ? 2 * s->space : ahead + bytes;
        unsigned char *larger = realloc(s->ahead, space);
        if (!larger) {
            ap_fail(&w->fault, AP_MEMORY, "no memory for %zu bytes that came ahead", space);
            return;
        }
        w->streams_ahead += !s->ahead;
        s->ahead = larger, s->space = space;
    }
    memcpy(s->ahead + s->last, data, bytes);
    s->last += bytes;
}

/* Takes bytes that were read from a socket: uses those that are wanted, and stores the others. */
void ap_sockets_take(socket_wire *w, stream *s, const unsigned char *data, size_t bytes) {
    const uint32_t rank = ap_sockets_rank(w, s);
    if (w->fault.code) return; /* no receive is valid any more */
    /* bytes behind others that are stored ahead are stored, too */
    size_t used = ap_sockets_bytes_ahead(s) ? 0 : use_bytes(w, rank, s, data, bytes);
    if (used < bytes && !w->fault.code) store_ahead(w, s, data + used, bytes - used);
}

/* Frees the memory for bytes ahead. */
static void free_ahead(socket_wire *w, stream *s) {
    if (!s->ahead) return;
    free(s->ahead);
    s->ahead = NULL, s->first = s->last = s->space = 0, w->streams_ahead--;
}

/* Drops the next head, that of a note, whose missing bytes are all among the bytes ahead. */
void ap_sockets_skip_head(socket_wire *w, peer *p, stream *s) {
    s->first += sizeof(head) - s->head_bytes;
    s->head_bytes = 0, p->received_count++;
    if (!ap_sockets_bytes_ahead(s)) free_ahead(w, s);
}

/* Uses the bytes ahead of a stream, if they are wanted by now; returns whether it did. */
static int use_ahead(socket_wire *w, uint32_t rank, stream *s) {
    if (!ap_sockets_bytes_ahead(s) || !ap_sockets_is_wanted(w, &w->peers[rank], s)) return 0;
    s->first += use_bytes(w, rank, s, s->ahead + s->first, ap_sockets_bytes_ahead(s));
    if (!ap_sockets_bytes_ahead(s)) free_ahead(w, s);
    return 1;
}

/* Uses the bytes ahead of all streams as far as they are wanted by now. */
void ap_sockets_use_ahead(socket_wire *w) {
    for (int progress = w->rails > 1 || w->streams_ahead; progress && !w->fault.code;) {
        progress = 0;
        for (uint32_t r = 0; r < w->base.ranks; r++) {
            progress |= w->rails > 1 && place_out_of_order(w, r);
            for (uint32_t k = 0; k < w->rails && w->streams_ahead; k++) progress |= use_ahead(w, r, &w->peers[r].by_rail[k]);
        }
    }
}
