/* Waiting for all processes of a communicator, with an end, before MPI is called in ways that have none. */
#include <sched.h>
#include <stdlib.h>

#include "clock.h"
#include "mpi_types.h"

static int wait_for_all(MPI_Request *request, double timeout, const char *where, ap_error *error) {
    const double end = ap_now() + timeout;
    for (int done = 0, code; !done;) {
        if ((code = PMPI_Test(request, &done, MPI_STATUS_IGNORE))) return ap_mpi_failed(error, "MPI_Test", code);
        if (!done && ap_now() > end)
            return ap_fail(error, AP_TIMEOUT, "not all of its processes have come to %s within %g seconds; all must make the same "
                           "calls, and ANTIPHON_TIMEOUT be longer than one may be late", where, timeout);
        if (!done) sched_yield();
    }
    return AP_OK;
}

/* Who comes when others have given up finds that they were there once, and not that they go on. */
int ap_mpi_meet(MPI_Comm comm, double timeout, const char *where, ap_error *error) {
    int failed = AP_OK;
    for (int turn = 0; turn < 2 && !failed && timeout > 0; turn++) {
        MPI_Request request;
        int code = PMPI_Ibarrier(comm, &request);
        failed = code ? ap_mpi_failed(error, "MPI_Ibarrier", code) : wait_for_all(&request, timeout, where, error);
    }
    return failed;
}

int ap_mpi_least(MPI_Comm comm, int mine, int *least, double timeout, const char *where, ap_error *error) {
    int code, failed, *both;
    MPI_Request request;
    if (timeout <= 0) {
        code = PMPI_Allreduce(&mine, least, 1, MPI_INT, MPI_MIN, comm);
        return code ? ap_mpi_failed(error, "MPI_Allreduce", code) : AP_OK;
    }
    if (!(both = malloc(2 * sizeof *both))) return ap_fail(error, AP_MEMORY, "out of memory");
    both[0] = mine;
    code = PMPI_Iallreduce(&both[0], &both[1], 1, MPI_INT, MPI_MIN, comm, &request);
    failed = code ? ap_mpi_failed(error, "MPI_Iallreduce", code) : wait_for_all(&request, timeout, where, error);
    if (failed) return failed; /* somebody may come yet, and MPI write there */
    *least = both[1];
    free(both);
    return AP_OK;
}
