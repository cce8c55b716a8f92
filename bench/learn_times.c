/* Allreduces in three phases, for bench_learn.py: learn_times CALLS BYTES COMMAND: process 0 runs COMMAND with the number of the
 * phase before each. Prints the phase and the slowest process's seconds of each call. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { PHASES = 3 };

int main(int argc, char **argv) {
    int rank;
    if (argc != 4) return 2;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const int calls = atoi(argv[1]), n = atoi(argv[2]) / 4;
    int *from = calloc((size_t)n, sizeof *from), *to = calloc((size_t)n, sizeof *to);
    double *own = calloc(PHASES * (size_t)calls, sizeof *own), *slowest = calloc(PHASES * (size_t)calls, sizeof *slowest);
    if (!from || !to || !own || !slowest) return 3;
    for (int i = 0; i < PHASES * calls; i++) {
        char command[300];
        snprintf(command, sizeof command, "%s %d", argv[3], i / calls);
        if (!rank && i % calls == 0 && system(command)) MPI_Abort(MPI_COMM_WORLD, 4);
        PMPI_Barrier(MPI_COMM_WORLD);
        const double began = PMPI_Wtime();
        MPI_Allreduce(from, to, n, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        own[i] = PMPI_Wtime() - began;
    }
    PMPI_Reduce(own, slowest, PHASES * calls, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    for (int i = 0; !rank && i < PHASES * calls; i++) printf("call %d %.6f\n", i / calls, slowest[i]);
    MPI_Finalize();
    return 0;
}
