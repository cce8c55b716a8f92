/* A program that knows NCCL alone: random calls on several communicators and streams, each result held against what it must be.
 *
 *     drive RANK RANKS FILE SEED SEQUENCES [WHAT...]
 *
 * All processes draw the same calls; what NCCL leaves to each (streams, in place or not, what it puts into one group) each draws
 * for itself. FILE: where rank 0 leaves the id. WHAT: kinds that it keeps to, "graphs", "large", "careless" (what goes on in another
 * stream does not wait: results must come out wrong).
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_runtime_api.h"
#include "nccl_names.h"
#include "numbers.h"

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type, int where, ncclComm_t comm);

enum { BROADCAST, REDUCE, SCATTER, GATHER, ALLGATHER, REDUCESCATTER, ALLREDUCE, ALLTOALL, POINTS, KINDS };
static const char *const names[KINDS] = {"broadcast", "reduce", "scatter", "gather", "allgather", "reducescatter", "allreduce", "alltoall", "points"};
enum { MOST_COMMS = 5, MOST_CALLS = 24, STREAMS = 3, MOST = 16 };

typedef struct {
    ncclComm_t comm;
    int ranks, rank, world[MOST]; /* of each its rank in the job */
    ncclRedOp_t doubled;          /* an operator of the program's own: twice the sum */
} group;

typedef struct {
    int kind, comm, drawn, type, op, root, doubled, after, batch, stream, in_place;
    size_t count;
    unsigned key;
    unsigned char *from, *to, *memory;
} call;

#define CHECK(CALL) check((int)(CALL), #CALL)

static int me, ranks, wanted[KINDS], any, graphs, large, careless;
static uint64_t state, own;
static cudaStream_t stream[STREAMS];
static group groups[MOST_COMMS];
static int comms;
static call calls[MOST_CALLS];
static unsigned sequence;

static void fail(const char *what, int code) {
    fprintf(stderr, "rank %d, sequence %u: %s gives %d\n", me, sequence, what, code);
    _Exit(3);
}

static void check(int code, const char *what) {
    if (code) fail(what, code);
}

static unsigned draw(uint64_t *from, unsigned below) {
    *from ^= *from << 13, *from ^= *from >> 7, *from ^= *from << 17;
    return (unsigned)((*from >> 33) % below);
}
static unsigned all(unsigned below) { return draw(&state, below); }  /* the same at all */
static unsigned mine(unsigned below) { return draw(&own, below); }

/* ---- what is there, and what must come ---- */

static size_t in_blocks(const call *c) {
    int n = groups[c->comm].ranks;
    return c->kind == SCATTER || c->kind == REDUCESCATTER || c->kind == ALLTOALL || c->kind == POINTS ? (size_t)n : 1;
}

static size_t out_blocks(const call *c) {
    int n = groups[c->comm].ranks;
    return c->kind == GATHER || c->kind == ALLGATHER || c->kind == ALLTOALL || c->kind == POINTS ? (size_t)n : 1;
}

static double expected(const call *c, int rank, size_t i);

/* Element i of what a rank hands over; small whole numbers, so that every type adds them exactly. */
static double given(const call *c, int rank, size_t i) {
    if (c->after >= 0) return expected(&calls[c->after], rank, i);
    unsigned x = c->key + 0x9E3779B9u * (unsigned)(i + 1) + 0x85EBCA6Bu * (unsigned)groups[c->comm].world[rank];
    x ^= x >> 15, x *= 0x2C1B3C6Du, x ^= x >> 12;
    double value = c->op == 1 ? 1 + x % 2 : x % 4;
    return c->op == 4 ? (c->type ? value : x % 2) * groups[c->comm].ranks : value; /* that int8 holds their sum */
}

static double combined(const call *c, size_t i) {
    double sum = given(c, 0, i);
    for (int r = 1; r < groups[c->comm].ranks; r++) sum = number_both(sum, given(c, r, i), c->op);
    return c->doubled ? 2 * sum : c->op == 4 ? sum / groups[c->comm].ranks : sum;
}

static double expected(const call *c, int rank, size_t i) {
    size_t n = c->count;
    switch (c->kind) {
    case BROADCAST: return given(c, c->root, i);
    case SCATTER: return given(c, c->root, (size_t)rank * n + i);
    case GATHER: case ALLGATHER: return given(c, (int)(i / n), i % n);
    case REDUCESCATTER: return combined(c, (size_t)rank * n + i);
    case ALLTOALL: case POINTS: return given(c, (int)(i / n), (size_t)rank * n + i % n);
    }
    return combined(c, i);
}

static int has_input(const call *c) {
    return !(c->kind == BROADCAST || c->kind == SCATTER) || groups[c->comm].rank == c->root;
}
static int has_output(const call *c) { return !(c->kind == REDUCE || c->kind == GATHER) || groups[c->comm].rank == c->root; }

/* ---- calls ---- */

static ncclDataType_t some_type(int kind) { return (ncclDataType_t)all(kind == ALLREDUCE || kind == REDUCE || kind == REDUCESCATTER ? 10 : 12); }

static int is_alike(int one, int other) {
    const group *g = &groups[one], *h = &groups[other];
    return g->ranks == h->ranks && !memcmp(g->world, h->world, (size_t)g->ranks * sizeof *g->world);
}

static void draw_call(int i, int batch) {
    call *c = &calls[i];
    do c->kind = (int)all(KINDS); while (any && !wanted[c->kind]);
    c->comm = c->drawn = (int)all((unsigned)comms), c->batch = batch, c->after = -1, c->doubled = 0;
    const group *g = &groups[c->comm];
    int reduces = c->kind == ALLREDUCE || c->kind == REDUCE || c->kind == REDUCESCATTER;
    c->type = (int)some_type(c->kind), c->op = reduces ? (int)all(5) : 0, c->root = (int)all((unsigned)g->ranks), c->key = all(1u << 30);
    if (reduces && c->op == 0 && all(6) == 0) c->type = ncclFloat32, c->doubled = 1;
    c->count = all(5) == 0 ? all(4) : all(8) == 0 ? 1 + all(large ? 40000 : 3000) : 1 + all(200);
    c->stream = (int)mine(STREAMS), c->in_place = (int)mine(2);
    /* what an allreduce or broadcast gave goes on, without anybody waiting in between */
    if (i && all(3) == 0 && calls[i - 1].batch != batch) {
        const call *b = &calls[i - 1];
        if ((b->kind == ALLREDUCE || b->kind == BROADCAST) && is_alike(b->drawn, c->drawn) && b->after < 0 && b->type < 10 && c->kind == ALLREDUCE && b->op < 3 && b->op != 1 && b->count) {
            c->after = i - 1, c->type = b->type, c->count = b->count, c->op = 2, c->doubled = 0;
            c->stream = careless ? (b->stream + 1) % STREAMS : b->stream;
        }
    }
    if (groups[c->comm].rank < 0) c->comm = -1; /* not mine; given() of it is never asked for */
}

static void prepare(call *c) {
    const group *g = &groups[c->comm];
    const size_t size = number_size(c->type), in = in_blocks(c) * c->count, out = out_blocks(c) * c->count, block = c->count;
    if (c->kind == ALLTOALL || c->kind == POINTS || c->after >= 0) c->in_place = 0;
    unsigned char *memory = c->memory = malloc((in + out) * size + 1);
    memset(memory, 0x5A, (in + out) * size + 1);
    c->from = memory, c->to = memory + in * size;
    if (c->in_place && c->kind == ALLGATHER) c->from = c->to + (size_t)g->rank * block * size;
    else if (c->in_place && c->kind == REDUCESCATTER) c->to = c->from + (size_t)g->rank * block * size;
    else if (c->in_place && c->kind == GATHER && g->rank == c->root) c->from = c->to + (size_t)g->rank * block * size;
    else if (c->in_place && c->kind == SCATTER && g->rank == c->root) c->to = c->from + (size_t)g->rank * block * size;
    else if (c->in_place && (c->kind == ALLREDUCE || c->kind == BROADCAST || (c->kind == REDUCE && g->rank == c->root))) c->to = c->from;
    if (c->after >= 0) c->from = calls[c->after].to;
    else if (has_input(c))
        for (size_t i = 0; i < in; i++) number_put(c->from, i, c->type, given(c, g->rank, i));
    if (!has_output(c)) c->to = NULL;
    if (!has_input(c) && c->kind == SCATTER) c->from = NULL;
}

static void make(call *c) {
    const group *g = &groups[c->comm];
    const ncclDataType_t t = (ncclDataType_t)c->type;
    const ncclRedOp_t op = c->doubled ? g->doubled : (ncclRedOp_t)c->op;
    const cudaStream_t s = stream[c->stream];
    const size_t n = c->count, block = n * number_size(c->type);
    switch (c->kind) {
    case BROADCAST:
        if (c->in_place) CHECK(ncclBcast(c->to, n, t, c->root, g->comm, s));
        else CHECK(ncclBroadcast(c->from, c->to, n, t, c->root, g->comm, s));
        break;
    case REDUCE: CHECK(ncclReduce(c->from, c->to, n, t, op, c->root, g->comm, s)); break;
    case SCATTER: CHECK(ncclScatter(c->from, c->to, n, t, c->root, g->comm, s)); break;
    case GATHER: CHECK(ncclGather(c->from, c->to, n, t, c->root, g->comm, s)); break;
    case ALLGATHER: CHECK(ncclAllGather(c->from, c->to, n, t, g->comm, s)); break;
    case REDUCESCATTER: CHECK(ncclReduceScatter(c->from, c->to, n, t, op, g->comm, s)); break;
    case ALLREDUCE: CHECK(ncclAllReduce(c->from, c->to, n, t, op, g->comm, s)); break;
    case ALLTOALL: CHECK(ncclAlltoAll(c->from, c->to, n, t, g->comm, s)); break;
    default:
        CHECK(ncclGroupStart());
        for (int r = 0; r < g->ranks; r++) {
            CHECK(ncclSend(c->from + (size_t)r * block, n, t, r, g->comm, s));
            CHECK(ncclRecv(c->to + (size_t)r * block, n, t, r, g->comm, s));
        }
        CHECK(ncclGroupEnd());
    }
}

static void judge(const call *c, int number) {
    const group *g = &groups[c->comm];
    if (!c->to) return;
    for (size_t i = 0; i < out_blocks(c) * c->count; i++) {
        double is = number_at(c->to, i, c->type), should = expected(c, g->rank, i);
        char kept[8] = {0};
        number_put(kept, 0, c->type, should); /* as the type holds it */
        if (is == number_at(kept, 0, c->type)) continue;
        fprintf(stderr, "rank %d, sequence %u, call %d, %s on %d ranks, type %d, operator %d, %zu elements, root %d%s: element %zu is %g, not %g\n",
                me, sequence, number, names[c->kind], g->ranks, c->type, c->op, c->count, c->root, c->in_place ? ", in place" : "", i, is, should);
        _Exit(4);
    }
}

/* Calls of a batch may be one group at one process and several at another, unless messages between two are among them, or a
 * communicator comes again after another: a group would have its later calls before that one's. */
static int is_free(int first, int count) {
    for (int i = first; i < count && calls[i].batch == calls[first].batch; i++) {
        if (calls[i].kind == POINTS) return 0;
        if (i == first || calls[i].drawn == calls[i - 1].drawn) continue;
        for (int j = first; j < i - 1; j++)
            if (calls[j].drawn == calls[i].drawn) return 0;
    }
    return 1;
}

static void run_calls(int count) {
    int batch = -1, grouped = 0, loose = 0;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    int captured = graphs && mine(3) == 0, times = graphs ? 1 + (int)all(3) : 1;
    for (int i = 0; i < count; i++) /* else results of the first time would be what the second one begins with */
        if (calls[i].comm >= 0 && times > 1) calls[i].in_place = 0;
    for (int i = 0; i < count; i++)
        if (calls[i].comm >= 0) prepare(&calls[i]);
    for (int time = 0; time < (captured ? 1 : times); time++) {
        if (captured) {
            cudaEvent_t fork;
            CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
            CHECK(cudaStreamBeginCapture(stream[0], cudaStreamCaptureModeGlobal));
            CHECK(cudaEventRecord(fork, stream[0]));
            for (int s = 1; s < STREAMS; s++) CHECK(cudaStreamWaitEvent(stream[s], fork, 0));
        }
        for (int i = 0; i < count; i++) {
            call *c = &calls[i];
            if (c->batch != batch) {
                if (grouped) CHECK(ncclGroupEnd());
                batch = c->batch;
                loose = is_free(i, count);
                if ((grouped = !loose || mine(2))) CHECK(ncclGroupStart());
            } else if (grouped && loose && mine(4) == 0) {
                CHECK(ncclGroupEnd());
                CHECK(ncclGroupStart());
            }
            if (c->comm >= 0) make(c);
        }
        if (grouped) CHECK(ncclGroupEnd());
        grouped = 0, batch = -1;
        if (captured) {
            cudaEvent_t join;
            for (int s = 1; s < STREAMS; s++) {
                CHECK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
                CHECK(cudaEventRecord(join, stream[s]));
                CHECK(cudaStreamWaitEvent(stream[0], join, 0));
            }
            CHECK(cudaStreamEndCapture(stream[0], &graph));
            CHECK(cudaGraphInstantiate(&exec, graph, 0));
        }
    }
    for (int time = 0; captured && time < times; time++) CHECK(cudaGraphLaunch(exec, stream[time % STREAMS])), CHECK(cudaStreamSynchronize(stream[time % STREAMS]));
    for (int s = 0; s < STREAMS; s++) CHECK(cudaStreamSynchronize(stream[s]));
    for (int i = 0; i < count; i++)
        if (calls[i].comm >= 0) judge(&calls[i], i);
    for (int i = 0; i < count; i++)
        if (calls[i].comm >= 0) free(calls[i].memory), calls[i].memory = NULL;
    if (captured) CHECK(cudaGraphExecDestroy(exec)), CHECK(cudaGraphDestroy(graph));
}

static void own_operator(group *g) {
    float two = 2;
    if (g->comm) CHECK(ncclRedOpCreatePreMulSum(&g->doubled, &two, ncclFloat32, 1, g->comm));
}

/* A part of a communicator, by colors and keys that all draw. */
static void split(int from) {
    group *g = &groups[comms], *p = &groups[from];
    int color[MOST], key[MOST], whole = all(3) == 0;
    for (int r = 0; r < p->ranks; r++) color[r] = whole ? 0 : (int)all(2), key[r] = whole || all(2) ? r % 8 : (int)all(8);
    int mine_ = p->rank >= 0 ? color[p->rank] : -1;
    *g = (group){.rank = -1};
    for (int shown = 0; shown < 2; shown++) { /* who is in neither part knows nothing of it */
        if (shown != (mine_ < 0 ? 0 : mine_)) continue;
        for (int k = 0; k < 8; k++)
            for (int r = 0; r < p->ranks; r++)
                if (color[r] == shown && key[r] == k) {
                    if (r == p->rank) g->rank = g->ranks;
                    g->world[g->ranks++] = p->world[r];
                }
    }
    if (p->rank >= 0) CHECK(ncclCommSplit(p->comm, mine_, key[p->rank], &g->comm, NULL));
    own_operator(g);
    comms++;
}

static void read_id(const char *path, ncclUniqueId *id) {
    char part[512];
    snprintf(part, sizeof part, "%s.part", path);
    if (!me) {
        CHECK(ncclGetUniqueId(id));
        FILE *f = fopen(part, "w");
        if (!f || fwrite(id, sizeof *id, 1, f) != 1 || fclose(f) || rename(part, path)) fail(path, 1);
        return;
    }
    for (FILE *f;; usleep(1000))
        if ((f = fopen(path, "r"))) {
            if (fread(id, sizeof *id, 1, f) != 1) fail(path, 2);
            fclose(f);
            return;
        }
}

int main(int count, char **argument) {
    if (count < 6) return 2;
    me = atoi(argument[1]), ranks = atoi(argument[2]);
    unsigned seed = (unsigned)atoi(argument[4]), sequences = (unsigned)atoi(argument[5]);
    for (int i = 6; i < count; i++) {
        if (!strcmp(argument[i], "graphs")) graphs = 1;
        if (!strcmp(argument[i], "large")) large = 1;
        if (!strcmp(argument[i], "careless")) careless = 1;
        for (int k = 0; k < KINDS; k++)
            if (!strcmp(argument[i], names[k])) wanted[k] = any = 1;
    }
    ncclUniqueId id;
    read_id(argument[3], &id);
    groups[0] = (group){.ranks = ranks, .rank = me};
    for (int r = 0; r < ranks; r++) groups[0].world[r] = r;
    CHECK(ncclCommInitRank(&groups[0].comm, ranks, id, me));
    own_operator(&groups[0]);
    for (int s = 0; s < STREAMS; s++) CHECK(cudaStreamCreateWithFlags(&stream[s], cudaStreamNonBlocking));
    unsigned made = 0;
    for (sequence = 0; sequence < sequences; sequence++) {
        state = 0x9E3779B97F4A7C15u * (seed + 1) + 0xD1B54A32D192ED03u * (sequence + 1), own = state + 77u * (unsigned)(me + 1);
        for (int i = 0; i < 5; i++) all(2), mine(2);
        comms = 1;
        for (int parts = (int)all(3); parts > 0; parts--) split(0);
        int number = 1 + (int)all(MOST_CALLS), batch = 0;
        for (int i = 0; i < number; i++) {
            if (all(3)) batch++;
            draw_call(i, batch);
        }
        run_calls(number);
        made += (unsigned)number;
        for (int i = comms - 1; i > 0; i--)
            if (groups[i].comm) CHECK(ncclCommDestroy(groups[i].comm));
    }
    CHECK(ncclCommFinalize(groups[0].comm));
    CHECK(ncclCommDestroy(groups[0].comm));
    printf("%u calls in %u sequences are right\n", made, sequences);
    return 0;
}
