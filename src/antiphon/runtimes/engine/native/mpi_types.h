/* The state of a wire over MPI, shared by transport_mpi.c, mpi_messages.c and mpi_timeout.c.
 *
 * Threading: a wire is used by one thread at a time. Ownership: the wire owns its communicator, requests and packets.
 */
#ifndef ANTIPHON_MPI_TYPES_H
#define ANTIPHON_MPI_TYPES_H

#include "shared.h"
#include "transport.h"
#include "transport_mpi.h"

/* What goes before the elements where calls are compared. Up to PACK bytes are copied behind it, and go with it; more come
 * as a message of their own. */
enum { PACK = 1 << 12 };

typedef struct packet {
    struct packet *next; /* among those that are not used */
    ap_called call;      /* from here on it is sent */
    uint64_t bytes;      /* of all the elements */
    unsigned char data[PACK];
} packet;

/* A message under way. */
typedef struct {
    uint32_t number, peer;
    int reported, is_receive; /* reported: the engine collects its number when it is done */
    packet *packet;           /* or NULL */
    void *target;             /* for the elements in a packet that comes */
    size_t bytes;
} flight;

typedef struct {
    ap_wire base;
    MPI_Comm of;     /* the caller's */
    MPI_Comm comm;   /* of the same processes, for messages; null: all go through memory */
    int *process_of; /* of each rank of the program, -1: none */
    MPI_Request *request;
    flight *flight;
    int *index;
    int active, space, most_tag, crowded;
    packet *spare;
    int quiet;         /* the others have been notified which call this one is in */
    ap_shared *shared; /* for those on this host; NULL: none */
    int *near;         /* of each rank of the program, its number there; -1: none */
    int yields;        /* more processes here than processors */
} mpi_wire;

int ap_mpi_failed(ap_error *error, const char *function, int code);
/* Starts a message by MPI. */
int ap_mpi_start(mpi_wire *w, int sends, uint32_t peer, uint32_t channel, void *data, size_t bytes, uint32_t number,
                 ap_error *error);
/* `completed` for such; that patience has an end is no error. */
int ap_mpi_progress_remote(mpi_wire *w, int block, double patience, uint32_t *numbers, int capacity, int *count,
                           ap_error *error);
/* After a long wait: are the others in another call, or have they given up? */
int ap_mpi_check_others(mpi_wire *w, ap_error *error);
/* Notifies the others that nothing more comes from here. */
void ap_mpi_give_up(mpi_wire *w);

#endif
