/* NCCL's calls, as it documents them, between processes of one host, for programs that are tested without a GPU. Whatever a
 * group holds for a communicator is one kernel on a stream; kernels of one communicator follow each other, as NCCL's do; all
 * messages of a kernel go on side by side, and those from one rank to another in their order. Small buffers, moments of rest. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_runtime_api.h"
#include "fabric.h"
#include "nccl_names.h"
#include "numbers.h"

#define SEEN __attribute__((visibility("default")))

struct ncclComm {
    fabric *fabric;
    char name[40];
    int ranks, rank, device, splits, blocking;
    uint64_t room, phase, asked, done; /* kernels */
    int busy;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    _Atomic int aborted, error;
    double scale[32]; /* of operators that the program has made */
    int scales;
    int connected[CLASSES][MOST_RANKS];
    unsigned long long capture; /* kernels of one graph follow each other, too */
    cudaEvent_t captured;
};

enum { SEND, RECEIVE, ALLREDUCE, REDUCE, REDUCESCATTER, ALLGATHER, BROADCAST, ALLTOALL, GATHER, SCATTER };

typedef struct {
    int kind, type, op, peer; /* or root */
    const unsigned char *from;
    unsigned char *to;
    size_t count;
    ncclComm_t comm;
    cudaStream_t stream;
} call;

typedef struct { /* a communicator that is being made */
    ncclComm_t comm, parent;
    int color, key, number, failed;
    ncclComm_t *made;
} making;

enum { MOST_CALLS = 4096, MOST_MAKING = 64 };
static _Thread_local struct {
    int depth, calls, makings;
    call *call;
    making making[MOST_MAKING];
} group;

/* ---- communicators ---- */

static void nap(int *turns) {
    if (++*turns % 64)
        sched_yield();
    else
        usleep(50);
}

static uint64_t room_by_environment(void) {
    const char *text = getenv("STANDIN_ROOM");
    long room = text ? atol(text) : 0;
    return room >= 8 && room <= RING ? (uint64_t)room : RING;
}

static ncclComm_t new_comm(int ranks, int rank) {
    ncclComm_t c = calloc(1, sizeof *c);
    c->ranks = ranks, c->rank = rank, c->room = room_by_environment();
    cudaGetDevice(&c->device);
    pthread_mutex_init(&c->lock, NULL), pthread_cond_init(&c->changed, NULL);
    return c;
}

static void arrive(ncclComm_t c) {
    if (!c->fabric && !(c->fabric = fabric_open(c->name))) perror("stand-in: shared memory"), abort();
    c->phase += (uint64_t)c->ranks;
    atomic_fetch_add(&c->fabric->arrived, 1);
}

static int wait_all(ncclComm_t c) {
    for (int turns = 0; atomic_load(&c->fabric->arrived) < c->phase && !c->aborted;) nap(&turns);
    return c->aborted;
}

static void name_child(making *m) {
    ncclComm_t p = m->parent;
    int rank = 0, ranks = 0, key = 0;
    for (int r = 0; r < p->ranks; r++) {
        int color = p->fabric->split[m->number % MOST_SPLITS][r].color;
        if (color != m->color) continue;
        key = p->fabric->split[m->number % MOST_SPLITS][r].key;
        ranks++, rank += key < m->key || (key == m->key && r < p->rank);
    }
    m->comm = new_comm(ranks, rank);
    uint64_t hash = (uint64_t)m->number << 32 | (uint64_t)m->color;
    for (const char *at = p->name; *at; at++) hash = (hash ^ (unsigned char)*at) * 0x9E3779B97F4A7C15u, hash ^= hash >> 31;
    int first = (int)(strchr(p->name + 9, '-') - p->name); /* the process that it all began with */
    snprintf(m->comm->name, sizeof m->comm->name, "%.*s-%016llx", first, p->name, (unsigned long long)hash);
}

static void *make_one(void *given) {
    making *m = given;
    if (m->parent) {
        if ((m->failed = wait_all(m->parent))) return NULL;
        *m->made = NULL;
        if (m->color < 0) return NULL;
        name_child(m);
        *m->made = m->comm;
    }
    arrive(m->comm);
    m->failed = wait_all(m->comm);
    return NULL;
}

/* All at once, as one thread may be several ranks, and none waits for another. */
static ncclResult_t make_all(making *list, int count) {
    for (int i = 0; i < count; i++)
        if (list[i].parent) {
            fabric *f = list[i].parent->fabric;
            f->split[list[i].number % MOST_SPLITS][list[i].parent->rank].color = list[i].color;
            f->split[list[i].number % MOST_SPLITS][list[i].parent->rank].key = list[i].key;
            arrive(list[i].parent);
        }
    pthread_t thread[MOST_MAKING];
    for (int i = 1; i < count; i++) pthread_create(&thread[i], NULL, make_one, &list[i]);
    if (count) make_one(&list[0]);
    for (int i = 1; i < count; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < count; i++)
        if (list[i].failed) return ncclSystemError;
    return ncclSuccess;
}

static ncclResult_t make(making m) {
    if (!group.depth) return make_all(&m, 1);
    if (group.makings == MOST_MAKING) return ncclInternalError;
    group.making[group.makings++] = m;
    return ncclSuccess;
}

SEEN ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    static _Atomic unsigned numbers;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "/standin-%x-%x", (unsigned)getpid(), numbers++);
    return ncclSuccess;
}

SEEN ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank) {
    if (ranks < 1 || ranks > MOST_RANKS || rank < 0 || rank >= ranks) return ncclInvalidArgument;
    *comm = new_comm(ranks, rank);
    snprintf((*comm)->name, sizeof (*comm)->name, "%.39s", id.internal);
    return make((making){.comm = *comm});
}

struct ncclConfig { /* as far as NCCL's begins */
    size_t size;
    unsigned magic, version;
    int blocking;
};

static void *make_later(void *given) {
    making m = *(making *)given;
    free(given);
    usleep(20000);
    make_all(&m, 1);
    m.comm->error = ncclSuccess;
    return NULL;
}

SEEN ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config) {
    pthread_t thread;
    if (!config || config->blocking) return ncclCommInitRank(comm, ranks, id, rank);
    making *m = calloc(1, sizeof *m);
    m->comm = *comm = new_comm(ranks, rank);
    snprintf((*comm)->name, sizeof (*comm)->name, "%.39s", id.internal);
    (*comm)->error = ncclInProgress;
    if (pthread_create(&thread, NULL, make_later, m)) return ncclSystemError;
    pthread_detach(thread);
    return ncclInProgress;
}

SEEN ncclResult_t ncclCommInitAll(ncclComm_t *comms, int count, const int *devices) {
    ncclUniqueId id;
    int before = 0;
    ncclGetUniqueId(&id), cudaGetDevice(&before);
    making all[MOST_RANKS] = {{0}};
    for (int i = 0; i < count; i++) {
        cudaSetDevice(devices ? devices[i] : i);
        comms[i] = all[i].comm = new_comm(count, i);
        snprintf(comms[i]->name, sizeof comms[i]->name, "%.39s", id.internal);
    }
    cudaSetDevice(before);
    return make_all(all, count);
}

SEEN ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *made, ncclConfig_t *config) {
    (void)config;
    return make((making){.parent = comm, .color = color, .key = key, .number = ++comm->splits, .made = made});
}

static void drain(ncclComm_t c) {
    pthread_mutex_lock(&c->lock);
    while (c->done < c->asked || c->busy) pthread_cond_wait(&c->changed, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

SEEN ncclResult_t ncclCommFinalize(ncclComm_t comm) { return drain(comm), ncclSuccess; }

SEEN ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    drain(comm);
    fabric_close(comm->fabric, comm->name, comm->ranks);
    memset(comm, 0xEE, sizeof *comm); /* who uses it now shall notice */
    free(comm);
    return ncclSuccess;
}

SEEN ncclResult_t ncclCommAbort(ncclComm_t comm) {
    comm->aborted = 1;
    return ncclCommDestroy(comm);
}

SEEN ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) { return *error = (ncclResult_t)comm->error, ncclSuccess; }
SEEN ncclResult_t ncclCommCount(const ncclComm_t comm, int *count) { return *count = comm->ranks, ncclSuccess; }
SEEN ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank) { return *rank = comm->rank, ncclSuccess; }
SEEN ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device) { return *device = comm->device, ncclSuccess; }
SEEN const char *ncclGetErrorString(ncclResult_t code) { return code ? "the stand-in refuses" : "no error"; }

SEEN ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type, int where, ncclComm_t comm) {
    (void)where;
    if (comm->scales == 32) return ncclInternalError;
    comm->scale[comm->scales] = number_at(scalar, 0, type);
    *op = (ncclRedOp_t)(ncclNumOps + comm->scales++);
    return ncclSuccess;
}

SEEN ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) { return (void)op, (void)comm, ncclSuccess; }

/* ---- a kernel ---- */

typedef struct {
    ncclComm_t comm;
    int calls, captured;
    uint64_t number;
    call *call;
} kernel;

typedef struct {
    transfer *transfer;
    int count;
    unsigned char **taken; /* of each call, what came from all */
} plan;

static void put_transfer(plan *p, int kind, int sends, int peer, const void *data, uint64_t bytes) {
    p->transfer[p->count++] = (transfer){kind, peer, sends, (unsigned char *)(uintptr_t)data, bytes, 0};
}

static size_t block_of(const call *c) { return c->count * number_size(c->type); }

/* A rank's own part of what is combined, as its operator wants it. */
static unsigned char *scaled(const call *c, size_t count) {
    size_t size = number_size(c->type);
    unsigned char *made = malloc(count * size + 1);
    memcpy(made, c->from, count * size);
    if (c->op >= ncclNumOps)
        for (size_t i = 0; i < count; i++) number_put(made, i, c->type, number_at(made, i, c->type) * c->comm->scale[c->op - ncclNumOps]);
    return made;
}

static int reduces(int kind) { return kind == ALLREDUCE || kind == REDUCE || kind == REDUCESCATTER; }

static void plan_whole(plan *p, const call *c, unsigned char **taken) {
    const int n = c->comm->ranks, me = c->comm->rank, rooted = c->kind == REDUCE || c->kind == GATHER;
    const size_t block = block_of(c);
    const int cuts = c->kind == REDUCESCATTER || c->kind == ALLTOALL || c->kind == SCATTER; /* each gets another block */
    const int alone = c->kind == BROADCAST || c->kind == SCATTER;                           /* only the root has any */
    unsigned char *own = (unsigned char *)(uintptr_t)c->from;
    if (reduces(c->kind)) own = scaled(c, c->count * (cuts ? (size_t)n : 1));
    *taken = malloc((size_t)n * block + 1);
    for (int r = 0; r < n; r++) {
        int gives = (!alone || me == c->peer) && (!rooted || r == c->peer), gets = (!alone || r == c->peer) && (!rooted || me == c->peer);
        unsigned char *mine = own + (cuts ? (size_t)r * block : 0);
        if (r == me && gives)
            memcpy(*taken + (size_t)me * block, mine, block);
        if (r == me || !block) continue;
        if (gives) { /* a copy: results may go where this lies */
            unsigned char *kept = malloc(block);
            memcpy(kept, mine, block);
            put_transfer(p, WHOLE, 1, r, kept, block);
        }
        if (gets) put_transfer(p, WHOLE, 0, r, *taken + (size_t)r * block, block);
    }
    if (reduces(c->kind)) free(own);
}

static void finish_whole(const call *c, const unsigned char *taken) {
    const int n = c->comm->ranks, me = c->comm->rank;
    const size_t block = block_of(c);
    if ((c->kind == REDUCE || c->kind == GATHER) && me != c->peer) return;
    if (reduces(c->kind)) {
        for (size_t i = 0; i < c->count; i++) {
            double sum = number_at(taken, i, c->type);
            for (int r = 1; r < n; r++) sum = number_both(sum, number_at(taken + (size_t)r * block, i, c->type), c->op);
            number_put(c->to, i, c->type, c->op == ncclAvg ? sum / n : sum);
        }
    } else if (c->kind == BROADCAST || c->kind == SCATTER) {
        memcpy(c->to, taken + (size_t)c->peer * block, block);
    } else {
        memcpy(c->to, taken, (size_t)n * block);
    }
}

/* All messages side by side; of each pair, kind and direction the first one that is not over. */
static int move_all(ncclComm_t c, plan *p) {
    int turns = 0, left = p->count, code = 0;
    while (left && !c->aborted && code >= 0) {
        char seen[CLASSES][2][MOST_RANKS] = {{{0}}};
        int moved = 0;
        for (int i = 0; i < p->count && code >= 0; i++) {
            transfer *t = &p->transfer[i];
            if (t->done == t->bytes + 8 || seen[t->kind][t->sends][t->peer]) continue;
            seen[t->kind][t->sends][t->peer] = 1;
            moved |= (code = fabric_move(c->fabric, c->rank, t, c->room)) > 0;
            left -= t->done == t->bytes + 8;
        }
        if (moved) turns = 0;
        else nap(&turns);
    }
    if (code < 0) {
        fprintf(stderr, "stand-in: %s rank %d: a message has another length than its receive\n", c->name, c->rank);
        _Exit(9);
    }
    return left;
}

static void carry_out(kernel *k) {
    plan p = {.transfer = calloc((size_t)k->calls * 2 * MOST_RANKS + 1, sizeof(transfer)), .taken = calloc((size_t)k->calls + 1, sizeof(void *))};
    for (int i = 0; i < k->calls; i++) {
        const call *c = &k->call[i];
        if (c->kind <= RECEIVE)
            put_transfer(&p, POINT, c->kind == SEND, c->peer, c->kind == SEND ? c->from : c->to, block_of(c));
        else
            plan_whole(&p, c, &p.taken[i]);
    }
    int left = move_all(k->comm, &p);
    if (left) k->comm->error = ncclRemoteError;
    for (int i = 0; i < k->calls; i++) {
        if (p.taken[i] && !left) finish_whole(&k->call[i], p.taken[i]);
        free(p.taken[i]);
    }
    for (int i = 0; i < p.count; i++)
        if (p.transfer[i].kind == WHOLE && p.transfer[i].sends) free(p.transfer[i].data);
    free(p.transfer), free(p.taken);
}

static void run(void *given) {
    kernel *k = given;
    ncclComm_t c = k->comm;
    pthread_mutex_lock(&c->lock);
    while (c->busy || (!k->captured && c->done + 1 != k->number)) pthread_cond_wait(&c->changed, &c->lock);
    c->busy = 1;
    pthread_mutex_unlock(&c->lock);
    standin_dither();
    carry_out(k);
    pthread_mutex_lock(&c->lock);
    c->busy = 0, c->done += !k->captured;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    if (!k->captured) free(k->call);
}

/* ---- groups ---- */

/* The first time that ranks have to do with each other the host waits for both. */
static ncclResult_t connect(const call *list, int count) {
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < count; i++) {
            ncclComm_t c = list[i].comm;
            int kind = list[i].kind <= RECEIVE ? POINT : WHOLE;
            for (int r = 0; r < c->ranks; r++) {
                if (kind == POINT && r != list[i].peer) continue;
                if (c->connected[kind][r]) continue;
                if (!pass) {
                    c->fabric->met[kind][c->rank][r] = 1;
                    continue;
                }
                for (int turns = 0; !c->fabric->met[kind][r][c->rank];) {
                    if (c->aborted) return ncclRemoteError;
                    nap(&turns);
                }
                c->connected[kind][r] = 1;
            }
        }
    return ncclSuccess;
}

/* What the group has for one communicator. */
static void launch(call *list, int count, ncclComm_t comm) {
    kernel k = {.comm = comm, .call = calloc((size_t)count, sizeof(call))};
    cudaStream_t stream[64];
    cudaEvent_t event;
    int streams = 0;
    for (int i = 0; i < count; i++) {
        if (list[i].comm != comm) continue;
        k.call[k.calls++] = list[i];
        int s = 0;
        while (s < streams && stream[s] != list[i].stream) s++;
        if (s == streams && streams < 64) stream[streams++] = list[i].stream;
    }
    cudaEventCreateWithFlags(&event, 0);
    for (int s = 1; s < streams; s++) cudaEventRecord(event, stream[s]), cudaStreamWaitEvent(stream[0], event, 0);
    unsigned long long capture = 0;
    cudaStreamCaptureStatus status;
    cudaStreamGetCaptureInfo(stream[0], &status, &capture);
    k.captured = status == cudaStreamCaptureStatusActive;
    if (k.captured && comm->capture == capture) cudaStreamWaitEvent(stream[0], comm->captured, 0);
    pthread_mutex_lock(&comm->lock);
    if (!k.captured) k.number = ++comm->asked;
    pthread_mutex_unlock(&comm->lock);
    standin_launch(stream[0], run, &k, sizeof k);
    if (k.captured) {
        comm->capture = capture;
        if (!comm->captured) cudaEventCreateWithFlags(&comm->captured, 0);
        cudaEventRecord(comm->captured, stream[0]);
    }
    if (streams > 1) cudaEventRecord(event, stream[0]);
    for (int s = 1; s < streams; s++) cudaStreamWaitEvent(stream[s], event, 0);
    cudaEventDestroy(event);
}

SEEN ncclResult_t ncclGroupStart(void) { return group.depth++, ncclSuccess; }

SEEN ncclResult_t ncclGroupEnd(void) {
    if (!group.depth) return ncclInvalidUsage;
    if (--group.depth) return ncclSuccess;
    making list[MOST_MAKING];
    int makings = group.makings, calls = group.calls;
    call *all = group.call;
    memcpy(list, group.making, sizeof list);
    group.makings = group.calls = 0, group.call = NULL;
    ncclResult_t code = make_all(list, makings);
    if (!code) code = connect(all, calls);
    for (int i = 0; i < calls && !code; i++) {
        int first = 1;
        for (int j = 0; j < i; j++) first &= all[j].comm != all[i].comm;
        if (first) launch(all, calls, all[i].comm);
    }
    free(all);
    return code;
}

SEEN ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *info) {
    (void)info;
    free(group.call);
    group.call = NULL, group.calls = 0, group.depth -= group.depth > 0;
    return ncclSuccess;
}

static ncclResult_t ask(call c) {
    if (!c.comm || !number_size(c.type) || c.comm->aborted) return ncclInvalidArgument;
    if (c.peer < 0 || c.peer >= c.comm->ranks) return ncclInvalidArgument;
    if (reduces(c.kind) && (c.type > 9 || c.op < 0 || c.op >= ncclNumOps + c.comm->scales)) return ncclInvalidArgument;
    if (!c.count && c.kind > RECEIVE) return ncclSuccess;
    if (!group.call) group.call = malloc(MOST_CALLS * sizeof(call));
    if (group.calls == MOST_CALLS) return ncclInternalError;
    group.depth++;
    group.call[group.calls++] = c;
    return ncclGroupEnd();
}

#define ASK(...) return ask((call){.comm = comm, .stream = stream, .count = count, .type = (int)type, __VA_ARGS__})
#define BOTH .from = from, .to = to

SEEN ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, ap_stream stream) {
    ASK(.kind = SEND, .from = from, .peer = peer);
}
SEEN ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, ap_stream stream) {
    ASK(.kind = RECEIVE, .to = to, .peer = peer);
}
SEEN ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                ap_stream stream) {
    ASK(.kind = ALLREDUCE, BOTH, .op = (int)op);
}
SEEN ncclResult_t ncclReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm,
                             ap_stream stream) {
    ASK(.kind = REDUCE, BOTH, .op = (int)op, .peer = root);
}
SEEN ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                    ap_stream stream) {
    ASK(.kind = REDUCESCATTER, BOTH, .op = (int)op);
}
SEEN ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm, ap_stream stream) {
    ASK(.kind = ALLGATHER, BOTH);
}
SEEN ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                                ap_stream stream) {
    ASK(.kind = BROADCAST, BOTH, .peer = root);
}
SEEN ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm, ap_stream stream) {
    ASK(.kind = BROADCAST, .from = buffer, .to = buffer, .peer = root);
}
SEEN ncclResult_t ncclAlltoAll(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm, ap_stream stream) {
    ASK(.kind = ALLTOALL, BOTH);
}
SEEN ncclResult_t ncclGather(const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm, ap_stream stream) {
    ASK(.kind = GATHER, BOTH, .peer = root);
}
SEEN ncclResult_t ncclScatter(const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm, ap_stream stream) {
    ASK(.kind = SCATTER, BOTH, .peer = root);
}
