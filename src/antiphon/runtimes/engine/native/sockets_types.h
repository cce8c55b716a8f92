/* What transport_sockets.c, sockets_frames.c, sockets_streams.c, sockets_calls.c and sockets_mail.c know of one another.
 *
 * A wire for calls has the sockets. Where mail goes as well, by the first socket to each rank (ap_sockets_beside), a second wire
 * uses them beside it, and all that goes is in frames, which say whose they are and are cut, so that neither waits long for
 * the other. Whoever reads a socket then takes what comes for both: what mail has not asked for it keeps within limits of its
 * own, and of calls no more comes unasked than ROOM. */
#ifndef AP_SOCKETS_TYPES_H
#define AP_SOCKETS_TYPES_H

#include <poll.h>

#include "done.h"
#include "letters.h"
#include "lock.h"
#include "transport.h"

enum { STAGE = 1 << 16, DIRECT = 1 << 14, PARTS = 64 };

/* Seconds for what is to go at the end; and where it has ended by an error. */
enum { FLUSH = 10, SHORTLY = 1 };

/* What is kept aside of a rank is no more than what this run receives, and what was read with its last message. */
enum { BEYOND = 16 * STAGE };
_Static_assert(sizeof(letter) <= AP_LETTER, "expected counts letters");

/* A socket reports no fewer bytes than are sure to come, up to MANY: one is woken once for a long message, not for each
 * packet. After LOOK quiet seconds what is there is read all the same. */
enum { MANY = 1 << 17, LOOK = 1 };

/* Of a message; and of what only tells which call its sender is in. */
static const uint32_t MARK = 0x41504d32, TELLS = 0x41504d33;

enum { CALLS, MAIL, KINDS }; /* what goes by a socket */

/* A frame has FRAME bytes at most. Of calls ROOM bytes may go to a rank, their heads included, beyond what it has said to have
 * asked for, which it does whenever that is half as much. */
enum { FRAME = 1 << 20, ROOM = 1 << 22 };

/* What goes before its bytes. `what`: OF, and whose it is; or that no mail comes any more. `asked`: so many bytes of calls more
 * than had been said. */
typedef struct {
    uint32_t what, bytes;
    uint64_t asked;
} frame;
static const uint32_t OF = 0x41504630, LAST_MAIL = 0x41504640;

/* What is under way by one socket for one wire. */
typedef struct {
    queue sends;
    uint64_t sent;       /* of the first send, its head included */
    head head;           /* of the message that is coming */
    uint32_t head_bytes; /* of it there are */
    int held;            /* the head that has come waits for those of other rails, which were sent before */
    letter *coming;      /* where its elements go, NULL between messages */
    uint64_t come;
    unsigned char *ahead; /* what has come, from `first` to `last`, and is not wanted yet */
    size_t first, last, space;
} flow;

/* One of the sockets to a rank. Without frames all is one of calls, without an end. */
typedef struct {
    int fd;
    int over, deaf, why;   /* nothing more comes by it; it takes nothing any more; the reason of the system */
    int patient, least;    /* whether its socket can wait for many bytes, and how many it waits for */
    frame in, out;         /* the frame that is coming, and the one that is going */
    int comes, goes;       /* whose they are */
    uint32_t in_head;      /* bytes of its head that have come */
    uint32_t out_head;     /* bytes of its head that are to go */
    uint64_t in_left, out_left; /* of their bytes */
    unsigned char *rest;   /* where those that are to go are, if they are of a message that is over */
    size_t rest_at;
    int last_mail;         /* that is to be told */
} stream;

typedef struct {
    flow *by; /* for each rail */
    queue receives, aside;
    uint64_t kept;      /* bytes that the letters aside take */
    int lost;           /* of mail: nothing more comes from there than what is ahead */
    uint64_t gone_out, come_in; /* bytes */
    uint32_t out, next; /* messages that went there, and that have come from there: they go round over the rails */
    uint64_t put;       /* bytes of all that was ever to go there, in the order of sending */
    uint64_t room;      /* of calls: so many of these may go */
    uint64_t asked;     /* and that were asked for from there, and are not yet told */
} peer;

/* Sockets that are looked at. */
typedef struct {
    struct pollfd *of;
    stream **whose; /* NULL: the bell */
    nfds_t count;
    int held; /* some wait for many bytes */
} watch;

typedef struct sockets sockets;

typedef struct {
    ap_wire base;
    sockets *on;
    int kind;
    uint32_t rails;
    peer *peers;
    flow *flows;
    ap_done done;
    letter *spare;
    ap_error fault; /* what went wrong while another thread looked, too */
    uint64_t most;  /* bytes that may lie ahead of one rank */
    uint32_t aheads; /* flows that have some */
    int moved;       /* whether anything came or went */
    int news;        /* whether something has changed that its thread must look at */
    int roused;      /* of calls: whether who sleeps is to look at other sockets than he did, or may send more */
    int quiet;       /* the others have been told which call this one is in */
    watch slept;     /* what who sleeps waits for */
    int asleep, bell; /* bell: for who sleeps; -1: nobody else could ring it */
} socket_wire;

struct sockets {
    uint32_t ranks, rails;
    stream *streams;
    socket_wire *of[KINDS];
    int framed, owing; /* owing: somewhere so much was asked for that it is to be told */
    int process;
    ap_lock *lock; /* where there are frames */
    watch looks;          /* for looks without a sleep, by mail; when that has ended, for who sees it off */
    pthread_t off;        /* he */
    int off_bell, closing; /* for him; -1: there is none */
    unsigned char stage[STAGE];
};

static inline uint32_t ap_sockets_rank(const sockets *n, const stream *s) { return (uint32_t)(s - n->streams) / n->rails; }

static inline uint32_t ap_sockets_rail(const sockets *n, const stream *s) { return (uint32_t)(s - n->streams) % n->rails; }

/* What goes by a socket for a wire; NULL: nothing ever does. */
static inline flow *ap_sockets_flow(const sockets *n, const stream *s, int kind) {
    const socket_wire *w = n->of[kind];
    uint32_t rail = ap_sockets_rail(n, s);
    return w && rail < w->rails ? &w->peers[ap_sockets_rank(n, s)].by[rail] : NULL;
}

static inline stream *ap_sockets_stream(const socket_wire *w, uint32_t rank, const flow *f) {
    return &w->on->streams[rank * w->on->rails + (uint32_t)(f - w->peers[rank].by)];
}

/* The one that the next message comes by. */
static inline flow *ap_sockets_next(const socket_wire *w, const peer *p) { return &p->by[p->next % w->rails]; }

/* Whether anything from there is wanted. After a fault nothing is written to memory of messages, which is the program's again. */
static inline int ap_sockets_wanted(const socket_wire *w, const peer *p, const flow *f) {
    return !w->fault.code && !f->held && (p->receives.first || (f->coming && !f->coming->own));
}

/* Whether some of what stands to go may. Room is used up in the order of sending: what goes by another socket and was sent later
 * takes none from what was sent before, which is asked for first. */
static inline int ap_sockets_may_go(const peer *p, const flow *f) {
    return f->sends.first && f->sends.first->room + f->sent < p->room;
}

/* Whether something of calls waits, by any socket, until more is asked for there. That is told by the first socket, and comes behind
 * what is to be read by any. */
static inline int ap_sockets_starved(const socket_wire *w, const peer *p) {
    for (uint32_t k = 0; k < w->rails; k++)
        if (p->by[k].sends.first && !ap_sockets_may_go(p, &p->by[k])) return 1;
    return 0;
}

static inline size_t ap_sockets_ahead(const flow *f) { return f->last - f->first; }

static inline void ap_sockets_lock(sockets *n) {
    if (n->framed) pthread_mutex_lock(&n->lock->of);
}

static inline void ap_sockets_unlock(sockets *n) {
    if (n->framed) pthread_mutex_unlock(&n->lock->of);
}

/* sockets_frames.c: as much as a socket takes now; as much as comes by it now, of `most` bytes at a time. What goes wrong is in
 * the fault of the wire that it is for. */
void ap_sockets_push(sockets *n, stream *s);
void ap_sockets_pull(sockets *n, stream *s, size_t most);
/* Nothing more is taken from the memory of what goes there by this kind. */
void ap_sockets_abandon(sockets *n, stream *s, int kind);
/* Tells how much was asked for. */
void ap_sockets_tell_asked(sockets *n);
/* What a look or a sleep of one kind is to see; what it has seen. */
void ap_sockets_watch(sockets *n, int kind, watch *k);
void ap_sockets_attend(sockets *n, int kind, watch *k, int found, int look);

/* sockets_streams.c: bytes that have come for a wire; those ahead, as far as they are wanted now. */
void ap_sockets_take(socket_wire *w, uint32_t rank, flow *f, const unsigned char *data, size_t bytes);
void ap_sockets_settle(socket_wire *w);
/* The next head, which is ahead, was looked at. What is ahead is let go of. */
void ap_sockets_skip_head(socket_wire *w, peer *p, flow *f);
void ap_sockets_forget_ahead(socket_wire *w, flow *f);
/* Memory for more of the message that is coming: whether there is. So many of its bytes have come there. */
int ap_sockets_widened(socket_wire *w, uint32_t rank, flow *f);
void ap_sockets_came(socket_wire *w, uint32_t rank, flow *f, size_t bytes);
/* So much was asked for from there. */
void ap_sockets_asked(socket_wire *w, peer *p, uint64_t bytes);
int ap_sockets_unfit(uint32_t rank, uint64_t come, uint64_t wanted, ap_error *error);
/* That one is gone, who is wanted. */
void ap_sockets_gone(socket_wire *w, uint32_t rank, int why);

/* transport_sockets.c: to a rank, by the next of its sockets. */
void ap_sockets_send(socket_wire *w, uint32_t rank, letter *one);
/* A wire of that kind; NULL: no memory. */
socket_wire *ap_sockets_wire(sockets *n, int kind, uint32_t rails);
void ap_sockets_free(socket_wire *w);
int ap_sockets_new_watch(watch *k, uint32_t most); /* whether there is memory */
int ap_sockets_send_message(ap_wire *self, uint32_t rank, uint32_t channel, const void *data, size_t bytes, uint32_t number,
                            ap_error *error);
int ap_sockets_receive_message(ap_wire *self, uint32_t rank, uint32_t channel, void *data, size_t bytes, uint32_t number,
                               ap_error *error);
/* Rings for who sleeps. */
void ap_sockets_ring(const socket_wire *w);
void ap_sockets_hush(const socket_wire *w);

/* sockets_calls.c: nothing has come or gone for some time: are the others in another call? */
int ap_sockets_look_around(socket_wire *w, ap_error *error);
int ap_sockets_left(ap_wire *self, ap_error *error);

/* sockets_mail.c: a second wire, for mail, by the same sockets. */
ap_wire *ap_sockets_beside(ap_wire *first, ap_error *error);
/* All ends: nobody sees off what is left of mail. */
void ap_sockets_stop(sockets *n);

#endif
