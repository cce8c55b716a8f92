/* The state of a wire over MPI, shared by transport_mpi.c, mpi_messages.c and mpi_timeout.c.
 *
 * Threading: a wire is used by one thread at a time. Ownership: the wire owns its communicator, requests and packets.
 */
#pragma once

#include "shared.h"
#include "transport.h"
#include "transport_mpi.h"

/* If calls are compared, every message begins with a packet: the call's identity, and the data if these are up to PACK bytes;
 * more data follow as a second message. */
enum { PACK = 1 << 12 };
#define AP_NO_NUMBER UINT32_MAX

typedef struct packet {
    struct packet *next; /* in the list of spare packets */
    ap_call_id call;     /* what is sent begins here */
    uint64_t bytes;      /* of the data, here or in the second message; of a note (mpi_messages.c) 0, or GAVE_UP */
    unsigned char data[PACK];
} packet;

/* An MPI request under way: a message, one of its pieces, its packet, or a note. When the last request of a message is done, the
 * engine gets `number`. */
typedef struct {
    uint32_t number, peer; /* number: AP_NO_NUMBER: of a note */
    int is_shared, is_receive; /* is_shared: the message has further requests */
    packet *packet;           /* or NULL */
    void *target;             /* where data received in the packet belong */
    size_t bytes;             /* of the message's data */
} flight;

typedef struct {
    ap_wire base;
    MPI_Comm caller_comm; /* the caller's communicator */
    MPI_Comm comm;   /* a copy for messages; MPI_COMM_NULL: all messages go through shared memory */
    int *process_of; /* per rank of the program, its process in `caller_comm`; -1: none */
    MPI_Request *request; /* per request under way; flight[i] describes request[i] */
    flight *flight;
    int *index;           /* where requests that a test found done are in `request` */
    int active, space;    /* requests under way; entries of the three arrays */
    size_t piece;         /* bytes of a message above which it is sent in several; SIZE_MAX: never */
    int most_tag;         /* the greatest tag, for notes between calls; messages use lower ones */
    int crowded;          /* whether to yield the processor while waiting: `yields`, but 0 if MPI's tests do that */
    packet *spare;            /* list of packets to be used again */
    int has_notified;         /* the others have been notified which call this process is in */
    ap_shared *shared; /* memory shared with processes of this host; NULL: none */
    int *member;       /* per rank of the program, its number in `shared`; -1: not on this host */
    int yields;        /* whether there are more processes on this host than processors */
} mpi_wire;

/* Fills `error` with the text of MPI's error code; returns AP_TRANSPORT. */
int ap_mpi_failed(ap_error *error, const char *function, int code);
/* Starts a message by MPI: sends it, or receives it (`sends` 0). */
int ap_mpi_start(mpi_wire *w, int sends, uint32_t peer, uint32_t channel, void *data, size_t bytes, uint32_t number,
                 ap_error *error);
/* Collective: the bytes that MPI can send at once, without asking the receiver first (`piece`), where it sends by TCP. Returns an
 * error code of MPI. */
int ap_mpi_find_piece(mpi_wire *w);
/* As `completed` of a wire, for messages by MPI; returns without an error after `timeout` seconds, at once unless `block`. */
int ap_mpi_progress_remote(mpi_wire *w, int block, double timeout, uint32_t *numbers, int capacity, int *count,
                           ap_error *error);
/* Called after a long wait: an error if others are in another call, or have given up. */
int ap_mpi_check_others(mpi_wire *w, ap_error *error);
/* Notifies the others that nothing more comes from here. */
void ap_mpi_give_up(mpi_wire *w);
