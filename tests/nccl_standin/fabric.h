/* What the ranks of a communicator share: memory with small buffers between each two of them. */
#ifndef STANDIN_FABRIC_H
#define STANDIN_FABRIC_H

#include <stdatomic.h>
#include <stdint.h>

enum { MOST_RANKS = 16, RING = 4096, CLASSES = 2, MOST_SPLITS = 64 };
enum { POINT, WHOLE }; /* messages between two; those of collectives */

typedef struct {
    _Atomic uint64_t written, read;
    unsigned char data[RING];
} pipe_;

typedef struct {
    _Atomic uint64_t arrived, left;
    _Atomic int met[CLASSES][MOST_RANKS][MOST_RANKS]; /* who has connected to whom */
    struct {
        int color, key;
    } split[MOST_SPLITS][MOST_RANKS];
    pipe_ pipe[CLASSES][MOST_RANKS][MOST_RANKS]; /* from, to */
} fabric;

/* One message, which goes on as far as there is room or data. */
typedef struct {
    int kind, peer, sends;
    unsigned char *data;
    uint64_t bytes, done; /* 8 bytes of its length come first */
} transfer;

/* Some bytes further; true if anything moved. -1: the other end has another length. */
int fabric_move(fabric *f, int me, transfer *t, uint64_t room);
fabric *fabric_open(const char *name);
void fabric_close(fabric *f, const char *name, int ranks);

#endif
