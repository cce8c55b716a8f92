/* Communicators that a program makes, by themselves or in groups; and what else its groups hold. */
#include <stdlib.h>
#include <string.h>

#include "nccl_preload.h"

/* What a communicator made of another knows of its rank. */
static void origin_of(ncclComm_t parent, int *origin, int *origins) {
    ap_comm *c = ap_comm_known(parent);
    *origin = *origins = 0;
    if (c && c->origins) {
        *origin = c->origin, *origins = c->origins;
    } else if (AP_REAL(CommUserRank, parent, origin) || AP_REAL(CommCount, parent, origins)) {
        *origin = *origins = 0;
    }
}

/* ---- making them ---- */

enum { BY_ID, BY_IDS, BY_CONFIG, BY_SPLIT };

typedef struct {
    int how, ranks, rank, count, device;
    ncclComm_t *made, parent;
    ncclUniqueId *ids;
    int next; /* how far it is to the next one of the same parent; 0: there is none */
    void *config; /* a copy, as that of the caller may be gone */
    ncclResult_t code;
} creation;

/* Those of a group are made when it ends, in a thread for each parent: none waits for another's, as in NCCL; those of one parent
 * follow each other. */
enum { MOST_CREATIONS = 64 };
static _Thread_local creation noted[MOST_CREATIONS];
static _Thread_local int notes;
static _Thread_local int depth;

static ncclResult_t create(creation *k) {
    int origin = 0, origins = 0;
    ncclConfig_t *config = k->config;
    if (k->how == BY_SPLIT) {
        origin_of(k->parent, &origin, &origins);
        k->code = AP_REAL(CommSplit, k->parent, k->count, k->rank, k->made, config);
    } else if (k->how == BY_IDS) {
        k->code = AP_REAL(CommInitRankScalable, k->made, k->ranks, k->rank, k->count, k->ids, config);
    } else if (k->how == BY_CONFIG) {
        k->code = AP_REAL(CommInitRankConfig, k->made, k->ranks, *k->ids, k->rank, config);
    } else {
        k->code = AP_REAL(CommInitRank, k->made, k->ranks, *k->ids, k->rank);
    }
    free(k->ids), free(k->config);
    if ((k->code == ncclSuccess || k->code == ncclInProgress) && *k->made)
        ap_comm_begin(*k->made, origin, origins, k->code == ncclInProgress);
    return k->code;
}

static void *create_apart(void *given) {
    for (creation *k = given;; k += k->next) {
        if (ap_device_take(k->device))
            k->code = ncclUnhandledCudaError;
        else
            create(k);
        if (!k->next) return NULL;
    }
}

/* How far it is to the next one of its parent. */
static void chain(creation *list, int count, char *follows) {
    memset(follows, 0, MOST_CREATIONS);
    for (int i = 0; i < count; i++)
        for (int j = i + 1; j < count && list[i].parent && !list[i].next; j++)
            if (list[j].parent == list[i].parent) list[i].next = j - i, follows[j] = 1;
}

static ncclResult_t create_all(creation *list, int count) {
    pthread_t thread[MOST_CREATIONS];
    int started[MOST_CREATIONS], current = 0;
    char follows[MOST_CREATIONS];
    ncclResult_t code = ncclSuccess;
    (void)ap_device_current(&current);
    chain(list, count, follows);
    for (int i = 1; i < count; i++) started[i] = !follows[i] && !pthread_create(&thread[i], NULL, create_apart, &list[i]);
    if (count) create_apart(&list[0]);
    for (int i = 1; i < count; i++) {
        if (started[i])
            pthread_join(thread[i], NULL);
        else if (!follows[i])
            create_apart(&list[i]);
    }
    if (count) (void)ap_device_take(current);
    for (int i = 0; i < count; i++)
        if (list[i].code && (!code || code == ncclInProgress)) code = list[i].code;
    return code;
}

static ncclResult_t make(creation k, const ncclUniqueId *ids, int count, const void *config) {
    uint64_t size = 0;
    if (ids && !(k.ids = malloc((size_t)count * sizeof *ids))) return ncclSystemError;
    if (ids) memcpy(k.ids, ids, (size_t)count * sizeof *ids);
    if (config) memcpy(&size, config, sizeof size); /* it begins with its own size */
    if (config && (size < sizeof size || size > 1 << 16 || !(k.config = malloc((size_t)size)))) {
        free(k.ids);
        return ncclInvalidArgument;
    }
    if (k.config) memcpy(k.config, config, (size_t)size);
    if (k.how != BY_SPLIT) ap_nccl_lead(k.rank);
    if (ap_device_current(&k.device)) k.device = 0;
    if (!depth || notes == MOST_CREATIONS) return create(&k);
    noted[notes++] = k;
    return ncclSuccess;
}

AP_SEEN ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank) {
    if (ap_inside || !comm) return AP_REAL(CommInitRank, comm, ranks, id, rank);
    return make((creation){.how = BY_ID, .made = comm, .ranks = ranks, .rank = rank}, &id, 1, NULL);
}

AP_SEEN ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config) {
    if (ap_inside || !comm) return AP_REAL(CommInitRankConfig, comm, ranks, id, rank, config);
    return make((creation){.how = BY_CONFIG, .made = comm, .ranks = ranks, .rank = rank}, &id, 1, config);
}

AP_SEEN ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int ranks, int rank, int count, ncclUniqueId *ids,
                                              ncclConfig_t *config) {
    if (ap_inside || !comm || count < 1 || !ids) return AP_REAL(CommInitRankScalable, comm, ranks, rank, count, ids, config);
    return make((creation){.how = BY_IDS, .made = comm, .ranks = ranks, .rank = rank, .count = count}, ids, count, config);
}

AP_SEEN ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *made, ncclConfig_t *config) {
    if (ap_inside || !made) return AP_REAL(CommSplit, comm, color, key, made, config);
    return make((creation){.how = BY_SPLIT, .made = made, .parent = comm, .count = color, .rank = key}, NULL, 0, config);
}

typedef struct {
    ncclComm_t comm;
    int device;
} begun;

static void *begin_apart(void *given) {
    begun *b = given;
    if (!ap_device_take(b->device)) ap_comm_begin(b->comm, 0, 0, 0);
    return NULL;
}

AP_SEEN ncclResult_t ncclCommInitAll(ncclComm_t *comms, int count, const int *devices) {
    ncclResult_t code = AP_REAL(CommInitAll, comms, count, devices);
    if (ap_inside || depth || code || count < 1) return code;
    ap_nccl_lead(0);
    pthread_t *thread = calloc((size_t)count, sizeof *thread);
    begun *all = calloc((size_t)count, sizeof *all);
    int good = thread && all, started = 0;
    for (int i = 0; good && i < count; i++) all[i] = (begun){comms[i], devices ? devices[i] : i};
    while (good && started < count && !pthread_create(&thread[started], NULL, begin_apart, &all[started])) started++;
    for (int i = 0; i < started; i++) pthread_join(thread[i], NULL);
    free(thread), free(all);
    return code;
}

/* ---- groups ---- */

/* What a group holds; communicators are made, then calls go. */
static _Thread_local struct {
    ap_nccl_call *call;
    uint32_t calls, room;
} held;

ncclResult_t ap_nccl_do(const ap_nccl_call *call) {
    if (ap_inside || !call->comm) return ap_nccl_leave(call); /* without a communicator: NCCL says so at once */
    if (!depth) return ap_nccl_batch(call, 1);
    if (held.calls == held.room) {
        uint32_t room = held.room ? 2 * held.room : 64;
        ap_nccl_call *more = realloc(held.call, room * sizeof *more);
        if (!more) return ncclSystemError;
        held.call = more, held.room = room;
    }
    held.call[held.calls++] = *call;
    return ncclSuccess;
}

AP_SEEN ncclResult_t ncclGroupStart(void) {
    ncclResult_t code = AP_REAL(GroupStart);
    if (!ap_inside && !code) depth++;
    return code;
}

AP_SEEN ncclResult_t ncclGroupEnd(void) {
    if (ap_inside || !depth || --depth) return AP_REAL(GroupEnd);
    creation list[MOST_CREATIONS];
    int count = notes;
    uint32_t calls = held.calls;
    ap_nccl_call *call = held.call;
    memcpy(list, noted, (size_t)count * sizeof *list);
    notes = 0, held.calls = held.room = 0, held.call = NULL;
    ncclResult_t code = AP_REAL(GroupEnd), other = create_all(list, count);
    if (!code || code == ncclInProgress) code = other ? other : code;
    if (calls && (!code || code == ncclInProgress)) {
        other = ap_nccl_batch(call, calls);
        code = other ? other : code;
    }
    free(call);
    return code;
}

AP_SEEN ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *info) {
    if (ap_inside || depth != 1) return AP_REAL(GroupSimulateEnd, info);
    ncclResult_t code = ncclSuccess;
    for (uint32_t i = 0; i < held.calls && !code; i++) code = ap_nccl_leave(&held.call[i]);
    held.calls = 0, depth = 0;
    ncclResult_t ended = AP_REAL(GroupSimulateEnd, info);
    return code ? code : ended;
}
