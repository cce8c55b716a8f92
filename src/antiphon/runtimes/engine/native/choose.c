/* Choosing the page of a call. */
#include "choose.h"

#include <stdlib.h>

struct ap_chooser {
    size_t ways;     /* of one kind: its roots, and none */
    uint32_t *first; /* for each kind and way where its numbers begin, and where the last ones end */
    uint32_t *number;
    ap_range *range;
};

int ap_range_of(const ap_page *page, const int32_t *rank_of, uint32_t count, ap_range *range) {
    if (page->members != count) return 0;
    *range = (ap_range){.kind = page->kind, .root = -1, .start = page->start, .stop = page->stop};
    for (uint32_t i = 0; i < count; i++) {
        if (page->member[i] != rank_of[i]) return 0;
        if (page->root >= 0 && page->root == rank_of[i]) range->root = (int32_t)i;
    }
    return 1;
}

static size_t way(const ap_chooser *chooser, uint32_t kind, int32_t root) {
    return chooser->ways * kind + (size_t)(root + 1);
}

/* The numbers of the ranges by kind and root, those of each in the order given. */
ap_chooser *ap_chooser_open(const ap_range *range, uint32_t count, uint32_t roots) {
    ap_chooser *made = calloc(1, sizeof *made);
    if (!made) return NULL;
    made->ways = (size_t)roots + 1;
    size_t all = made->ways * AP_KINDS;
    made->first = calloc(all + 2, sizeof *made->first);
    made->number = calloc(count + 1ul, sizeof *made->number);
    made->range = calloc(count + 1ul, sizeof *made->range);
    if (!made->first || !made->number || !made->range) {
        ap_chooser_close(made);
        return NULL;
    }
    uint32_t *next = made->first + 1; /* of each way, where its next number goes; in the end that is where it ends */
    for (uint32_t i = 0; i < count; i++) next[way(made, range[i].kind, range[i].root) + 1]++;
    for (size_t i = 1; i <= all; i++) next[i] += next[i - 1];
    for (uint32_t i = 0; i < count; i++) {
        made->range[i] = range[i];
        made->number[next[way(made, range[i].kind, range[i].root)]++] = i;
    }
    return made;
}

void ap_chooser_close(ap_chooser *chooser) {
    if (!chooser) return;
    free(chooser->first), free(chooser->number), free(chooser->range), free(chooser);
}

int64_t ap_choose(const ap_chooser *chooser, uint32_t kind, int32_t root, uint64_t bytes) {
    const uint32_t *of_kind = chooser->first + way(chooser, kind, -1);
    if (of_kind[0] == of_kind[chooser->ways]) return AP_OTHER_KIND;
    uint32_t i = of_kind[root + 1], end = of_kind[root + 2];
    if (i == end) return AP_OTHER_ROOT;
    for (; i < end; i++) {
        const ap_range *range = &chooser->range[chooser->number[i]];
        if (range->start <= bytes && bytes < range->stop) return chooser->number[i];
    }
    return AP_OTHER_SIZE;
}
