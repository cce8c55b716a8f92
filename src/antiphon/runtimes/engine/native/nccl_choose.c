/* A library for LD_PRELOAD that chooses NCCL's algorithm for each call, by the table that ANTIPHON_NCCL_TUNER names
 * (nccl_rules.h).
 *
 * From NCCL 2.31 on each collective has a second entry, such as ncclAllReduceConfig, whose configuration names algorithm, CTAs
 * and policy for that call alone. The eight collectives defined here call that entry if a rule fits; everything else, and older
 * NCCLs, get the call unchanged (it is "called through"). Unlike a tuner plugin this reaches symmetric kernels, copy engines
 * and alltoall:
 *
 *     # collective from to algorithm protocol channels ranks nodes
 *     allreduce 0 65535 symmetric auto 0 8 1        the symmetric kernels, where buffers are registered windows
 *     allgather 8388608 - copies auto 0 8 1         copy engines: no multiprocessor is occupied
 *     alltoall 0 - auto auto 8 * *                  NCCL's algorithm with at most 8 channels
 *
 * All ranks must choose alike. So a rule depends only on what all ranks know: collective, bytes, ranks and nodes. That they
 * have the same table, and equally many ranks on each host, is checked when the communicator is made, with two calls of
 * ncclCommSplit: by host (the size of the new communicator is the number of local ranks), then by a hash of table and that
 * number (the size is that of the whole only if all agree). Without agreement every call is called through, and rank 0 prints a
 * message. Nonblocking communicators, which are not ready when that check would run, those of one rank, and those of
 * ncclCommShrink and ncclCommGrow are called through.
 *
 * NCCL falls back to its own choice if it cannot follow a rule (forceAlgSelection is 0). The profiler tag of a call is the line
 * number of its rule in the table.
 *
 * Threading: any thread may call; the list of communicators has a lock. Communicators made within a group are agreed on when
 * its thread ends the outermost group. Ownership: entries of the list and their rules are from malloc, and freed with their
 * communicator; the table stays until the process ends.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include "nccl_choose.h"
#include "nccl_rules.h"

#define EXPORT __attribute__((visibility("default")))

/* FIRST_WITH_PROTOCOLS: from NCCL 2.32.0 on selections may name a protocol. POLICY_ZERO: NCCL_CTA_POLICY_ZERO, copy engines. */
enum { FIRST_WITH_PROTOCOLS = 23200, POLICY_ZERO = 2 };

/* Room in the list of an open group for this many communicators at first; it doubles when needed. */
enum { FIRST_CAPACITY = 16 };

/* A communicator that agreed on the table, with the rules for its ranks and nodes. */
typedef struct chooser {
    ncclComm_t communicator;
    size_t ranks, count; /* count: of its rules */
    struct chooser *next;
    rule rules[];
} chooser;

static struct {
    rule *rules;
    size_t count;
    uint64_t hash; /* of the file's text; 0: no valid table */
    int version, usable; /* version of NCCL; whether it has entries with a configuration */
} table;

static chooser *choosers;
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_once_t table_once = PTHREAD_ONCE_INIT;
/* Communicators made in an open group, with no limit: a rank that left some out would not answer the others. NCCL fills in the
 * handles when the group ends. */
static __thread struct {
    ncclComm_t **comms;
    int count, capacity, depth;
    int inside; /* > 0 within a function of NCCL that makes communicators, which may call another one */
} pending;

/* ---- NCCL itself, the next library of each name ---- */

/* Functions that checking a communicator calls; looked up when the table is read. */
static struct {
    __typeof__(ncclCommSplit) *split;
    __typeof__(ncclCommCount) *count;
    __typeof__(ncclCommUserRank) *rank;
    __typeof__(ncclCommDestroy) *destroy;
    __typeof__(ncclGroupStart) *start, *end;
} nccl;

#define FIND(name) (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

/* The next library's function of this name; found once. Atomic, as several threads may be the first to call it. */
#define NEXT(name) \
    static _Atomic(__typeof__(name) *) next; \
    if (!next && !(next = FIND(name))) return ncclSystemError

#define FNV_BASIS 14695981039346656037ull /* FNV-1a of no bytes */

/* Adds bytes to a hash (FNV-1a). */
static uint64_t hash_bytes(const char *bytes, size_t length, uint64_t hash) {
    for (size_t i = 0; i < length; i++) hash = (hash ^ (unsigned char)bytes[i]) * 1099511628211ull;
    return hash;
}

/* Finds NCCL's functions and reads the table, once; errors are printed, and then there is no table. */
static void read_table(void) {
    ncclResult_t (*version)(int *) = (ncclResult_t(*)(int *))dlsym(RTLD_NEXT, "ncclGetVersion");
    nccl.split = FIND(ncclCommSplit), nccl.count = FIND(ncclCommCount), nccl.rank = FIND(ncclCommUserRank);
    nccl.destroy = FIND(ncclCommDestroy), nccl.start = FIND(ncclGroupStart), nccl.end = FIND(ncclGroupEnd);
    table.usable = dlsym(RTLD_NEXT, "ncclAllReduceConfig") && version && version(&table.version) == ncclSuccess &&
                   nccl.split && nccl.count && nccl.rank && nccl.destroy && nccl.start && nccl.end;
    if (!table.usable) return;
    const char *path = getenv(TABLE), *problem = NULL;
    int line = 0;
    char *text = path && *path ? read_text(path, &problem) : NULL;
    table.rules = malloc(MAX_RULES * sizeof *table.rules);
    if (text && table.rules) {
        table.hash = hash_bytes(text, strlen(text), FNV_BASIS);
        /* all collectives and algorithms of nccl_rules.h, also those that a tuner plugin cannot choose */
        problem = read_rules(text, AP_CALLS, AP_CHOICES, table.rules, &table.count, &line);
    }
    if (!text && !problem) fprintf(stderr, "antiphon: $" TABLE " names no table; NCCL chooses by itself\n");
    if (problem) fprintf(stderr, "antiphon: %s, line %d: %s; NCCL chooses by itself\n", path, line, problem);
    if (problem || !table.rules) table.count = 0, table.hash = 0;
    free(text);
}

/* ---- communicators ---- */

/* Removes a communicator from the list, if it is there. */
static void forget_communicator(ncclComm_t communicator) {
    pthread_rwlock_wrlock(&lock);
    for (chooser **at = &choosers; *at; at = &(*at)->next)
        if ((*at)->communicator == communicator) {
            chooser *removed = *at;
            *at = removed->next;
            free(removed);
            break;
        }
    pthread_rwlock_unlock(&lock);
}

/* Adds a communicator that agreed on the table to the list. */
static void remember_communicator(ncclComm_t communicator, int ranks, int nodes) {
    chooser *new = malloc(sizeof *new + table.count * sizeof *new->rules);
    forget_communicator(communicator); /* an entry of an earlier communicator with this address */
    if (!new) return;
    *new = (chooser){.communicator = communicator, .ranks = (size_t)ranks};
    for (size_t i = 0; i < table.count; i++)
        if (is_for(&table.rules[i], (size_t)ranks, (size_t)nodes)) new->rules[new->count++] = table.rules[i];
    pthread_rwlock_wrlock(&lock);
    new->next = choosers, choosers = new;
    pthread_rwlock_unlock(&lock);
}

/* Put into sizes[i] the number of ranks of communicator i that have this rank's color; 0 if that fails. */
static ncclResult_t count_same_color(ncclComm_t *comms, const uint64_t *colors, int *sizes, int count) {
    ncclComm_t *probes = calloc((size_t)count, sizeof *probes);
    ncclResult_t result = probes ? nccl.start() : ncclSystemError;
    if (result == ncclSuccess) {
        for (int i = 0; i < count && result == ncclSuccess; i++)
            /* a color of ncclCommSplit is an int from 0 on */
            result = nccl.split(comms[i], (int)((colors[i] ^ colors[i] >> 32) & 0x7fffffff), 0, &probes[i], NULL);
        ncclResult_t ended = nccl.end();
        if (result == ncclSuccess) result = ended;
    }
    for (int i = 0; i < count; i++) {
        sizes[i] = 0;
        if (result == ncclSuccess && nccl.count(probes[i], &sizes[i]) != ncclSuccess) sizes[i] = 0;
        if (probes && probes[i]) nccl.destroy(probes[i]);
    }
    free(probes);
    return result;
}

/* Agree on table and nodes for communicators that this thread has made together. Per communicator: `local` counts the ranks on
 * this host, `alike` those with the same table and the same `local`. */
static void agree_on_table(ncclComm_t *comms, int count) {
    char host[512] = "", boot[64] = "";
    int ranks, rank;
    uint64_t *colors = malloc((size_t)count * (sizeof *colors + 2 * sizeof(int)));
    if (!colors) return;
    int *local = (int *)(colors + count), *alike = local + count;
    int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC); /* hosts may share a name */
    if (file >= 0 && read(file, boot, sizeof boot - 1) < 0) boot[0] = 0;
    if (file >= 0) close(file);
    gethostname(host, sizeof host - 1);
    uint64_t host_color = hash_bytes(boot, strlen(boot), hash_bytes(host, strlen(host), FNV_BASIS));
    for (int i = 0; i < count; i++) colors[i] = host_color;
    ncclResult_t result = count_same_color(comms, colors, local, count);
    for (int i = 0; i < count; i++) colors[i] = hash_bytes((const char *)&local[i], sizeof local[i], table.hash);
    if (result == ncclSuccess) result = count_same_color(comms, colors, alike, count);
    for (int i = 0; result == ncclSuccess && i < count; i++) {
        if (nccl.count(comms[i], &ranks) != ncclSuccess || nccl.rank(comms[i], &rank) != ncclSuccess) continue;
        if (local[i] > 0 && alike[i] == ranks && ranks % local[i] == 0)
            remember_communicator(comms[i], ranks, ranks / local[i]);
        else if (rank == 0)
            fprintf(stderr, "antiphon: the %d ranks of a communicator have different tables, or hosts have different numbers "
                    "of them; NCCL chooses by itself there\n", ranks);
    }
    free(colors);
}

/* Check these communicators, now or, in an open group, at its end. `ranks`: of each (0: not known); `config`: the
 * caller's, which may make them nonblocking; NULL: it gave none. */
static void add_communicators(ncclComm_t *comms, int count, int ranks, const ncclConfig_t *config) {
    const char *blocking = getenv("NCCL_COMM_BLOCKING"); /* overrides the configuration */
    int blocks = blocking && *blocking ? atoi(blocking) : !config || config->blocking;
    if (!table.usable || ranks == 1 || !blocks) return;
    if (!pending.depth) {
        agree_on_table(comms, count);
        return;
    }
    for (int i = 0; i < count; i++) {
        if (pending.count == pending.capacity) {
            int capacity = 2 * pending.capacity + FIRST_CAPACITY;
            ncclComm_t **larger = realloc(pending.comms, (size_t)capacity * sizeof *larger);
            if (!larger) return;
            pending.comms = larger, pending.capacity = capacity;
        }
        pending.comms[pending.count++] = &comms[i];
    }
}

EXPORT ncclResult_t ncclGroupStart(void) {
    NEXT(ncclGroupStart);
    pending.depth++;
    return next();
}

EXPORT ncclResult_t ncclGroupEnd(void) {
    NEXT(ncclGroupEnd);
    ncclResult_t result = next();
    if (pending.depth) pending.depth--;
    if (pending.depth || !pending.count) return result;
    ncclComm_t *comms = malloc((size_t)pending.count * sizeof *comms);
    int count = 0;
    for (int i = 0; comms && i < pending.count; i++)
        if (*pending.comms[i]) comms[count++] = *pending.comms[i];
    free(pending.comms);
    pending.comms = NULL, pending.count = pending.capacity = 0;
    if (result == ncclSuccess && count) agree_on_table(comms, count);
    free(comms);
    return result;
}

/* Define a function that makes communicators, in its parameter `comms`: its name and parameters, the number of
 * communicators and of the ranks of each, the caller's configuration, and the arguments to pass on. */
#define MAKER(name, parameters, count, ranks, config, ...) \
    EXPORT ncclResult_t name parameters { \
        NEXT(name); \
        pthread_once(&table_once, read_table); \
        pending.inside++; \
        ncclResult_t result = next(__VA_ARGS__); \
        pending.inside--; \
        if (!pending.inside && result == ncclSuccess) add_communicators(comms, count, ranks, config); \
        return result; \
    }

MAKER(ncclCommInitRank, (ncclComm_t *comms, int ranks, ncclUniqueId id, int rank), 1, ranks, NULL, comms, ranks, id, rank)
MAKER(ncclCommInitRankConfig, (ncclComm_t *comms, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config), 1, ranks, config,
      comms, ranks, id, rank, config)
MAKER(ncclCommInitRankScalable,
      (ncclComm_t *comms, int ranks, int rank, int parts, ncclUniqueId *ids, ncclConfig_t *config), 1, ranks, config,
      comms, ranks, rank, parts, ids, config)
MAKER(ncclCommInitAll, (ncclComm_t *comms, int ranks, const int *devices), ranks, ranks, NULL, comms, ranks, devices)

EXPORT ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
    NEXT(ncclCommDestroy);
    forget_communicator(communicator);
    return next(communicator);
}

EXPORT ncclResult_t ncclCommAbort(ncclComm_t communicator) {
    NEXT(ncclCommAbort);
    forget_communicator(communicator);
    return next(communicator);
}

/* The entry of a communicator; NULL: its calls are called through. It stays valid during a call, as no thread may
 * destroy a communicator that another one uses. */
static const chooser *find_chooser(ncclComm_t communicator) {
    pthread_rwlock_rdlock(&lock);
    const chooser *at = choosers;
    while (at && at->communicator != communicator) at = at->next;
    pthread_rwlock_unlock(&lock);
    return at;
}

/* All ranks of the parent call this, and all or none have an entry for it: so all ranks of a part check it, or none. */
EXPORT ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t *comms, ncclConfig_t *config) {
    NEXT(ncclCommSplit);
    pending.inside++;
    ncclResult_t result = next(parent, color, key, comms, config);
    pending.inside--;
    /* *comms: NULL at a rank that is in no part; in an open group NCCL has not set it yet */
    if (!pending.inside && result == ncclSuccess && find_chooser(parent) && (pending.depth || *comms))
        add_communicators(comms, 1, 0, config);
    return result;
}

/* ---- calls ---- */

/* Bytes of an element; 0: unknown type. */
static size_t bytes_of(ncclDataType_t type) {
    static const size_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1}; /* int8 to float64, bfloat16, float8 */
    return (size_t)type < sizeof bytes / sizeof *bytes ? bytes[type] : 0;
}

/* The selection string of NCCL for a rule; NULL if there is none. It selects all algorithms whose names begin with it;
 * "A+^B": those of A but not of B; "": no selection. NCCL 2.31 has only names without protocols. */
static const char *selection_of(const rule *r) {
    static const char *const names[][AP_PROTOCOLS + 1] = { /* by algorithm, then protocol: ll, ll128, simple, any */
        {"TREE_LL+^TREE_LL128", "TREE_LL128", "TREE_SIMPLE", "TREE"},
        {"RING_LL+^RING_LL128", "RING_LL128", "RING_SIMPLE", "RING"},
        {NULL, NULL, "COLLNET_DIRECT_SIMPLE", "COLLNET_DIRECT_SIMPLE"},
        {NULL, NULL, "COLLNET_CHAIN_SIMPLE", "COLLNET_CHAIN_SIMPLE"},
        {NULL, NULL, "NVLS_SIMPLE", "NVLS_SIMPLE"}, {NULL, NULL, "NVLSTREE_SIMPLE", "NVLSTREE_SIMPLE"},
        {NULL, NULL, "PAT_SIMPLE", "PAT_SIMPLE"},
        {NULL, NULL, NULL, ""}, {NULL, NULL, NULL, "SYMK_"}, {NULL, NULL, NULL, ""}, /* auto, symmetric, copies */
    };
    static const char *const older[] = {
        "tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat", "", NULL, ""
    };
    const char *name = names[r->algorithm][r->protocol == ANY ? AP_PROTOCOLS : r->protocol];
    if (!name || table.version >= FIRST_WITH_PROTOCOLS) return name;
    /* Only the first two, tree and ring, have several protocols; a name without protocol cannot select one of them. */
    const int has_protocols = r->algorithm <= AP_RING;
    return has_protocols && r->protocol != ANY ? NULL : older[r->algorithm];
}

/* Fill in the configuration of a call; return 0 if it is to be called through. `counts_block`: `count` is that of one rank's
 * block, not of the whole call. */
static int choose_configuration(ncclComm_t communicator, int collective, size_t count, ncclDataType_t type, int counts_block,
                                ncclCollConfig_t *config) {
    const chooser *c = find_chooser(communicator);
    size_t unit = bytes_of(type) * (c && counts_block ? c->ranks : 1);
    if (!c || !unit || count > SIZE_MAX / unit) return 0;
    const rule *r = c->rules, *end = c->rules + c->count;
    while (r < end && (r->collective != collective || count * unit < r->from || count * unit > r->to)) r++;
    /* A configuration has no chunk size: what such a rule gains with one says nothing of calls without. */
    const char *selection = r < end && !r->chunk ? selection_of(r) : NULL;
    if (!selection) return 0;
    *config = (ncclCollConfig_t)NCCL_COLLCONFIG_INITIALIZER;
    config->forceAlgSelection = 0;
    config->userProfilerTag = (uint64_t)r->line;
    if (*selection) config->algSelection = selection;
    if (r->channels) config->maxCTAs = r->channels;
    if (r->algorithm == AP_COPIES) config->CTAPolicy = POLICY_ZERO;
    return 1;
}

/* Define a collective: its name, its number in nccl_rules.h, `counts_block` of choose_configuration, its parameters and its
 * arguments. */
#define COLLECTIVE(name, number, counts_block, parameters, ...) \
    EXPORT ncclResult_t name parameters { \
        static _Atomic(__typeof__(name##Config) *) configured; \
        ncclCollConfig_t config; \
        NEXT(name); \
        if (!choose_configuration(comm, number, count, type, counts_block, &config)) return next(__VA_ARGS__); \
        if (!configured) configured = FIND(name##Config); \
        return configured ? configured(__VA_ARGS__, &config) : next(__VA_ARGS__); \
    }

/* Common to all: parameters for the data, parameters for communicator and stream, arguments for the data. */
#define DATA const void *from, void *to, size_t count, ncclDataType_t type
#define WHERE ncclComm_t comm, cudaStream_t stream
#define BUFFERS from, to, count, type

COLLECTIVE(ncclAllReduce, AP_ALLREDUCE, 0, (DATA, ncclRedOp_t op, WHERE), BUFFERS, op, comm, stream)
COLLECTIVE(ncclBroadcast, AP_BROADCAST, 0, (DATA, int root, WHERE), BUFFERS, root, comm, stream)
COLLECTIVE(ncclReduce, AP_REDUCE, 0, (DATA, ncclRedOp_t op, int root, WHERE), BUFFERS, op, root, comm, stream)
COLLECTIVE(ncclAllGather, AP_ALLGATHER, 1, (DATA, WHERE), BUFFERS, comm, stream)
COLLECTIVE(ncclReduceScatter, AP_REDUCESCATTER, 1, (DATA, ncclRedOp_t op, WHERE), BUFFERS, op, comm, stream)
COLLECTIVE(ncclAlltoAll, AP_ALLTOALL, 1, (DATA, WHERE), BUFFERS, comm, stream)
COLLECTIVE(ncclGather, AP_GATHER, 1, (DATA, int root, WHERE), BUFFERS, root, comm, stream)
COLLECTIVE(ncclScatter, AP_SCATTER, 1, (DATA, int root, WHERE), BUFFERS, root, comm, stream)
