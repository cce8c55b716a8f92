/* What transport_sockets.c, sockets_io.c, sockets_streams.c and sockets_calls.c share: the state of a wire over sockets.
 *
 * Threading: a wire is used by one thread at a time, so there are no locks.
 * Ownership: a wire owns its sockets; messages (message_queue.h) belong to the queue that they are in. A socket is read only
 *   while a message from its rank is wanted: the flow control of the system keeps the rest with the sender.
 */
#pragma once

#include <poll.h>

#include "completions.h"
#include "message_queue.h"
#include "transport.h"

/* STAGE: bytes of the wire's read buffer. DIRECT: messages of at least this many bytes are read straight into their memory.
 * PARTS: the most areas of memory (struct iovec) that one sendmsg sends. */
enum { STAGE = 1 << 16, DIRECT = 1 << 14, PARTS = 64 };

/* The most seconds that closing a wire waits until queued messages are sent. */
enum { FLUSH = 10 };

/* A message is set aside if it is read before the call posts a receive for it. Messages set aside for one rank take at most
 * `expected` bytes (transport.h: what a run of a program receives), plus BEYOND bytes read after the last message. */
enum { BEYOND = 16 * STAGE };
_Static_assert(sizeof(message) <= AP_MESSAGE_OVERHEAD, "`expected` counts this for each message");

/* A socket is set to report only when as many bytes have arrived as are sure to come (at most MAX_LOW_WATER), so that a long
 * message wakes the process once and not for each packet. After MAX_QUIET seconds all sockets are read regardless. */
enum { MAX_LOW_WATER = 1 << 17, MAX_QUIET = 1 };

/* Marks of heads (message_queue.h): a message, or a note, which only names the call that its sender is in. */
static const uint32_t MESSAGE = 0x41504d32, NOTE = 0x41504d33;

/* One of the sockets to a rank, with the messages that it carries. */
typedef struct {
    int fd;                         /* -1: none, as to the rank itself */
    int ended, stopped_sending;     /* flags: the other end has closed it; nothing can be sent by it any more */
    int error_number;               /* errno of the failure, 0 if the other end closed it */
    int low_water_works, low_water; /* whether SO_RCVLOWAT works for it, and its value now */
    queue sends;
    uint64_t sent;        /* bytes sent of the first message in `sends`, its head included */
    head head;            /* of the next message to receive */
    uint32_t head_bytes;  /* bytes of the head that have arrived */
    int out_of_order;     /* the head must wait for heads on other rails (see peer) that were sent before it */
    message *incoming;    /* the message whose elements are arriving; NULL between messages */
    uint64_t received;    /* bytes of its elements that have arrived */
    unsigned char *ahead; /* bytes that arrived before they were wanted, from `first` to `last` */
    size_t first, last, space; /* offsets into `ahead`, and its length */
} stream;

/* Another rank. A rail is one of several sockets per pair of ranks; messages take the rails in turn. */
typedef struct {
    stream *by_rail;       /* its streams, within `streams` of the wire */
    queue receives, aside; /* receives posted; messages set aside */
    uint64_t aside_bytes;  /* memory of messages set aside */
    uint32_t sent_count, received_count; /* messages so far */
} peer;

typedef struct {
    ap_wire base;
    uint32_t rails;
    peer *peers;
    stream *streams; /* of all ranks and rails: rank * rails + rail */
    ap_completions done; /* messages to report to the engine */
    message *spare;      /* list of free messages */
    ap_error fault;      /* the failure after which nothing is received or sent; code 0: none */
    uint32_t streams_ahead; /* streams with bytes ahead */
    int moved;              /* whether anything was received or sent */
    int has_notified;       /* the others have been notified which call this process is in */
    struct pollfd *polled;
    stream **polled_stream; /* the stream of each */
    nfds_t polled_count;
    int process; /* the one that opened the wire: a forked process must not use its sockets */
    unsigned char stage[STAGE];
} socket_wire;

static inline uint32_t ap_sockets_rank(const socket_wire *w, const stream *s) { return (uint32_t)(s - w->streams) / w->rails; }

/* The stream that the next message arrives by. */
static inline stream *ap_sockets_next_stream(const socket_wire *w, const peer *p) {
    return &p->by_rail[p->received_count % w->rails];
}

/* Whether a stream should be read. Not after a fault: then the caller may reuse or free the memory of its messages. */
static inline int ap_sockets_is_wanted(const socket_wire *w, const peer *p, const stream *s) {
    return !w->fault.code && !s->out_of_order && (p->receives.first || (s->incoming && !s->incoming->own_memory));
}

static inline size_t ap_sockets_bytes_ahead(const stream *s) { return s->last - s->first; }

/* sockets_io.c: queue a message to a rank, on the next of its rails. */
void ap_sockets_send(socket_wire *w, uint32_t rank, message *m);
/* Read all that has arrived by a socket, `max_bytes` bytes at a time. */
void ap_sockets_pull(socket_wire *w, stream *s, size_t max_bytes);
/* Fill in the sockets to poll; return whether one of them reports only from several bytes on (its low water). */
int ap_sockets_fill_polled(socket_wire *w);
/* Read and send by the sockets that poll reported; `look`: read by all sockets that were polled for reading. */
void ap_sockets_handle_polled(socket_wire *w, int look);

/* sockets_streams.c: use bytes that have arrived; use bytes ahead, as far as they are wanted by now. */
void ap_sockets_take(socket_wire *w, stream *s, const unsigned char *data, size_t bytes);
void ap_sockets_use_ahead(socket_wire *w);
/* Drop the next head, which is among the bytes ahead. */
void ap_sockets_skip_head(socket_wire *w, peer *p, stream *s);
/* Make room for more of the arriving message; return whether there is any. Count bytes that were read straight into it. */
int ap_sockets_make_room(socket_wire *w, uint32_t rank, stream *s);
void ap_sockets_count_received(socket_wire *w, stream *s, size_t bytes);
/* AP_TRANSPORT: a message has another length than its receive. */
int ap_sockets_report_length(uint32_t rank, uint64_t received, uint64_t expected, ap_error *error);
/* Set the fault: the connection to that rank is lost. */
void ap_sockets_report_lost(socket_wire *w, uint32_t rank, int error_number);

/* sockets_calls.c: called after some time without progress: an error if the others are in another call. */
int ap_sockets_check_members(socket_wire *w, ap_error *error);
/* `unreceived` of the wire: an error if a message arrived that no receive was posted for. */
int ap_sockets_check_unreceived(ap_wire *self, ap_error *error);
