/* What the library does when it is preloaded before a program that calls NCCL or RCCL: it offers their names, and serves
 * collectives by the plans of a table, with messages of NCCL's own and folds on the streams.
 *
 * Which way a call goes must come out alike at all its ranks, or they wait for each other for ever. It depends on nothing but
 * the communicator, the kind, the count, the type, the operator and the root: not on streams, on addresses, on groups or
 * on whether a graph is being captured, which NCCL leaves to each rank. All that ranks must agree on they agree on while the
 * communicator is made, where NCCL lets them wait for each other, too; later no call waits on the host.
 */
#ifndef ANTIPHON_NCCL_PRELOAD_H
#define ANTIPHON_NCCL_PRELOAD_H

#include <pthread.h>
#include <stdatomic.h>

#include "nccl_device.h"
#include "nccl_names.h"
#include "plan.h"
#include "preload_job.h"

/* ---- NCCL itself (nccl_real.c) ---- */

#define AP_REALS(F)                                                                                                   \
    F(GetUniqueId) F(CommInitRank) F(CommInitRankConfig) F(CommInitRankScalable) F(CommInitAll) F(CommSplit)          \
    F(CommDestroy) F(CommAbort) F(CommGetAsyncError) F(CommCount) F(CommUserRank) F(CommCuDevice) F(GroupStart)       \
    F(GroupEnd) F(GroupSimulateEnd) F(Send) F(Recv) F(AllReduce) F(Reduce) F(ReduceScatter) F(AllGather) F(Broadcast) \
    F(Bcast) F(AlltoAll) F(Gather) F(Scatter)
#define AP_DECLARE_REAL(NAME) __typeof__(nccl##NAME) *NAME;
typedef struct {
    AP_REALS(AP_DECLARE_REAL)
} ap_reals;

/* Found when first asked for. Those that this NCCL does not have are NULL. */
const ap_reals *ap_real(void);
/* Above 0 while this thread is in NCCL: what that calls by its own names is none of ours. */
extern _Thread_local int ap_inside;
/* A call of NCCL itself; of one that is not there an error. */
#define AP_REAL(NAME, ...)                                                   \
    (ap_real()->NAME ? (ap_inside++, ap_left_inside(ap_real()->NAME(__VA_ARGS__))) : ncclInvalidUsage)
static inline ncclResult_t ap_left_inside(ncclResult_t code) {
    ap_inside--;
    return code;
}

/* ---- a program that knows of us (nccl_asked.c) ---- */

extern void *ap_nccl_behind; /* the library of NCCL, as dlopen gave it; NULL: it stands behind us */
/* The book that this thread has given for its next communicators; false: it has given none, so the environment says. */
int ap_nccl_given(const void **bytes, uint64_t *size);
/* What became of call `i` of this thread's last batch, which began with 0. */
void ap_nccl_note(uint32_t i, int reason, const ap_page *page);

/* ---- calls ---- */

enum { AP_SENDS = AP_KINDS, AP_RECEIVES };

typedef struct {
    int kind, root; /* or the peer */
    int type, op;   /* NCCL's numbers, which are the engine's */
    const void *from;
    void *to;
    size_t count;
    ncclComm_t comm;
    ap_stream stream;
} ap_nccl_call;

/* Now, or with its group. */
ncclResult_t ap_nccl_do(const ap_nccl_call *call);
/* Some calls that a group has ended with, or one without a group. */
ncclResult_t ap_nccl_batch(const ap_nccl_call *calls, uint32_t count);
/* By NCCL itself. */
ncclResult_t ap_nccl_leave(const ap_nccl_call *call);
size_t ap_nccl_size(int type); /* 0: there is no such type */

/* ---- plans as rounds (nccl_rounds.c) ---- */

/* Messages of a round are one group of NCCL; folds follow them. Each round has a key; keys ascend. */
typedef struct {
    uint64_t key;
    uint32_t instance, channel;
    uint64_t stage; /* where its bytes are brought together, if it has several stretches; else NO_STAGE */
} ap_turn;

typedef struct ap_rounds ap_rounds;
struct ap_rounds {
    ap_rounds *next;
    const ap_row *row;
    uint64_t unit;
    size_t item;
    int in_place;
    ap_plan *plan;
    uint32_t turns;
    ap_turn *turn;
    uint64_t scratch; /* bytes: of the plan, then what is brought together, then of a result beside it */
    uint64_t beside;  /* where that begins */
};

ap_rounds *ap_rounds_new(const ap_row *row, uint32_t rank, int in_place, uint64_t unit, size_t item, ap_error *error);
void ap_rounds_end(ap_rounds *r);

/* Bytes of scratch that no rank exceeds: weight * unit * item + fixed + each * item. 0 in `weight`: it cannot be run. */
typedef struct {
    uint64_t weight, each, fixed;
} ap_bound;
int ap_bound_of(const ap_row *row, ap_bound *bound, ap_error *error);
/* Marks those ranks that this one sends to (1) or receives from (2). */
int ap_peers_of(const ap_row *row, uint32_t rank, unsigned char *peers, ap_error *error);

typedef struct {
    const ap_rounds *rounds;
    unsigned char *memory[3], *stages;
    ncclComm_t comm;
    const int32_t *place_of; /* of each rank of the machine its rank there */
    ap_queue queue;
    int type, op;
    uint32_t at;
    void *copy_to; /* in the end, a result that could not be made where it belongs */
    uint64_t copy_bytes;
} ap_running;

int ap_running_begin(ap_running *r);             /* what is done before any message */
int ap_running_over(const ap_running *r);
int ap_running_pack(ap_running *r);              /* a round: before its group, */
ncclResult_t ap_running_messages(ap_running *r); /* in it, */
int ap_running_fold(ap_running *r);              /* and behind it. Not 0: the device refuses */

/* ---- communicators ---- */

typedef struct ap_scratch ap_scratch;
struct ap_scratch {
    ap_scratch *before; /* smaller ones, which what was asked for earlier uses */
    void *memory;
    uint64_t bytes;
};

/* Where the calls of a communicator follow each other: those that are made, and those of each graph. */
typedef struct ap_track ap_track;
struct ap_track {
    ap_track *next;
    unsigned long long graph; /* 0: none */
    ap_queue queue;           /* of our own */
    ap_mark mark, fork;
    int marked;
    ap_stream last; /* the mark was set there, unless */
    int spread;     /* it was set elsewhere */
    ap_scratch scratch;
    uint64_t bytes; /* of scratch */
};

typedef struct { /* one set of tables, kept until the process ends */
    unsigned char digest[64];
    uint32_t tables;
    ap_table table[AP_MOST_TABLES];
} ap_tables;

typedef struct ap_comm ap_comm;
struct ap_comm {
    ap_comm *next;
    ncclComm_t comm, own; /* own: of the same ranks, for our messages; NULL: all is left to NCCL */
    int size, rank, device;
    int origin, origins; /* its rank among those that the first communicator had, and how many these are */
    int reason;
    int broken;
    _Atomic int pending, stop, using;
    int has_worker;
    pthread_t worker;
    ap_settings set;
    ap_tables *tables;
    ap_matched found;
    ap_bound *bound; /* of each row */
    int32_t *place_of;
    ap_rounds *kept;
    ap_track *tracks;
};

ap_comm *ap_comm_of(ncclComm_t comm); /* NULL: NCCL has it all */
ap_comm *ap_comm_known(ncclComm_t comm); /* also one that is not ready, or over */
/* A communicator has been made; `origin`, `origins`: what is known of it before, else 0 of 0. Collective: agrees upon all. */
void ap_comm_begin(ncclComm_t comm, int origin, int origins, int in_progress);
void ap_comm_set_up(ap_comm *c); /* nccl_begin.c */
ap_track *ap_track_of(ap_comm *c, ap_stream stream, uint64_t scratch); /* NULL: the device refuses */
ap_track *ap_track_new(ap_comm *c, unsigned long long graph, uint64_t scratch);
/* Memory of a device, kept when it is not needed any more; not 0: there is none. */
int ap_memory_take(int device, uint64_t bytes, void **memory);
void ap_memory_give(int device, uint64_t bytes, void *memory);
int ap_comm_wait(ap_comm *c, ap_queue queue); /* until it is empty; not 0: it failed, or it was given up */

/* ---- what is told in the end (nccl_report.c) ---- */

void ap_nccl_count(const ap_comm *c, const ap_row *row, uint64_t bytes, double seconds);
void ap_nccl_count_left(const ap_comm *c, int kind, int reason);
void ap_nccl_tell(const ap_comm *c, const char *what, const char *why); /* on stderr */
/* Which rank this process is to be of its first communicator; below 0: that is there. Rank 0 leads the job. */
void ap_nccl_lead(int rank);
extern char ap_nccl_why[AP_TEXT];
ap_tables *ap_nccl_tables(const unsigned char digest[64]); /* those that this process has; NULL: not these */
void ap_nccl_keep_tables(ap_tables *t);

#endif
