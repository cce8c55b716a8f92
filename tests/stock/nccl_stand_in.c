/* Stands in for NCCL 2.31 or 2.32 in tests of the preload: exports its entries, makes and splits communicators among
 * processes of this host, and prints each collective that is called, with its configuration.
 *
 * $STAND_IN_FILE: a file of zeros that all ranks share; $STAND_IN_VERSION: what ncclGetVersion returns; $STAND_IN_HOST:
 * the name of this rank's host.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "nccl_names.h"

enum { MOST_RANKS = 16, MOST_SPLITS = 2048, MOST_QUEUED = 512 };

struct ncclComm {
    int ranks, rank, members[MOST_RANKS]; /* numbers in the whole */
};

static struct {
    int color, key, written;
} *board; /* by split, then by rank */
static int me, depth, splits, queued, living;
static struct { ncclComm_t parent; int color, key; ncclComm_t *made; } queue[MOST_QUEUED];

int gethostname(char *name, size_t size) {
    const char *host = getenv("STAND_IN_HOST");
    snprintf(name, size, "%s", host ? host : "host");
    return 0;
}

ncclResult_t ncclGetVersion(int *version) {
    *version = atoi(getenv("STAND_IN_VERSION"));
    return ncclSuccess;
}

static void open_board(void) {
    int file = open(getenv("STAND_IN_FILE"), O_RDWR);
    board = mmap(NULL, sizeof *board * MOST_SPLITS * MOST_RANKS, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file < 0 || board == MAP_FAILED) exit(9);
}

static ncclResult_t split(ncclComm_t parent, int color, int key, ncclComm_t *made) {
    int number = splits++;
    if (number >= MOST_SPLITS) exit(9);
    board[number * MOST_RANKS + me].color = color, board[number * MOST_RANKS + me].key = key;
    atomic_thread_fence(memory_order_seq_cst);
    ((volatile int *)&board[number * MOST_RANKS + me].written)[0] = 1;
    ncclComm_t new = calloc(1, sizeof *new);
    for (int i = 0; i < parent->ranks; i++) {
        int other = parent->members[i], at = number * MOST_RANKS + other;
        for (int waited = 0; !((volatile int *)&board[at].written)[0]; waited++) {
            if (waited > 20000) { fprintf(stderr, "rank %d waits for rank %d in split %d\n", me, other, number); exit(8); }
            usleep(1000);
        }
        atomic_thread_fence(memory_order_seq_cst);
        if (board[at].color != color) continue;
        if (other == me) new->rank = new->ranks;
        new->members[new->ranks++] = other;
    }
    if (color < 0) free(new), new = NULL;
    living += new != NULL;
    *made = new;
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void) { return depth++, ncclSuccess; }

ncclResult_t ncclGroupEnd(void) {
    if (--depth) return ncclSuccess;
    for (int i = 0; i < queued; i++) split(queue[i].parent, queue[i].color, queue[i].key, queue[i].made);
    queued = 0;
    return ncclSuccess;
}

ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t *made, ncclConfig_t *config) {
    (void)config;
    *made = NULL;
    if (!depth) return split(parent, color, key, made);
    queue[queued].parent = parent, queue[queued].color = color, queue[queued].key = key, queue[queued++].made = made;
    return ncclSuccess;
}

/* As a split of all ranks, so that in a group the handle comes at its end. */
ncclResult_t ncclCommInitRank(ncclComm_t *made, int ranks, ncclUniqueId id, int rank) {
    (void)id;
    static struct ncclComm whole;
    me = rank, whole.ranks = ranks, whole.rank = rank;
    for (int i = 0; i < ranks; i++) whole.members[i] = i;
    if (!board) open_board();
    return ncclCommSplit(&whole, 0, rank, made, NULL);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *made, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config) {
    (void)config;
    return ncclCommInitRank(made, ranks, id, rank);
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t *made, int ranks, int rank, int count, ncclUniqueId *ids, ncclConfig_t *config) {
    (void)count, (void)config;
    return ncclCommInitRank(made, ranks, *ids, rank);
}

ncclResult_t ncclCommInitAll(ncclComm_t *made, int count, const int *devices) {
    (void)devices;
    ncclUniqueId id = {{0}};
    return count == 1 ? ncclCommInitRank(made, 1, id, 0) : 1;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    printf("living %d\n", --living);
    free(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) { return ncclCommDestroy(comm); }

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count) { return *count = comm->ranks, ncclSuccess; }

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank) { return *rank = comm->rank, ncclSuccess; }

static ncclResult_t print_call(const char *name, const ncclCollConfig_t *c) {
    if (!c) printf("%s\n", name);
    else if (c->size < 64 || c->magic != 0xcafebeef || c->version < 23100 || c->minCTAs != INT_MIN) printf("%s invalid\n", name);
    else printf("%s '%s' force=%d most=%d policy=%d tag=%d\n", name, c->algSelection ? c->algSelection : "", c->forceAlgSelection,
                c->maxCTAs == INT_MIN ? 0 : c->maxCTAs, c->CTAPolicy == INT_MIN ? 0 : c->CTAPolicy, (int)c->userProfilerTag);
    return ncclSuccess;
}

#ifdef WITHOUT_CONFIG
#define CONFIGURED(name, ...)
#else
#define CONFIGURED(name, ...) \
    ncclResult_t name##Config(const void *from, void *to, size_t count, ncclDataType_t type, __VA_ARGS__, cudaStream_t stream, \
                              const ncclCollConfig_t *config) { \
        return (void)from, (void)to, (void)count, (void)type, (void)stream, print_call(#name, config); \
    }
#endif
#define BOTH(name, ...) \
    ncclResult_t name(const void *from, void *to, size_t count, ncclDataType_t type, __VA_ARGS__, cudaStream_t stream) { \
        return (void)from, (void)to, (void)count, (void)type, (void)stream, print_call(#name, NULL); \
    } \
    CONFIGURED(name, __VA_ARGS__)
BOTH(ncclAllReduce, ncclRedOp_t op, ncclComm_t comm)
BOTH(ncclReduceScatter, ncclRedOp_t op, ncclComm_t comm)
BOTH(ncclBroadcast, int root, ncclComm_t comm)
BOTH(ncclReduce, ncclRedOp_t op, int root, ncclComm_t comm)
BOTH(ncclAllGather, ncclComm_t comm)
BOTH(ncclAlltoAll, ncclComm_t comm)
BOTH(ncclGather, int root, ncclComm_t comm)
BOTH(ncclScatter, int root, ncclComm_t comm)
