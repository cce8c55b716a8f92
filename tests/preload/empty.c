/* Every collective with types of size 0 and counts above 0: nothing moves and nothing is written. Prints "right" or what is wrong. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { GUARD = -7, INTS = 64 };

static int rank, size, wrong, calls;

static void nothing(void *in, void *inout, int *count, MPI_Datatype *type) { (void)in, (void)inout, (void)count, (void)type; }

static void check(int code, const int *out, const char *name) {
    calls++;
    if (code != MPI_SUCCESS) wrong++, printf("wrong on %d: %s returns %d\n", rank, name, code);
    for (int i = 0; i < INTS; i++)
        if (out[i] != GUARD) {
            wrong++, printf("wrong on %d: %s writes %d\n", rank, name, i);
            return;
        }
}

static void call_all(MPI_Datatype t, MPI_Op op, MPI_Comm comm, int n) {
    int in[INTS] = {0}, out[INTS], *counts = malloc(2 * (size_t)size * sizeof *counts), *places = counts + size;
    MPI_Datatype *types = malloc((size_t)size * sizeof(MPI_Datatype));
    for (int i = 0; i < INTS; i++) out[i] = GUARD;
    for (int i = 0; i < size; i++) counts[i] = n, places[i] = i, types[i] = t;
    check(MPI_Bcast(out, n, t, 0, comm), out, "bcast");
    check(MPI_Reduce(in, out, n, t, op, 0, comm), out, "reduce");
    check(MPI_Allreduce(in, out, n, t, op, comm), out, "allreduce");
    check(MPI_Reduce_scatter(in, out, counts, t, op, comm), out, "reduce_scatter");
    check(MPI_Reduce_scatter_block(in, out, n, t, op, comm), out, "reduce_scatter_block");
    check(MPI_Allgather(in, n, t, out, n, t, comm), out, "allgather");
    check(MPI_Allgatherv(in, n, t, out, counts, places, t, comm), out, "allgatherv");
    check(MPI_Gather(in, n, t, out, n, t, 0, comm), out, "gather");
    check(MPI_Gatherv(in, n, t, out, counts, places, t, 0, comm), out, "gatherv");
    check(MPI_Scatter(in, n, t, out, n, t, 0, comm), out, "scatter");
    check(MPI_Scatterv(in, counts, places, t, out, n, t, 0, comm), out, "scatterv");
    check(MPI_Alltoall(in, n, t, out, n, t, comm), out, "alltoall");
    check(MPI_Alltoallv(in, counts, places, t, out, counts, places, t, comm), out, "alltoallv");
    check(MPI_Alltoallw(in, counts, places, types, out, counts, places, types, comm), out, "alltoallw");
    check(MPI_Scan(in, out, n, t, op, comm), out, "scan");
    check(MPI_Exscan(in, out, n, t, op, comm), out, "exscan");
    for (int i = 0; i < size; i++) counts[i] = i; /* that differ */
    check(MPI_Allgatherv(in, counts[rank], t, out, counts, places, t, comm), out, "allgatherv of counts that differ");
    check(MPI_Reduce_scatter(in, out, counts, t, op, comm), out, "reduce_scatter of counts that differ");
    free(counts), free(types);
}

int main(int count, char **arguments) {
    int all = 0;
    MPI_Datatype empty[3];
    MPI_Op op;
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank), MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Op_create(nothing, 1, &op);
    MPI_Type_contiguous(0, MPI_INT, &empty[0]);
    MPI_Type_vector(0, 3, 5, MPI_DOUBLE, &empty[1]);
    MPI_Type_create_resized(empty[0], 0, 16, &empty[2]); /* with an extent */
    for (int i = 0; i < 3; i++) {
        MPI_Type_commit(&empty[i]);
        call_all(empty[i], op, MPI_COMM_WORLD, 1);
        call_all(empty[i], op, MPI_COMM_WORLD, 3);
    }
    PMPI_Reduce(&wrong, &all, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (!rank) printf(all ? "%d wrong\n" : "right\n", all);
    MPI_Finalize();
    return wrong != 0;
}
