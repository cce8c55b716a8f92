/* The book: a tuned table compiled to be run (docs/program.md): programs, and pages that select one by collective and size.
 * Everything in it is checked before it is used.
 *
 * Threading: read-only once open; any number of threads. Ownership: ap_book_close frees the book and its programs; pages and
 *   labels point into the caller's bytes.
 */
#pragma once

#include "program.h"

/* A page: the program for one collective of one process group and one range of sizes. */
typedef struct {
    uint32_t kind, members;
    int32_t root;          /* as a rank of the machine; -1: the collective has none */
    const int32_t *member; /* ranks of the machine, in the order of the process group */
    uint64_t start, stop;  /* the sizes: start <= bytes of a call < stop; UINT64_MAX: no limit */
    int32_t program;       /* -1: calls are left to the library, which was measured to be faster */
    int measured;          /* whether the choice rests on measured times, not only on a model */
    int ordered;           /* whether values are combined in the same order at all sizes */
    const char *label;     /* names the planner; `label_bytes` long, without a final zero */
    uint32_t label_bytes;
    uint32_t key;          /* of what jobs learn of its program; isomorphic machines have the same. 0: its checksum is the key */
} ap_page;

typedef struct {
    uint32_t ranks, pages, programs, machine_bytes;
    const int32_t *host; /* number of the host of each rank; NULL: unknown */
    const char *machine; /* its name, `machine_bytes` long, without a final zero */
    const char *dead;    /* the failure that the book is for, `dead_bytes` long; empty: none, the machine is intact */
    uint32_t dead_bytes;
    ap_page *page;
    ap_program **program;
} ap_book;

int ap_is_book(const void *bytes, size_t size);
/* The bytes of the book at the beginning of these; 0: there is none, or it is cut off. */
uint64_t ap_book_bytes(const void *bytes, uint64_t size);

/* `bytes` must begin at a multiple of 8; they are not copied and must not change until ap_book_close. Checks everything but
 * the sections of single ranks, which ap_prepare checks. */
ap_book *ap_book_open(const void *bytes, size_t size, ap_error *error);
void ap_book_close(ap_book *book);
