/* Choosing the page of a call (choose.h). Ranges are in lists by kind and root, in which the order of the book stays.
 *
 * Threading: a chooser is read-only once open.
 * Ownership: ranges are copied; ap_chooser_close frees everything.
 */
#include "choose.h"

#include <stdlib.h>

struct ap_chooser {
    size_t lists;     /* number of lists per kind: the first for calls without a root, then one per root */
    uint32_t *first;  /* per list, where it begins in `number`; it ends where the next one begins */
    uint32_t *number; /* numbers of ranges (indices into `range`), list by list */
    ap_range *range;  /* as the caller numbers them */
};

/* Fills in the range of a page as a process group sees it: with the root as a process of the group. False if the page
 * is for another group. `rank_of`: for each of the `count` processes of the group its rank of the machine. */
int ap_range_of(const ap_page *page, const int32_t *rank_of, uint32_t count, ap_range *range) {
    if (page->members != count) return 0;
    *range = (ap_range){.kind = page->kind, .root = -1, .start = page->start, .stop = page->stop};
    for (uint32_t i = 0; i < count; i++) {
        if (page->member[i] != rank_of[i]) return 0;
        if (page->root >= 0 && page->root == rank_of[i]) range->root = (int32_t)i;
    }
    return 1;
}

/* The number of the list for a kind and root (-1: none). */
static size_t list_of(const ap_chooser *chooser, uint32_t kind, int32_t root) {
    return chooser->lists * kind + (size_t)(root + 1);
}

/* A counting sort of the ranges by kind and root, which keeps the order within each list. `roots`: all roots are below
 * it. NULL: out of memory. */
ap_chooser *ap_chooser_open(const ap_range *range, uint32_t count, uint32_t roots) {
    ap_chooser *chooser = calloc(1, sizeof *chooser);
    if (!chooser) return NULL;
    chooser->lists = (size_t)roots + 1;
    size_t list_count = chooser->lists * AP_PAGE_KINDS;
    chooser->first = calloc(list_count + 2, sizeof *chooser->first); /* the end of the last list; one more for `next` */
    chooser->number = calloc(count + 1ul, sizeof *chooser->number);
    chooser->range = calloc(count + 1ul, sizeof *chooser->range);
    if (!chooser->first || !chooser->number || !chooser->range) {
        ap_chooser_close(chooser);
        return NULL;
    }
    /* Per list, where its next number goes. Once all are placed, next[l] is where list l ends: it is first[l + 1]. */
    uint32_t *next = chooser->first + 1;
    for (uint32_t i = 0; i < count; i++) next[list_of(chooser, range[i].kind, range[i].root) + 1]++;
    for (size_t i = 1; i <= list_count; i++) next[i] += next[i - 1];
    for (uint32_t i = 0; i < count; i++) {
        chooser->range[i] = range[i];
        chooser->number[next[list_of(chooser, range[i].kind, range[i].root)]++] = i;
    }
    return chooser;
}

void ap_chooser_close(ap_chooser *chooser) {
    if (!chooser) return;
    free(chooser->first), free(chooser->number), free(chooser->range), free(chooser);
}

/* The number of the first range of this kind and root that holds `bytes`, or why there is none (AP_OTHER_...,
 * negative). */
int64_t ap_choose(const ap_chooser *chooser, uint32_t kind, int32_t root, uint64_t bytes) {
    const uint32_t *first_of_kind = chooser->first + list_of(chooser, kind, -1);
    if (first_of_kind[0] == first_of_kind[chooser->lists]) return AP_OTHER_KIND;
    uint32_t i = first_of_kind[root + 1], end = first_of_kind[root + 2]; /* list 0 of a kind is for root -1 */
    if (i == end) return AP_OTHER_ROOT;
    for (; i < end; i++) {
        const ap_range *range = &chooser->range[chooser->number[i]];
        if (range->start <= bytes && bytes < range->stop) return chooser->number[i];
    }
    return AP_OTHER_SIZE;
}
