/* The book: a tuned table compiled to be run (docs/program.md): programs, and pages that select one by collective and size.
 * Everything in it is checked before it is used.
 *
 * Threading: read-only once open; any number of threads. Ownership: ap_book_close frees the book and its programs; pages and
 *   labels point into the caller's bytes.
 */
#ifndef ANTIPHON_BOOK_H
#define ANTIPHON_BOOK_H

#include "program.h"

typedef struct {
    uint32_t kind, members;
    int32_t root;          /* of the machine; -1: there is none */
    const int32_t *member; /* in the order of the process group */
    uint64_t start, stop;  /* start <= bytes < stop; UINT64_MAX: without end */
    int32_t program;       /* -1: left to the library, which was measured to be faster */
    int measured, ordered; /* ordered: values are combined in one order at all sizes */
    const char *label;     /* not ended by a zero */
    uint32_t label_bytes;
} ap_page;

typedef struct {
    uint32_t ranks, pages, programs, machine_bytes;
    const int32_t *host; /* of each rank; NULL: nothing is said */
    const char *machine; /* not ended by a zero */
    ap_page *page;
    ap_program **program;
} ap_book;

int ap_is_book(const void *bytes, size_t size);

/* `bytes` begin at a multiple of 8, are used where they are and must stay until ap_book_close. Checks everything but the
 * sections of single ranks, which ap_prepare does. */
ap_book *ap_book_open(const void *bytes, size_t size, ap_error *error);
void ap_book_close(ap_book *book);

#endif
