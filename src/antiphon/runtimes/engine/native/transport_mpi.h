/* The transport over MPI.
 *
 * Threading: a wire is used by one thread at a time; functions marked collective by all processes of the communicator.
 * Ownership: a wire owns the communicator that it duplicates; `vicinity` is the caller's and is read while opening only.
 */
#pragma once

#include <mpi.h>
#include "api.h"

/* What the caller knows about the processes of a communicator before its wire is opened. */
typedef struct {
    const int32_t *memory_of; /* of ap_mpi_find_memory, per process of its `world`: equal ones share memory, -1: with none */
    const int *index_of; /* per process of the communicator, its index in `memory_of`; MPI_UNDEFINED: none; NULL: the same index */
    uint64_t max_bytes;  /* address space that this process may take for shared memory */
    uint64_t *used;      /* out: bytes that it took */
} ap_vicinity;

/* Collective over `comm`. `rank_of`: per process its rank in the program (NULL: the same number); `ranks`: ranks of the
 * program. Duplicates the communicator, without attributes. With a `vicinity` it does so only if some processes share no
 * memory; if all share it, no message goes by MPI, and calls cannot be compared between processes (ap_wire_call). NULL and
 * an error if MPI fails; AP_UNSUPPORTED, at all processes, if one may not take the memory it needs. */
ap_wire *ap_mpi_open(MPI_Comm comm, const int32_t *rank_of, uint32_t ranks, const ap_vicinity *vicinity, ap_error *error);
/* Collective: per process of `world`, the first process that it shares memory with (possibly itself); -1: sharing is off. */
int ap_mpi_find_memory(MPI_Comm world, int32_t *memory_of);
/* Touches the memory of a wire, which the first calls would do otherwise (prefault.h). */
void ap_mpi_prefault(ap_wire *wire, ap_pace *pace);
/* Collective over `comm`: returns once all processes have come and know it, else AP_TIMEOUT. `timeout` 0: returns at once,
 * without communication. To be used before calls of MPI, which have no timeout. */
int ap_mpi_wait_for_all(MPI_Comm comm, double timeout, const char *where, ap_error *error);
/* Collective over `comm`: the minimum of all `own`; AP_TIMEOUT as above, but `timeout` 0: waits without limit. */
int ap_mpi_minimum(MPI_Comm comm, int own, int *minimum, double timeout, const char *where, ap_error *error);
MPI_Comm ap_mpi_comm(int number); /* a communicator by its number in Fortran */
/* As ap_mpi_open, for callers that know a communicator by its number in Fortran. */
ap_wire *ap_mpi_open_number(int comm, const int32_t *rank_of, uint32_t ranks, ap_error *error);
/* Collective over all processes of the job: counts those on this host and keeps their number for wires that are opened
 * later, which have to guess it otherwise. Returns 0, or an error code of MPI, as ap_mpi_find_memory does. */
int ap_mpi_look_around(MPI_Comm world);
/* The text of MPI_Get_library_version. */
const char *ap_mpi_library(void);
