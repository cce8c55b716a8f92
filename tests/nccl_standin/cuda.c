/* Streams as queues on threads, each as late as it likes: what does not wait for an event finds old data. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_runtime_api.h"

typedef struct { /* one record of an event: who waits for it waits for no later one */
    int reached, uses;
} moment;

typedef struct task task;
struct task {
    task *next;
    void (*run)(void *argument);
    moment *records, *waits; /* a mark instead of a kernel */
    _Alignas(16) unsigned char argument[];
};

typedef struct { /* what one stream does within a graph */
    task *first, **last;
    cudaStream_t stream;
} lane;

enum { MOST_LANES = 32, MOST_STREAMS = 256 };
struct CUgraph_st {
    unsigned long long id;
    int uses, lanes;
    lane lane[MOST_LANES];
    cudaStream_t origin;
};

struct CUstream_st {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    task *first, **last;
    uint64_t asked, done;
    int ends;
    cudaGraph_t graph; /* while it is captured */
    int lane;
};

struct CUevent_st {
    moment *last;
    cudaGraph_t graph; /* recorded last while that was captured */
};

static struct CUstream_st *streams[MOST_STREAMS], *usual;
static pthread_mutex_t all = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int device;
static _Thread_local cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
static unsigned long long captures;

/* ---- chance ---- */

static _Thread_local uint64_t state;

unsigned standin_random(void) {
    static _Atomic uint64_t threads;
    if (!state) {
        const char *seed = getenv("STANDIN_SEED");
        state = (uint64_t)(seed ? atoll(seed) : 1) * 0x9E3779B97F4A7C15u + ++threads * 0xD1B54A32D192ED03u + (uint64_t)getpid();
    }
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (unsigned)(state >> 32);
}

void standin_dither(void) {
    static int on = -1;
    if (on < 0) on = getenv("STANDIN_SEED") != NULL;
    if (on && standin_random() % 4 == 0) usleep(standin_random() % 150);
}

/* ---- streams ---- */

static pthread_mutex_t moments = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t reached = PTHREAD_COND_INITIALIZER;

static void await(const moment *m) {
    pthread_mutex_lock(&moments);
    while (!m->reached) pthread_cond_wait(&reached, &moments);
    pthread_mutex_unlock(&moments);
}

static void reach(moment *m) {
    pthread_mutex_lock(&moments);
    m->reached = 1;
    pthread_cond_broadcast(&reached);
    pthread_mutex_unlock(&moments);
}

static void release(moment *m) {
    pthread_mutex_lock(&moments);
    int over = m && !--m->uses;
    pthread_mutex_unlock(&moments);
    if (over) free(m);
}

static void drop(task *t) {
    if (t->records) release(t->records);
    if (t->waits) release(t->waits);
    free(t);
}

static void carry_out(task *t) {
    standin_dither();
    if (t->records)
        reach(t->records);
    else if (t->waits)
        await(t->waits);
    else
        t->run(t->argument);
}

static void *serve(void *given) {
    cudaStream_t s = given;
    for (;;) {
        pthread_mutex_lock(&s->lock);
        while (!s->first && !s->ends) pthread_cond_wait(&s->changed, &s->lock);
        task *t = s->first;
        pthread_mutex_unlock(&s->lock);
        if (!t) return NULL;
        carry_out(t);
        pthread_mutex_lock(&s->lock);
        if (!(s->first = t->next)) s->last = &s->first;
        s->done++;
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->lock);
        drop(t);
    }
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    (void)flags;
    cudaStream_t s = calloc(1, sizeof *s);
    pthread_mutex_init(&s->lock, NULL), pthread_cond_init(&s->changed, NULL);
    s->last = &s->first;
    pthread_mutex_lock(&all);
    int i = 0;
    while (i < MOST_STREAMS && streams[i]) i++;
    if (i == MOST_STREAMS || pthread_create(&s->thread, NULL, serve, s)) abort();
    streams[i] = s;
    pthread_mutex_unlock(&all);
    *stream = s;
    return cudaSuccess;
}

static cudaStream_t known(cudaStream_t stream) {
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    if (stream) return stream;
    pthread_mutex_lock(&once);
    if (!usual) cudaStreamCreateWithFlags(&usual, 0);
    pthread_mutex_unlock(&once);
    return usual;
}

static void add(cudaStream_t s, task *t) {
    t->next = NULL;
    if (s->graph) {
        lane *l = &s->graph->lane[s->lane];
        *l->last = t, l->last = &t->next;
        return;
    }
    pthread_mutex_lock(&s->lock);
    *s->last = t, s->last = &t->next, s->asked++;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

cudaError_t standin_launch(cudaStream_t stream, void (*kernel)(void *), const void *argument, size_t bytes) {
    task *t = calloc(1, sizeof *t + bytes);
    t->run = kernel;
    memcpy(t->argument, argument, bytes);
    add(known(stream), t);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    cudaStream_t s = known(stream);
    pthread_mutex_lock(&s->lock);
    int busy = s->done < s->asked;
    pthread_mutex_unlock(&s->lock);
    return busy ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    cudaStream_t s = known(stream);
    if (s->graph) return cudaErrorStreamCaptureIsolation;
    pthread_mutex_lock(&s->lock);
    for (uint64_t until = s->asked; s->done < until;) pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s) {
    pthread_mutex_lock(&s->lock);
    s->ends = 1;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    pthread_mutex_lock(&all);
    for (int i = 0; i < MOST_STREAMS; i++)
        if (streams[i] == s) streams[i] = NULL;
    pthread_mutex_unlock(&all);
    free(s);
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
    for (int i = 0; i < MOST_STREAMS; i++) {
        pthread_mutex_lock(&all);
        cudaStream_t s = streams[i];
        pthread_mutex_unlock(&all);
        if (s && !s->graph) cudaStreamSynchronize(s);
    }
    return cudaSuccess;
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    (void)flags;
    *event = calloc(1, sizeof **event);
    return cudaSuccess;
}

static void mark(cudaStream_t s, moment *m, int records) {
    task *t = calloc(1, sizeof *t);
    pthread_mutex_lock(&moments);
    m->uses++;
    pthread_mutex_unlock(&moments);
    if (records)
        t->records = m;
    else
        t->waits = m;
    add(s, t);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    cudaStream_t s = known(stream);
    if (event->last) release(event->last);
    event->graph = s->graph, event->last = calloc(1, sizeof *event->last);
    event->last->uses = 1;
    mark(s, event->last, 1);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    cudaStream_t s = known(stream);
    (void)flags;
    if (event->graph && !s->graph) { /* this stream is captured from here on, too */
        cudaGraph_t g = event->graph;
        if (g->lanes == MOST_LANES) abort();
        s->graph = g, s->lane = g->lanes++;
        g->lane[s->lane].stream = s, g->lane[s->lane].last = &g->lane[s->lane].first;
    }
    if (event->graph != s->graph) return cudaErrorStreamCaptureIsolation;
    if (event->last) mark(s, event->last, 0);
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    if (event->graph) return cudaErrorStreamCaptureIsolation;
    if (event->last) await(event->last);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    if (event->graph) return cudaErrorStreamCaptureIsolation;
    pthread_mutex_lock(&moments);
    int there = !event->last || event->last->reached;
    pthread_mutex_unlock(&moments);
    return there ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    if (event->last) release(event->last);
    free(event);
    return cudaSuccess;
}

/* ---- memory ---- */

typedef struct {
    void *to;
    const void *from;
    size_t bytes;
} copying;

static void copy(void *given) {
    copying *c = given;
    memmove(c->to, c->from, c->bytes);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    copying c = {to, from, bytes};
    (void)kind;
    return standin_launch(stream, copy, &c, sizeof c);
}

static _Atomic int held, highest; /* blocks */

int standin_blocks(void) { return held; }
int standin_streams(void) {
    int count = 0;
    for (int i = 0; i < MOST_STREAMS; i++) count += streams[i] && streams[i] != usual;
    return count;
}

/* A line in the folder that STANDIN_LEFT names: the most blocks there ever were, and those that nobody has freed. */
__attribute__((destructor)) static void tell_left(void) {
    const char *folder = getenv("STANDIN_LEFT");
    char name[512];
    if (!folder || snprintf(name, sizeof name, "%s/%ld", folder, (long)getpid()) >= (int)sizeof name) return;
    FILE *file = fopen(name, "w");
    if (!file) return;
    fprintf(file, "%d %d", highest, held);
    fclose(file);
}

cudaError_t cudaMalloc(void **memory, size_t bytes) {
    if (captures && mode != cudaStreamCaptureModeRelaxed)
        for (int i = 0; i < MOST_STREAMS; i++)
            if (streams[i] && streams[i]->graph) return cudaErrorStreamCaptureIsolation;
    *memory = malloc(bytes ? bytes : 1);
    if (!*memory) return cudaErrorMemoryAllocation;
    memset(*memory, 0xA5, bytes);
    const int now = ++held;
    if (now > highest) highest = now;
    return cudaSuccess;
}

cudaError_t cudaFree(void *memory) {
    cudaDeviceSynchronize();
    held -= memory != NULL;
    free(memory);
    return cudaSuccess;
}

/* ---- the rest ---- */

const char *cudaGetErrorString(cudaError_t code) { return code ? "the stand-in refuses" : "no error"; }
cudaError_t cudaGetLastError(void) { return cudaSuccess; }
cudaError_t cudaGetDevice(int *number) { return *number = device, cudaSuccess; }
cudaError_t cudaSetDevice(int number) { return device = number, cudaSuccess; }

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *given) {
    cudaStreamCaptureMode old = mode;
    mode = *given, *given = old;
    return cudaSuccess;
}

/* ---- graphs: each captured stream is a lane; events within them are edges ---- */

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus *status, unsigned long long *id) {
    cudaStream_t s = known(stream);
    *status = s->graph ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    if (id) *id = s->graph ? s->graph->id : 0;
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode how) {
    (void)how;
    cudaGraph_t g = calloc(1, sizeof *g);
    g->id = ++captures, g->uses = 1, g->lanes = 1, g->origin = s;
    g->lane[0].stream = s, g->lane[0].last = &g->lane[0].first;
    s->graph = g, s->lane = 0;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph) {
    *graph = s->graph;
    if (!s->graph || s->graph->origin != s) return cudaErrorInvalidValue;
    for (int i = 0; i < (*graph)->lanes; i++) (*graph)->lane[i].stream->graph = NULL;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
    (void)flags;
    graph->uses++;
    *exec = graph;
    return cudaSuccess;
}

static void *run_lane(void *given) {
    for (task *t = ((lane *)given)->first; t; t = t->next) carry_out(t);
    return NULL;
}

static void run_graph(void *given) {
    cudaGraph_t g = *(cudaGraph_t *)given;
    pthread_t thread[MOST_LANES];
    for (int i = 0; i < g->lanes; i++) /* what was recorded in an earlier run says nothing of this one */
        for (task *t = g->lane[i].first; t; t = t->next)
            if (t->records) t->records->reached = 0;
    for (int i = 1; i < g->lanes; i++)
        if (pthread_create(&thread[i], NULL, run_lane, &g->lane[i])) abort();
    run_lane(&g->lane[0]);
    for (int i = 1; i < g->lanes; i++) pthread_join(thread[i], NULL);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) { return standin_launch(stream, run_graph, &exec, sizeof exec); }

cudaError_t cudaGraphDestroy(cudaGraph_t g) {
    if (--g->uses) return cudaSuccess;
    for (int i = 0; i < g->lanes; i++)
        for (task *t = g->lane[i].first, *next; t; t = next) next = t->next, drop(t);
    free(g);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return cudaGraphDestroy(exec); }
