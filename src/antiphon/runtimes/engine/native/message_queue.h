/* Messages under way over a stream socket, and queues of them (first in, first out).
 *
 * Ownership: a message belongs to the queue that it is in, or to the list of spare ones. Threading: that of the wire.
 */
#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "api.h"

/* The header that is sent before the elements of a message. `mark`: message, or note: it has no elements and only
 * names the call that its sender is in (sockets_types.h). */
typedef struct {
    uint32_t channel, mark;
    uint64_t bytes;
    ap_call_id call;
} head;

typedef struct message {
    struct message *next;
    unsigned char *data;      /* the caller's; own memory if it is set aside: received before a receive was posted for it */
    uint64_t bytes, capacity; /* capacity: bytes of memory at `data`, if it is received */
    uint32_t channel, number; /* number: the engine's; reported when the message is done */
    head head;                /* of sends, and of messages set aside */
    /* of messages set aside. complete: all bytes have arrived; own_memory: `data` is from malloc, no receive has
     * claimed it */
    int complete, own_memory;
} message;

typedef struct {
    message *first, **end; /* end: the pointer to set to the next message: `first`, or `next` of the last one */
} queue;

/* A message from the list of spare ones, or from malloc; all zero. NULL: out of memory. */
static inline message *new_message(message **spare) {
    message *m = *spare;
    if (m)
        *spare = m->next;
    else
        m = malloc(sizeof *m);
    if (m) memset(m, 0, sizeof *m);
    return m;
}

static inline void recycle_message(message **spare, message *m) { m->next = *spare, *spare = m; }

static inline void push_message(queue *q, message *m) {
    m->next = NULL;
    *q->end = m;
    q->end = &m->next;
}

static inline message *pop_message(queue *q) {
    message *m = q->first;
    q->first = m->next;
    if (!q->first) q->end = &q->first;
    return m;
}

/* Removes and returns the first message on a channel; NULL if there is none. */
static inline message *take_from_channel(queue *q, uint32_t channel) {
    for (message **at = &q->first; *at; at = &(*at)->next)
        if ((*at)->channel == channel) {
            message *m = *at;
            *at = m->next;
            if (!m->next) q->end = at;
            return m;
        }
    return NULL;
}

/* Frees all messages of a queue. `own`: it owns their data, too. */
static inline void free_queue(queue *q, int own) {
    while (q->first) {
        message *m = pop_message(q);
        if (own) free(m->data);
        free(m);
    }
}
