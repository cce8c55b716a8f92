/* What communicators cost in a program that knows nothing of plans: `communicators FREED ALIVE CALLS`, under mpiexec. FREED
 * times MPI_COMM_WORLD is copied, the copy is called CALLS times (an allreduce of 100 KB), and freed; then ALIVE copies,
 * called as often, stay. Prints the median microseconds of one that is freed, and of the processor time of it (both the
 * most of all processes, each by itself), and the MB of address space that those alive take. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { FLOATS = 25000 };

static float from[FLOATS], to[FLOATS];

static double by(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static double mapped(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%ld", &pages) != 1) pages = 0;
    if (file) fclose(file);
    return 4096e-6 * (double)pages;
}

static int less(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static MPI_Comm copied(int calls) {
    MPI_Comm comm;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    for (int i = 0; i < calls; i++) MPI_Allreduce(from, to, FLOATS, MPI_FLOAT, MPI_SUM, comm);
    return comm;
}

int main(int argc, char **argv) {
    const int freed = argc > 1 ? atoi(argv[1]) : 200, alive = argc > 2 ? atoi(argv[2]) : 1000, calls = argc > 3 ? atoi(argv[3]) : 1;
    MPI_Init(&argc, &argv);
    double *took = malloc((size_t)freed * sizeof *took), *worked = malloc((size_t)freed * sizeof *worked), mine[3], most[3];
    MPI_Comm *kept = malloc((size_t)alive * sizeof *kept);
    int rank;
    if (!took || !worked || !kept) return 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int i = 0; i < freed; i++) {
        double began = by(CLOCK_MONOTONIC), work = by(CLOCK_PROCESS_CPUTIME_ID);
        MPI_Comm comm = copied(calls);
        MPI_Comm_free(&comm);
        took[i] = by(CLOCK_MONOTONIC) - began, worked[i] = by(CLOCK_PROCESS_CPUTIME_ID) - work;
    }
    qsort(took, (size_t)freed, sizeof *took, less);
    qsort(worked, (size_t)freed, sizeof *worked, less);
    double before = mapped();
    for (int i = 0; i < alive; i++) kept[i] = copied(calls);
    mine[0] = took[freed / 2], mine[1] = worked[freed / 2], mine[2] = mapped() - before;
    MPI_Reduce(mine, most, 3, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (!rank) printf("%.1f %.1f %.1f\n", most[0], most[1], most[2]);
    for (int i = 0; i < alive; i++) MPI_Comm_free(&kept[i]);
    free(took), free(worked), free(kept);
    MPI_Finalize();
    return 0;
}
