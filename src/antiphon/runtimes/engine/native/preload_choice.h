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
} ap_choice;

int ap_reduces(int kind);
/* AP_SERVED, or why it is left to the library. */
int ap_way_of(ap_choice *x);
/* What is done with its elements, and whether a plan can do it. */
int ap_find_type(ap_choice *x);

#endif
