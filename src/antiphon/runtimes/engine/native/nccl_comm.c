/* Communicators of NCCL: which are known, what goes with each, and their end. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nccl_preload.h"

static ap_comm *first;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
enum { LEAST_SCRATCH = 1 << 16, A_WHILE = 50 }; /* bytes; microseconds */

static ap_comm *find(ncclComm_t comm) {
    pthread_mutex_lock(&lock);
    ap_comm *c = first;
    while (c && c->comm != comm) c = c->next;
    pthread_mutex_unlock(&lock);
    return c;
}

ap_comm *ap_comm_of(ncclComm_t comm) {
    ap_comm *c = comm ? find(comm) : NULL;
    return c && !c->pending && !c->stop ? c : NULL;
}

static ap_comm *take_out(ncclComm_t comm) {
    ap_comm *c = NULL;
    pthread_mutex_lock(&lock);
    for (ap_comm **at = &first; *at; at = &(*at)->next)
        if ((*at)->comm == comm) {
            c = *at, *at = c->next;
            break;
        }
    pthread_mutex_unlock(&lock);
    return c;
}

/* ---- beginning ---- */

/* One whose making goes on while the program does something else: set up as soon as NCCL has made it. */
static void *set_up_later(void *given) {
    ap_comm *c = given;
    ncclResult_t state = ncclInProgress;
    int good = !ap_device_take(c->device);
    while (good && !c->stop && state == ncclInProgress) {
        if (AP_REAL(CommGetAsyncError, c->comm, &state)) state = ncclInternalError;
        if (state == ncclInProgress) usleep(A_WHILE);
    }
    if (good && !c->stop && !state) ap_comm_set_up(c);
    c->using--;
    c->pending = 0;
    return NULL;
}

void ap_comm_begin(ncclComm_t comm, int origin, int origins, int in_progress) {
    ap_comm *c = calloc(1, sizeof *c);
    if (!c) return; /* the others will learn of it: ap_comm_set_up waits for all. Nothing can be had here any more */
    *c = (ap_comm){.comm = comm, .reason = AP_STRANGERS, .origin = origin, .origins = origins, .using = 1, .pending = in_progress};
    if (ap_device_current(&c->device)) c->device = 0;
    pthread_mutex_lock(&lock);
    c->next = first, first = c;
    pthread_mutex_unlock(&lock);
    if (in_progress && !pthread_create(&c->worker, NULL, set_up_later, c)) {
        c->has_worker = 1;
        return;
    }
    if (in_progress)
        set_up_later(c);
    else
        (void)(ap_comm_set_up(c), c->using--);
}

int ap_comm_wait(ap_comm *c, ap_queue queue) {
    ncclResult_t state = ncclSuccess;
    for (unsigned turn = 0;; turn++) {
        int busy = ap_queue_busy(queue);
        if (busy <= 0) return busy;
        if (c->stop) return -1;
        if (turn % 256 == 255 && (AP_REAL(CommGetAsyncError, c->comm, &state) || (state && state != ncclInProgress))) return -1;
        usleep(A_WHILE);
    }
}

/* ---- memory of the device: given back to us alone, as giving it to CUDA waits for all that the device does ---- */

typedef struct block block;
struct block {
    block *next;
    void *memory;
    uint64_t bytes;
    int device;
};
static block *spare;

int ap_memory_take(int device, uint64_t bytes, void **memory) {
    pthread_mutex_lock(&lock);
    block **at = &spare, *found = NULL;
    while (*at && ((*at)->device != device || (*at)->bytes != bytes)) at = &(*at)->next;
    if (*at) found = *at, *at = found->next;
    pthread_mutex_unlock(&lock);
    if (!found) return ap_device_memory(memory, bytes);
    *memory = found->memory;
    free(found);
    return 0;
}

void ap_memory_give(int device, uint64_t bytes, void *memory) {
    block *b = memory ? malloc(sizeof *b) : NULL;
    if (!b) return; /* then it is lost until the process ends */
    pthread_mutex_lock(&lock);
    *b = (block){spare, memory, bytes, device};
    spare = b;
    pthread_mutex_unlock(&lock);
}

/* ---- tracks ---- */

/* What has been asked for before still uses what is there. */
static int need(ap_comm *c, ap_track *t, uint64_t bytes) {
    if (bytes <= t->bytes) return 0;
    uint64_t size = LEAST_SCRATCH;
    while (size < bytes) size *= 2;
    ap_scratch *old = malloc(sizeof *old);
    void *made = NULL;
    if (!old || ap_memory_take(c->device, size, &made)) {
        free(old);
        return 1;
    }
    *old = t->scratch, t->scratch = (ap_scratch){t->scratch.memory ? old : NULL, made, size};
    if (!t->scratch.before) free(old);
    t->bytes = size;
    return 0;
}

/* `over`: nothing that uses it is under way any more. */
static void end_track(ap_comm *c, ap_track *t, int over) {
    if (t->queue) ap_queue_end(t->queue);
    ap_mark_end(t->mark), ap_mark_end(t->fork);
    if (over) ap_memory_give(c->device, t->scratch.bytes, t->scratch.memory);
    for (ap_scratch *s = t->scratch.before, *next; s; s = next) {
        next = s->before;
        if (over) ap_memory_give(c->device, s->bytes, s->memory);
        free(s);
    }
    free(t);
}

/* Streams may be captured meanwhile: what is made here is no part of that. */
ap_track *ap_track_new(ap_comm *c, unsigned long long graph, uint64_t scratch) {
    ap_track *t = calloc(1, sizeof *t);
    int mode = -1;
    if (!t || ap_device_relax(&mode)) {
        free(t);
        return NULL;
    }
    t->graph = graph;
    int bad = ap_queue_new(&t->queue) || ap_mark_new(&t->mark) || ap_mark_new(&t->fork) || need(c, t, scratch);
    (void)ap_device_relax(&mode);
    if (bad) {
        end_track(c, t, 1);
        return NULL;
    }
    t->next = c->tracks, c->tracks = t;
    return t;
}

ap_track *ap_track_of(ap_comm *c, ap_stream stream, uint64_t scratch) {
    unsigned long long graph = 0;
    int mode = -1;
    if (ap_queue_captured(stream, &graph)) return NULL;
    ap_track *t = c->tracks;
    while (t && t->graph != graph) t = t->next;
    if (!t) return ap_track_new(c, graph, scratch);
    if (scratch <= t->bytes) return t;
    if (ap_device_relax(&mode)) return NULL;
    int bad = need(c, t, scratch);
    (void)ap_device_relax(&mode);
    return bad ? NULL : t;
}

/* ---- the end ---- */

static void forget(ap_comm *c, int over) {
    int before = 0;
    if (!c) return;
    if (c->has_worker) pthread_join(c->worker, NULL);
    int moved = !ap_device_current(&before) && before != c->device && !ap_device_take(c->device);
    for (ap_track *t = c->tracks, *next; t; t = next) next = t->next, end_track(c, t, over);
    for (ap_rounds *r = c->kept, *next; r; r = next) next = r->next, ap_rounds_end(r);
    ap_unmatch(&c->found);
    free(c->bound), free(c->place_of), free(c);
    if (moved) (void)ap_device_take(before);
}

/* Our messages are over before the communicator for them goes. */
static void finish(ap_comm *c) {
    for (ap_track *t = c->tracks; t; t = t->next)
        if (t->marked && !t->graph) (void)ap_mark_reach(t->mark);
    if (c->own) (void)AP_REAL(CommDestroy, c->own);
    c->own = NULL;
}

AP_SEEN ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    if (ap_inside) return AP_REAL(CommDestroy, comm);
    ap_comm *c = take_out(comm);
    if (c) {
        c->stop = c->pending; /* destroyed before it was there */
        if (c->has_worker) pthread_join(c->worker, NULL), c->has_worker = 0;
        finish(c);
    }
    ncclResult_t code = AP_REAL(CommDestroy, comm);
    forget(c, 1);
    return code;
}

/* Another thread may be waiting in a call of this communicator: it is told, and waited for, before anything goes. */
AP_SEEN ncclResult_t ncclCommAbort(ncclComm_t comm) {
    if (ap_inside) return AP_REAL(CommAbort, comm);
    ap_comm *c = find(comm);
    if (c) {
        c->stop = 1;
        if (c->own) (void)AP_REAL(CommAbort, c->own);
        c->own = NULL;
    }
    ncclResult_t code = AP_REAL(CommAbort, comm);
    while (c && c->using) usleep(A_WHILE);
    forget(take_out(comm), 0);
    return code;
}

AP_SEEN ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
    ap_comm *c = ap_inside || !comm ? NULL : find(comm);
    if (c && c->pending && error) return *error = ncclInProgress, ncclSuccess;
    ncclResult_t code = AP_REAL(CommGetAsyncError, comm, error);
    if (c && c->own && !code && error && *error == ncclSuccess) return AP_REAL(CommGetAsyncError, c->own, error);
    return code;
}

/* What a communicator made of another knows of its rank. */
static void origin_of(ncclComm_t parent, int *origin, int *origins) {
    ap_comm *c = find(parent);
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
    if (ap_inside) return ap_nccl_leave(call);
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
