/* Calls that no plan can be made for: blocks of different sizes, prefixes, other operators. What each gives is computed here,
 * and nothing else may be written: guards around the buffers, gaps between blocks and elements. Prints "right" or what is
 * wrong. Arguments: a seed, how many turns, and "loose" where what lies behind the result of a reduce_scatter in place may be
 * anything, as MPI allows; "same": all processes have the same types. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 64, MOST = 64 };

static int rank, size, wrong, loose, same;
static MPI_Comm comm;
static unsigned state;

/* Alike at all processes. */
static int draw(int below) {
    state = state * 1664525u + 1013904223u;
    return (int)((state >> 8) % (unsigned)below);
}

static void check(int good, const char *what, int a, int b) {
    if (!good && wrong++ < 5) printf("wrong on %d of %d: %s: %d, %d\n", rank, size, what, a, b);
}

static int value(int from, int to, int i) { return 1000003 * from + 1009 * to + i; }

/* ---- buffers: `ints` of them between guards, with what should be there ---- */

typedef struct {
    int *all, *wanted, ints;
} buffer;

static buffer make(int ints) {
    buffer b = {malloc((size_t)(ints + 2 * GUARD) * sizeof(int)), malloc((size_t)(ints + 2 * GUARD) * sizeof(int)), ints + 2 * GUARD};
    for (int i = 0; i < b.ints; i++) b.all[i] = b.wanted[i] = -7 - i;
    return b;
}

static int *data(const buffer *b) { return b->all + GUARD; }
static int *wanted(const buffer *b) { return b->wanted + GUARD; }

static void held(buffer *b, const char *what) {
    int i = 0;
    while (i < b->ints && b->all[i] == b->wanted[i]) i++;
    check(i == b->ints, what, i - GUARD, i < b->ints ? b->all[i] : 0);
    free(b->all), free(b->wanted);
}

/* Counts of blocks, and places with gaps between them, in another order at odd processes; of elements that are `step` ints. */
typedef struct {
    int count[MOST], at[MOST], elements;
} blocks;

static void place(blocks *b) {
    int end = rank % 3;
    for (int k = 0; k < size; k++) {
        int i = rank % 2 ? size - 1 - k : k;
        b->at[i] = end;
        end += b->count[i] + rank % 2 + 1;
    }
    b->elements = end + 1;
}

/* Which sizes: nothing, few, many; all alike where `alike`. */
static int size_of_block(int most, int alike, int first) {
    int n = draw(4) ? draw(most) : 0;
    return alike ? first : n;
}

/* Every other int at odd processes, from the last to the first; plain ints at even ones. */
static MPI_Datatype type_of(int odd, int *step) {
    MPI_Datatype one, back;
    int length[2] = {1, 1};
    MPI_Aint at[2] = {4, 0};
    MPI_Datatype both[2] = {MPI_INT, MPI_INT};
    *step = odd ? 4 : 2;
    if (!odd) {
        MPI_Type_contiguous(2, MPI_INT, &one);
        MPI_Type_commit(&one);
        return one;
    }
    MPI_Type_create_struct(2, length, at, both, &one); /* the second int comes first */
    MPI_Type_create_resized(one, 0, 16, &back);
    MPI_Type_commit(&back);
    MPI_Type_free(&one);
    return back;
}

static void put(int *to, int odd, int from, int dest, int i) {
    to[odd ? 1 : 0] = value(from, dest, 2 * i), to[odd ? 0 : 1] = value(from, dest, 2 * i + 1);
}

/* Own type at odd processes if `mixed`. */
static void moving(int most, int alike, int in_place, int mixed) {
    int step, odd = mixed && (same || rank % 2), counts[MOST][MOST], first = 1 + draw(most);
    MPI_Datatype type = type_of(odd, &step);
    for (int i = 0; i < size; i++)
        for (int j = 0; j < size; j++) counts[i][j] = size_of_block(most, alike, first);
    blocks in, out;
    /* allgatherv */
    for (int i = 0; i < size; i++) in.count[i] = counts[i][0];
    place(&in);
    buffer got = make(in.elements * step), sent = make(counts[rank][0] * step);
    for (int i = 0; i < size; i++)
        for (int k = 0; k < in.count[i]; k++) put(wanted(&got) + (in.at[i] + k) * step, odd, i, 0, k);
    for (int k = 0; k < in.count[rank]; k++) {
        put(data(&sent) + k * step, odd, rank, 0, k), put(wanted(&sent) + k * step, odd, rank, 0, k);
        if (in_place) put(data(&got) + (in.at[rank] + k) * step, odd, rank, 0, k);
    }
    if (in_place)
        MPI_Allgatherv(MPI_IN_PLACE, -1, MPI_DATATYPE_NULL, data(&got), in.count, in.at, type, comm);
    else
        MPI_Allgatherv(data(&sent), in.count[rank], type, data(&got), in.count, in.at, type, comm);
    held(&got, "allgatherv"), held(&sent, "allgatherv, what is sent");
    /* alltoallv; in place what goes is as long as what comes */
    for (int i = 0; i < size; i++) {
        int low = i < rank ? i : rank, high = i < rank ? rank : i;
        out.count[i] = in_place ? counts[low][high] : counts[rank][i], in.count[i] = in_place ? counts[low][high] : counts[i][rank];
    }
    place(&in), place(&out);
    got = make(in.elements * step), sent = make(out.elements * step);
    for (int i = 0; i < size; i++) {
        for (int k = 0; k < in.count[i]; k++) put(wanted(&got) + (in.at[i] + k) * step, odd, i, rank, k);
        for (int k = 0; k < out.count[i]; k++) {
            int *to = in_place ? data(&got) + (in.at[i] + k) * step : data(&sent) + (out.at[i] + k) * step;
            put(to, odd, rank, i, k);
            if (!in_place) put(wanted(&sent) + (out.at[i] + k) * step, odd, rank, i, k);
        }
    }
    if (in_place)
        MPI_Alltoallv(MPI_IN_PLACE, NULL, NULL, MPI_DATATYPE_NULL, data(&got), in.count, in.at, type, comm);
    else
        MPI_Alltoallv(data(&sent), out.count, out.at, type, data(&got), in.count, in.at, type, comm);
    held(&got, "alltoallv"), held(&sent, "alltoallv, what is sent");
    /* gatherv and scatterv */
    int root = draw(size), gets = rank == root;
    for (int i = 0; i < size; i++) in.count[i] = counts[i][1 % size];
    place(&in);
    got = make(gets ? in.elements * step : 0), sent = make(in.count[rank] * step);
    for (int i = 0; i < size && gets; i++)
        for (int k = 0; k < in.count[i]; k++) put(wanted(&got) + (in.at[i] + k) * step, odd, i, root, k);
    for (int k = 0; k < in.count[rank]; k++) {
        put(data(&sent) + k * step, odd, rank, root, k), put(wanted(&sent) + k * step, odd, rank, root, k);
        if (in_place && gets) put(data(&got) + (in.at[rank] + k) * step, odd, rank, root, k);
    }
    if (in_place && gets)
        MPI_Gatherv(MPI_IN_PLACE, -1, MPI_DATATYPE_NULL, data(&got), in.count, in.at, type, root, comm);
    else
        MPI_Gatherv(data(&sent), in.count[rank], type, gets ? data(&got) : NULL, gets ? in.count : NULL, gets ? in.at : NULL,
                    gets ? type : MPI_DATATYPE_NULL, root, comm);
    held(&got, "gatherv"), held(&sent, "gatherv, what is sent");
    got = make(in.count[rank] * step), sent = make(gets ? in.elements * step : 0);
    for (int i = 0; i < size && gets; i++)
        for (int k = 0; k < in.count[i]; k++) {
            put(data(&sent) + (in.at[i] + k) * step, odd, root, i, k);
            put(wanted(&sent) + (in.at[i] + k) * step, odd, root, i, k);
        }
    for (int k = 0; k < in.count[rank] && !(in_place && gets); k++) put(wanted(&got) + k * step, odd, root, rank, k);
    if (gets)
        MPI_Scatterv(data(&sent), in.count, in.at, type, in_place ? MPI_IN_PLACE : data(&got), in.count[rank], type, root, comm);
    else
        MPI_Scatterv(NULL, NULL, NULL, MPI_DATATYPE_NULL, data(&got), in.count[rank], type, root, comm);
    held(&got, "scatterv"), held(&sent, "scatterv, what is sent");
    MPI_Type_free(&type);
}

/* ---- combining ---- */

/* A pair (a, b) is x -> a x + b: one after the other is again such a pair, and the order matters. */
static void compose(void *in, void *inout, int *n, MPI_Datatype *type) {
    const unsigned *first = in;
    unsigned *second = inout;
    (void)type;
    for (int i = 0; i < *n; i++, first += 2, second += 2) {
        unsigned a = first[0] * second[0], b = first[1] * second[0] + second[1];
        second[0] = a, second[1] = b;
    }
}

static void operand(int from, int i, int *two) { two[0] = 2 * (from + i) + 1, two[1] = 31 * from + 7 * i + 1; }

/* Of processes up to `last`, in their order. */
static void composed(int last, int i, int *two) {
    int n = 1, next[2];
    operand(0, i, two);
    for (int r = 1; r <= last; r++) {
        operand(r, i, next);
        compose(two, next, &n, NULL);
        two[0] = next[0], two[1] = next[1];
    }
}

/* Integers of MPI_SUM alone, or pairs by an operator that does not commute. */
static void total(int own, int last, int i, int *to) {
    if (own) {
        composed(last, i, to);
        return;
    }
    to[0] = 0;
    for (int r = 0; r <= last; r++) to[0] += value(r, 0, i);
}

static void put_operand(int own, int i, int *to) {
    if (own)
        operand(rank, i, to);
    else
        to[0] = value(rank, 0, i);
}

enum { ALLREDUCE, REDUCE, SCATTER_BLOCK, SCATTER_COUNTS, SCAN, EXSCAN, CALLS };

static void combining(int call, int most, int own, int in_place, MPI_Datatype pair, MPI_Op op) {
    static const char *const names[CALLS] = {"allreduce", "reduce", "reduce_scatter_block", "reduce_scatter", "scan", "exscan"};
    int step = own ? 2 : 1, root = draw(size), n = 1 + draw(most), counts[MOST], first = 0, all = n, mine = n;
    MPI_Datatype type = own ? pair : MPI_INT;
    MPI_Op by = own ? op : MPI_SUM;
    if (call == SCATTER_BLOCK || call == SCATTER_COUNTS) {
        all = 0;
        for (int i = 0; i < size; i++) {
            counts[i] = call == SCATTER_BLOCK ? n : size_of_block(most, 0, 0);
            if (i < rank) first += counts[i];
            all += counts[i];
        }
        mine = counts[rank];
    }
    int has = call != REDUCE || rank == root, places = in_place && has;
    buffer in = make(all * step), out = make((places ? all : has ? mine : 0) * step), *from = places ? &out : &in;
    for (int i = 0; i < all; i++) {
        put_operand(own, i, data(from) + i * step);
        put_operand(own, i, wanted(from) + i * step);
    }
    int last = call == SCAN ? rank : call == EXSCAN ? rank - 1 : size - 1;
    for (int i = 0; i < mine && has && last >= 0; i++) total(own, last, first + i, wanted(&out) + i * step);
    const void *a = places ? MPI_IN_PLACE : data(&in);
    void *b = has ? data(&out) : NULL;
    switch (call) {
    case ALLREDUCE: MPI_Allreduce(a, b, n, type, by, comm); break;
    case REDUCE: MPI_Reduce(a, b, n, type, by, root, comm); break;
    case SCATTER_BLOCK: MPI_Reduce_scatter_block(a, b, n, type, by, comm); break;
    case SCATTER_COUNTS: MPI_Reduce_scatter(a, b, counts, type, by, comm); break;
    case SCAN: MPI_Scan(a, b, n, type, by, comm); break;
    default: MPI_Exscan(a, b, n, type, by, comm);
    }
    for (int i = mine * step; loose && in_place && mine < all && i < all * step; i++) wanted(&out)[i] = data(&out)[i];
    held(&out, names[call]), held(&in, names[call]);
}

/* MPI's own operators, of types that the engine does not combine. */
static void built_in(int n) {
    struct { double value; int at; } *pair = malloc((size_t)n * sizeof *pair), *least = malloc((size_t)n * sizeof *least);
    unsigned char *bits = malloc((size_t)n), *any = malloc((size_t)n);
    long double *x = malloc((size_t)n * sizeof *x), *y = malloc((size_t)n * sizeof *y);
    for (int i = 0; i < n; i++) {
        pair[i].value = (double)((rank + i) % size), pair[i].at = rank;
        bits[i] = (unsigned char)(1 << ((rank + i) % 8)), x[i] = (long double)rank + i;
    }
    MPI_Allreduce(pair, least, n, MPI_DOUBLE_INT, MPI_MINLOC, comm);
    MPI_Allreduce(bits, any, n, MPI_BYTE, MPI_BXOR, comm);
    MPI_Scan(x, y, n, MPI_LONG_DOUBLE, MPI_SUM, comm);
    for (int i = 0; i < n; i++) {
        unsigned all = 0;
        for (int r = 0; r < size; r++) all ^= 1u << ((r + i) % 8);
        check(least[i].value == 0 && (least[i].at + i) % size == 0, "MPI_MINLOC", i, least[i].at);
        check(any[i] == all, "MPI_BXOR", i, any[i]);
        check(y[i] == (long double)rank * (rank + 1) / 2 + (long double)i * (rank + 1), "scan of long double", i, (int)y[i]);
    }
    free(pair), free(least), free(bits), free(any), free(x), free(y);
}

/* What goes to MPI as it is. */
static void other_forms(void) {
    int one = rank, sum = -1, zero[MOST] = {0}, wanted = size * (size - 1) / 2;
    MPI_Datatype types[MOST];
    MPI_Request request;
    for (int i = 0; i < size; i++) types[i] = MPI_INT;
    MPI_Iallreduce(&one, &sum, 1, MPI_INT, MPI_SUM, comm, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    check(sum == wanted, "MPI_Iallreduce", sum, wanted);
    MPI_Alltoallw(&one, zero, zero, types, &sum, zero, zero, types, comm);
#if MPI_VERSION >= 4
    MPI_Scan_init(&one, &sum, 1, MPI_INT, MPI_SUM, comm, MPI_INFO_NULL, &request);
    for (int turn = 0; turn < 2; turn++) {
        sum = -1;
        MPI_Start(&request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        check(sum == rank * (rank + 1) / 2, "MPI_Scan_init", sum, turn);
    }
    MPI_Request_free(&request);
#endif
}

int main(int count, char **arguments) {
    static const int most[] = {3, 40, 700, 30000};
    int all, turns = count > 2 ? atoi(arguments[2]) : 1;
    MPI_Datatype pair;
    MPI_Op op;
    MPI_Init(&count, &arguments);
    comm = MPI_COMM_WORLD;
    MPI_Comm_rank(comm, &rank), MPI_Comm_size(comm, &size);
    state = (unsigned)atoi(arguments[1]), loose = count > 3, same = count > 4;
    MPI_Type_contiguous(2, MPI_UNSIGNED, &pair);
    MPI_Type_commit(&pair);
    MPI_Op_create(compose, 0, &op);
    for (int turn = 0; turn < turns; turn++) {
        for (int i = 0; i < 8; i++) moving(most[draw(4)], i & 1, i >> 1 & 1, i >> 2);
        for (int call = 0; call < CALLS; call++)
            for (int i = 0; i < 4; i++) combining(call, most[draw(4)], i & 1, i >> 1, pair, op);
        built_in(1 + draw(most[draw(3)]));
    }
    other_forms();
    MPI_Op_free(&op), MPI_Type_free(&pair);
    MPI_Reduce(&wrong, &all, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (!rank) printf(all ? "%d wrong\n" : "right\n", all);
    MPI_Finalize();
    return wrong != 0;
}
