/* Every call in place: what it gives, and that nothing is written but what MPI says: guards before and behind the buffer,
 * gaps between elements, the rest of the buffer of a reduce_scatter, what a root of a scatter sends. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 512, STRIDE = 3, ODD = 0x5A5A5A5A };

static int rank, size, wrong;

/* `count` elements of a block; in memory each `step` ints from the next. */
typedef struct {
    int *all, *data, *before;
    int blocks, count, step;
    size_t ints;
} buffer;

static int value(int from, int block, int i) { return 1000 * from + 100 * block + i % 97; }

static buffer make(int blocks, int count, int step) {
    buffer b = {.blocks = blocks, .count = count, .step = step};
    b.ints = 2 * GUARD + (size_t)blocks * (size_t)count * (size_t)step;
    b.all = malloc(b.ints * sizeof(int)), b.before = malloc(b.ints * sizeof(int));
    b.data = b.all + GUARD;
    for (size_t i = 0; i < b.ints; i++) b.all[i] = ODD + (int)i;
    return b;
}

static int *at(const buffer *b, int block, int i) {
    return b->data + ((size_t)block * (size_t)b->count + (size_t)i) * (size_t)b->step;
}

static void put(buffer *b, int block, int from, int what) {
    for (int i = 0; i < b->count; i++) *at(b, block, i) = value(from, what, i);
}

static void begin(buffer *b) { memcpy(b->before, b->all, b->ints * sizeof(int)); }

/* What should be there now; all else must be as it was. */
static void expect(buffer *b, int block, int i, int what) { b->before[at(b, block, i) - b->all] = what; }

static void end(buffer *b, const char *name) {
    size_t bad = 0;
    while (bad < b->ints && b->all[bad] == b->before[bad]) bad++;
    if (bad < b->ints && wrong++ < 5)
        printf("%s: rank %d of %d, %d elements %d apart: int %zu of %zu is %d, not %d\n", name, rank, size, b->count, b->step,
               bad, b->ints, b->all[bad], b->before[bad]);
    free(b->all), free(b->before);
}

static int sum(int block, int i) {
    int total = 0;
    for (int r = 0; r < size; r++) total += value(r, block, i);
    return total;
}

static void combining(int count) {
    buffer b = make(1, count, 1);
    put(&b, 0, rank, 0), begin(&b);
    MPI_Allreduce(MPI_IN_PLACE, b.data, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < count; i++) expect(&b, 0, i, sum(0, i));
    end(&b, "MPI_Allreduce");
    for (int root = 0; root < size; root++) {
        b = make(1, count, 1);
        put(&b, 0, rank, 0), begin(&b);
        if (rank == root)
            MPI_Reduce(MPI_IN_PLACE, b.data, count, MPI_INT, MPI_SUM, root, MPI_COMM_WORLD);
        else
            MPI_Reduce(b.data, NULL, count, MPI_INT, MPI_SUM, root, MPI_COMM_WORLD);
        for (int i = 0; i < count && rank == root; i++) expect(&b, 0, i, sum(0, i));
        end(&b, "MPI_Reduce");
    }
    for (int several = 0; several < 2; several++) {
        int *counts = malloc((size_t)size * sizeof *counts);
        for (int r = 0; r < size; r++) counts[r] = count;
        b = make(size, count, 1);
        for (int r = 0; r < size; r++) put(&b, r, rank, r);
        begin(&b);
        if (several)
            MPI_Reduce_scatter(MPI_IN_PLACE, b.data, counts, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        else
            MPI_Reduce_scatter_block(MPI_IN_PLACE, b.data, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        for (int i = 0; i < count; i++) expect(&b, 0, i, sum(rank, i));
        end(&b, several ? "MPI_Reduce_scatter" : "MPI_Reduce_scatter_block");
        free(counts);
    }
}

static void moving(int count, int step, MPI_Datatype type) {
    buffer b = make(size, count, step);
    put(&b, rank, rank, 0), begin(&b);
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, b.data, count, type, MPI_COMM_WORLD);
    for (int r = 0; r < size; r++)
        for (int i = 0; i < count; i++) expect(&b, r, i, value(r, 0, i));
    end(&b, "MPI_Allgather");
    b = make(size, count, step);
    for (int r = 0; r < size; r++) put(&b, r, rank, r);
    begin(&b);
    MPI_Alltoall(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, b.data, count, type, MPI_COMM_WORLD);
    for (int r = 0; r < size; r++)
        for (int i = 0; i < count; i++) expect(&b, r, i, value(r, rank, i));
    end(&b, "MPI_Alltoall");
    for (int root = 0; root < size; root++) {
        b = make(1, count, step);
        put(&b, 0, rank, 0), begin(&b);
        MPI_Bcast(b.data, count, type, root, MPI_COMM_WORLD);
        for (int i = 0; i < count; i++) expect(&b, 0, i, value(root, 0, i));
        end(&b, "MPI_Bcast");
        b = make(rank == root ? size : 1, count, step);
        put(&b, rank == root ? rank : 0, rank, 0), begin(&b);
        if (rank == root) {
            MPI_Gather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, b.data, count, type, root, MPI_COMM_WORLD);
            for (int r = 0; r < size; r++)
                for (int i = 0; i < count; i++) expect(&b, r, i, value(r, 0, i));
        } else {
            MPI_Gather(b.data, count, type, NULL, 0, MPI_DATATYPE_NULL, root, MPI_COMM_WORLD);
        }
        end(&b, "MPI_Gather");
        b = make(rank == root ? size : 1, count, step);
        for (int r = 0; r < size && rank == root; r++) put(&b, r, rank, r);
        begin(&b);
        if (rank == root) {
            MPI_Scatter(b.data, count, type, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, root, MPI_COMM_WORLD);
        } else {
            MPI_Scatter(NULL, 0, MPI_DATATYPE_NULL, b.data, count, type, root, MPI_COMM_WORLD);
            for (int i = 0; i < count; i++) expect(&b, 0, i, value(root, rank, i));
        }
        end(&b, "MPI_Scatter");
    }
}

int main(int argc, char **argv) {
    static const int counts[] = {1, 7, 5000, 70000};
    MPI_Datatype apart;
    int all = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Type_create_resized(MPI_INT, 0, STRIDE * (MPI_Aint)sizeof(int), &apart);
    MPI_Type_commit(&apart);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        combining(counts[i]);
        moving(counts[i], 1, MPI_INT);
        moving(counts[i], STRIDE, apart);
    }
    MPI_Type_free(&apart);
    MPI_Reduce(&wrong, &all, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (!rank) printf(all ? "wrong %d\n" : "right\n", all);
    MPI_Finalize();
    return 0;
}
