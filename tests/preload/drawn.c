/* Allreduces and broadcasts of two sizes, checked, with delays that every process draws for itself: drawn CALLS MICROSECONDS. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { LARGEST = 16000 };

static int values[LARGEST];

int main(int argc, char **argv) {
    int rank, size, good = 1, all = 0;
    if (argc != 3) return 2;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const int calls = atoi(argv[1]), most = atoi(argv[2]);
    unsigned drawn = 12345u * (unsigned)(rank + 1);
    for (int call = 0; call < calls && good; call++) {
        const int n = call % 2 ? LARGEST : 1000, broadcasts = call % 5 == 4, root = size - 1;
        drawn = drawn * 1103515245u + 12345u;
        if (most && drawn >> 28 == 0) usleep(drawn >> 16 & (unsigned)most);
        for (int i = 0; i < n; i++) values[i] = broadcasts && rank != root ? -1 : rank + i + call;
        if (broadcasts) {
            good = !MPI_Bcast(values, n, MPI_INT, root, MPI_COMM_WORLD);
            for (int i = 0; i < n; i++) good &= values[i] == root + i + call;
        } else {
            good = !MPI_Allreduce(MPI_IN_PLACE, values, n, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
            for (int i = 0; i < n; i++) good &= values[i] == size * (i + call) + size * (size - 1) / 2;
        }
    }
    PMPI_Allreduce(&good, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (!rank) printf(all ? "right\n" : "wrong\n");
    MPI_Finalize();
    return !all;
}
