/* Calls that no plan is for, by MPI's name and by PMPI's, in turns: medians of pairs, in the same run. One line each:
 * "all", call, bytes per process, seconds of ours, of theirs, ratio, and the ratio of the processor time of all processes.
 * Arguments: bytes,calls pairs. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PAIRS = 21, MOST = 64 };

static int rank, size, counts[MOST], at[MOST], mine[MOST], mine_at[MOST], n;
static float *in, *out;
static MPI_Op own;

static void add(void *a, void *b, int *count, MPI_Datatype *type) {
    (void)type;
    for (int i = 0; i < *count; i++) ((float *)b)[i] += ((const float *)a)[i];
}

#define BOTH(NAME, ARGUMENTS) \
    static void ours_##NAME(void) { MPI_##NAME ARGUMENTS; } \
    static void theirs_##NAME(void) { PMPI_##NAME ARGUMENTS; }

BOTH(Allgatherv, (in, counts[rank], MPI_FLOAT, out, counts, at, MPI_FLOAT, MPI_COMM_WORLD))
BOTH(Alltoallv, (in, counts, at, MPI_FLOAT, out, mine, mine_at, MPI_FLOAT, MPI_COMM_WORLD))
BOTH(Gatherv, (in, counts[rank], MPI_FLOAT, out, counts, at, MPI_FLOAT, 0, MPI_COMM_WORLD))
BOTH(Scatterv, (in, counts, at, MPI_FLOAT, out, counts[rank], MPI_FLOAT, 0, MPI_COMM_WORLD))
BOTH(Reduce_scatter, (in, out, counts, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD))
BOTH(Scan, (in, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD))
BOTH(Exscan, (in, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD))
BOTH(Allreduce, (in, out, n, MPI_FLOAT, own, MPI_COMM_WORLD))
BOTH(Reduce, (in, out, n, MPI_FLOAT, own, 0, MPI_COMM_WORLD))

/* What a call by a plan would gain beside one that does not wait, and is waited for at once. */
#define BESIDE(NAME, SMALL, ...) \
    static void ours_I##SMALL(void) { MPI_##NAME(__VA_ARGS__); } \
    static void theirs_I##SMALL(void) { \
        MPI_Request request; \
        PMPI_I##SMALL(__VA_ARGS__, &request); \
        PMPI_Wait(&request, MPI_STATUS_IGNORE); \
    }

BESIDE(Allreduce, allreduce, in, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD)
BESIDE(Allgather, allgather, in, n / size, MPI_FLOAT, out, n / size, MPI_FLOAT, MPI_COMM_WORLD)
BESIDE(Bcast, bcast, in, n, MPI_FLOAT, 0, MPI_COMM_WORLD)

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of a call, and those of processors. */
static void timed(void (*call)(void), int calls, double *spent, double *worked) {
    PMPI_Barrier(MPI_COMM_WORLD);
    double began = MPI_Wtime(), mine;
    clock_t before = clock();
    for (int i = 0; i < calls; i++) call();
    mine = (MPI_Wtime() - began) / calls;
    PMPI_Allreduce(&mine, spent, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    mine = (double)(clock() - before) / CLOCKS_PER_SEC / calls;
    PMPI_Allreduce(&mine, worked, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

static double median(double *values) {
    qsort(values, PAIRS, sizeof *values, by_size);
    return values[PAIRS / 2];
}

static void pairs(const char *name, void (*ours)(void), void (*theirs)(void), int calls) {
    double spent[2][PAIRS], worked[2][PAIRS], ratio[2][PAIRS];
    ours(), theirs();
    for (int i = 0; i < PAIRS; i++) {
        timed(ours, calls, &spent[0][i], &worked[0][i]), timed(theirs, calls, &spent[1][i], &worked[1][i]);
        ratio[0][i] = spent[0][i] / spent[1][i], ratio[1][i] = worked[0][i] / worked[1][i];
    }
    const double call[2] = {median(spent[0]), median(spent[1])}, ratios[2] = {median(ratio[0]), median(ratio[1])};
    if (!rank) printf("all %s %zu %.3g %.3g %.3f %.3f\n", name, n * sizeof(float), call[0], call[1], ratios[0], ratios[1]);
}

#define PAIR(NAME) pairs(#NAME, ours_##NAME, theirs_##NAME, calls)

int main(int count, char **arguments) {
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank), MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Op_create(add, 0, &own);
    for (int i = 1; i < count; i++) {
        const int bytes = atoi(arguments[i]), calls = atoi(strchr(arguments[i], ',') + 1);
        n = bytes / (int)sizeof(float);
        in = calloc(2 * (size_t)n + MOST, sizeof *in), out = calloc(2 * (size_t)n + MOST, sizeof *out);
        for (int k = 0, end = 0; k < size; k++) { /* of half to one and a half times the mean */
            counts[k] = n / size * (size + 2 * k + 1) / (2 * size), at[k] = end;
            end += counts[k];
        }
        for (int k = 0; k < size; k++) mine[k] = counts[rank], mine_at[k] = k * counts[rank];
        PAIR(Allgatherv), PAIR(Alltoallv), PAIR(Gatherv), PAIR(Scatterv), PAIR(Reduce_scatter), PAIR(Scan), PAIR(Exscan);
        PAIR(Allreduce), PAIR(Reduce), PAIR(Iallreduce), PAIR(Iallgather), PAIR(Ibcast);
        free(in), free(out);
    }
    MPI_Op_free(&own);
    MPI_Finalize();
    return 0;
}
