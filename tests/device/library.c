/* A library with the names and the meaning of NCCL's, on the memory of this process: float32 sums, by one thread, when a group of
 * calls ends. SPOILED: its sums are wrong. */
#include <stdlib.h>
#include <string.h>

enum { MOST = 64, CALLS = 8192 };
typedef struct {
    int rank, ranks;
} Comm;
typedef struct {
    int kind, root, peer;
    Comm *comm;
    const float *from;
    float *to;
    size_t count;
} Call;
enum { BROADCAST, REDUCE, ALLGATHER, REDUCESCATTER, ALLREDUCE, SEND, RECEIVE };

static Call calls[CALLS];
static int asked, wrong_type;

int ncclCommInitAll(Comm **comms, int count, const int *devices) {
    for (int i = 0; i < count; ++i) {
        for (int k = 0; k < i; ++k)
            if (devices[k] == devices[i]) return 5;
        comms[i] = malloc(sizeof(Comm));
        comms[i]->rank = i, comms[i]->ranks = count;
    }
    return 0;
}
int ncclCommDestroy(Comm *comm) { return free(comm), 0; }
const char *ncclGetErrorString(int code) { return code == 4 ? "it adds floats alone" : "invalid usage"; }
int ncclGroupStart(void) { return asked = 0, wrong_type = 0; }

static int ask(int kind, const void *from, void *to, size_t count, int type, int op, int root, int peer, Comm *comm) {
    wrong_type |= type != 7 || op != 0;
    if (asked < CALLS) calls[asked++] = (Call){kind, root, peer, comm, from, to, count};
    return 0;
}
int ncclAllReduce(const void *from, void *to, size_t n, int type, int op, Comm *c, void *s) { return (void)s, ask(ALLREDUCE, from, to, n, type, op, 0, 0, c); }
int ncclReduce(const void *from, void *to, size_t n, int type, int op, int root, Comm *c, void *s) { return (void)s, ask(REDUCE, from, to, n, type, op, root, 0, c); }
int ncclBroadcast(const void *from, void *to, size_t n, int type, int root, Comm *c, void *s) { return (void)s, ask(BROADCAST, from, to, n, type, 0, root, 0, c); }
int ncclAllGather(const void *from, void *to, size_t n, int type, Comm *c, void *s) { return (void)s, ask(ALLGATHER, from, to, n, type, 0, 0, 0, c); }
int ncclReduceScatter(const void *from, void *to, size_t n, int type, int op, Comm *c, void *s) { return (void)s, ask(REDUCESCATTER, from, to, n, type, op, 0, 0, c); }
int ncclSend(const void *from, size_t n, int type, int peer, Comm *c, void *s) { return (void)s, ask(SEND, from, NULL, n, type, 0, 0, peer, c); }
int ncclRecv(void *to, size_t n, int type, int peer, Comm *c, void *s) { return (void)s, ask(RECEIVE, NULL, to, n, type, 0, 0, peer, c); }

static const Call *of(int rank, int kind, int peer) {
    for (int i = 0; i < asked; ++i)
        if (calls[i].comm->rank == rank && calls[i].kind == kind && (kind < SEND || calls[i].peer == peer)) return &calls[i];
    return NULL;
}

/* What rank `of_rank` ends with, in memory of its own, as others still read what it gives. */
static float *result(const Call *mine, size_t *count) {
    const int ranks = mine->comm->ranks, me = mine->comm->rank;
    *count = mine->kind == ALLGATHER ? mine->count * (size_t)ranks : mine->count;
    float *made = calloc(*count + 1, sizeof(float));
    if (mine->kind == RECEIVE) {
        memcpy(made, of(mine->peer, SEND, me)->from, mine->count * sizeof(float));
        return made;
    }
    for (int r = 0; r < ranks; ++r) {
        const Call *theirs = of(r, mine->kind, 0);
        for (size_t i = 0; i < mine->count; ++i) {
            if (mine->kind == ALLGATHER) made[(size_t)r * mine->count + i] = theirs->from[i];
            if (mine->kind == BROADCAST && r == mine->root) made[i] = theirs->from[i];
            if (mine->kind == REDUCE || mine->kind == ALLREDUCE) made[i] += theirs->from[i];
            if (mine->kind == REDUCESCATTER) made[i] += theirs->from[(size_t)me * mine->count + i];
        }
    }
#ifdef SPOILED
    made[0] += 1;
#endif
    return made;
}

int ncclGroupEnd(void) {
    float *made[CALLS];
    size_t count[CALLS];
    if (wrong_type) return 4;
    for (int i = 0; i < asked; ++i) made[i] = calls[i].kind == SEND ? NULL : result(&calls[i], &count[i]);
    for (int i = 0; i < asked; ++i) {
        if (made[i] && (calls[i].kind != REDUCE || calls[i].comm->rank == calls[i].root))
            memcpy(calls[i].to, made[i], count[i] * sizeof(float));
        free(made[i]);
    }
    return 0;
}
