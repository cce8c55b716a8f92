/* Communicators of NCCL: which are known, what goes with each, and their end. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nccl_preload.h"

static ap_comm *first;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
enum { LEAST_SCRATCH = 1 << 16, A_WHILE = 50 }; /* bytes; microseconds */

ap_comm *ap_comm_known(ncclComm_t comm) {
    pthread_mutex_lock(&lock);
    ap_comm *c = first;
    while (c && c->comm != comm) c = c->next;
    pthread_mutex_unlock(&lock);
    return c;
}

ap_comm *ap_comm_of(ncclComm_t comm) {
    ap_comm *c = comm ? ap_comm_known(comm) : NULL;
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
    ap_comm *c = ap_comm_known(comm);
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
    ap_comm *c = ap_inside || !comm ? NULL : ap_comm_known(comm);
    if (c && c->pending && error) return *error = ncclInProgress, ncclSuccess;
    ncclResult_t code = AP_REAL(CommGetAsyncError, comm, error);
    if (c && c->own && !code && error && *error == ncclSuccess) return AP_REAL(CommGetAsyncError, c->own, error);
    return code;
}
