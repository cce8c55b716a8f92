/* What the preload library adds to a call that it leaves to MPI: PMPI functions are replaced by stubs that do nothing, so what
 * remains is the way to them. To be linked with -rdynamic and run under LD_PRELOAD with a table that leaves all to MPI.
 *
 * Process 0 writes a line for each: collective, bytes, seconds that a call takes longer than the stub alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { CALLS = 20000, ROUNDS = 31, LARGEST = 65536 };
enum { BROADCAST, ALLREDUCE, ALLTOALL, KINDS };
static const char *const names[KINDS] = {"broadcast", "allreduce", "alltoall"};

static int stubbed;
static char from[4 * LARGEST], to[4 * LARGEST];

#define STUB(NAME, PARAMETERS, ...) \
    int PMPI_##NAME PARAMETERS { \
        int(*real) PARAMETERS; \
        if (stubbed) return MPI_SUCCESS; \
        *(void **)&real = dlsym(RTLD_NEXT, "PMPI_" #NAME); \
        return real(__VA_ARGS__); \
    }

STUB(Bcast, (void *a, int n, MPI_Datatype t, int root, MPI_Comm comm), a, n, t, root, comm)
STUB(Allreduce, (const void *a, void *b, int n, MPI_Datatype t, MPI_Op op, MPI_Comm comm), a, b, n, t, op, comm)
STUB(Alltoall, (const void *a, int n, MPI_Datatype t, void *b, int m, MPI_Datatype u, MPI_Comm comm), a, n, t, b, m, u, comm)

#define BOTH(NAME, ...) (direct ? PMPI_##NAME(__VA_ARGS__) : MPI_##NAME(__VA_ARGS__))

static int call(int kind, int direct, int n) {
    if (kind == BROADCAST) return BOTH(Bcast, to, n, MPI_BYTE, 0, MPI_COMM_WORLD);
    if (kind == ALLTOALL) return BOTH(Alltoall, from, n, MPI_BYTE, to, n, MPI_BYTE, MPI_COMM_WORLD);
    return BOTH(Allreduce, from, to, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static int by_size(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

int main(int count, char **arguments) {
    int rank;
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int kind = 0; kind < KINDS; kind++)
        for (int n = 1; n <= LARGEST; n *= 256) {
            double spent[2][ROUNDS];
            stubbed = 1;
            for (int round = 0; round < ROUNDS; round++)
                for (int direct = 0; direct < 2; direct++) {
                    const double began = MPI_Wtime();
                    for (int i = 0; i < CALLS; i++) call(kind, direct, n);
                    spent[direct][round] = (MPI_Wtime() - began) / CALLS;
                }
            stubbed = 0;
            for (int direct = 0; direct < 2; direct++) qsort(spent[direct], ROUNDS, sizeof(double), by_size);
            if (!rank) printf("%s %d %.3g\n", names[kind], n, spent[0][ROUNDS / 2] - spent[1][ROUNDS / 2]);
        }
    MPI_Finalize();
    return 0;
}
