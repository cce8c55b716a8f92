/* What is known of a call (preload_choice.c), for who serves it (preload_serve.c). */
#ifndef ANTIPHON_PRELOAD_CHOICE_H
#define ANTIPHON_PRELOAD_CHOICE_H

#include "preload.h"

typedef struct {
    const ap_call *call;
    ap_group *g;
    ap_row *row;
    ap_kind_of_data send, recv;
    uint64_t unit, block, bytes; /* elements and bytes of a block; bytes of the call */
    int at_root, type, op;
    int general;      /* by a schedule that needs no plan */
    MPI_Aint width;   /* of elements that such a one combines */
} ap_choice;

int ap_reduces(int kind);
/* Which kind of plan tells whether a call is served. */
int ap_kind_of_rows(int kind);
/* Only two processes know how much goes from one to the other. */
int ap_is_between_two(int kind);
/* AP_SERVED, or why it is left to the library. */
int ap_way_of(ap_choice *x);
/* What is done with its elements, and whether a plan can do it. */
int ap_find_type(ap_choice *x);

#endif
