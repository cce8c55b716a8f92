/* What transport_sockets.c, sockets_io.c, sockets_streams.c and sockets_calls.c share: the state of a wire over sockets.
 *
 * Threading: a wire is used by one thread at a time, so there are no locks.
 * Ownership: a wire owns its sockets; messages (message_queue.h) belong to the queue that they are in. A socket is read only
 *   while a message from its rank is wanted: the flow control of the system keeps the rest with the sender.
 */
#ifndef ANTIPHON_SOCKETS_TYPES_H
#define ANTIPHON_SOCKETS_TYPES_H

#include <poll.h>

#include "completions.h"
#include "message_queue.h"
#include "transport.h"

/* Bytes read at once into the stage; messages from DIRECT bytes on are read straight into their memory; parts of one sendmsg. */
enum { STAGE = 1 << 16, DIRECT = 1 << 14, PARTS = 64 };

/* Seconds to send what is queued when the wire is closed. */
enum { FLUSH = 10 };

/* A message is set aside if it arrives before the call posts a receive for it. Those of a rank take at most as much memory as
 * this run receives from it, plus what was read together with the last message. */
enum { BEYOND = 16 * STAGE };
_Static_assert(sizeof(message) <= AP_MESSAGE_OVERHEAD, "`expected` counts this for each message");

/* A socket reports no fewer bytes than are sure to come, up to MAX_LOW_WATER, so that a long message wakes the process once and
 * not for each packet. After MAX_QUIET seconds without any, what is there is read all the same. */
enum { MAX_LOW_WATER = 1 << 17, MAX_QUIET = 1 };

/* Kinds of heads: of a message; of a note that only names the call that its sender is in. */
static const uint32_t MESSAGE = 0x41504d32, NOTE = 0x41504d33;

/* One of the sockets to a rank, with the messages under way by it. */
typedef struct {
    int fd;                         /* -1: none, as to the rank itself */
    int ended, stopped_sending;     /* nothing more comes by it; it takes nothing any more */
    int error_number;               /* errno of the failure, 0 if the other end closed it */
    int low_water_works, low_water; /* whether SO_RCVLOWAT works for it, and its value now */
    queue sends;
    uint64_t sent;        /* bytes sent of the first of these, its head included */
    head head;            /* of the message that is coming */
    uint32_t head_bytes;  /* bytes of it that have come */
    int out_of_order;     /* that head waits for heads by other rails, which were sent before it */
    message *incoming;    /* the message whose elements come next, NULL between messages */
    uint64_t received;    /* bytes of its elements that have come */
    unsigned char *ahead; /* bytes that have come before they are wanted, from `first` to `last` */
    size_t first, last, space;
} stream;

typedef struct {
    stream *by; /* one for each rail */
    queue receives, aside;
    uint64_t aside_bytes; /* bytes of memory that messages set aside take */
    uint32_t out, next;   /* messages sent there, and come from there: they go round the rails */
} peer;

typedef struct {
    ap_wire base;
    uint32_t rails;
    peer *peers;
    stream *streams; /* of all ranks and rails: rank * rails + rail */
    ap_done done;
    message *spare;
    ap_error fault;
    uint32_t aheads; /* streams with bytes ahead */
    int moved;       /* whether anything came or went */
    int quiet;       /* the others have been notified which call this one is in */
    struct pollfd *polled;
    stream **polled_stream; /* the stream of each */
    nfds_t polled_count;
    int process; /* that opened the wire: a fork must not use its sockets */
    unsigned char stage[STAGE];
} socket_wire;

static inline uint32_t ap_sockets_rank(const socket_wire *w, const stream *s) { return (uint32_t)(s - w->streams) / w->rails; }

/* The stream by which the next message comes. */
static inline stream *ap_sockets_next(const socket_wire *w, const peer *p) { return &p->by[p->next % w->rails]; }

/* Whether anything from there is wanted. After a fault nothing is written to memory of messages, which is the program's again. */
static inline int ap_sockets_wanted(const socket_wire *w, const peer *p, const stream *s) {
    return !w->fault.code && !s->out_of_order && (p->receives.first || (s->incoming && !s->incoming->own_memory));
}

static inline size_t ap_sockets_ahead(const stream *s) { return s->last - s->first; }

/* sockets_io.c: queue a message to a rank, by the next of its sockets. */
void ap_sockets_send(socket_wire *w, uint32_t rank, message *m);
/* Read as much as comes by a socket now, `max_bytes` bytes at a time. */
void ap_sockets_pull(socket_wire *w, stream *s, size_t max_bytes);
/* Fill in the sockets to poll; return whether one of them waits for many bytes. */
int ap_sockets_watch(socket_wire *w);
/* Read and send by the sockets that poll reported; `look`: read by all that are wanted. */
void ap_sockets_attend(socket_wire *w, int look);

/* sockets_streams.c: take bytes that have come; take those ahead, as far as they are wanted now. */
void ap_sockets_take(socket_wire *w, stream *s, const unsigned char *data, size_t bytes);
void ap_sockets_settle(socket_wire *w);
/* Drop the next head, which is ahead. */
void ap_sockets_skip_head(socket_wire *w, peer *p, stream *s);
/* Make room for more of the message that is coming; return whether there is. Count bytes that came straight into it. */
int ap_sockets_widened(socket_wire *w, uint32_t rank, stream *s);
void ap_sockets_came(socket_wire *w, stream *s, size_t bytes);
int ap_sockets_unfit(uint32_t rank, uint64_t received, uint64_t expected, ap_error *error);
/* Set the fault: the connection to that rank is lost. */
void ap_sockets_gone(socket_wire *w, uint32_t rank, int error_number);

/* sockets_calls.c: nothing has come or gone for some time: are the others in another call? */
int ap_sockets_look_around(socket_wire *w, ap_error *error);
int ap_sockets_left(ap_wire *self, ap_error *error);

#endif
