/* Allreduces of some sizes (bytes, each an argument), checked; or what a fault does: "late", "killed". */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank, size;

static int sums(int bytes) {
    int n = bytes / 4, good = 1, *a = malloc((size_t)bytes + 4);
    for (int i = 0; i < n; i++) a[i] = rank + i;
    int code = MPI_Allreduce(MPI_IN_PLACE, a, n, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < n && !code; i++) good &= a[i] == size * i + size * (size - 1) / 2;
    if (!code) free(a);
    return code ? -1 : good;
}

int main(int count, char **arguments) {
    int good = 1;
    const char *fault = count > 1 && arguments[1][0] > '9' ? arguments[1] : "";
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int i = 1 + !!*fault; i < count; i++) good &= sums(atoi(arguments[i]));
    if (!rank) printf(good ? "right\n" : "wrong\n"), fflush(stdout);
    if (!strcmp(fault, "killed")) {
        if (rank == size - 1) raise(SIGKILL);
        for (;;) sums(100000);
    }
    if (!strcmp(fault, "late")) { /* the last one never takes part: it waits until the first has told, and ends all */
        int first, second, told = 0;
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        if (rank == size - 1) MPI_Recv(&told, 1, MPI_INT, 0, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE), _exit(1);
        first = sums(100000), second = sums(100000);
        /* into a file: what is printed may be lost where the launcher ends the job */
        FILE *file = rank ? NULL : fopen(getenv("LATE"), "w");
        if (file) fprintf(file, "late: %d %d\n", first, second), fclose(file);
        if (!rank) MPI_Send(&told, 1, MPI_INT, size - 1, 7, MPI_COMM_WORLD);
        sleep(10);
    }
    MPI_Finalize();
    return !good;
}
