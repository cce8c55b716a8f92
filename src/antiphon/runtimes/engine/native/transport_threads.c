/* The transport between threads of one process, without any buffering: a send and its receive are done together, once
 * both have started. No transport can be stricter, so it is used in tests; and on machines without MPI.
 *
 * A *wire* is the endpoint of one rank (ap_wire). A message waits in the mailbox of its receiver until the other side starts too.
 *
 * Threading: one thread for each wire; one lock for all of them.
 * Ownership: the mailboxes are freed with the last wire.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "transport.h"

typedef struct message {
    struct message *next;
    uint32_t from, channel, number; /* number: chosen by the caller, reported when the message is done */
    const void *data;
    void *target;
    size_t bytes;
} message;

typedef struct {
    pthread_cond_t news; /* a message is done */
    message *sends, *receives; /* under way to this rank, in order */
    uint32_t *done;            /* numbers of this rank's messages that are done */
    size_t count, space;
    int lengths_differ; /* a send and its receive have different lengths */
} mailbox;

typedef struct {
    uint32_t ranks, open; /* open: wires that are not closed yet */
    pthread_mutex_t lock;
    mailbox of_rank[];
} mailboxes;

typedef struct {
    ap_wire base;
    mailboxes *all;
    uint32_t rank;
} thread_wire;

/* Enters a number among those of done messages; false: out of memory. */
static int add_done(mailbox *b, uint32_t number) {
    if (b->count == b->space) {
        size_t space = b->space ? 2 * b->space : 64;
        uint32_t *done = realloc(b->done, space * sizeof *done);
        if (!done) return 0;
        b->done = done, b->space = space;
    }
    b->done[b->count++] = number;
    return 1;
}

/* Removes and returns the first message from one rank on one channel; NULL if there is none. */
static message *take_message(message **queue, uint32_t from, uint32_t channel) {
    for (; *queue; queue = &(*queue)->next)
        if ((*queue)->from == from && (*queue)->channel == channel) {
            message *m = *queue;
            *queue = m->next;
            return m;
        }
    return NULL;
}

static void append_message(message **queue, message *m) {
    while (*queue) queue = &(*queue)->next;
    *queue = m;
}

/* Starts a send, or a receive (`sends` 0), of a message to rank `to`; copies the data if the other one of the pair waits already.
 * One lock for all: this need not be fast. */
static int post_message(thread_wire *w, int sends, uint32_t to, message m, ap_error *error) {
    mailbox *target = &w->all->of_rank[to], *own = &w->all->of_rank[w->rank], *other;
    message *partner;
    int has_memory = 1;
    pthread_mutex_lock(&w->all->lock);
    partner = take_message(sends ? &target->receives : &target->sends, m.from, m.channel);
    if (!partner) {
        message *waiting = malloc(sizeof *waiting);
        has_memory = waiting != NULL;
        if (has_memory) {
            *waiting = m;
            append_message(sends ? &target->sends : &target->receives, waiting);
        }
    } else {
        other = sends ? target : &w->all->of_rank[m.from];
        if (partner->bytes == m.bytes)
            memcpy(sends ? partner->target : m.target, sends ? m.data : partner->data, m.bytes);
        else
            target->lengths_differ = 1;
        has_memory = add_done(own, m.number) && add_done(other, partner->number);
        free(partner);
        pthread_cond_broadcast(&other->news);
    }
    pthread_mutex_unlock(&w->all->lock);
    return has_memory ? AP_OK : ap_fail(error, AP_MEMORY, "out of memory");
}

static int send_message(ap_wire *self, uint32_t peer, uint32_t channel, const void *data, size_t bytes, uint32_t number,
                        ap_error *error) {
    thread_wire *w = (thread_wire *)self;
    const message m = {.from = w->rank, .channel = channel, .number = number, .data = data, .bytes = bytes};
    return post_message(w, /* sends */ 1, peer, m, error);
}

static int receive_message(ap_wire *self, uint32_t peer, uint32_t channel, void *data, size_t bytes, uint32_t number,
                           ap_error *error) {
    thread_wire *w = (thread_wire *)self;
    const message m = {.from = peer, .channel = channel, .number = number, .target = data, .bytes = bytes};
    return post_message(w, /* sends */ 0, w->rank, m, error);
}

static int complete_messages(ap_wire *self, int block, double timeout, uint32_t *numbers, int capacity, int *count,
                             ap_error *error) {
    thread_wire *w = (thread_wire *)self;
    mailbox *b = &w->all->of_rank[w->rank];
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    double seconds = timeout > 0 ? timeout : 1e6; /* no timeout: 12 days */
    end.tv_sec += (time_t)seconds, end.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    if (end.tv_nsec >= 1000000000L) end.tv_sec++, end.tv_nsec -= 1000000000L;
    pthread_mutex_lock(&w->all->lock);
    int timed_out = 0;
    while (block && !b->count && !timed_out) timed_out = pthread_cond_timedwait(&b->news, &w->all->lock, &end) == ETIMEDOUT;
    *count = b->count < (size_t)capacity ? (int)b->count : capacity;
    if (*count) {
        memcpy(numbers, b->done, (size_t)*count * sizeof *numbers);
        b->count -= (size_t)*count;
        memmove(b->done, b->done + *count, b->count * sizeof *numbers);
    }
    int lengths_differ = b->lengths_differ;
    pthread_mutex_unlock(&w->all->lock);
    if (lengths_differ) return ap_fail(error, AP_TRANSPORT, "rank %u: a message and its receive differ in length", w->rank);
    if (block && !*count)
        return ap_fail(error, AP_TIMEOUT, "nothing came or went for %g seconds, the timeout of the call", timeout);
    return AP_OK;
}

static void free_messages(message *queue) {
    while (queue) {
        message *next = queue->next;
        free(queue);
        queue = next;
    }
}

static void free_mailboxes(mailboxes *all) {
    for (uint32_t i = 0; i < all->ranks; i++) {
        free_messages(all->of_rank[i].sends), free_messages(all->of_rank[i].receives);
        free(all->of_rank[i].done);
        pthread_cond_destroy(&all->of_rank[i].news);
    }
    pthread_mutex_destroy(&all->lock);
    free(all);
}

static void close_wire(ap_wire *self) {
    thread_wire *w = (thread_wire *)self;
    mailboxes *all = w->all;
    pthread_mutex_lock(&all->lock);
    int last = --all->open == 0;
    pthread_mutex_unlock(&all->lock);
    free(w);
    if (last) free_mailboxes(all);
}

/* Opens the wires of all ranks; returns 0 if memory runs out. */
int ap_threads_open(uint32_t ranks, ap_wire **wires) {
    mailboxes *all = calloc(1, sizeof *all + ranks * sizeof(mailbox));
    if (!all) return 0;
    all->ranks = all->open = ranks;
    pthread_mutex_init(&all->lock, NULL);
    for (uint32_t i = 0; i < ranks; i++) pthread_cond_init(&all->of_rank[i].news, NULL);
    for (uint32_t i = 0; i < ranks; i++) {
        thread_wire *w = calloc(1, sizeof *w);
        if (!w) {
            while (i) free(wires[--i]); /* base is a wire's first member */
            free_mailboxes(all);
            return 0;
        }
        w->base = (ap_wire){.send = send_message, .receive = receive_message, .completed = complete_messages,
                            .close = close_wire, .ranks = ranks};
        w->all = all, w->rank = i;
        wires[i] = &w->base;
    }
    return 1;
}
