/* What transport_mpi.c and mpi_messages.c know of one another. */
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
    ap_called call;        /* from here on it is sent */
    uint64_t bytes;      /* of all the elements */
    unsigned char data[PACK];
} packet;

/* A message under way. */
typedef struct {
    uint32_t number, peer;
    int told, comes; /* told: the engine is to hear when it is done */
    packet *packet;  /* or NULL */
    void *room;      /* for the elements in a packet that comes */
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
    int quiet;         /* the others have been told which call this one is in */
    ap_shared *shared; /* for those on this host; NULL: none */
    int *near;         /* of each rank of the program, who it is there; -1: nobody */
    int yields;        /* more processes here than processors */
} mpi_wire;

int ap_mpi_failed(ap_error *error, const char *what, int code);
/* Starts a message by MPI. */
int ap_mpi_start(mpi_wire *w, int sends, uint32_t peer, uint32_t channel, void *data, size_t bytes, uint32_t number,
                 ap_error *error);
/* `completed` for such; that patience has an end is no error. */
int ap_mpi_far(mpi_wire *w, int block, double patience, uint32_t *numbers, int most, int *count, ap_error *error);
/* By who has waited for long: are the others in another call, or have they given up? */
int ap_mpi_others(mpi_wire *w, ap_error *error);
/* Tells the others that nothing more comes from here. */
void ap_mpi_give_up(mpi_wire *w);

#endif
