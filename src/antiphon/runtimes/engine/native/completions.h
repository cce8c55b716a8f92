/* A queue of the numbers of completed messages, in order of completion, from a transport to the engine.
 *
 * Threading: that of its wire: one thread at a time. Ownership: the array belongs to the transport, which frees `number`.
 */
#pragma once

#include <stdlib.h>

#include "transport.h"

typedef struct {
    uint32_t *number;
    size_t first, end, space; /* the queue is number[first] to number[end - 1]; room for `space` */
} ap_completions;

static inline int ap_completions_any(const ap_completions *d) { return d->first < d->end; }

static inline int ap_completions_add(ap_completions *d, uint32_t number, ap_error *error) {
    if (d->first == d->end) d->first = d->end = 0;
    if (d->end == d->space) {
        size_t space = d->space ? 2 * d->space : 256;
        uint32_t *larger = realloc(d->number, space * sizeof *larger);
        if (!larger) return ap_fail(error, AP_MEMORY, "out of memory");
        d->number = larger, d->space = space;
    }
    d->number[d->end++] = number;
    return AP_OK;
}

/* Takes the oldest out, at most `capacity` of them; returns their count. */
static inline int ap_completions_take(ap_completions *d, uint32_t *numbers, int capacity) {
    int count = 0;
    while (ap_completions_any(d) && count < capacity) numbers[count++] = d->number[d->first++];
    return count;
}
