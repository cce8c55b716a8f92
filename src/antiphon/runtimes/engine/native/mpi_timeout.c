/* A barrier and a minimum with a timeout, for use before calls of MPI that would wait for ever.
 *
 * Threading: collective; one thread of each process. Ownership: values of a reduction that timed out are never freed, as MPI
 *   may still write there.
 */
#include <sched.h>
#include <stdlib.h>

#include "clock.h"
#include "mpi_types.h"

/* Waits until a request is complete, at most `timeout` seconds. `where`: the call of MPI that follows, for the message. */
static int wait_for_all(MPI_Request *request, double timeout, const char *where, ap_error *error) {
    const double end = ap_now() + timeout;
    for (int done = 0; !done;) {
        const int code = PMPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (code) return ap_mpi_failed(error, "MPI_Test", code);
        if (!done && ap_now() > end)
            return ap_fail(error, AP_TIMEOUT,
                           "not all of its processes have come to %s within %g seconds; all must make the same "
                           "calls, and ANTIPHON_TIMEOUT be longer than one may be late",
                           where, timeout);
        if (!done) sched_yield();
    }
    return AP_OK;
}

/* Returns once all processes have come, or AP_TIMEOUT (`timeout` 0: at once). Two barriers: a process that comes after
 * others have given up completes the first, which they had begun, but not the second. That takes twice as long to time
 * out, as others may come to it later by the timeout of the first. */
int ap_mpi_wait_for_all(MPI_Comm comm, double timeout, const char *where, ap_error *error) {
    int failed = AP_OK;
    for (int turn = 0; turn < 2 && !failed && timeout > 0; turn++) {
        MPI_Request request;
        int code = PMPI_Ibarrier(comm, &request);
        failed = code ? ap_mpi_failed(error, "MPI_Ibarrier", code)
                      : wait_for_all(&request, timeout * (turn + 1), where, error);
    }
    return failed;
}

/* The minimum of `own` over all processes; AP_TIMEOUT if not all have come within `timeout` seconds (0: no limit). */
int ap_mpi_minimum(MPI_Comm comm, int own, int *minimum, double timeout, const char *where, ap_error *error) {
    MPI_Request request;
    if (timeout <= 0) {
        const int code = PMPI_Allreduce(&own, minimum, 1, MPI_INT, MPI_MIN, comm);
        return code ? ap_mpi_failed(error, "MPI_Allreduce", code) : AP_OK;
    }
    int *values = malloc(2 * sizeof *values); /* own, and the minimum */
    if (!values) return ap_fail(error, AP_MEMORY, "out of memory");
    values[0] = own;
    const int code = PMPI_Iallreduce(&values[0], &values[1], 1, MPI_INT, MPI_MIN, comm, &request);
    const int failed = code ? ap_mpi_failed(error, "MPI_Iallreduce", code) : wait_for_all(&request, timeout, where, error);
    if (failed) return failed; /* `values` is leaked: a late process may come, and MPI write there */
    *minimum = values[1];
    free(values);
    return AP_OK;
}
