/* What transport_sockets.c, sockets_streams.c and sockets_calls.c know of one another. */
#ifndef AP_SOCKETS_TYPES_H
#define AP_SOCKETS_TYPES_H

#include <poll.h>

#include "done.h"
#include "letters.h"
#include "transport.h"

enum { STAGE = 1 << 16, DIRECT = 1 << 14, PARTS = 64, FLUSH = 10 };

/* What is kept aside of a rank is no more than what this run receives, and what was read with its last message. */
enum { BEYOND = 16 * STAGE };
_Static_assert(sizeof(letter) <= AP_LETTER, "expected counts letters");

/* A socket reports no fewer bytes than are sure to come, up to MANY: one is woken once for a long message, not for each
 * packet. After LOOK quiet seconds what is there is read all the same. */
enum { MANY = 1 << 17, LOOK = 1 };

/* Of a message; and of what only tells which call its sender is in. */
static const uint32_t MARK = 0x41504d32, TELLS = 0x41504d33;

/* One of the sockets to a rank. */
typedef struct {
    int fd, held;          /* held: the head that has come waits for those of other rails, which were sent before */
    queue sends;
    uint64_t sent;         /* of the first send, its head included */
    head head;             /* of the message that is coming */
    uint32_t head_bytes;   /* of it there are */
    letter *coming;        /* where its elements go, NULL between messages */
    uint64_t come;
    int over;           /* nothing more comes by it */
    int patient, least; /* whether its socket can wait for many bytes, and how many it waits for */
} stream;

typedef struct {
    stream *rail;
    queue receives, aside;
    uint64_t kept;      /* bytes that the letters aside take */
    int lost, deaf;     /* of a wire for mail: it is gone; it takes nothing any more */
    uint64_t gone_out, come_in; /* bytes */
    uint32_t out, next; /* messages that went there, and that have come from there: they go round over the rails */
} peer;

typedef struct {
    ap_wire base;
    uint32_t rails;
    peer *peers;
    stream *streams;
    struct pollfd *asked;
    stream **whose;      /* of each that is asked */
    ap_done done;
    letter *spare;
    int moved; /* whether anything came or went */
    int quiet; /* the others have been told which call this one is in */
    int mail;  /* it carries mail: peers come and go one by one */
    int bell; /* for who sleeps */
    struct pollfd *slept; /* what he waits for */
    nfds_t sleeps;
    unsigned char stage[STAGE];
} socket_wire;

static inline uint32_t ap_sockets_rank(const socket_wire *w, const stream *s) { return (uint32_t)(s - w->streams) / w->rails; }

/* The socket that the next message comes by. */
static inline stream *ap_sockets_next(const socket_wire *w, const peer *p) { return &p->rail[p->next % w->rails]; }

/* Whether anything from there is wanted. By one that is over nothing comes, unless it is the next: then somebody is gone. */
static inline int ap_sockets_wanted(const socket_wire *w, const peer *p, const stream *s) {
    if (s->held || (s->over && ap_sockets_next(w, p) != s)) return 0;
    return p->receives.first || (s->coming && !s->coming->own);
}

/* Whether something is to go by it, and may. */
static inline int ap_sockets_sends(const socket_wire *w, const stream *s) {
    const peer *p = &w->peers[ap_sockets_rank(w, s)];
    return s->sends.first && !p->lost && !p->deaf;
}

/* As many of a socket's messages as it takes now; as much as comes by it now. */
int ap_sockets_push(socket_wire *w, stream *p, ap_error *error);
int ap_sockets_pull(socket_wire *w, stream *p, ap_error *error);
/* Heads that came before those which were sent before them. */
int ap_sockets_place_held(socket_wire *w, peer *p, ap_error *error);
int ap_sockets_unfit(socket_wire *w, uint32_t rank, uint64_t come, uint64_t wanted, ap_error *error);

/* To a rank, by the next of its sockets. */
int ap_sockets_send(socket_wire *w, uint32_t rank, letter *one, ap_error *error);
/* Nothing has come or gone for some time: are the others in another call? */
int ap_sockets_look_around(socket_wire *w, ap_error *error);
int ap_sockets_left(ap_wire *self, ap_error *error);
/* What mail needs besides (sockets_mail.c). */
extern const ap_by_turns ap_sockets_turns;

#endif
