/* How long every call takes in a program that knows nothing of plans: `auto_times COUNT NBYTES PAUSE`, under mpiexec.
 * COUNT allreduces of NBYTES of floats, PAUSE microseconds after each; every result is looked at. Of each call the longest
 * time of all processes counts. Prints a line: seconds since the start of the job at the first call, then for each call
 * its beginning (seconds, at process 0), its microseconds, and the most microseconds of processor time that the calling
 * thread of a process spent in it. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double by(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double now(void) { return by(CLOCK_MONOTONIC); }

int main(int argc, char **argv) {
    const int count = argc > 1 ? atoi(argv[1]) : 100, floats = (argc > 2 ? atoi(argv[2]) : 65536) / 4;
    const unsigned pause = argc > 3 ? (unsigned)atoi(argv[3]) : 0;
    double began = now();
    int rank, size, wrong = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    float *from = malloc((size_t)floats * sizeof *from), *to = malloc((size_t)floats * sizeof *to);
    double *spent = malloc(2 * (size_t)count * sizeof *spent), *all = malloc(2 * (size_t)count * sizeof *all);
    double *at = malloc((size_t)count * sizeof *at), ready = now() - began;
    if (!from || !to || !spent || !all || !at) return 1;
    memset(spent, 0, 2 * (size_t)count * sizeof *spent);
    for (int turn = 0; turn < count; turn++) {
        for (int i = 0; i < floats; i++) from[i] = (float)(rank + turn % 100), to[i] = -1;
        double begin = now(), worked = by(CLOCK_THREAD_CPUTIME_ID);
        at[turn] = begin - began;
        MPI_Allreduce(from, to, floats, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        spent[count + turn] = by(CLOCK_THREAD_CPUTIME_ID) - worked;
        spent[turn] = now() - begin;
        const float sum = (float)(size * (size - 1) / 2 + size * (turn % 100));
        for (int i = 0; i < floats; i++) wrong |= to[i] != sum;
        if (pause) usleep(pause);
    }
    MPI_Reduce(spent, all, 2 * count, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    int wrong_anywhere = 0;
    MPI_Reduce(&wrong, &wrong_anywhere, 1, MPI_INT, MPI_MAX, 0, MPI_COMM_WORLD);
    if (!rank) {
        printf("%s %.6f", wrong_anywhere ? "wrong" : "right", ready);
        for (int i = 0; i < count; i++) printf(" %.6f:%.1f:%.1f", at[i], 1e6 * all[i], 1e6 * all[count + i]);
        printf("\n");
    }
    free(from), free(to), free(spent), free(all), free(at);
    MPI_Finalize();
    return wrong;
}
