/* What the library does when it is preloaded: it offers MPI's own names, and serves calls by the plans of a table.
 *
 * Which way a call goes must come out alike at all its processes, or they wait for each other for ever. So it depends
 * on nothing but what all of them know: the kind, the communicator, the root, the bytes by the type's signature, the
 * operator; and what can fail at a single process is agreed upon by all of them before a plan is used.
 */
#ifndef ANTIPHON_PRELOAD_H
#define ANTIPHON_PRELOAD_H

#include <mpi.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "preload_job.h"

/* Of each process the count of its block, and where that begins: as int, or as the large ones of MPI 4. */
typedef struct {
    const int *count, *at;
    const MPI_Count *large_count;
    const MPI_Aint *large_at;
} ap_list;

static inline int ap_listed(const ap_list *l) { return l->count || l->large_count; }
static inline MPI_Count ap_count_at(const ap_list *l, int i) { return l->count ? l->count[i] : l->large_count[i]; }
static inline MPI_Aint ap_place_at(const ap_list *l, int i) { return l->at ? l->at[i] : l->large_at[i]; }

typedef struct {
    int kind, root;
    MPI_Comm comm;
    const void *send;
    void *recv;
    MPI_Count send_count, recv_count; /* of a block */
    MPI_Datatype send_type, recv_type;
    MPI_Op op;
    ap_list gets; /* of allgatherv and reduce_scatter: a count for each process */
} ap_call;

/* ---- types ---- */

typedef struct {
    MPI_Count size;
    int type;  /* the engine's, -1: it cannot combine these */
    int plain; /* elements are their bytes, one after another */
} ap_kind_of_data;

void ap_types_begin(void);
int ap_type_of(MPI_Datatype type, ap_kind_of_data *data); /* false: leave it to the library to complain */
int ap_is_built_in(MPI_Datatype type); /* its handle is never another type's */
int ap_operator_of(MPI_Op op);                            /* -1: none of ours */

/* ---- the tables of this job ---- */

typedef struct {
    int on, over, size, rank; /* of the world */
    int packs;                /* MPI_Pack gives the bytes of the elements and nothing else */
    int keyval;
    ap_settings set;
    int device; /* buffers may be in the memory of a GPU: it is asked for at each call that is served */
    int automatic; /* there is no table yet: it comes while the job runs */
    char why[AP_TEXT]; /* what is wrong with a table */
    uint32_t tables;
    ap_table table[AP_MOST_TABLES];
    int32_t *host; /* of each process of the world; NULL: nobody needs it */
    int32_t *near; /* of each process of the world: those with the same number share memory, -1: with nobody */
    MPI_Group world;
    _Atomic uint64_t left[AP_KINDS][AP_REASONS];
    _Atomic int served; /* whether any call ran by a plan */
} ap_state;

extern ap_state ap_preload;

/* Collective over the world: what calls by plans need where nothing is preloaded, without tables. False: MPI failed. */
int ap_set_up_bare(void);

/* ---- communicators ---- */

typedef struct ap_kept ap_kept;
struct ap_kept { /* a plan of this rank at one size; the same sizes are kept at all ranks */
    ap_kept *next;
    ap_row *row;
    uint64_t unit, bytes;
    int type;
    ap_plan *plan[2]; /* out of place, in place */
};

/* A call that came while plans were waited for: the like of it is made ready before it goes by one. */
typedef struct {
    int kind, root, type, in_place;
    uint64_t unit, bytes;
} ap_noted;

enum { AP_MOST_NOTED = 16 };
typedef struct ap_early ap_early;

/* Asking for plans on one communicator (preload_turns.c). What a process says, and what all have said: the greatest. */
enum { AP_STATUS, AP_SIZE, AP_DIGEST, AP_LACKS = AP_DIGEST + 4, AP_SAID };
typedef struct ap_turns ap_turns;
struct ap_turns {
    ap_turns *next_one, **of_last; /* of those that have something under way */
    uint64_t calls, next, asked;
    uint64_t said[AP_SAID], all[AP_SAID];
    int asking, handing, begun, tries, leader; /* the process of the communicator that leads the job */
    MPI_Request request;
    unsigned char *coming; /* the bytes of the table, where a file could not tell them */
    ap_noted noted[AP_MOST_NOTED]; /* the last ones first; the same at all, but for in_place */
    int notes;
    ap_early *early;
};

enum { AP_STAGED_IN, AP_STAGED_OUT, AP_STAGES }; /* memory of ours beside the caller's */

typedef struct ap_trial ap_trial;
typedef struct {
    MPI_Comm comm;
    int size, rank, reason; /* AP_SERVED, or why it has no rows */
    int *process;           /* of each of its processes, which it is in the world */
    ap_turns turns;
    int broken;
    ap_matched found; /* its rows */
    ap_wire *wire;
    int wired;
    uint64_t taken;      /* bytes of memory shared for it that count */
    uint32_t calls;      /* that plans could have served */
    ap_kept *kept;
    ap_trial *trials; /* of plans that were not measured */
    void *stage[AP_STAGES];
    size_t stage_bytes[AP_STAGES];
} ap_group;

/* NULL: there is no memory. Kept with the communicator until it is freed. */
ap_group *ap_group_of(MPI_Comm comm);
int ap_group_forget(MPI_Comm comm, int keyval, void *group, void *extra);
/* Finds the rows of a communicator for which the table has come; false where there is no memory. */
int ap_group_begin(ap_group *g);
/* Connects its processes, if that has not been tried; collective. Whether it is connected comes out alike at all of
 * them; where it is not, the communicator has a reason, or `error` says what failed. */
int ap_group_connect(ap_group *g, ap_error *error);
/* Which row a call goes by; AP_SERVED, or why none. */
int ap_group_row(const ap_group *g, int kind, int root, uint64_t bytes, ap_row **row);
/* Memory beside the caller's, of so many bytes at least. */
void *ap_group_stage(ap_group *g, int number, size_t bytes, ap_error *error);
/* Without any call of MPI, for a copy of a communicator: its rows, and all that calls like these need, with its memory.
 * False where something is not to be had here. */
int ap_group_ready(ap_group *g, const ap_noted *noted, int count, ap_pace *pace);
/* The communicator takes over what was made for its copy; or that is dropped. */
void ap_group_take(ap_group *g, ap_group *ready);
void ap_group_drop(ap_group *ready);

/* ---- work beside the program (preload_beside.c) ---- */

typedef struct ap_beside ap_beside;
/* Does it in a thread that gives way to the program's; where there can be none, at once. NULL: out of memory. */
ap_beside *ap_beside_begin(void (*work)(void *what, ap_pace *pace), void *what);
int ap_beside_done(const ap_beside *b);
void ap_beside_end(ap_beside *b); /* it is told to stop, and waited for */

/* ---- plans that are made while the job runs (ANTIPHON_TABLE=auto, docs/auto.md) ---- */

enum { AP_PLANNING, AP_READY, AP_NEVER }; /* what process 0 says, in this order: the greatest counts */
enum { AP_PATH = 1024, AP_FACTS = 640 };

extern ap_told ap_auto_told;

/* What this process says of where it is. */
void ap_auto_facts(char facts[AP_FACTS]);
/* Process 0: the question of all, from malloc, and the file where its answer is kept ("": nowhere). */
char *ap_auto_question(const char *facts, int processes, char kept[AP_PATH]);
/* An answer (runtimes/serve/auto_kept.py): its book as bytes from malloc, and what is told of it; NULL if it is damaged. */
unsigned char *ap_auto_answer(const unsigned char *answer, uint64_t bytes, uint64_t *size, ap_told *told);

/* Process 0: the process apart. */
int ap_apart_begin(const char *question, const char *kept);
/* Its answer so far, without waiting: AP_READY and bytes from malloc, AP_NEVER and why, or AP_PLANNING. */
int ap_apart_look(unsigned char **answer, uint64_t *bytes, char *why, size_t room);
void ap_apart_lower(void); /* from now on it only has what nobody else wants */
void ap_apart_end(void);

/* Collective over the world, in MPI_Init: takes what is kept as a table, or begins to plan. */
int ap_auto_begin(void);
/* A call on a communicator that waits for plans: true if it is the first that goes by them. What is wrong in *error.
 * `plannable`: a plan could serve it. */
int ap_auto_turn(ap_group *g, const ap_noted *call, int plannable, ap_error *error);
void ap_auto_forget(ap_group *g); /* it is freed */
void ap_auto_end(void);           /* collective over the world */
void ap_turns_end(void);          /* of all that are under way */
/* Process 0: what it says of the table. */
void ap_auto_know(uint64_t said[AP_SAID]);
extern char ap_auto_kept[AP_PATH]; /* where the answer is kept; "": nowhere */

/* How far a process is with what it needs before calls go by plans (preload_early.c); the greatest of all counts. COLD: it
 * cannot have all, so all do without, and make plans when they are called for. */
enum { AP_WARM, AP_COLD, AP_AT_IT, AP_LACKING };
void ap_early_begin(ap_group *g); /* collective, at the same call at all */
uint64_t ap_early_how(const ap_turns *t);
ap_group *ap_early_group(ap_turns *t); /* where it is warm: what was made */
void ap_early_end(ap_turns *t);
/* Takes the bytes, which are from malloc, as the table, if there is none yet; false where they are no good. */
int ap_early_load(unsigned char *bytes, uint64_t size);
int ap_early_last(void); /* no table is taken any more; whether there is one */
void ap_book_digest(const unsigned char *bytes, uint64_t size, uint64_t words[4]);
/* Collective over the world: until all are here, without keeping processors busy. */
int ap_meet(int certain);
/* Whether a table puts ranks on one host that are on several here. */
int ap_spread_over_hosts(const ap_table *t);

/* ---- memory of GPUs (preload_device.c) ---- */

/* Whether this process can have any. */
int ap_device_possible(void);
/* Collective: whether a buffer of this call is there, at any process. An error of MPI is returned. */
int ap_device_anywhere(const ap_call *call, int *anywhere);

/* ---- calls ---- */

/* What a call with these arguments was found to be: left to the library because of its size. Kept for a few calls, each in a
 * line of cache of its own, as a call of MPI may take no longer than it takes to fetch some. Read without a lock: `version`
 * is odd while an entry changes, and another one afterwards. */
typedef struct {
    _Atomic uint64_t comm, type;
    _Atomic int64_t count;
    _Atomic int32_t kind, root;
    _Atomic uint32_t version;
} __attribute__((aligned(64))) ap_left_call;

enum { AP_LEFT_CALLS = 32 };
extern ap_left_call ap_left_calls[AP_LEFT_CALLS];

static inline ap_left_call *ap_left_slot(int kind, int64_t count) {
    return &ap_left_calls[((uint64_t)(count * AP_KINDS + kind) * 0x9E3779B97F4A7C15u) >> 59];
}

static inline int ap_is_left(int kind, MPI_Comm comm, int root, int64_t count, MPI_Datatype type) {
    const ap_left_call *l = ap_left_slot(kind, count);
    const uint32_t version = atomic_load_explicit(&l->version, memory_order_acquire);
    int same = atomic_load_explicit(&l->count, memory_order_relaxed) == count;
    same &= atomic_load_explicit(&l->kind, memory_order_relaxed) == kind;
    same &= atomic_load_explicit(&l->root, memory_order_relaxed) == root;
    same &= atomic_load_explicit(&l->comm, memory_order_relaxed) == (uint64_t)(uintptr_t)comm;
    same &= atomic_load_explicit(&l->type, memory_order_relaxed) == (uint64_t)(uintptr_t)type;
    atomic_thread_fence(memory_order_acquire);
    return same && version && !(version & 1) && atomic_load_explicit(&l->version, memory_order_relaxed) == version;
}
/* A communicator is freed, and its handle may come back as another's. */
void ap_left_forget(void);

/* True if the call has been done, *code being what to return. Else *spent is NULL, or who has the library do it calls
 * ap_trial_over with that. */
int ap_serve(const ap_call *call, double **spent, int *code);
/* The way of a call by a plan that was not measured (preload_trial.c): AP_SERVED, or why it is the library's. Where *spent is not
 * NULL, ap_trial_over is for when it is done. Collective at times; an error of MPI in *code. */
int ap_trial_turn(ap_group *g, const ap_row *row, int kind, uint64_t bytes, int op, double **spent, int *code);
void ap_trial_over(double *spent);
void ap_trials_forget(ap_group *g);

/* The plan for a call that goes by this row, made where it is not kept; collective where that is for long messages. NULL:
 * an error of MPI is in *code; or all left the row to the library (its state is -1); or it failed here alone. */
ap_plan *ap_plan_for(ap_group *g, ap_row *row, uint64_t unit, uint64_t bytes, int type, int in_place, int *code,
                     ap_error *error);
/* Whether all processes can run a row's program; asks them once. An MPI error in *code. */
int ap_row_works(ap_group *g, ap_row *row, int *code, ap_error *error);
/* Raises an error of this class on the communicator; returns it. */
int ap_raise(MPI_Comm comm, int class, const char *what, const ap_error *error);

void ap_report_call(ap_use *use, uint64_t bytes, double seconds);
void ap_report_left(int kind, int reason);
void ap_report_unused(void);
void ap_report(void); /* collective over the world */

#endif
