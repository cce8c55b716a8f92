/* Measuring calls as programs make them (preload_measure.c). */
#ifndef ANTIPHON_PRELOAD_MEASURE_H
#define ANTIPHON_PRELOAD_MEASURE_H

#include "api.h"

/* A call of MPI on buffers of a process; all processes of the communicator make the same. `count`: elements of a block. */
typedef struct {
    int32_t kind, root, type, op; /* root -1: there is none */
    int32_t count;
    const void *send;
    void *recv;
} ap_measured_call;

typedef struct ap_measure ap_measure;

/* Collective over a communicator, by its number in Fortran, whose processes are these ranks of programs for `ranks`. */
ap_measure *ap_measure_open(int comm, const int32_t *rank_of, uint32_t ranks, ap_error *error);
/* Collective: mean seconds, over the calls and the processes, that a call takes by this program; NULL: by the MPI library. */
int ap_measure_calls(ap_measure *m, ap_program *program, const ap_measured_call *what, uint32_t calls, double *seconds,
                     ap_error *error);
void ap_measure_close(ap_measure *m);

#endif
