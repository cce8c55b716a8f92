/* The layout of the shared memory and the private state of a process, shared by shared_memory.c, shared_messages.c and
 * shared_calls.c.
 *
 * Threading: fields in shared memory have one writer, named where they are declared; the rest is of one thread.
 * Ownership: a block belongs to the sender whose `free_block` list it came from; payloads, targets and messages to their
 * process.
 */
#pragma once

#include <stdatomic.h>
#include <stddef.h>

#include "shared.h"

/* Here a block is a piece of shared memory through which bytes are copied, and not a block of a collective.
 *
 * QUEUE: entries of a queue from one process to another.
 * BLOCKS: blocks of a sender, besides one per receiver.
 * BLOCK: bytes of a block; it stays in a near cache between the copy into it and the copy out of it.
 * INLINE_BYTES: messages up to this size are in the queue's entry itself.
 * MAX_RECENT: sends since the last poll among which a send of the same data to another process is recognized; both then share
 *   blocks.
 * MAX_IDLE_POLLS: polls without progress until a message to several receivers continues to each separately.
 * MAX_FRUITLESS_POLLS: polls without progress until messages that no receive was posted for are copied out of their blocks.
 * CALLS: entries of a board: call `number`, stage `stage` (ap_call_id) has entry (number * STAGES + stage) % CALLS.
 * STAGES: entries of a board per collective: for the call itself, and for exchanges before and after it. */
enum { QUEUE = 64, BLOCKS = 64, BLOCK = 16 << 10, INLINE_BYTES = 40, MAX_RECENT = 16, MAX_IDLE_POLLS = 64 };
enum { MAX_FRUITLESS_POLLS = 4, CALLS = 64, STAGES = 5 };
#define NO_BLOCK UINT16_MAX

/* ---- in the memory that is shared ---- */

/* An element of a queue: at most BLOCK bytes of a message. */
typedef struct {
    uint32_t channel;
    uint16_t block;        /* the sender's block that holds the bytes; NO_BLOCK: they are in inline_data */
    uint16_t bytes;        /* the number of these bytes */
    uint64_t total;        /* bytes of the whole message */
    uint64_t call;         /* digest of the call that the message belongs to */
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
    _Alignas(64) _Atomic uint32_t word; /* the futex; incremented with each ring */
    _Atomic uint32_t asleep;  /* the process sleeps, or is about to */
    _Atomic uint32_t gave_up; /* the process has given up after an error */
} bell;

/* The last calls that a process began. Others read it if they find a message of another call, or wait for long. An entry that
 * is being written, or was never written, does not match its digest. */
typedef struct {
    struct {
        _Alignas(64) ap_call_id call;
        uint64_t digest;
    } last[CALLS];
} board;

/* The head of the memory: the key (ap_shared_name), a bell per member, then a board per member. After it comes, for each member
 * as a sender, its queues to all members, then its blocks. Head and queues are padded to whole pages. */
typedef struct {
    uint64_t key;
    bell bells[];
} shared_head;

/* ---- of this process ---- */

typedef struct payload payload;

/* One send: a receiver of a payload. */
typedef struct target {
    struct target *next;    /* the next send to the same receiver */
    struct target *sibling; /* another receiver of the same payload */
    payload *of;
    uint32_t to, channel;
    uint32_t number; /* the caller's, reported when the send is complete */
} target;

/* Data on its way into blocks, to one receiver or more. */
struct payload {
    payload *next; /* in the list of spare ones */
    const unsigned char *data;
    size_t bytes, copied; /* copied: into blocks so far */
    uint64_t serial;      /* order in which payloads were started */
    target *targets;
    uint64_t poll_number; /* of the last poll that tried to send it */
    uint32_t pending, idle_polls; /* number of targets; polls in a row in which nothing of it was sent */
};

/* What this process sends to one member. */
typedef struct {
    queue *queue;
    uint32_t head, tail, blocks_held; /* own copies of those of the queue; blocks that the receiver has not read yet */
    uint32_t block[QUEUE];            /* per entry of the queue, its block; NO_BLOCK: none */
    target *first, *last;             /* sends that are not complete */
} outgoing;

/* A receive, or a message that arrived before its receive (in `own` memory). */
typedef struct message {
    struct message *next;
    unsigned char *data, *own; /* data: where its bytes go; own: the same if it is to be freed, else NULL */
    size_t bytes, copied;      /* copied: out of blocks so far */
    uint32_t number; /* the caller's, reported when the receive is complete */
} message;

/* A channel from one member. */
typedef struct {
    uint32_t channel;
    /* two lists, of receives and of messages without one; one of them is empty, as a receive takes the first such message */
    message *posted, *posted_last, *unexpected, *unexpected_last;
} lane;

/* What this process receives from one member; a lane per channel. */
typedef struct {
    queue *queue;
    uint32_t tail; /* own copy of that of the queue */
    lane *lanes;
    uint32_t count, space, last; /* of `lanes`: used, allocated, and the one that was looked up last */
    uint32_t posted; /* receives that are not complete */
} incoming;

struct ap_shared {
    unsigned char *memory; /* shared by all members, of `bytes` */
    size_t bytes;
    uint32_t members, me; /* the number of members; this one among them, from 0 */
    int file; /* of member 0 until all have joined, else -1 */
    unsigned char *blocks; /* of this process */
    uint32_t *free_block, free_blocks, *users; /* own free blocks, their number; per block the receivers that still need it */
    outgoing *out; /* per member, with this one, what goes to it */
    incoming *in;  /* per member, with this one, what comes from it */
    payload *spare_payloads, *recent[MAX_RECENT]; /* recent: those that further sends of the same data may join */
    uint32_t recents;
    target *spare_targets; /* to be used again, as in the other lists of spare items */
    message *spare_messages;
    uint32_t *done, dones, space, active; /* numbers of messages to report, their count, its limit; messages under way */
    uint64_t poll_number, serial; /* of the latest poll and payload */
    uint32_t fruitless_polls; /* polls in which nothing moved, up to now */
    ap_wire *wire;  /* whose calls are compared, or NULL */
    uint64_t call;  /* digest of the call under way; 0: none is compared */
};

/* Whole pages of 4 KiB. */
static inline size_t ap_page(size_t bytes) { return (bytes + 4095) & ~(size_t)4095; }

/* Blocks of each sender. */
static inline uint32_t blocks_of(uint32_t members) { return BLOCKS + members; }

/* Bytes of a member's queues and blocks; bytes of the head of the memory. */
static inline size_t member_bytes(uint32_t members) {
    return ap_page(members * sizeof(queue)) + (size_t)blocks_of(members) * BLOCK;
}

static inline size_t head_bytes(uint32_t members) {
    return ap_page(sizeof(shared_head) + members * (sizeof(bell) + sizeof(board)));
}

static inline board *board_of(const ap_shared *s, uint32_t member) {
    return (board *)(((shared_head *)s->memory)->bells + s->members) + member;
}

static inline queue *queue_of(const ap_shared *s, uint32_t from, uint32_t to) {
    return (queue *)(s->memory + head_bytes(s->members) + from * member_bytes(s->members)) + to;
}

/* Reports that a message from a member is not of the call under way: AP_MISMATCH, or another error (shared_calls.c). */
int ap_report_other_call(ap_shared *s, uint32_t from, uint64_t call, ap_error *error);

/* The blocks of a member. */
static inline unsigned char *blocks_from(const ap_shared *s, uint32_t from) {
    return (unsigned char *)queue_of(s, from, 0) + ap_page(s->members * sizeof(queue));
}
