/* Stands in for NCCL (with its CUDA runtime) where settings are measured: float32 sums among processes of this host, and a
 * GPU's clock that goes by the setting of each call.
 *
 * $STAND_IN_DATA: a file of zeros that all ranks share. $STAND_IN_VERSION: what ncclGetVersion returns. $STAND_IN_GPUS: there
 * are none, and the error of asking. $STAND_IN_TIMES: lines "factor key": a call with this key takes so many nanoseconds
 * per byte; 0: it is refused; keys without a line take 1 without any setting, else 2. Keys: collective, then what is set,
 * e.g. "allreduce RING_SIMPLE channels=16 chunk=131072 registered".
 */
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "nccl_names.h"

#ifdef WITH_HIP
#define GPU(name) hip##name
#else
#define GPU(name) cuda##name
#endif

enum { MOST_RANKS = 16, SLOT = 1 << 21 };

struct ncclComm {
    int ranks, rank, registered;
    char setting[96];
};
struct beginning { /* of ncclConfig_t */
    size_t size;
    unsigned magic, version;
    int blocking, cga, least, most;
    const char *net;
    int share, traffic;
    const char *name;
    int collnet, policy;
};

static struct {
    atomic_int arrived, turn;
    double clock[MOST_RANKS]; /* of the GPU of each rank, in ns */
    char slots[MOST_RANKS][SLOT];
} *board;
static int me, is_timed; /* between two events: calls before have had their effect, so only the clock goes on */

static void meet(int ranks) {
    int turn = board->turn;
    if (atomic_fetch_add(&board->arrived, 1) + 1 == ranks) atomic_store(&board->arrived, 0), atomic_fetch_add(&board->turn, 1);
    while (board->turn == turn) sched_yield();
}

static double factor_of(const char *key, double usual) {
    static char times[1 << 12]; /* the file, which is read once */
    if (!times[0]) {
        FILE *file = fopen(getenv("STAND_IN_TIMES"), "r");
        size_t length = file ? fread(times + 1, 1, sizeof times - 2, file) : 0;
        times[0] = '\n', times[1 + length] = 0;
        if (file) fclose(file);
    }
    for (char *line = times; line && line[1]; line = strchr(line + 1, '\n')) {
        char *name;
        double factor = strtod(line + 1, &name);
        if (!strncmp(name + 1, key, strlen(key)) && name[1 + strlen(key)] == '\n') usual = factor;
    }
    return usual;
}

static void append(char *text, size_t room, const char *form, long value) {
    size_t length = strlen(text);
    if (value > 0) snprintf(text + length, room - length, form, value);
}

ncclResult_t ncclGetVersion(int *version) { return *version = atoi(getenv("STAND_IN_VERSION")), ncclSuccess; }
const char *ncclGetErrorString(ncclResult_t code) { return code ? "invalid usage" : "no error"; }
ncclResult_t ncclGetUniqueId(ncclUniqueId *id) { return memset(id, 7, sizeof *id), ncclSuccess; }

ncclResult_t ncclCommInitRankConfig(ncclComm_t *made, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config) {
    const struct beginning *c = (const void *)config;
    const char *algorithm = getenv("NCCL_ALGO"), *protocol = getenv("NCCL_PROTO"), *table = getenv("ANTIPHON_NCCL_TUNER");
    if (id.internal[100] != 7 || (c && (c->magic != 0xcafebeef || c->version > 23300))) return 4;
    int file = open(getenv("STAND_IN_DATA"), O_RDWR);
    if (!board) board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file < 0 || board == MAP_FAILED) exit(9);
    ncclComm_t new = calloc(1, sizeof *new);
    new->ranks = ranks, new->rank = me = rank;
#ifdef WITH_NAME
    strcat(new->setting, " " WITH_NAME);
#endif
    if (algorithm) snprintf(new->setting, sizeof new->setting, " %s %s", algorithm, protocol);
    if (c && c->least == c->most) append(new->setting, sizeof new->setting, " channels=%ld", c->most);
    if (c) append(new->setting, sizeof new->setting, " policy=%ld", c->policy);
    long chunk = 0;
    char line[256];
    FILE *rules = table && getenv("NCCL_TUNER_PLUGIN") ? fopen(table, "r") : NULL;
    while (rules && fgets(line, sizeof line, rules))
        if (strrchr(line, '*')) chunk = atol(strrchr(line, '*') + 1);
    if (rules) fclose(rules);
    append(new->setting, sizeof new->setting, " chunk=%ld", chunk);
    *made = new;
    meet(ranks);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t *made, int ranks, ncclUniqueId id, int rank) {
    return ncclCommInitRankConfig(made, ranks, id, rank, NULL);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) { return free(comm), ncclSuccess; }
ncclResult_t ncclMemAlloc(void **pointer, size_t size) { return *pointer = malloc(size), ncclSuccess; }
ncclResult_t ncclMemFree(void *pointer) { return free(pointer), ncclSuccess; }
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buffer, size_t size, void **window, int flags) {
    (void)size;
    return *window = buffer, comm->registered += flags, ncclSuccess;
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, void *window) { return comm->registered -= window != NULL, ncclSuccess; }

enum { ALLREDUCE, REDUCESCATTER, BROADCAST, REDUCE, ALLGATHER, ALLTOALL, GATHER, SCATTER };

static ncclResult_t go(int kind, const char *name, const float *from, float *to, size_t count, int type, int op, int root,
                       ncclComm_t comm, const ncclCollConfig_t *c) {
    char key[256];
    snprintf(key, sizeof key, "%s%s", name, comm->setting);
    if (c && (c->size < 64 || c->magic != 0xcafebeef || c->version < 23100 || !c->forceAlgSelection)) return 4;
    if (c && c->algSelection) strcat(strcat(key, " "), c->algSelection);
    if (c && c->minCTAs == c->maxCTAs) append(key, sizeof key, " channels=%ld", c->maxCTAs);
    if (c) append(key, sizeof key, " policy=%ld", c->CTAPolicy);
    if (comm->registered) strcat(key, " registered");
    double factor = factor_of(key, strchr(key, ' ') ? 2 : 1);
    if (!factor || type != ncclFloat32 || op != ncclSum) return 5;
    size_t ranks = (size_t)comm->ranks, own = (size_t)comm->rank;
    int is_shared = kind == REDUCESCATTER || kind == ALLGATHER || kind >= ALLTOALL;
    size_t given = kind == REDUCESCATTER || kind == ALLTOALL || kind == SCATTER ? count * ranks : count;
    if (given * sizeof(float) > SLOT) exit(9);
    board->clock[own] += factor * (double)(count * sizeof(float) * (is_shared ? ranks : 1));
    if (is_timed) return ncclSuccess;
    if (kind != SCATTER || own == (size_t)root) memcpy(board->slots[own], from, given * sizeof(float));
    meet(comm->ranks);
    const float *slots = (const float *)board->slots[0];
    size_t step = SLOT / sizeof(float), parts = kind == ALLGATHER || kind == GATHER || kind == ALLTOALL ? ranks : 1;
    int receives = (kind != REDUCE && kind != GATHER) || own == (size_t)root;
    for (size_t part = 0; receives && part < parts; part++)
        for (size_t i = 0; i < count; i++) {
            float value = 0;
            if (kind == BROADCAST) value = slots[(size_t)root * step + i];
            else if (kind == SCATTER) value = slots[(size_t)root * step + own * count + i];
            else if (kind == ALLGATHER || kind == GATHER) value = slots[part * step + i];
            else if (kind == ALLTOALL) value = slots[part * step + own * count + i];
            else
                for (size_t rank = 0; rank < ranks; rank++)
                    value += slots[rank * step + (kind == REDUCESCATTER ? own * count : 0) + i];
            to[part * count + i] = value;
        }
    meet(comm->ranks);
    return ncclSuccess;
}

#define BOTH(entry, kind, name, op, root, ...) \
    ncclResult_t entry(const void *from, void *to, size_t count, ncclDataType_t type, __VA_ARGS__, cudaStream_t stream) { \
        return (void)stream, go(kind, name, from, to, count, (int)type, op, root, comm, NULL); \
    } \
    ncclResult_t entry##Config(const void *from, void *to, size_t count, ncclDataType_t type, __VA_ARGS__, cudaStream_t stream, \
                               const ncclCollConfig_t *config) { \
        return (void)stream, go(kind, name, from, to, count, (int)type, op, root, comm, config); \
    }
BOTH(ncclAllReduce, ALLREDUCE, "allreduce", (int)op, 0, ncclRedOp_t op, ncclComm_t comm)
BOTH(ncclReduceScatter, REDUCESCATTER, "reducescatter", (int)op, 0, ncclRedOp_t op, ncclComm_t comm)
BOTH(ncclBroadcast, BROADCAST, "broadcast", 0, root, int root, ncclComm_t comm)
BOTH(ncclReduce, REDUCE, "reduce", (int)op, root, ncclRedOp_t op, int root, ncclComm_t comm)
BOTH(ncclAllGather, ALLGATHER, "allgather", 0, 0, ncclComm_t comm)
BOTH(ncclAlltoAll, ALLTOALL, "alltoall", 0, 0, ncclComm_t comm)
BOTH(ncclGather, GATHER, "gather", 0, root, int root, ncclComm_t comm)
BOTH(ncclScatter, SCATTER, "scatter", 0, root, int root, ncclComm_t comm)

int GPU(GetDeviceCount)(int *count) {
    const char *error = getenv("STAND_IN_GPUS");
    return *count = error ? 0 : 8, error ? atoi(error) : 0;
}
int GPU(SetDevice)(int device) { return device < 0; }
int GPU(StreamCreateWithFlags)(void **stream, unsigned flags) { return *stream = malloc(1), flags != 1; }
int GPU(StreamSynchronize)(void *stream) { return stream == NULL; }
int GPU(EventCreate)(void **event) { return *event = calloc(1, sizeof(double)), 0; }
int GPU(EventRecord)(double *event, void *stream) { return is_timed = !is_timed, *event = board->clock[me], stream == NULL; }
int GPU(EventSynchronize)(double *event) { return event == NULL; }
int GPU(EventElapsedTime)(float *ms, const double *begin, const double *end) { return *ms = (float)((*end - *begin) * 1e-6), 0; }
int GPU(Malloc)(void **pointer, size_t size) { return *pointer = malloc(size), 0; }
int GPU(Free)(void *pointer) { return free(pointer), 0; }
int GPU(Memcpy)(void *to, const void *from, size_t size, int kind) { return memcpy(to, from, size), kind < 1 || kind > 2; }
const char *GPU(GetErrorString)(int code) { return code ? "an error" : "no error"; }
