/* The transport over MPI. */
#ifndef ANTIPHON_TRANSPORT_MPI_H
#define ANTIPHON_TRANSPORT_MPI_H

#include <mpi.h>

#include "api.h"

/* Collective over `comm`, which is duplicated. `rank_of`: for each process of it the rank of the program that it is
 * (NULL: the same), `ranks` how many the program has. NULL and an error where MPI fails. */
ap_wire *ap_mpi_open(MPI_Comm comm, const int32_t *rank_of, uint32_t ranks, ap_error *error);
/* The same for callers that know a communicator by its number in Fortran. */
ap_wire *ap_mpi_open_number(int comm, const int32_t *rank_of, uint32_t ranks, ap_error *error);
/* What MPI_Get_library_version says, in full; what one process has must fit what another library calls. */
const char *ap_mpi_library(void);

#endif
