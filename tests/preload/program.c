/* A C program that knows nothing of Antiphon, and uses what programs use: communicators made and freed, data types of its
 * own at some processes only, operators of its own, MPI_IN_PLACE, several threads. Prints "right" or what is wrong. */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size, wrong, copies;

static void check(int good, const char *what) {
    if (good) return;
    if (wrong++ < 5) printf("wrong on %d: %s\n", rank, what);
}

static void add_up(void *in, void *inout, int *n, MPI_Datatype *type) {
    (void)type;
    for (int i = 0; i < *n; i++) ((int *)inout)[i] += 2 * ((int *)in)[i] - ((int *)in)[i];
}

static void test_operators(void) {
    int a[3000], b[3000];
    MPI_Op own;
    for (int i = 0; i < 3000; i++) a[i] = i + rank;
    MPI_Op_create(add_up, 1, &own);
    MPI_Allreduce(a, b, 3000, MPI_INT, own, MPI_COMM_WORLD);
    for (int i = 0; i < 3000; i++) check(b[i] == size * i + size * (size - 1) / 2, "an operator of its own");
    MPI_Op_free(&own);
    MPI_Allreduce(a, b, 3000, MPI_INT, MPI_BOR, MPI_COMM_WORLD);
    check(b[0] == (size > 4 ? 7 : size > 2 ? 3 : size - 1), "MPI_BOR");
    struct { double value; int at; } mine = {(double)((rank + 1) % size), rank}, found;
    MPI_Allreduce(&mine, &found, 1, MPI_DOUBLE_INT, MPI_MAXLOC, MPI_COMM_WORLD);
    check(found.at == size - 2 && found.value == size - 1, "MPI_MAXLOC");
    long double x = 1.5L, y;
    MPI_Allreduce(&x, &y, 1, MPI_LONG_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    check(y == 1.5L * size, "long double");
    MPI_Allreduce(MPI_IN_PLACE, a, 0, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    int counts[64], r[3000];
    for (int i = 0; i < size; i++) counts[i] = i ? 10 : 20;
    MPI_Reduce_scatter(a, r, counts, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    int first = rank ? 10 + 10 * rank : 0;
    check(r[0] == size * first + size * (size - 1) / 2, "uneven counts");
}

/* Every other int, last ones first: bytes that lie in another order. */
static MPI_Datatype backwards(int n) {
    int *at = malloc((size_t)n * sizeof *at);
    MPI_Datatype type, wide;
    for (int i = 0; i < n; i++) at[i] = 2 * (n - 1 - i);
    MPI_Type_create_indexed_block(n, 1, at, MPI_INT, &type);
    MPI_Type_create_resized(type, 0, (MPI_Aint)(2 * n * (int)sizeof(int)), &wide);
    MPI_Type_commit(&wide);
    MPI_Type_free(&type);
    free(at);
    return wide;
}

static int value(int from, int to, int i) { return 100000 * from + 1000 * to + i; }

enum { N = 300 };

static int at_back(int block, int i) { return block * 2 * N + 2 * (N - 1 - i); }

static void test_types(void) {
    MPI_Datatype own = backwards(N);
    int *wide = calloc((size_t)(2 * N * size), sizeof(int)), *flat = calloc((size_t)(N * size), sizeof(int));
    int odd = rank % 2, all = 2 * N * size;
    for (int root = 0; root < size; root += size - 1) { /* odd ranks have their own type, even ones plain ints */
        memset(wide, 0, (size_t)all * sizeof(int)), memset(flat, 0, (size_t)(N * size) * sizeof(int));
        for (int i = 0; i < N && rank == root; i++) wide[at_back(0, i)] = flat[i] = value(1, 2, i);
        odd ? MPI_Bcast(wide, 1, own, root, MPI_COMM_WORLD) : MPI_Bcast(flat, N, MPI_INT, root, MPI_COMM_WORLD);
        for (int i = 0; i < N; i++) check((odd ? wide[at_back(0, i)] : flat[i]) == value(1, 2, i), "bcast of its own type");
        check(!wide[1], "bcast: a gap was written");
        /* the root sends from its place */
        memset(wide, 0, (size_t)all * sizeof(int));
        for (int i = 0; i < N; i++) flat[i] = value(rank, root, i), wide[at_back(rank, i)] = flat[i];
        if (rank == root)
            MPI_Gather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, wide, 1, own, root, MPI_COMM_WORLD);
        else
            MPI_Gather(flat, N, MPI_INT, NULL, -1, MPI_DATATYPE_NULL, root, MPI_COMM_WORLD);
        for (int r = 0; r < size && rank == root; r++)
            for (int i = 0; i < N; i++) check(wide[at_back(r, i)] == value(r, root, i), "gather into its own type");
        for (int r = 0; r < size; r++)
            for (int i = 0; i < N; i++) wide[at_back(r, i)] = value(root, r, i);
        memset(flat, 0, (size_t)(N * size) * sizeof(int));
        if (rank == root)
            MPI_Scatter(wide, 1, own, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, root, MPI_COMM_WORLD);
        else
            MPI_Scatter(NULL, -1, MPI_DATATYPE_NULL, flat, N, MPI_INT, root, MPI_COMM_WORLD);
        for (int i = 0; i < N && rank != root; i++) check(flat[i] == value(root, rank, i), "scatter from its own type");
    }
    memset(wide, 0, (size_t)all * sizeof(int));
    for (int i = 0; i < N; i++) flat[rank * N + i] = value(rank, 0, i), wide[at_back(rank, i)] = value(rank, 0, i);
    odd ? MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, wide, 1, own, MPI_COMM_WORLD)
        : MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, flat, N, MPI_INT, MPI_COMM_WORLD);
    for (int r = 0; r < size; r++)
        for (int i = 0; i < N; i++)
            check((odd ? wide[at_back(r, i)] : flat[r * N + i]) == value(r, 0, i), "allgather into its own type");
    for (int r = 0; r < size; r++)
        for (int i = 0; i < N; i++) wide[at_back(r, i)] = flat[r * N + i] = value(rank, r, i);
    odd ? MPI_Alltoall(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, wide, 1, own, MPI_COMM_WORLD)
        : MPI_Alltoall(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, flat, N, MPI_INT, MPI_COMM_WORLD);
    for (int r = 0; r < size; r++)
        for (int i = 0; i < N; i++)
            check((odd ? wide[at_back(r, i)] : flat[r * N + i]) == value(r, rank, i), "alltoall of its own type");
    int *out = calloc((size_t)all, sizeof(int)); /* from plain into its own, and the other way round */
    for (int r = 0; r < size; r++)
        for (int i = 0; i < N; i++) wide[at_back(r, i)] = flat[r * N + i] = value(rank, r, i);
    odd ? MPI_Alltoall(wide, 1, own, out, N, MPI_INT, MPI_COMM_WORLD)
        : MPI_Alltoall(flat, N, MPI_INT, out, 1, own, MPI_COMM_WORLD);
    for (int r = 0; r < size; r++)
        for (int i = 0; i < N; i++)
            check((odd ? out[r * N + i] : out[at_back(r, i)]) == value(r, rank, i), "alltoall from its own type");
    MPI_Type_free(&own);
    free(wide), free(flat), free(out);
}

static void sum_of_ranks(MPI_Comm comm, int n) {
    int me, count, *a = malloc((size_t)n * sizeof *a);
    MPI_Comm_rank(comm, &me), MPI_Comm_size(comm, &count);
    for (int i = 0; i < n; i++) a[i] = me + i;
    MPI_Allreduce(MPI_IN_PLACE, a, n, MPI_INT, MPI_SUM, comm);
    for (int i = 0; i < n; i++) check(a[i] == count * i + count * (count - 1) / 2, "allreduce on a communicator");
    for (int i = 0; i < n; i++) a[i] = me == count - 1 ? i : 0;
    MPI_Bcast(a, n, MPI_INT, count - 1, comm);
    for (int i = 0; i < n; i++) check(a[i] == i, "bcast on a communicator");
    free(a);
}

static int copied(MPI_Comm comm, int key, void *extra, void *value, void *made, int *flag) {
    (void)comm, (void)key, (void)extra, (void)value, (void)made;
    copies++;
    *flag = 0;
    return MPI_SUCCESS;
}

static void test_communicators(void) {
    MPI_Comm half, again, turned, alone, between;
    int key;
    MPI_Comm_create_keyval(copied, MPI_COMM_NULL_DELETE_FN, &key, NULL);
    for (int turn = 0; turn < 10; turn++) {
        MPI_Comm_split(MPI_COMM_WORLD, rank < size / 2, rank, &half);
        sum_of_ranks(half, 1000 + turn);
        MPI_Comm_free(&half);
    }
    MPI_Comm_dup(MPI_COMM_WORLD, &again);
    MPI_Comm_set_attr(again, key, &key);
    sum_of_ranks(again, 5000);
    check(copies == 0, "attributes were copied");
    MPI_Comm_free(&again);
    MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &turned);
    sum_of_ranks(turned, 5000);
    MPI_Comm_split(MPI_COMM_WORLD, rank, 0, &alone);
    sum_of_ranks(alone, 100);
    MPI_Comm_split(MPI_COMM_WORLD, rank < size / 2, rank, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, rank < size / 2 ? size / 2 : 0, 7, &between);
    int one = rank, most = -1;
    MPI_Allreduce(&one, &most, 1, MPI_INT, MPI_MAX, between);
    check(most == (rank < size / 2 ? size - 1 : size / 2 - 1), "allreduce between groups");
    MPI_Comm_free(&between), MPI_Comm_free(&half), MPI_Comm_free(&turned), MPI_Comm_free(&alone);
    MPI_Comm_free_keyval(&key);
    MPI_Comm_dup(MPI_COMM_WORLD, &again); /* never freed */
    sum_of_ranks(again, 5000);
}

/* More than are kept, and some of them again. */
static void test_many_sizes(void) {
    for (int n = 1; n < 5000; n += 61) sum_of_ranks(MPI_COMM_WORLD, n);
    for (int n = 1; n < 5000; n += 610) sum_of_ranks(MPI_COMM_WORLD, n);
    sum_of_ranks(MPI_COMM_WORLD, 1 << 19);
}

static void test_mistakes(void) {
    int a[10] = {0};
    MPI_Comm again;
    MPI_Comm_dup(MPI_COMM_WORLD, &again);
    MPI_Comm_set_errhandler(again, MPI_ERRORS_RETURN);
    check(MPI_Bcast(a, 10, MPI_INT, size + 3, again) != MPI_SUCCESS, "a root that is none");
    check(MPI_Bcast(a, -1, MPI_INT, 0, again) != MPI_SUCCESS, "a negative count");
    MPI_Comm_free(&again);
}

static void *busy(void *comm) {
    for (int turn = 0; turn < 10; turn++) sum_of_ranks(*(MPI_Comm *)comm, 1000 * (turn % 3 + 1));
    return NULL;
}

static void test_threads(void) {
    enum { THREADS = 3 };
    MPI_Comm comm[THREADS];
    pthread_t thread[THREADS];
    for (int i = 0; i < THREADS; i++) MPI_Comm_dup(MPI_COMM_WORLD, &comm[i]);
    for (int i = 0; i < THREADS; i++) pthread_create(&thread[i], NULL, busy, &comm[i]);
    for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < THREADS; i++) MPI_Comm_free(&comm[i]);
}

int main(int count, char **arguments) {
    int given, threads = count > 1 && !strcmp(arguments[1], "threads"), all;
    MPI_Init_thread(&count, &arguments, threads ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &given);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank), MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (threads) {
        if (given == MPI_THREAD_MULTIPLE) test_threads();
    } else {
        test_operators();
        test_types();
        test_communicators();
        if (count < 2) test_many_sizes();
        test_mistakes();
    }
    MPI_Reduce(&wrong, &all, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (!rank) printf(all ? "%d wrong\n" : "right\n", all);
    MPI_Finalize();
    return wrong != 0;
}
