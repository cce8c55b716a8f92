/* Times the MPI functions of a program (under LD_PRELOAD: served by plans) beside the library's own, in turn.
 *
 *     preload_times BYTES,CALLS ...     allreduce and allgather of so many bytes in all; so many calls are timed together;
 *                                       with ,0 or ,1 behind them allreduce or allgather alone
 *
 * Process 0 writes a line for each: collective, bytes, seconds of a call, those of the library's own, median of the
 * ratios of pairs. Times are those of the slowest process. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { PAIRS = 21 };

static int rank, size;
static char *from, *to;

static int call(int gathers, int own, int bytes) {
    if (gathers)
        return own ? PMPI_Allgather(from, bytes / size, MPI_BYTE, to, bytes / size, MPI_BYTE, MPI_COMM_WORLD)
                   : MPI_Allgather(from, bytes / size, MPI_BYTE, to, bytes / size, MPI_BYTE, MPI_COMM_WORLD);
    return own ? PMPI_Allreduce(from, to, bytes / 4, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD)
               : MPI_Allreduce(from, to, bytes / 4, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static double once(int gathers, int own, int bytes, int calls) {
    double most, spent;
    PMPI_Barrier(MPI_COMM_WORLD);
    double began = MPI_Wtime();
    for (int i = 0; i < calls; i++) call(gathers, own, bytes);
    spent = (MPI_Wtime() - began) / calls;
    PMPI_Allreduce(&spent, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return most;
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
    for (int i = 1; i < count; i++)
        for (int gathers = 0; gathers < 2; gathers++) {
            int bytes = 0, calls = 1, only = gathers;
            double spent[2][PAIRS], ratio[PAIRS];
            if (sscanf(arguments[i], "%d,%d,%d", &bytes, &calls, &only) < 1) return 2;
            if (only != gathers) continue;
            from = calloc(1, (size_t)bytes + 8), to = calloc(1, (size_t)bytes + 8);
            for (int own = 0; own < 2; own++) once(gathers, own, bytes, calls);
            for (int p = 0; p < PAIRS; p++) {
                for (int turn = 0; turn < 2; turn++) spent[(turn + p) % 2][p] = once(gathers, (turn + p) % 2, bytes, calls);
                ratio[p] = spent[0][p] / spent[1][p];
            }
            double ratios = median(ratio);
            if (!rank)
                printf("%s %d %.9g %.9g %.6g\n", gathers ? "allgather" : "allreduce", bytes, median(spent[0]),
                       median(spent[1]), ratios);
            free(from), free(to);
        }
    MPI_Finalize();
    return 0;
}
