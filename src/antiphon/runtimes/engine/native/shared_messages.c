/* Messages through shared memory (shared.h, shared_types.h). A send becomes a target of a payload; polls copy payloads into
 * blocks and post an entry per block in the queue to each receiver; the receiver's polls copy blocks out into posted receives.
 * Example, 40 KB to members 1 and 2: one payload with two targets, three blocks of 16 KB, and three entries in each of the two
 * queues.
 *
 * Threading: one thread per process. Between processes: queues with one writer and one reader (release and acquire of head and
 *   tail), and a futex for each sleeper.
 * Ownership: a block belongs to its sender; `users` counts the receivers that have not read it yet.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "copy.h"
#include "shared_types.h"
#include "transport.h"

/* ---- starting ---- */

/* Makes room in `done` for one more message; false: out of memory. */
static int reserve_done(ap_shared *s) {
    if (s->active + s->dones < s->space) return 1;
    uint32_t space = s->space ? 2 * s->space : 64;
    uint32_t *done = realloc(s->done, space * sizeof *done);
    if (!done) return 0;
    s->done = done, s->space = space;
    return 1;
}

/* The first item of a list of spare ones, or a new one; NULL: out of memory. */
#define TAKE(LIST, TYPE) (LIST ? (TYPE *)take_spare((void **)&LIST, LIST->next) : calloc(1, sizeof(TYPE)))

/* For TAKE: removes the first item of a list; `next`: the second one. */
static void *take_spare(void **list, void *next) {
    void *spare = *list;
    *list = next;
    return spare;
}

/* A payload that a send can join: it has the same data, and no byte of it is in a block yet; NULL: none. Receivers get
 * payloads in the order of their serial numbers, so a payload that is older than the last one to this receiver does not
 * fit: if one receiver got X before Y, and another Y before X, neither payload could proceed. */
static payload *find_same_payload(const ap_shared *s, uint32_t to, const void *data, size_t bytes) {
    const target *last = s->out[to].last;
    if (bytes <= INLINE_BYTES) return NULL;
    for (uint32_t i = 0; i < s->recents; i++)
        if (s->recent[i]->data == data && s->recent[i]->bytes == bytes)
            return !last || last->of->serial < s->recent[i]->serial ? s->recent[i] : NULL;
    return NULL;
}

/* A payload without targets; NULL: out of memory. */
static payload *new_payload(ap_shared *s, const void *data, size_t bytes) {
    payload *p = TAKE(s->spare_payloads, payload);
    if (!p) return NULL;
    *p = (payload){.data = data, .bytes = bytes, .serial = ++s->serial};
    if (s->recents < MAX_RECENT) s->recent[s->recents++] = p;
    return p;
}

/* Starts a send to a member. ap_shared_progress reports `number` once all data are in blocks. */
int ap_shared_send(ap_shared *s, uint32_t to, uint32_t channel, const void *data, size_t bytes, uint32_t number,
                   ap_error *error) {
    outgoing *o = &s->out[to];
    target *t = reserve_done(s) ? TAKE(s->spare_targets, target) : NULL;
    payload *p = t ? find_same_payload(s, to, data, bytes) : NULL;
    if (t && !p) p = new_payload(s, data, bytes);
    if (!p) {
        free(t);
        return ap_fail(error, AP_MEMORY, "out of memory");
    }
    *t = (target){.sibling = p->targets, .of = p, .to = to, .channel = channel, .number = number};
    p->targets = t, p->pending++; /* for free_targets (shared_memory.c) */
    if (o->last)
        o->last->next = t;
    else
        o->first = t;
    o->last = t;
    s->active++;
    return AP_OK;
}

/* The lane of a channel, which lists its messages, made at its first use; NULL: out of memory. */
static lane *lane_of(incoming *in, uint32_t channel) {
    if (in->last < in->count && in->lanes[in->last].channel == channel) return &in->lanes[in->last];
    for (uint32_t i = 0; i < in->count; i++)
        if (in->lanes[i].channel == channel) return in->last = i, &in->lanes[i];
    if (in->count == in->space) {
        uint32_t space = in->space ? 2 * in->space : 4;
        lane *lanes = realloc(in->lanes, space * sizeof *lanes);
        if (!lanes) return NULL;
        in->lanes = lanes, in->space = space;
    }
    in->last = in->count;
    in->lanes[in->count] = (lane){.channel = channel};
    return &in->lanes[in->count++];
}

/* Appends to the list from `first` to `last`; `last` has no meaning while `first` is NULL. */
static void append_message(message **first, message **last, message *m) {
    m->next = NULL;
    if (*first)
        (*last)->next = m;
    else
        *first = m;
    *last = m;
}

/* Enters a message, by its number, among those to report as done. */
static void finish_number(ap_shared *s, uint32_t number) { s->active--, s->done[s->dones++] = number; }

static void recycle_message(ap_shared *s, message *m) {
    free(m->own);
    *m = (message){.next = s->spare_messages};
    s->spare_messages = m;
}

static int wrong_length(size_t expected, size_t received, ap_error *error) {
    return ap_fail(error, AP_TRANSPORT, "a message of %zu bytes came where %zu were expected", received, expected);
}

/* Copies the next bytes of a message to its memory. */
static void copy_bytes(message *m, const unsigned char *from, size_t bytes) {
    ap_copy(m->data + m->copied, from, bytes);
    m->copied += bytes;
}

/* Starts a receive from a member. ap_shared_progress reports `number` once all data have come. */
int ap_shared_receive(ap_shared *s, uint32_t from, uint32_t channel, void *data, size_t bytes, uint32_t number,
                      ap_error *error) {
    lane *l = lane_of(&s->in[from], channel);
    message *m = l && reserve_done(s) ? TAKE(s->spare_messages, message) : NULL;
    if (!m) return ap_fail(error, AP_MEMORY, "out of memory");
    *m = (message){.data = data, .bytes = bytes, .number = number};
    s->active++;
    message *unexpected = l->unexpected; /* arrived already, in full or in part */
    if (unexpected) {
        if (unexpected->bytes != bytes) return wrong_length(bytes, unexpected->bytes, error);
        copy_bytes(m, unexpected->own, unexpected->copied);
        l->unexpected = unexpected->next;
        recycle_message(s, unexpected);
        if (m->copied == m->bytes) {
            finish_number(s, number);
            recycle_message(s, m);
            return AP_OK;
        }
    }
    append_message(&l->posted, &l->posted_last, m);
    s->in[from].posted++;
    return AP_OK;
}

/* ---- sleeping ---- */

static bell *bell_of(const ap_shared *s, uint32_t member) { return &((shared_head *)s->memory)->bells[member]; }

#ifdef __linux__
static void wake_sleeper(bell *b) { syscall(SYS_futex, &b->word, FUTEX_WAKE, 1, NULL, NULL, 0); }
static void sleep_until_rung(bell *b, uint32_t word, const struct timespec *duration) {
    syscall(SYS_futex, &b->word, FUTEX_WAIT, word, duration, NULL, 0);
}
#else /* never called: shared_memory.c works on Linux only */
static void wake_sleeper(bell *b) { (void)b; }
static void sleep_until_rung(bell *b, uint32_t word, const struct timespec *duration) { (void)b, (void)word, (void)duration; }
#endif

/* Wakes a member after an entry was posted to it. Either the member sees the entry before it sleeps, or this sees `asleep`. */
static void ring_bell(const ap_shared *s, uint32_t member) {
    bell *b = bell_of(s, member);
    atomic_thread_fence(memory_order_seq_cst);
    if (!atomic_load_explicit(&b->asleep, memory_order_relaxed) || !atomic_exchange(&b->asleep, 0)) return;
    atomic_fetch_add(&b->word, 1);
    wake_sleeper(b);
}

/* Whether a member has posted an entry for an open receive, or read an entry, so that a poll may copy. */
static int has_news(const ap_shared *s) {
    for (uint32_t i = 0; i < s->members; i++)
        if ((s->in[i].posted && atomic_load(&s->in[i].queue->head) != s->in[i].tail) ||
            (s->out[i].first && atomic_load(&s->out[i].queue->tail) != s->out[i].tail))
            return 1;
    return 0;
}

/* Sleeps until a member posts or reads an entry, at most that long. */
void ap_shared_sleep(ap_shared *s, int microseconds) {
    const struct timespec duration = {microseconds / 1000000, microseconds % 1000000 * 1000L};
    bell *b = bell_of(s, s->me);
    const uint32_t word = atomic_load(&b->word);
    atomic_store(&b->asleep, 1);
    atomic_thread_fence(memory_order_seq_cst);
    if (has_news(s))
        sched_yield(); /* the entry may be of a message that cannot proceed yet, so do not poll at once */
    else
        sleep_until_rung(b, word, &duration);
    atomic_store(&b->asleep, 0);
}

/* ---- into blocks ---- */

/* Takes back blocks that all their receivers have read. */
static void collect_blocks(ap_shared *s, outgoing *o) {
    uint32_t tail = atomic_load_explicit(&o->queue->tail, memory_order_acquire);
    for (; o->tail != tail; o->tail++) {
        uint32_t block = o->block[o->tail % QUEUE];
        if (block == NO_BLOCK) continue;
        o->blocks_held--;
        if (!--s->users[block]) s->free_block[s->free_blocks++] = block;
    }
}

/* Whether the next bytes of a payload can be sent to all its receivers. The last free blocks, one per member, are for receivers
 * that hold none, so that no receiver waits for a slow one. */
static int has_room(ap_shared *s, const payload *p) {
    int holds = 0;
    for (const target *t = p->targets; t; t = t->sibling) {
        outgoing *o = &s->out[t->to];
        if (o->first != t) return 0;
        collect_blocks(s, o);
        if (o->head - o->tail >= QUEUE) return 0;
        holds |= o->blocks_held > 0;
    }
    uint32_t keep = holds ? s->members : 0; /* free blocks that it must leave */
    if (p->bytes <= INLINE_BYTES || s->free_blocks > keep) return 1;
    for (uint32_t i = 0; i < s->members; i++) collect_blocks(s, &s->out[i]); /* also what others have read since */
    return s->free_blocks > keep;
}

/* Posts an entry for bytes of a target's payload: those in a block, or with NO_BLOCK those at `data`. */
static void post_entry(ap_shared *s, outgoing *o, const target *t, uint32_t block, const void *data, uint32_t bytes) {
    entry *e = &o->queue->entries[o->head % QUEUE];
    e->channel = t->channel, e->block = (uint16_t)block, e->bytes = (uint16_t)bytes;
    e->total = t->of->bytes, e->call = s->call;
    if (block != NO_BLOCK)
        s->users[block]++, o->blocks_held++;
    else if (bytes)
        memcpy(e->inline_data, data, bytes);
    o->block[o->head % QUEUE] = block;
    atomic_store_explicit(&o->queue->head, ++o->head, memory_order_release);
    ring_bell(s, t->to);
}

/* All of a payload is in blocks: reports its sends done. Each is the first to its receiver, as has_room demands. */
static void finish_payload(ap_shared *s, payload *p) {
    for (target *t = p->targets, *sibling; t; t = sibling) {
        outgoing *o = &s->out[t->to];
        sibling = t->sibling;
        o->first = t->next;
        if (!o->first) o->last = NULL;
        finish_number(s, t->number);
        *t = (target){.next = s->spare_targets};
        s->spare_targets = t;
    }
    *p = (payload){.next = s->spare_payloads};
    s->spare_payloads = p;
}

/* Gives each receiver a payload of its own, so that it need not wait for the others; without memory, it must. */
static void split_payload(ap_shared *s, payload *p) {
    while (p->targets->sibling) {
        target *t = p->targets->sibling;
        payload *own = TAKE(s->spare_payloads, payload);
        if (!own) return;
        *own = *p;
        p->targets->sibling = t->sibling, p->pending--;
        t->sibling = NULL, t->of = own;
        own->targets = t, own->pending = 1, own->next = NULL;
    }
}

/* Sends as much of a payload as there is room for; returns whether anything was sent. */
static int send_payload(ap_shared *s, payload *p) {
    int moved = 0;
    p->poll_number = s->poll_number;
    for (; has_room(s, p); moved = 1) {
        size_t remaining = p->bytes - p->copied;
        uint32_t bytes = remaining < BLOCK ? (uint32_t)remaining : BLOCK, block = NO_BLOCK;
        const unsigned char *from = p->data + p->copied;
        if (p->bytes > INLINE_BYTES) {
            block = s->free_block[--s->free_blocks];
            ap_copy(s->blocks + (size_t)block * BLOCK, from, bytes);
        }
        p->copied += bytes;
        for (target *t = p->targets; t; t = t->sibling) post_entry(s, &s->out[t->to], t, block, from, bytes);
        if (p->copied == p->bytes) {
            finish_payload(s, p);
            return 1;
        }
    }
    p->idle_polls = moved ? 0 : p->idle_polls + 1;
    if (p->idle_polls > MAX_IDLE_POLLS && p->targets->sibling) split_payload(s, p);
    return moved;
}

/* ---- out of blocks ---- */

/* Where the bytes of an entry are. */
static const unsigned char *data_of(const ap_shared *s, uint32_t from, const entry *e) {
    if (e->block == NO_BLOCK) return e->inline_data;
    return blocks_from(s, from) + (size_t)e->block * BLOCK;
}

/* The message of a lane that the entry belongs to, in memory of its own, as no receive was posted for it; NULL: out of memory. Its
 * entries are copied out of the queue, as an open receive may wait for a message behind them. (Without an open receive from
 * the sender they stay: it may be far ahead.) */
static message *take_unexpected(ap_shared *s, lane *l, const entry *e) {
    message *m = l->unexpected_last;
    if (l->unexpected && m->copied < m->bytes) return m;
    m = TAKE(s->spare_messages, message);
    if (!m) return NULL;
    *m = (message){.bytes = e->total, .own = malloc(e->total ? e->total : 1)};
    m->data = m->own;
    if (!m->own) {
        recycle_message(s, m);
        return NULL;
    }
    append_message(&l->unexpected, &l->unexpected_last, m);
    return m;
}

/* Copies the entries of a member's queue into receives. Stops at an entry of a channel without a receive, if it can wait. */
static int receive_entries(ap_shared *s, uint32_t from, int *moved, ap_error *error) {
    incoming *in = &s->in[from];
    uint32_t head = atomic_load_explicit(&in->queue->head, memory_order_acquire);
    while (in->tail != head) {
        const entry *e = &in->queue->entries[in->tail % QUEUE];
        if (in->posted && e->call != s->call) return ap_report_other_call(s, from, e->call, error);
        lane *l = lane_of(in, e->channel);
        message *m = l ? l->posted : NULL;
        /* it waits while no receive is open; else a few polls, unless the entry itself holds its bytes, which are few */
        const int can_wait = !in->posted || (e->block != NO_BLOCK && s->fruitless_polls < MAX_FRUITLESS_POLLS);
        if (l && !m && can_wait) return AP_OK;
        if (l && !m) m = take_unexpected(s, l, e);
        if (!m) return ap_fail(error, AP_MEMORY, "out of memory");
        if (m->bytes != e->total || e->bytes > m->bytes - m->copied) return wrong_length(m->bytes, e->total, error);
        if (e->bytes) copy_bytes(m, data_of(s, from, e), e->bytes);
        atomic_store_explicit(&in->queue->tail, ++in->tail, memory_order_release);
        ring_bell(s, from);
        *moved = 1;
        if (m->own || m->copied < m->bytes) continue;
        l->posted = m->next, in->posted--;
        finish_number(s, m->number);
        recycle_message(s, m);
    }
    return AP_OK;
}

/* A poll: copies all that can be copied without waiting; *moved: whether anything was. Reports the numbers of at most
 * `capacity` messages that are done. */
int ap_shared_progress(ap_shared *s, uint32_t *numbers, int capacity, int *count, int *moved, ap_error *error) {
    *count = *moved = 0;
    s->poll_number++, s->recents = 0; /* from here on, data of these payloads may be in blocks */
    for (uint32_t i = 0; i < s->members; i++) {
        outgoing *o = &s->out[(s->me + 1 + i) % s->members]; /* members begin with different receivers */
        while (o->first && o->first->of->poll_number != s->poll_number && send_payload(s, o->first->of)) *moved = 1;
    }
    for (uint32_t i = 0; i < s->members; i++) {
        int code = receive_entries(s, (s->me + s->members - i) % s->members, moved, error);
        if (code) return code;
    }
    s->fruitless_polls = *moved || s->dones ? 0 : s->fruitless_polls + 1;
    *count = s->dones < (uint32_t)capacity ? (int)s->dones : capacity;
    for (int i = 0; i < *count; i++) numbers[i] = s->done[i];
    s->dones -= (uint32_t)*count;
    if (s->dones) memmove(s->done, s->done + *count, s->dones * sizeof *s->done);
    return AP_OK;
}

/* Whether messages are under way, or done and not reported yet. */
int ap_shared_busy(const ap_shared *s) { return s->active || s->dones; }

int ap_shared_active(const ap_shared *s) { return (int)s->active; }

uint32_t ap_shared_member(const ap_shared *s) { return s->me; }
