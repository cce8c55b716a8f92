/* What transport_sockets.c and sockets_calls.c know of one another. */
#ifndef AP_SOCKETS_TYPES_H
#define AP_SOCKETS_TYPES_H

#include <poll.h>

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

typedef struct {
    int fd;
    queue sends, receives, aside;
    uint64_t sent;         /* of the first send, its head included */
    head head;             /* of the message that is coming */
    uint32_t head_bytes;   /* of it there are */
    letter *coming;        /* where its elements go, NULL between messages */
    uint64_t come;
    uint64_t kept; /* bytes that the letters aside take */
    int patient, least; /* whether its socket can wait for many bytes, and how many it waits for */
} peer;

typedef struct {
    ap_wire base;
    peer *peers;
    struct pollfd *asked;
    uint32_t *whose;     /* rank of each that is asked */
    uint32_t *done;      /* numbers that are done, from `told` up to `ready` */
    size_t told, ready, space;
    letter *spare;
    int moved; /* whether anything came or went */
    int quiet; /* the others have been told which call this one is in */
    unsigned char stage[STAGE];
} socket_wire;

/* Whether anything from this rank is wanted. */
static inline int ap_sockets_wanted(const peer *p) { return p->receives.first || (p->coming && !p->coming->own); }

/* As many of the messages to a rank as its socket takes now. */
int ap_sockets_push(socket_wire *w, uint32_t rank, ap_error *error);
/* Nothing has come or gone for some time: are the others in another call? */
int ap_sockets_look_around(socket_wire *w, ap_error *error);
int ap_sockets_left(ap_wire *self, ap_error *error);

#endif
