/* Messages that are under way over a stream, and queues of them. */
#ifndef AP_LETTERS_H
#define AP_LETTERS_H

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

typedef struct letter {
    struct letter *next;
    unsigned char *data; /* of a letter kept aside: its own */
    uint64_t bytes, room; /* room: of those that are received: bytes that there is memory for */
    uint32_t channel, number;
    head head;      /* of sends, and of what is kept aside */
    int whole, own; /* kept aside: has come in full; nobody has asked for it yet */
} letter;

typedef struct {
    letter *first, **end;
} queue;

/* One that is used again, or a new one; all zero. NULL: out of memory. */
static inline letter *new_letter(letter **spare) {
    letter *one = *spare;
    if (one)
        *spare = one->next;
    else
        one = malloc(sizeof *one);
    if (one) memset(one, 0, sizeof *one);
    return one;
}

static inline void drop(letter **spare, letter *one) { one->next = *spare, *spare = one; }

static inline void put(queue *q, letter *one) {
    one->next = NULL;
    *q->end = one;
    q->end = &one->next;
}

static inline letter *pop(queue *q) {
    letter *one = q->first;
    q->first = one->next;
    if (!q->first) q->end = &q->first;
    return one;
}

/* The first of a channel, taken out; NULL if there is none. */
static inline letter *take(queue *q, uint32_t channel) {
    for (letter **at = &q->first; *at; at = &(*at)->next)
        if ((*at)->channel == channel) {
            letter *one = *at;
            *at = one->next;
            if (!one->next) q->end = at;
            return one;
        }
    return NULL;
}

static inline void forget(queue *q, int own) {
    while (q->first) {
        letter *one = pop(q);
        if (own) free(one->data);
        free(one);
    }
}

#endif
