/* The layout of the shared memory and the private state of a process, shared by shared_memory.c, shared_messages.c and
 * shared_calls.c.
 *
 * Threading: fields in shared memory have one writer, named where they are declared; the rest is of one thread.
 * Ownership: a block belongs to the sender whose `free_block` list it came from; items, targets and messages to their process.
 */
#ifndef ANTIPHON_SHARED_TYPES_H
#define ANTIPHON_SHARED_TYPES_H

#include <stdatomic.h>
#include <stddef.h>

#include "shared.h"

/* A block is a piece of shared memory through which bytes are copied.
 *
 * QUEUE: entries of a queue from one process to another.
 * BLOCKS: blocks of a process, besides one per process.
 * BLOCK: bytes of a block; it stays in a near cache between the copy into it and the copy out of it.
 * INLINE_BYTES: messages up to this size are in the queue's entry itself.
 * FRESH: recent sends among which a send of the same data to another process is recognized; both then share blocks.
 * LATE: polls without progress until a message to several receivers continues to each separately.
 * STUCK: polls without progress until messages that no receive was posted for are copied out of their blocks.
 * CALLS, STAGES: calls of a process, and stages of each, that other processes can read. */
enum { QUEUE = 64, BLOCKS = 64, BLOCK = 16 << 10, INLINE_BYTES = 40, FRESH = 16, LATE = 64, STUCK = 4, CALLS = 64, STAGES = 4 };
#define NO_BLOCK UINT16_MAX

/* ---- in the memory that is shared ---- */

typedef struct {
    uint32_t channel;
    uint16_t block, bytes; /* NO_BLOCK: the bytes are here */
    uint64_t total;        /* of the message */
    uint64_t call;         /* digest of the call that it is of */
    unsigned char inline_data[INLINE_BYTES];
} entry;

/* One writer, one reader: `head` is written by the sender, `tail` by the receiver. */
typedef struct {
    _Alignas(64) _Atomic uint32_t head;
    _Alignas(64) _Atomic uint32_t tail;
    _Alignas(64) entry entries[QUEUE];
} queue;

/* Wakes a process that sleeps until there is something for it. */
typedef struct {
    _Alignas(64) _Atomic uint32_t word; /* another number with each ring */
    _Atomic uint32_t asleep;
    _Atomic uint32_t gave_up; /* after an error */
} bell;

/* The last calls that a process began, for others that find a message of another call, or wait for too long. An entry that is
 * being written, or never was, does not match its digest. */
typedef struct {
    struct {
        _Alignas(64) ap_called call;
        uint64_t digest;
    } last[CALLS];
} board;

typedef struct {
    uint64_t key;
    bell bells[];
} opening;

/* ---- of this process ---- */

typedef struct item item;

/* One send. */
typedef struct target {
    struct target *next;    /* to the same receiver, later */
    struct target *sibling; /* of the same data */
    item *of;
    uint32_t to, channel, number;
} target;

/* Data on its way into blocks, to one receiver or more. */
struct item {
    item *next; /* among those that are not used */
    const unsigned char *data;
    size_t bytes, copied;
    uint64_t serial;
    target *targets;
    uint64_t look; /* the last one that tried it */
    uint32_t pending, late;
};

typedef struct {
    queue *queue;
    uint32_t head, tail, blocks_held; /* held: blocks that it has not let go */
    uint32_t block[QUEUE];
    target *first, *last;
} outgoing;

/* One receive, or what came without one (`own` memory). */
typedef struct message {
    struct message *next;
    unsigned char *data, *own;
    size_t bytes, copied;
    uint32_t number;
} message;

typedef struct {
    uint32_t channel;
    message *posted, *posted_last, *unexpected, *unexpected_last; /* never both */
} lane;

typedef struct {
    queue *queue;
    uint32_t tail;
    lane *lanes;
    uint32_t count, space, last;
    uint32_t posted; /* receives that are open */
} incoming;

struct ap_shared {
    unsigned char *memory;
    size_t bytes;
    uint32_t members, me;
    int file; /* of member 0 until all have joined, else -1 */
    unsigned char *blocks;
    uint32_t *free_block, free_blocks, *users; /* users of each block */
    outgoing *out;
    incoming *in;
    item *items, *fresh[FRESH]; /* fresh: what sends of the same data may join */
    uint32_t freshes;
    target *targets;
    message *spare_messages;
    uint32_t *done, dones, space, active;
    uint64_t look, serial;
    uint32_t stuck; /* looks in which nothing moved */
    ap_wire *wire;  /* whose calls are compared, or NULL */
    uint64_t call;  /* digest of the call under way; 0: none is compared */
};

static inline size_t ap_page(size_t bytes) { return (bytes + 4095) & ~(size_t)4095; }

static inline uint32_t blocks_of(uint32_t members) { return BLOCKS + members; }

static inline size_t share_of(uint32_t members) {
    return ap_page(members * sizeof(queue)) + (size_t)blocks_of(members) * BLOCK;
}

static inline size_t opening_of(uint32_t members) {
    return ap_page(sizeof(opening) + members * (sizeof(bell) + sizeof(board)));
}

static inline board *board_of(const ap_shared *s, uint32_t member) {
    return (board *)(((opening *)s->memory)->bells + s->members) + member;
}

static inline queue *queue_of(const ap_shared *s, uint32_t from, uint32_t to) {
    return (queue *)(s->memory + opening_of(s->members) + from * share_of(s->members)) + to;
}

/* What came from there is not of the call under way (shared_calls.c). */
int ap_of_another_call(ap_shared *s, uint32_t from, uint64_t call, ap_error *error);

/* The blocks of one. */
static inline unsigned char *blocks_from(const ap_shared *s, uint32_t from) {
    return (unsigned char *)queue_of(s, from, 0) + ap_page(s->members * sizeof(queue));
}

#endif
