/* Process 1 is killed in an allreduce of four; the others get an error, shrink the communicator (ULFM), write "1" to the file
 * that is the argument, and go on. */
#include <mpi.h>
#include <mpi-ext.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { COUNT = 100000, CALLS = 5, LOST = 1 };

/* 1: right, 0: wrong, -1: an error; then its buffer stays, as messages may be under way. */
static int sums(MPI_Comm comm, int rank, int expected) {
    int good = 1, *a = malloc(COUNT * sizeof *a);
    for (int i = 0; i < COUNT; i++) a[i] = rank;
    int code = MPI_Allreduce(MPI_IN_PLACE, a, COUNT, MPI_INT, MPI_SUM, comm);
    for (int i = 0; i < COUNT && !code; i++) good &= a[i] == expected;
    if (!code) free(a);
    return code ? -1 : good;
}

int main(int count, char **arguments) {
    int rank, size, good = 1, state = 1;
    MPI_Comm all, rest;
    MPI_Init(&count, &arguments);
    MPI_Comm_dup(MPI_COMM_WORLD, &all);
    MPI_Comm_rank(all, &rank);
    MPI_Comm_set_errhandler(all, MPI_ERRORS_RETURN);
    for (int call = 0; state >= 0; call++) {
        if (rank == LOST && call == CALLS) raise(SIGKILL);
        state = sums(all, rank, 0 + 1 + 2 + 3);
        good &= state != 0;
    }
    MPIX_Comm_revoke(all);
    if (MPIX_Comm_shrink(all, &rest)) return 1;
    MPI_Comm_size(rest, &size);
    FILE *file = rank ? NULL : fopen(arguments[1], "w");
    if (file) fprintf(file, "%d\n", LOST), fclose(file);
    MPI_Barrier(rest);
    for (int call = 0; call < CALLS; call++) good &= sums(rest, rank, 0 + 2 + 3) == 1;
    MPI_Allreduce(MPI_IN_PLACE, &good, 1, MPI_INT, MPI_MIN, rest);
    if (!rank) printf(good && size == 3 ? "right\n" : "wrong\n"), fflush(stdout);
    MPI_Barrier(rest);
    _exit(0); /* Open MPI 5.0 sometimes hangs in MPI_Finalize after a process was lost */
}
