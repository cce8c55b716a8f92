/* Times the MPI functions of a program (under LD_PRELOAD: served by plans) beside the library's own, in turn.
 *
 *     preload_times [each | least] BYTES,CALLS ...     allreduce and allgather of so many bytes in all; so many calls are timed
 *                                              together; with ,0 to ,4 behind them allreduce, allgather, alltoall,
 *                                              broadcast or reduce_scatter alone
 *
 * Process 0 writes a line for each: collective, bytes, seconds of a call, those of the library's own, median of the
 * ratios of pairs. Times are those of the slowest process; with `each` a barrier precedes every call, and the time is the
 * mean, over the processes, of what they spend within calls, as OSU's benchmarks report it; with `least` likewise, but of the
 * fastest call of each process, which others on the computer slow down least. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAIRS = 21, FIRST = 9 }; /* FIRST: until it is settled how calls of a size go (docs/mpi.md) */

static int rank, size, each, least;
static char *from, *to;

enum { ALLREDUCE, ALLGATHER, ALLTOALL, BROADCAST, REDUCESCATTER, KINDS };
static const char *const names[KINDS] = {"allreduce", "allgather", "alltoall", "broadcast", "reducescatter"};

#define BOTH(NAME, ...) (own ? PMPI_##NAME(__VA_ARGS__) : MPI_##NAME(__VA_ARGS__))

static int call(int kind, int own, int bytes) {
    const int part = bytes / size;
    if (kind == ALLGATHER) return BOTH(Allgather, from, part, MPI_BYTE, to, part, MPI_BYTE, MPI_COMM_WORLD);
    if (kind == ALLTOALL) return BOTH(Alltoall, from, part, MPI_BYTE, to, part, MPI_BYTE, MPI_COMM_WORLD);
    if (kind == REDUCESCATTER) return BOTH(Reduce_scatter_block, from, to, part / 4, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    if (kind == BROADCAST) return BOTH(Bcast, to, bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
    return BOTH(Allreduce, from, to, bytes / 4, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static double once(int kind, int own, int bytes, int calls) {
    double result, spent = 0, fastest = 1e9;
    PMPI_Barrier(MPI_COMM_WORLD);
    double began = MPI_Wtime();
    for (int i = 0; i < calls; i++) {
        if (each) PMPI_Barrier(MPI_COMM_WORLD), began = MPI_Wtime();
        call(kind, own, bytes);
        const double took = each ? MPI_Wtime() - began : 0;
        spent += took, fastest = took < fastest ? took : fastest;
    }
    if (!each) spent = MPI_Wtime() - began;
    spent = least ? fastest : spent / calls;
    PMPI_Allreduce(&spent, &result, 1, MPI_DOUBLE, each ? MPI_SUM : MPI_MAX, MPI_COMM_WORLD);
    return each ? result / size : result;
}

static int by_size(const void *a, const void *b) {
    const double *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static double median(double *values) {
    qsort(values, PAIRS, sizeof *values, by_size);
    return values[PAIRS / 2];
}

int main(int count, char **arguments) {
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    least = count > 1 && !strcmp(arguments[1], "least");
    each = least || (count > 1 && !strcmp(arguments[1], "each"));
    for (int i = 1 + each; i < count; i++)
        for (int kind = 0; kind < KINDS; kind++) {
            int bytes = 0, calls = 1, only = -1;
            double spent[2][PAIRS], ratio[PAIRS];
            if (sscanf(arguments[i], "%d,%d,%d", &bytes, &calls, &only) < 1) return 2;
            if (only < 0 ? kind > ALLGATHER : only != kind) continue;
            from = malloc((size_t)bytes + 8), to = malloc((size_t)bytes + 8);
            /* pages that were never written are all the same one, which stays in the nearest cache */
            memset(from, 1, (size_t)bytes + 8), memset(to, 1, (size_t)bytes + 8);
            for (int own = 0; own < 2; own++) once(kind, own, bytes, calls > FIRST ? calls : FIRST);
            for (int p = 0; p < PAIRS; p++) {
                for (int turn = 0; turn < 2; turn++) spent[(turn + p) % 2][p] = once(kind, (turn + p) % 2, bytes, calls);
                ratio[p] = spent[0][p] / spent[1][p];
            }
            double ratios = median(ratio);
            if (!rank)
                printf("%s %d %.9g %.9g %.6g\n", names[kind], bytes, median(spent[0]), median(spent[1]), ratios);
            free(from), free(to);
        }
    MPI_Finalize();
    return 0;
}
