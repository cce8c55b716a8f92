/* Twenty calls of one kind, checked: tried KIND COMM ROOT PLACE BYTES. COMM: "world", "halves" (processes of even and of odd numbers),
 * "turned" (the world backwards). PLACE: "in" place or "out" of it. BYTES: of a block. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALLS = 20 };

static MPI_Comm comm;
static int me, size, root, count, in_place;
static int *from, *to;

/* What process `who` has in its block for `other`. */
static int value(int who, int other, int i, int turn) { return 1000 * who + 10 * other + i + 7 * turn; }

static int sum(int other, int i, int turn) {
    int all = 0;
    for (int who = 0; who < size; who++) all += value(who, other, i, turn);
    return all;
}

static void fill(int *where, int who, int other, int turn) {
    for (int i = 0; i < count; i++) where[i] = value(who, other, i, turn);
}

static int is_block(const int *where, int who, int other, int turn) {
    for (int i = 0; i < count; i++)
        if (where[i] != value(who, other, i, turn)) return 0;
    return 1;
}

static int is_sum(const int *where, int other, int turn) {
    for (int i = 0; i < count; i++)
        if (where[i] != sum(other, i, turn)) return 0;
    return 1;
}

static int *block(int *where, int number) { return where + (size_t)number * (size_t)count; }

/* A block for each process, where the call begins: in place that is where the result goes. */
static void fill_all(int turn) {
    memset(to, 0, (size_t)size * (size_t)count * sizeof *to);
    for (int other = 0; other < size; other++) fill(block(in_place ? to : from, other), me, other, turn);
}

static int allreduce(int turn) {
    fill(in_place ? to : from, me, 0, turn);
    return !MPI_Allreduce(in_place ? MPI_IN_PLACE : from, to, count, MPI_INT, MPI_SUM, comm) && is_sum(to, 0, turn);
}

static int reduce(int turn) {
    const int in = in_place && me == root;
    fill(in ? to : from, me, 0, turn);
    return !MPI_Reduce(in ? MPI_IN_PLACE : from, to, count, MPI_INT, MPI_SUM, root, comm) && (me != root || is_sum(to, 0, turn));
}

static int reduce_scatter(int turn) {
    fill_all(turn);
    return !MPI_Reduce_scatter_block(in_place ? MPI_IN_PLACE : from, to, count, MPI_INT, MPI_SUM, comm) && is_sum(to, me, turn);
}

static int broadcast(int turn) {
    if (me == root) fill(to, root, 0, turn);
    return !MPI_Bcast(to, count, MPI_INT, root, comm) && is_block(to, root, 0, turn);
}

static int are_blocks(int turn) {
    int good = 1;
    for (int who = 0; who < size; who++) good &= is_block(block(to, who), who, 0, turn);
    return good;
}

static int allgather(int turn) {
    fill(in_place ? block(to, me) : from, me, 0, turn);
    return !MPI_Allgather(in_place ? MPI_IN_PLACE : from, count, MPI_INT, to, count, MPI_INT, comm) && are_blocks(turn);
}

static int gather(int turn) {
    const int in = in_place && me == root;
    fill(in ? block(to, me) : from, me, 0, turn);
    return !MPI_Gather(in ? MPI_IN_PLACE : from, count, MPI_INT, to, count, MPI_INT, root, comm) && (me != root || are_blocks(turn));
}

static int scatter(int turn) {
    const int in = in_place && me == root;
    for (int other = 0; other < size; other++) fill(block(from, other), root, other, turn);
    return !MPI_Scatter(from, count, MPI_INT, in ? MPI_IN_PLACE : to, count, MPI_INT, root, comm) &&
           (in || is_block(to, root, me, turn));
}

static int alltoall(int turn) {
    int good = 1;
    fill_all(turn);
    good = !MPI_Alltoall(in_place ? MPI_IN_PLACE : from, count, MPI_INT, to, count, MPI_INT, comm);
    for (int who = 0; who < size; who++) good &= is_block(block(to, who), who, me, turn);
    return good;
}

static const struct {
    const char *name;
    int (*call)(int turn);
} kinds[] = {{"allreduce", allreduce}, {"reduce", reduce}, {"reducescatter", reduce_scatter}, {"broadcast", broadcast},
             {"allgather", allgather}, {"gather", gather}, {"scatter", scatter}, {"alltoall", alltoall}};

int main(int argc, char **argv) {
    int all = 0, good = 1, rank;
    if (argc != 6) return 2;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    comm = MPI_COMM_WORLD;
    if (!strcmp(argv[2], "halves")) MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &comm);
    if (!strcmp(argv[2], "turned")) MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &comm);
    MPI_Comm_rank(comm, &me);
    MPI_Comm_size(comm, &size);
    root = atoi(argv[3]), in_place = !strcmp(argv[4], "in"), count = atoi(argv[5]) / (int)sizeof(int);
    from = calloc((size_t)size * (size_t)count, sizeof *from), to = calloc((size_t)size * (size_t)count, sizeof *to);
    if (!from || !to) return 3;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int turn = 0; turn < CALLS && !strcmp(kinds[k].name, argv[1]); turn++) good &= kinds[k].call(turn);
    if (comm != MPI_COMM_WORLD) MPI_Comm_free(&comm);
    PMPI_Allreduce(&good, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (!rank) printf(all ? "right\n" : "wrong\n");
    free(from), free(to);
    MPI_Finalize();
    return !all;
}
