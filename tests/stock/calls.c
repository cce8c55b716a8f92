/* Collectives of an MPI by its own names, on numbers whose sums depend on the order: calls KIND:NBYTES ...
 *
 * Process 0 prints a line for each: kind, nbytes, a mark of what it ends with; on stderr before it what comes. All
 * processes check it against what is found by itself, up to rounding. nbytes is that of the largest buffer of any process, as in nccl-tests.
 */
#include <math.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;

/* The same number for the same process, block and place. */
static float value(int process, int place) {
    uint32_t x = (uint32_t)process * 2654435761u + (uint32_t)place * 40503u + 12345u;
    x ^= x >> 15, x *= 2246822519u, x ^= x >> 13, x *= 3266489917u, x ^= x >> 16;
    return ldexpf((float)(x & 0xffff) / 65536.0f + 0.5f, (int)(x >> 16 & 15) - 8);
}

static double sum(int place) {
    double total = 0;
    for (int process = 0; process < ranks; process++) total += value(process, place);
    return total;
}

static void fail(const char *kind, int at, float found, double wanted) {
    if (fabs(found - wanted) <= 1e-4 * fabs(wanted)) return;
    fprintf(stderr, "%s at process %d, place %d: %g, not %g\n", kind, rank, at, found, wanted);
    MPI_Abort(MPI_COMM_WORLD, 9);
}

int main(int count, char **given) {
    MPI_Init(NULL, NULL);
    MPI_Comm all = MPI_COMM_WORLD;
    MPI_Comm_rank(all, &rank);
    MPI_Comm_size(all, &ranks);
    for (int i = 1; i < count; i++) {
        char kind[32];
        long nbytes;
        if (sscanf(given[i], "%31[a-z]:%ld", kind, &nbytes) != 2) return 2;
        int n = (int)(nbytes / (long)sizeof(float)), part = n / ranks, root = 0, results = n;
        float *a = calloc((size_t)n + 1, sizeof *a), *b = calloc((size_t)n + 1, sizeof *b);
        for (int at = 0; at < n; at++) a[at] = value(rank, at);
        if (!rank) fprintf(stderr, "calls %s\n", given[i]);
        if (!strcmp(kind, "allreduce")) {
            MPI_Allreduce(a, b, n, MPI_FLOAT, MPI_SUM, all);
            for (int at = 0; at < n; at++) fail(kind, at, b[at], sum(at));
        } else if (!strcmp(kind, "reduce")) {
            MPI_Reduce(a, b, n, MPI_FLOAT, MPI_SUM, root, all);
            for (int at = 0; at < n && rank == root; at++) fail(kind, at, b[at], sum(at));
        } else if (!strcmp(kind, "reducescatter")) {
            MPI_Reduce_scatter_block(a, b, part, MPI_FLOAT, MPI_SUM, all);
            results = part;
            for (int at = 0; at < part; at++) fail(kind, at, b[at], sum(rank * part + at));
        } else if (!strcmp(kind, "broadcast")) {
            memcpy(b, a, (size_t)n * sizeof *a);
            MPI_Bcast(b, n, MPI_FLOAT, root, all);
            for (int at = 0; at < n; at++) fail(kind, at, b[at], value(root, at));
        } else if (!strcmp(kind, "allgather")) {
            MPI_Allgather(a, part, MPI_FLOAT, b, part, MPI_FLOAT, all);
            for (int at = 0; at < part * ranks; at++) fail(kind, at, b[at], value(at / part, at % part));
        } else if (!strcmp(kind, "alltoall")) {
            MPI_Alltoall(a, part, MPI_FLOAT, b, part, MPI_FLOAT, all);
            for (int at = 0; at < part * ranks; at++) fail(kind, at, b[at], value(at / part, rank * part + at % part));
        } else if (!strcmp(kind, "gather")) {
            MPI_Gather(a, part, MPI_FLOAT, b, part, MPI_FLOAT, root, all);
            for (int at = 0; at < part * ranks && rank == root; at++) fail(kind, at, b[at], value(at / part, at % part));
        } else {
            MPI_Scatter(a, part, MPI_FLOAT, b, part, MPI_FLOAT, root, all);
            for (int at = 0; at < part; at++) fail(kind, at, b[at], value(root, rank * part + at));
        }
        uint64_t mark = 1469598103934665603u;
        for (size_t at = 0; at < (size_t)results * sizeof *b; at++) mark = (mark ^ ((unsigned char *)b)[at]) * 1099511628211u;
        if (!rank) printf("%s %ld %016llx\n", kind, nbytes, (unsigned long long)mark);
        free(a), free(b);
    }
    MPI_Finalize();
    return 0;
}
