/* The numbers of messages that are done, in the order in which they became so, until they are told. */
#ifndef ANTIPHON_DONE_H
#define ANTIPHON_DONE_H

#include <stdlib.h>

#include "transport.h"

typedef struct {
    uint32_t *number;
    size_t told, ready, space; /* from `told` up to `ready` */
} ap_done;

static inline int ap_done_any(const ap_done *d) { return d->told < d->ready; }

static inline int ap_done_add(ap_done *d, uint32_t number, ap_error *error) {
    if (d->told == d->ready) d->told = d->ready = 0;
    if (d->ready == d->space) {
        size_t space = d->space ? 2 * d->space : 256;
        uint32_t *more = realloc(d->number, space * sizeof *more);
        if (!more) return ap_fail(error, AP_MEMORY, "out of memory");
        d->number = more, d->space = space;
    }
    d->number[d->ready++] = number;
    return AP_OK;
}

/* `most` at most: how many there are. */
static inline int ap_done_take(ap_done *d, uint32_t *numbers, int most) {
    int count = 0;
    while (ap_done_any(d) && count < most) numbers[count++] = d->number[d->told++];
    return count;
}

#endif
