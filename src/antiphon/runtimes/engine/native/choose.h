/* Select the page that serves a call: the first page of its kind and root, in the order of the book, whose range holds its
 * bytes. antiphon.core.choose does the same in Python; tests compare the two.
 *
 * Threading: read-only once open; any number of threads. Ownership: ap_chooser_close frees it; ranges are copied.
 */
#pragma once

#include "book.h"

typedef struct {
    uint32_t kind;
    int32_t root;         /* in the process group; -1: there is none */
    uint64_t start, stop; /* start <= bytes < stop */
} ap_range;

enum { AP_OTHER_KIND = -1, AP_OTHER_ROOT = -2, AP_OTHER_SIZE = -3 }; /* why no page fits */

typedef struct ap_chooser ap_chooser;

/* The range of a page as seen by a process group; false if the page is not for this group. `rank_of`: the processes of the
 * group as ranks of the machine. */
int ap_range_of(const ap_page *page, const int32_t *rank_of, uint32_t count, ap_range *range);

/* NULL: out of memory. `roots`: all roots are below it. */
ap_chooser *ap_chooser_open(const ap_range *range, uint32_t count, uint32_t roots);
void ap_chooser_close(ap_chooser *chooser);

/* The number of the range, or a negative reason (above). The root is at least -1 and below `roots`. */
int64_t ap_choose(const ap_chooser *chooser, uint32_t kind, int32_t root, uint64_t bytes);
