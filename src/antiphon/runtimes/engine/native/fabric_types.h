/* What fabric_jobs.c, fabric_heads.c and transport_fabric.c know of one another. */
#ifndef AP_FABRIC_TYPES_H
#define AP_FABRIC_TYPES_H

#include "done.h"
#include "fabric_rails.h"
#include "letters.h"
#include "transport.h"

/* PACKET: of a head and a short message; HEADS of them are ready for each rank. Parts of long messages are of PART bytes or
 * more. LOOKS before it sleeps, FEW where each asks the kernel (over TCP), and for how many microseconds at most where a
 * card can be waited for, and where not. What is kept aside of a rank is no more than what this run receives, and BEYOND. FLUSH:
 * seconds for what is to go at the end. */
enum { PACKET = 4096, HEADS = 8, PART = 1 << 16, BATCH = 64, LOOKS = 64, FEW = 2, NAP = 20000, SHORT_NAP = 50, FLUSH = 10 };
enum { BEYOND = 1 << 20 };

static const uint32_t MARK = 0x41504d34, TELLS = 0x41504d35, GREETS = 0x41504d36;
static const uint64_t HEAD_TAG = 1u << 31;

typedef struct {
    head head;
    uint32_t serial, unused;
} start;

enum { SHORT = PACKET - sizeof(start) };

/* What a card has, or is to have: a packet, or a part of a message (`of`). */
typedef struct job {
    fabric_words words; /* the card's */
    struct job *next, *older; /* older: made before, of all there are */
    letter *of;
    unsigned char *data;
    size_t bytes, come; /* come: of a packet that was received */
    uint64_t tag;
    uint32_t rank, rail;
    int out, over;
    unsigned char *packet; /* its own memory, or NULL */
} job;

typedef struct {
    job *first, **end;
} line;

typedef struct {
    uint64_t at[AP_RAILS]; /* its address, by each of our cards */
    int fd, greeted, farewell, gone; /* fd: the sockets'; greeted, farewell: has been said from there */
    uint32_t serial;       /* of the next message to it */
    queue receives, aside;
    uint64_t kept;       /* bytes that the letters aside take */
    line out, in;        /* what a card did not take yet */
    job *ready[HEADS];   /* for its heads, in the order in which they are filled */
    uint32_t oldest;     /* of these */
    uint32_t under_way;  /* jobs that cards have, or are to have, but for `ready` */
} peer;

typedef struct {
    ap_wire base;
    ap_fabric *fabric;
    ap_wire *sockets; /* by which farewells go, and mail, if there is any */
    uint32_t rank, rails, heads, waiting; /* heads: kept ready for each rank; waiting: jobs in lines */
    uint64_t longest;                     /* bytes of a part */
    peer *peers;
    struct pollfd *polled;
    uint32_t *whose;
    ap_done done;
    letter *spare;
    job *jobs, *spare_jobs, *spare_packets; /* jobs: the newest */
    unsigned looks;
    int moved, quiet, looks_only; /* looks_only: some card cannot be waited for */
    uint32_t turn;
} fabric_wire;

/* A message is done. */
int ap_fabric_refused(fabric_wire *w, uint32_t rank, int code, ap_error *error);
int ap_fabric_unfit(fabric_wire *w, uint32_t rank, uint64_t come, uint64_t wanted, ap_error *error);

/* To a card, now or when it takes it (ap_fabric_give_again). */
void ap_fabric_drop(fabric_wire *w, job *one);
int ap_fabric_ready(fabric_wire *w, uint32_t rank, uint32_t place, ap_error *error);
int ap_fabric_give_again(fabric_wire *w, ap_error *error);

/* A long message, of which both ends know where it is; one of its parts is done. */
int ap_fabric_parts(fabric_wire *w, uint32_t rank, letter *one, uint32_t serial, int out, ap_error *error);
int ap_fabric_part_over(fabric_wire *w, job *one, ap_error *error);

/* A head, with a short message `of` at `data`, or alone; it has gone. */
int ap_fabric_head(fabric_wire *w, uint32_t rank, const start *first, const void *data, letter *of, ap_error *error);
int ap_fabric_head_sent(fabric_wire *w, job *one, ap_error *error);

/* Whatever can be done without waiting. */
int ap_fabric_progress(fabric_wire *w, ap_error *error);

#endif
