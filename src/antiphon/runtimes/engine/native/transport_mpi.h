/* The transport over MPI. */
#ifndef ANTIPHON_TRANSPORT_MPI_H
#define ANTIPHON_TRANSPORT_MPI_H

#include <mpi.h>

#include "api.h"

/* Collective over `comm`; a communicator of the same processes is made, without its attributes. `rank_of`: for each process of it the rank of the program that it is
 * (NULL: the same), `ranks` how many the program has. NULL and an error where MPI fails. */
ap_wire *ap_mpi_open(MPI_Comm comm, const int32_t *rank_of, uint32_t ranks, ap_error *error);
/* The same for callers that know a communicator by its number in Fortran. */
ap_wire *ap_mpi_open_number(int comm, const int32_t *rank_of, uint32_t ranks, ap_error *error);
/* Collective over all processes of the job: how many of them share this host. Without it a wire guesses. */
int ap_mpi_look_around(MPI_Comm world);
/* What MPI_Get_library_version says, in full; what one process has must fit what another library calls. */
const char *ap_mpi_library(void);

#endif
