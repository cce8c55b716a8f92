/* Messages between threads of one process, without any buffering: a send is done only together with its receive, after
 * both have started. The strictest transport there can be, for tests and for machines without MPI. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "transport.h"

typedef struct letter {
    struct letter *next;
    uint32_t from, channel, number;
    const void *data;
    void *room;
    size_t bytes;
} letter;

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t news;
    letter *sends, *receives; /* under way to this rank, in order */
    uint32_t *done;           /* numbers that are done, of this rank's messages */
    size_t count, space;
    int mixed; /* lengths of a send and its receive differ */
} box;

typedef struct {
    uint32_t ranks, open;
    pthread_mutex_t lock;
    box boxes[];
} office;

typedef struct {
    ap_wire base;
    office *all;
    uint32_t rank;
} thread_wire;

static int tell(box *b, uint32_t number) {
    if (b->count == b->space) {
        size_t space = b->space ? 2 * b->space : 64;
        uint32_t *done = realloc(b->done, space * sizeof *done);
        if (!done) return 0;
        b->done = done, b->space = space;
    }
    b->done[b->count++] = number;
    return 1;
}

/* The first letter of a queue from one rank on one channel: taken out, or NULL. */
static letter *take(letter **queue, uint32_t from, uint32_t channel) {
    for (; *queue; queue = &(*queue)->next)
        if ((*queue)->from == from && (*queue)->channel == channel) {
            letter *found = *queue;
            *queue = found->next;
            return found;
        }
    return NULL;
}

static void put(letter **queue, letter *one) {
    while (*queue) queue = &(*queue)->next;
    *queue = one;
}

/* One lock for all: this transport is to be right, not fast. */
static int post(thread_wire *w, int sends, uint32_t to, letter one, ap_error *error) {
    box *target = &w->all->boxes[to], *mine = &w->all->boxes[w->rank], *other;
    letter *mate;
    int good = 1;
    pthread_mutex_lock(&w->all->lock);
    mate = take(sends ? &target->receives : &target->sends, one.from, one.channel);
    if (!mate) {
        letter *kept = malloc(sizeof *kept);
        good = kept != NULL;
        if (good) *kept = one, kept->next = NULL, put(sends ? &target->sends : &target->receives, kept);
    } else {
        other = sends ? target : &w->all->boxes[one.from];
        if (mate->bytes == one.bytes)
            memcpy(sends ? mate->room : one.room, sends ? one.data : mate->data, one.bytes);
        else
            target->mixed = 1;
        good = tell(mine, one.number) && tell(other, mate->number);
        free(mate);
        pthread_cond_broadcast(&other->news);
    }
    pthread_mutex_unlock(&w->all->lock);
    return good ? AP_OK : ap_fail(error, AP_MEMORY, "out of memory");
}

static int send(ap_wire *self, uint32_t peer, uint32_t channel, const void *data, size_t bytes, uint32_t number,
                ap_error *error) {
    thread_wire *w = (thread_wire *)self;
    return post(w, 1, peer, (letter){NULL, w->rank, channel, number, data, NULL, bytes}, error);
}

static int receive(ap_wire *self, uint32_t peer, uint32_t channel, void *data, size_t bytes, uint32_t number,
                   ap_error *error) {
    thread_wire *w = (thread_wire *)self;
    return post(w, 0, w->rank, (letter){NULL, peer, channel, number, NULL, data, bytes}, error);
}

static int completed(ap_wire *self, int block, double timeout, uint32_t *numbers, int most, int *count,
                     ap_error *error) {
    thread_wire *w = (thread_wire *)self;
    box *b = &w->all->boxes[w->rank];
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    double seconds = timeout > 0 ? timeout : 1e6;
    end.tv_sec += (time_t)seconds, end.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    if (end.tv_nsec >= 1000000000L) end.tv_sec++, end.tv_nsec -= 1000000000L;
    pthread_mutex_lock(&w->all->lock);
    int late = 0;
    while (block && !b->count && !late) late = pthread_cond_timedwait(&b->news, &w->all->lock, &end) == ETIMEDOUT;
    *count = b->count < (size_t)most ? (int)b->count : most;
    if (*count) {
        memcpy(numbers, b->done, (size_t)*count * sizeof *numbers);
        b->count -= (size_t)*count;
        memmove(b->done, b->done + *count, b->count * sizeof *numbers);
    }
    int mixed = b->mixed;
    pthread_mutex_unlock(&w->all->lock);
    if (mixed) return ap_fail(error, AP_TRANSPORT, "rank %u: a message is as long as its receive is not", w->rank);
    if (block && !*count) return ap_fail(error, AP_TIMEOUT, "nothing came or went for %g seconds, the timeout of the call", timeout);
    return AP_OK;
}

static void clear(letter *queue) {
    while (queue) {
        letter *next = queue->next;
        free(queue);
        queue = next;
    }
}

static void close_wire(ap_wire *self) {
    thread_wire *w = (thread_wire *)self;
    office *all = w->all;
    pthread_mutex_lock(&all->lock);
    int last = --all->open == 0;
    pthread_mutex_unlock(&all->lock);
    free(w);
    if (!last) return;
    for (uint32_t i = 0; i < all->ranks; i++) {
        clear(all->boxes[i].sends), clear(all->boxes[i].receives);
        free(all->boxes[i].done);
        pthread_cond_destroy(&all->boxes[i].news);
    }
    pthread_mutex_destroy(&all->lock);
    free(all);
}

/* Wires for so many ranks, to be closed each; 0 where there is no memory. */
int ap_threads_open(uint32_t ranks, ap_wire **wires) {
    office *all = calloc(1, sizeof *all + ranks * sizeof(box));
    if (!all) return 0;
    all->ranks = all->open = ranks;
    pthread_mutex_init(&all->lock, NULL);
    for (uint32_t i = 0; i < ranks; i++) pthread_cond_init(&all->boxes[i].news, NULL);
    for (uint32_t i = 0; i < ranks; i++) {
        thread_wire *w = calloc(1, sizeof *w);
        if (!w) return 0;
        w->base = (ap_wire){.send = send, .receive = receive, .completed = completed, .close = close_wire, .ranks = ranks};
        w->all = all, w->rank = i;
        wires[i] = &w->base;
    }
    return 1;
}
