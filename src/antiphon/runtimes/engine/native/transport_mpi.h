/* The transport over MPI.
 *
 * Threading: a wire is used by one thread at a time; functions marked collective by all processes of the communicator.
 * Ownership: a wire owns the communicator that it duplicates; `vicinity` is the caller's and is read while opening only.
 */
#ifndef ANTIPHON_TRANSPORT_MPI_H
#define ANTIPHON_TRANSPORT_MPI_H

#include <mpi.h>
#include "api.h"

/* What is known of the processes of a communicator before its wire is opened. */
typedef struct {
    const int32_t *near; /* those that share memory have the same number, -1: shares with none */
    const int *of;       /* of each process where that stands, MPI_UNDEFINED: nowhere; NULL: at its own place */
    uint64_t max_bytes;  /* address space that this process may take for it */
    uint64_t *used;      /* what it took */
} ap_vicinity;

/* Collective over `comm`. `rank_of`: for each process of it the rank of the program that it is (NULL: the same), `ranks` how
 * many the program has. A communicator of the same processes is made, without its attributes; with a `vicinity` only where
 * some share no memory, and calls are not compared. NULL and an error where MPI fails; AP_UNSUPPORTED, at all of them, where
 * somebody may not take as much memory as it needs. */
ap_wire *ap_mpi_open(MPI_Comm comm, const int32_t *rank_of, uint32_t ranks, const ap_vicinity *vicinity, ap_error *error);
/* Collective: for each process of `world` the first of those that it shares memory with, itself at least; -1: with none. */
int ap_mpi_near(MPI_Comm world, int32_t *near_of);
/* Touches the memory of a wire, which calls would else do (prefault.h). */
void ap_mpi_prefault(ap_wire *wire, ap_pace *pace);
/* Collective over `comm`, where `timeout` > 0: until all are here and know it, or AP_TIMEOUT. What MPI itself
 * does then has no end. */
int ap_mpi_wait_for_all(MPI_Comm comm, double timeout, const char *where, ap_error *error);
/* Collective over `comm`: the least of what they say; with a `timeout` > 0 as ap_mpi_wait_for_all. */
int ap_mpi_minimum(MPI_Comm comm, int own, int *minimum, double timeout, const char *where, ap_error *error);
MPI_Comm ap_mpi_comm(int number); /* by its number in Fortran */
/* As ap_mpi_open, for callers that know a communicator by its number in Fortran. */
ap_wire *ap_mpi_open_number(int comm, const int32_t *rank_of, uint32_t ranks, ap_error *error);
/* Collective over all processes of the job: how many of them share this host. Without it a wire guesses. */
int ap_mpi_look_around(MPI_Comm world);
/* What MPI_Get_library_version says, in full; what one process has must fit what another library calls. */
const char *ap_mpi_library(void);

#endif
