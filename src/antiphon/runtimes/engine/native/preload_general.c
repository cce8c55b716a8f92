/* Calls that no plan can be made for beforehand: blocks whose sizes the call tells, prefixes, and operators that MPI or the
 * program itself carries out. Between processes that share memory one or two rounds of messages do them, each process with
 * all others; so they are as good as any plan there, and need none.
 *
 * Elements are combined in the order of the processes, from the first: ((a0 a1) a2) a3, whatever the operator is. */
#include <limits.h>
#include <stdlib.h>

#include "copy.h"
#include "exchange.h"
#include "preload.h"
#include "transport_mpi.h"

/* Of a vector: up to here every process that needs a result gets all the operands. Beyond, each combines a share. */
enum { FEW = 1 << 12 };
/* Blocks of an alltoallv from here on go by MPI, which copies them once, where it can: nobody else wants them, so that
 * memory of ours in between gains nothing. Its sender decides, and says so through memory. */
enum { LONG = 1 << 19 };

/* `python bench/bench_general.py`: chains of processes, of which each reads the memory of the one before, take fewer copies. */
uint64_t ap_general_most(int kind) {
    if (kind == AP_REDUCE) return 1 << 14;
#ifdef OPEN_MPI
    if (kind == AP_SCAN || kind == AP_EXSCAN) return 1 << 14;
#endif
    return UINT64_MAX;
}

typedef struct {
    const ap_group *g;
    ap_leg *leg;
    uint32_t count;
} parcel;

static int begin(parcel *p, ap_group *g, ap_error *error) {
    *p = (parcel){g, ap_group_stage(g, AP_PARTS, 2 * (size_t)g->size * sizeof(ap_leg), error), 0};
    return p->leg ? AP_OK : AP_MEMORY;
}

static void add_any(parcel *p, int process, int comes, const void *data, size_t bytes) {
    p->leg[p->count++] =
        (ap_leg){.peer = (uint32_t)p->g->found.rank_of[process], .comes = comes, .data = (void *)(uintptr_t)data, .bytes = bytes};
}

static void add(parcel *p, int process, int comes, const void *data, size_t bytes) {
    if (bytes) add_any(p, process, comes, data, bytes);
}

static int process_of(const ap_group *g, uint32_t peer) {
    int process = 0;
    while (g->found.rank_of[process] != (int32_t)peer) process++;
    return process;
}

static int run(const parcel *p, ap_error *error) {
    return ap_exchange(p->g->wire, p->leg, p->count, ap_preload.set.timeout, error);
}

/* All processes but this one, each beginning at another. */
static int other(const ap_group *g, int turn) { return (g->rank + 1 + turn) % g->size; }

/* ---- combining ---- */

typedef struct {
    const ap_elements *x;
    const char *input;
    char *result;           /* the caller's */
    char *work;             /* what came of each process, one after another */
    uint64_t first, length; /* bytes: the share of this process */
    int kind, size, me, root, few, in_place;
} combination;

static int is_scan(int kind) { return kind == AP_SCAN || kind == AP_EXSCAN; }

/* Which bytes of all inputs a process combines. */
static void share_of(const combination *c, int process, uint64_t *first, uint64_t *length) {
    const ap_elements *x = c->x;
    uint64_t low = 0, high = x->count;
    if (c->kind == AP_REDUCESCATTER && ap_listed(&x->call->gets)) {
        for (int i = 0; i < process; i++) low += (uint64_t)ap_count_at(&x->call->gets, i);
        high = low + (uint64_t)ap_count_at(&x->call->gets, process);
    } else if (c->kind == AP_REDUCESCATTER) {
        low = x->count * (uint64_t)process, high = low + x->count;
    } else if (!c->few) {
        low = (uint64_t)((unsigned __int128)x->count * (unsigned)process / (unsigned)c->size);
        high = (uint64_t)((unsigned __int128)x->count * ((unsigned)process + 1) / (unsigned)c->size);
    } else if (c->kind == AP_REDUCE && process != c->root) {
        high = 0;
    }
    *first = low * x->width, *length = (high - low) * x->width;
}

/* Whether what one has is an operand of what another combines. */
static int counts_for(const combination *c, int from, int to) {
    return !(is_scan(c->kind) && c->few) || (c->kind == AP_SCAN ? from <= to : from < to);
}

static char *piece(const combination *c, int process) { return c->work + (uint64_t)process * c->length; }

static int deal(combination *c, ap_group *g, ap_error *error) {
    parcel p;
    if (begin(&p, g, error)) return error->code;
    for (int turn = 0; turn < c->size - 1; turn++) {
        int process = other(g, turn);
        uint64_t first, length;
        share_of(c, process, &first, &length);
        if (counts_for(c, c->me, process)) add(&p, process, 0, c->input + first, length);
        if (counts_for(c, process, c->me)) add(&p, process, 1, piece(c, process), c->length);
    }
    if (counts_for(c, c->me, c->me)) ap_copy(piece(c, c->me), c->input + c->first, c->length);
    return run(&p, error);
}

/* The second operand becomes the result. */
static int combine(const ap_elements *x, const char *one, char *two, uint64_t bytes, int *code) {
    enum { MOST = 1 << 30 };
    if (x->type >= 0) {
        const void *operands[2] = {one, two};
        ap_fold(two, operands, 2, bytes / x->width, x->type, x->op);
        return AP_OK;
    }
    for (uint64_t left = bytes / x->width; left && !*code;) {
        int n = left < MOST ? (int)left : MOST;
        *code = PMPI_Reduce_local(one, two, n, x->call->recv_type, x->call->op);
        one += (uint64_t)n * x->width, two += (uint64_t)n * x->width, left -= (uint64_t)n;
    }
    return *code ? AP_TRANSPORT : AP_OK;
}

/* Each piece becomes the combination of all up to it. */
static int accumulate(const combination *c, int *code, ap_error *error) {
    int last = c->size - 1;
    if (c->few && is_scan(c->kind)) last = c->kind == AP_SCAN ? c->me : c->me - 1;
    for (int i = 1; i <= last && c->length; i++)
        if (combine(c->x, piece(c, i - 1), piece(c, i), c->length, code))
            return ap_fail(error, AP_TRANSPORT, "MPI could not combine elements");
    return AP_OK;
}

/* All pieces at once, by the engine's operators: the last piece becomes the result. */
static int fold_all(const combination *c, ap_error *error) {
    const void **operand = malloc((size_t)c->size * sizeof *operand);
    if (!operand) return ap_fail(error, AP_MEMORY, "out of memory");
    for (int i = 0; i < c->size; i++) operand[i] = piece(c, i);
    ap_fold(piece(c, c->size - 1), operand, (size_t)c->size, c->length / c->x->width, c->x->type, c->x->op);
    free(operand);
    return AP_OK;
}

/* Those that have a result of a share hand it to those that want it; whose place is his own copies it. */
static int collect(combination *c, ap_group *g, ap_error *error) {
    const int last = c->size - 1, back = c->kind == AP_EXSCAN;
    parcel p;
    if (begin(&p, g, error)) return error->code;
    for (int turn = 0; turn < last; turn++) {
        int process = other(g, turn), wants = c->kind != AP_REDUCE || process == c->root;
        uint64_t first, length;
        share_of(c, process, &first, &length);
        int which = is_scan(c->kind) ? process - back : last;
        if (wants && which >= 0) add(&p, process, 0, piece(c, which), c->length);
        if ((c->kind != AP_REDUCE || c->me == c->root) && c->me - back >= 0) add(&p, process, 1, c->result + first, length);
    }
    int code = run(&p, error), mine = is_scan(c->kind) ? c->me - back : last;
    if (!code && mine >= 0 && (c->kind != AP_REDUCE || c->me == c->root))
        ap_copy(c->result + c->first, piece(c, mine), c->length);
    return code;
}

/* Of what is whole at whoever wants it. */
static void keep(const combination *c) {
    int mine = c->size - 1;
    if (is_scan(c->kind)) mine = c->kind == AP_SCAN ? c->me : c->me - 1;
    if (mine >= 0 && (c->kind != AP_REDUCE || c->me == c->root)) ap_copy(c->result, piece(c, mine), c->length);
}

int ap_general_fold(const ap_elements *x, int *code, ap_error *error) {
    const ap_call *call = x->call;
    ap_group *g = x->g;
    combination c = {.x = x, .kind = call->kind, .size = g->size, .me = g->rank, .root = call->root,
                     .in_place = call->send == MPI_IN_PLACE};
    c.input = c.in_place ? call->recv : call->send, c.result = call->recv;
    c.few = c.kind != AP_REDUCESCATTER && x->count * x->width <= FEW;
    share_of(&c, c.me, &c.first, &c.length);
    if (c.length > SIZE_MAX / (uint64_t)c.size) return ap_fail(error, AP_MEMORY, "there is no memory of that size");
    c.work = ap_group_stage(g, AP_WORK, c.length * (uint64_t)c.size + 1, error);
    if (!c.work) return error->code;
    int failed = deal(&c, g, error);
    if (!failed) failed = x->type >= 0 && !is_scan(c.kind) ? fold_all(&c, error) : accumulate(&c, code, error);
    if (failed) return failed;
    if (!c.few && c.kind != AP_REDUCESCATTER) return collect(&c, g, error);
    keep(&c);
    return AP_OK;
}

/* ---- moving ---- */

/* The blocks that a process hands over or gets. */
typedef struct {
    char *user, *bytes; /* the caller's, and the same as plain bytes (both alike where they are) */
    const ap_list *list; /* NULL: one block, of `count` */
    MPI_Count count;
    MPI_Datatype type;
    ap_kind_of_data data;
    MPI_Aint extent;
    uint64_t *from; /* where each block begins in `bytes` */
    uint64_t *came; /* bytes of each that came, where it is staged */
    int there, staged;
} blocks;

static uint64_t count_of(const blocks *b, int i) {
    return (uint64_t)(b->list ? ap_count_at(b->list, i) : b->count);
}

static uint64_t bytes_of(const blocks *b, int i) { return count_of(b, i) * (uint64_t)b->data.size; }

static char *user_block(const blocks *b, int i) { return b->user + (b->list ? ap_place_at(b->list, i) * b->extent : 0); }

static char *block(const blocks *b, int i) {
    if (!b->staged) return user_block(b, i);
    return b->bytes + (b->list ? b->from[i] : 0);
}

static int transfer(const blocks *b, MPI_Comm comm, int i, int into) {
    uint64_t n = into || !b->data.size ? count_of(b, i) : b->came[i] / (uint64_t)b->data.size;
    if (!n) return MPI_SUCCESS;
    if (b->data.plain && into) ap_copy(block(b, i), user_block(b, i), bytes_of(b, i));
    if (b->data.plain) return MPI_SUCCESS;
    return ap_pack(comm, user_block(b, i), b->type, b->extent, (uint64_t)b->data.size, n, block(b, i), into);
}

/* What is known of them; with `aside` memory beside the caller's in any case. */
static int look(blocks *b, ap_group *g, const void *user, MPI_Datatype type, MPI_Count count, const ap_list *list, int aside,
                int number, ap_error *error) {
    MPI_Aint low;
    *b = (blocks){.user = (char *)(uintptr_t)user, .type = type, .count = count, .there = 1};
    if (list && ap_listed(list)) b->list = list;
    if (!ap_type_of(type, &b->data) || PMPI_Type_get_extent(type, &low, &b->extent))
        return ap_fail(error, AP_INVALID, "MPI does not know a data type");
    b->staged = aside || !b->data.plain;
    if (!b->staged) return AP_OK;
    uint64_t all = 0;
    const int n = b->list ? g->size : 1;
    char *room;
    for (int i = 0; i < n; i++) all += bytes_of(b, i);
    if (!(room = ap_group_stage(g, number, all + 2 * (uint64_t)n * sizeof *b->from, error))) return error->code;
    b->from = (uint64_t *)(void *)room, b->came = b->from + n, b->bytes = (char *)(b->came + n);
    b->from[0] = 0;
    for (int i = 1; i < n; i++) b->from[i] = b->from[i - 1] + bytes_of(b, i - 1);
    for (int i = 0; i < n; i++) b->came[i] = bytes_of(b, i);
    return AP_OK;
}

static int look_at_both(ap_group *g, const ap_call *c, blocks *out, blocks *in, ap_error *error) {
    const int at_root = g->rank == c->root, own = c->kind == AP_ALLGATHERV || c->kind == AP_GATHERV;
    int sends = c->send != MPI_IN_PLACE && (c->kind != AP_SCATTERV || at_root);
    int gets = c->recv != MPI_IN_PLACE && (c->kind != AP_GATHERV || at_root), code = AP_OK;
    *out = *in = (blocks){0};
    if (gets) code = look(in, g, c->recv, c->recv_type, c->recv_count, &c->gets, 0, AP_STAGED_OUT, error);
    if (code) return code;
    if (sends)
        code = look(out, g, c->send, c->send_type, c->send_count, own ? NULL : &c->sends, 0, AP_STAGED_IN, error);
    else if (c->kind == AP_ALLTOALLV) /* what is sent lies where others' blocks go */
        code = look(out, g, c->recv, c->recv_type, 0, &c->gets, 1, AP_STAGED_IN, error);
    else if (own && gets) { /* at its place among the others */
        code = look(out, g, user_block(in, g->rank), c->recv_type, (MPI_Count)count_of(in, g->rank), NULL, 0, AP_STAGED_IN, error);
    }
    return code;
}

/* Whether one process hands a block to another. */
static int goes(int kind, int root, int from, int to) {
    if (kind == AP_GATHERV) return to == root;
    return kind != AP_SCATTERV || from == root;
}

/* What a process was sent, beside what it expects: less is what MPI lets pass, too; more is its error. */
static int came(blocks *in, int process, int me, uint64_t bytes, ap_error *error) {
    const int place = in->list ? process : 0;
    const uint64_t expected = bytes_of(in, place);
    if (in->staged) in->came[place] = bytes < expected ? bytes : expected;
    if (bytes <= expected) return AP_OK;
    return ap_fail(error, AP_MISMATCH, "process %d of the communicator sends %llu bytes, of which %d expects %llu", process,
                   (unsigned long long)bytes, me, (unsigned long long)expected);
}

/* Its own block. */
static int keep_own(const blocks *out, blocks *in, int me, ap_error *error) {
    const uint64_t bytes = bytes_of(out, out->list ? me : 0), expected = bytes_of(in, in->list ? me : 0);
    ap_copy(block(in, me), block(out, me), bytes < expected ? bytes : expected);
    return came(in, me, me, bytes, error);
}

/* All blocks between this process and others; what came is told in the legs of *p. */
static int exchange(parcel *p, ap_group *g, const ap_call *c, ap_error *error) {
    const double timeout = ap_preload.set.timeout;
    int failed = ap_mpi_any_length(g->wire, p->leg, c->kind == AP_ALLTOALLV ? LONG : 0, timeout, error);
    if (!failed) failed = run(p, error);
    ap_mpi_known_length(g->wire);
    return failed;
}

int ap_general_move(ap_group *g, const ap_call *c, int *code, ap_error *error) {
    const int me = g->rank;
    blocks out, in;
    parcel p;
    int failed = look_at_both(g, c, &out, &in, error), wrong = AP_OK;
    if (failed || begin(&p, g, error)) return error->code;
    const int n = out.list ? g->size : 1;
    /* where only two know what goes from one to the other also blocks of nothing: the other may expect more, and would wait */
    void (*const put)(parcel *, int, int, const void *, size_t) = c->kind == AP_ALLGATHERV ? add : add_any;
    for (int i = 0; out.there && out.staged && i < n && !*code; i++) *code = transfer(&out, c->comm, i, 1);
    if (*code) return ap_fail(error, AP_TRANSPORT, "MPI could not bring elements together");
    for (int turn = 0; turn < g->size - 1; turn++) {
        int process = other(g, turn), outwards = out.there && goes(c->kind, c->root, me, process);
        if (outwards) put(&p, process, 0, block(&out, process), bytes_of(&out, process));
        if (in.there && goes(c->kind, c->root, process, me)) put(&p, process, 1, block(&in, process), bytes_of(&in, process));
    }
    if ((failed = exchange(&p, g, c, error))) return failed;
    for (uint32_t i = 0; i < p.count; i++) {
        if (p.leg[i].comes && p.leg[i].came.bytes != p.leg[i].bytes)
            wrong |= came(&in, process_of(g, p.leg[i].peer), me, p.leg[i].came.bytes, error);
        free(p.leg[i].scrap);
    }
    int own = out.there && in.there && goes(c->kind, c->root, me, me) && c->send != MPI_IN_PLACE;
    if (own) wrong |= keep_own(&out, &in, me, error);
    for (int i = 0; in.there && in.staged && i < (in.list ? g->size : 1) && !*code; i++)
        if (i != me || own || !in.list) *code = transfer(&in, c->comm, i, 0);
    return *code ? ap_fail(error, AP_TRANSPORT, "MPI could not spread elements") : wrong;
}
