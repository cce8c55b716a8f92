/* Knows nothing of plans: `many ALIVE CALLS [FREED]`. ALIVE copies of MPI_COMM_WORLD, halves of it and its reverse in turn,
 * with CALLS rounds of calls on each, all kept to the end; before that FREED copies with a round each, freed at once. Every
 * element of every result is looked at. Prints right, and the address space that ALIVE have taken, in MB, the most of any
 * process. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { FLOATS = 2500, MOST = 4096 };

static int rank, size, wrong;
static float from[FLOATS], to[16 * FLOATS];

static void look(const float *values, float want) {
    for (int i = 0; i < FLOATS; i++)
        if (values[i] != want) wrong = 1;
}

static void fill(float *values, float value) {
    for (int i = 0; i < FLOATS; i++) values[i] = value;
}

static void one_round(MPI_Comm comm, int turn) {
    int me, all, root;
    MPI_Comm_rank(comm, &me);
    MPI_Comm_size(comm, &all);
    root = turn % all;
    fill(from, (float)(me + turn % 50));
    MPI_Allreduce(from, to, FLOATS, MPI_FLOAT, MPI_SUM, comm);
    look(to, (float)(all * (all - 1) / 2 + all * (turn % 50)));
    fill(to, me == root ? (float)turn : -1.0f);
    MPI_Bcast(to, FLOATS, MPI_FLOAT, root, comm);
    look(to, (float)turn);
    MPI_Reduce(from, to, FLOATS, MPI_FLOAT, MPI_SUM, root, comm);
    if (me == root) look(to, (float)(all * (all - 1) / 2 + all * (turn % 50)));
    MPI_Allgather(from, FLOATS, MPI_FLOAT, to, FLOATS, MPI_FLOAT, comm);
    for (int i = 0; i < all; i++) look(to + i * FLOATS, (float)(i + turn % 50));
}

static long pages(void) {
    long found = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%ld", &found) != 1) found = 0;
    if (file) fclose(file);
    return found;
}

int main(int argc, char **argv) {
    static MPI_Comm comm[MOST];
    const int alive = argc > 1 ? atoi(argv[1]) : 10, calls = argc > 2 ? atoi(argv[2]) : 1, freed = argc > 3 ? atoi(argv[3]) : 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int i = 0; i < freed; i++) {
        MPI_Comm_dup(MPI_COMM_WORLD, &comm[0]);
        one_round(comm[0], i);
        MPI_Comm_free(&comm[0]);
    }
    long before = pages(), taken, most = 0;
    for (int i = 0; i < alive && i < MOST; i++) {
        if (i % 3 == 0) MPI_Comm_dup(MPI_COMM_WORLD, &comm[i]);
        if (i % 3 == 1) MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &comm[i]);
        if (i % 3 == 2) MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &comm[i]);
        for (int turn = 0; turn < calls; turn++) one_round(comm[i], turn);
    }
    taken = pages() - before;
    MPI_Reduce(&taken, &most, 1, MPI_LONG, MPI_MAX, 0, MPI_COMM_WORLD);
    for (int i = alive - 1; i >= 0; i--) one_round(comm[i], i); /* those that have memory, and those that have none */
    for (int i = 0; i < alive; i++) MPI_Comm_free(&comm[i]);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm[0]); /* there is memory again */
    for (int turn = 0; turn < calls; turn++) one_round(comm[0], turn);
    MPI_Comm_free(&comm[0]);
    int anywhere = 0;
    MPI_Allreduce(&wrong, &anywhere, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (!rank) printf("%s\n%.1f\n", anywhere ? "wrong" : "right", 4096e-6 * (double)most);
    MPI_Finalize();
    return anywhere;
}
