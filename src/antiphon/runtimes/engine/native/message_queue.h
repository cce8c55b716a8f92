/* Messages under way over a stream, and queues of them.
 *
 * Ownership: a message belongs to the queue that it is in, or to the list of spare ones. Threading: that of the wire.
 */
#ifndef ANTIPHON_MESSAGE_QUEUE_H
#define ANTIPHON_MESSAGE_QUEUE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "api.h"

/* What goes before the elements. */
typedef struct {
    uint32_t channel, mark;
    uint64_t bytes;
    ap_called call;
} head;

typedef struct message {
    struct message *next;
    unsigned char *data;      /* of a message set aside: its own memory */
    uint64_t bytes, capacity; /* capacity: of those received: bytes that there is memory for */
    uint32_t channel, number;
    head head;                /* of sends, and of those set aside */
    int complete, own_memory; /* set aside: has come in full; no receive has claimed it yet */
} message;

typedef struct {
    message *first, **end;
} queue;

/* One that is used again, or a new one; all zero. NULL: out of memory. */
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

/* The first of a channel, taken out; NULL if there is none. */
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

static inline void free_queue(queue *q, int own) {
    while (q->first) {
        message *m = pop_message(q);
        if (own) free(m->data);
        free(m);
    }
}

#endif
