/* What the preload_*.c files share: the preloaded library offers MPI's own names, and serves calls by the plans of tables.
 *
 * All processes must decide alike whether a plan serves a call, or they would wait for each other for ever. So the decision
 * depends only on what all of them know: kind, communicator, root, bytes and operator. What can fail at a single process is
 * agreed upon before a plan is used.
 *
 * Files, from the bottom up; each calls only those before it (tests/test_native_layering.py):
 *   preload_job           the state of the job, settings, waiting for all processes
 *   preload_tables        reading and compiling tables
 *   preload_auto_plan     plans made while the job runs: request, planning process, answer
 *   preload_report        counters and the report
 *   preload_communicator  rows (pages of the tables that are for a communicator), its wire and prepared plans
 *   preload_auto_switch   switching all processes to plans that come while the job runs
 *   preload_buffers       types, operators and memory of a call's buffers
 *   preload_trial         first calls of unmeasured plans, compared with the library
 *   preload_bypass        the program's own entries for functions that no plan serves
 *   preload_learn         calls by the candidate that a learner chooses, in place of the table's plan
 *   preload_serve         one call: decide, run
 *   preload_init          MPI_Init, MPI_Finalize
 *   preload_measure       calls measured for `tune --on mpi`
 *   preload_calls         the names of MPI, in C and Fortran
 *
 * Threading: as MPI_THREAD_MULTIPLE allows, one collective at a time on a communicator. What several communicators share is
 * atomic or has a lock, as each file's first comment says.
 * Ownership: tables belong to ap_preload, an ap_group to its communicator; functions that return bytes from malloc say so.
 */
#pragma once

#include <mpi.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "choose.h"
#include "learn.h"

/* Only the names of MPI are visible to other libraries (exports.c). */
#define AP_EXPORT __attribute__((visibility("default")))

#ifndef AP_PYTHON /* the Python that built this library, and the folder of its package antiphon */
#define AP_PYTHON "python3"
#endif
#ifndef AP_PACKAGE
#define AP_PACKAGE ""
#endif
#ifndef AP_VERSION
#define AP_VERSION ""
#endif

/* Why a call falls back to the MPI library; preload_report.c has a text for each. AP_SERVED (0): it does not.
 *   AP_NO_DATA            it has no bytes
 *   AP_REFUSED            a process could not run the plan
 *   AP_SPREAD             blocks of an alltoallv do not lie one after another, or types or counts do not match
 *   AP_TRIED, AP_SLOWER   of an unmeasured plan's first calls this is the library's; the plan took longer in them
 *   AP_LEARNING, AP_LEARNED   a learner tries the library; it has found it the fastest */
enum {
    AP_SERVED, AP_BAD_ARGUMENTS, AP_ONE_PROCESS, AP_INTERCOMMUNICATOR, AP_NO_TABLE, AP_NO_DATA, AP_NO_PLAN, AP_NO_ROOT,
    AP_LIBRARY_FASTER, AP_UNMEASURED, AP_SMALL, AP_OTHER_TYPE, AP_OTHER_OPERATOR, AP_LARGE, AP_REFUSED, AP_WAITING,
    AP_NOT_PLANNED, AP_NEW_COMMUNICATOR, AP_NO_SHARED_MEMORY, AP_UNEVEN, AP_NONBLOCKING, AP_PERSISTENT, AP_DEVICE, AP_TRIED,
    AP_SLOWER, AP_LEARNING, AP_LEARNED, AP_SPREAD, AP_REASONS
};

enum { AP_MAX_TABLES = 64, AP_MAX_BOOKS = 512 }; /* of a job; a table has a book, and one more per failure */
enum { AP_TEXT = 400, AP_PATH = 1024 };          /* bytes of a message, and of a path */

/* ---- the job (preload_job.c) ---- */

typedef struct {
    uint64_t min_bytes; /* unmeasured plans serve calls from this size on */
    int32_t compares;   /* whether first calls by unmeasured plans are compared with the library's (preload_trial.c) */
    double timeout;     /* seconds that a process waits for others without progress; 0: for ever */
    uint32_t new_calls; /* the number of first calls of a communicator that the library serves */
    int32_t learns; /* candidates are chosen while the job runs (preload_learn.c); then nothing is compared by first calls */
    int32_t report;
    int32_t any_hosts;      /* ranks may be on other hosts than the tables say */
    int32_t device;         /* whether buffers may be in the memory of a GPU; -1: detect it */
    char report_path[1024]; /* "": as text on stderr */
    char learned_path[AP_PATH]; /* file of what was learned; "": none */
    /* after each call by a plan all processes wait for all others: so it succeeds at all or at none, unless one fails
     * during that wait */
    int agrees;
    char watch_path[AP_PATH];   /* folder of the files of calls for other programs (watch.c); "": there are none */
    char dead[AP_PATH];     /* name of what is dead, or behind an @ the file that names it; "": nothing is */
} ap_settings;

/* Counters of the calls by one page. */
typedef struct {
    uint64_t calls, min_bytes, max_bytes;
    double seconds;
} ap_use;

/* A loaded book: a table's own, or one of its books for failures. */
typedef struct {
    ap_book *book;        /* uses `bytes` where they are */
    unsigned char *bytes; /* from malloc; `size`: their number */
    uint64_t size;
    ap_use *use;      /* counters per page, if there is to be a report; else NULL */
    int32_t of_world; /* 1: its ranks are those of MPI_COMM_WORLD; 0: it is for communicators with as many processes */
    int32_t position; /* in the list ANTIPHON_TABLE, from 0 */
} ap_table;

typedef struct {
    int on, finalized, size, rank; /* on: plans may serve calls; size, rank: of the world */
    int on_is_final;               /* MPI_Init has decided `on` */
    int packs;                     /* MPI_Pack gives the bytes of the elements and nothing else */
    int keyval;                    /* of the MPI attribute that attaches an ap_group to its communicator */
    ap_settings set;
    int device;            /* buffers may be in the memory of a GPU: checked at each call that is served */
    int automatic;         /* there is no table yet: it comes while the job runs */
    char problem[AP_TEXT]; /* what is wrong with a table or a setting */
    uint32_t tables; /* the number of books in `table` */
    ap_table table[AP_MAX_BOOKS];
    int32_t *host; /* per process of the world, a number of its host; NULL: not needed, or not found */
    int32_t *memory_of; /* per process of the world: equal numbers share memory, -1: shares with none */
    char *learned; /* what earlier jobs learned: the text of that file; NULL: nothing */
    MPI_Group world;
    _Atomic uint64_t fallbacks[AP_PAGE_KINDS][AP_REASONS]; /* calls left to the library */
    _Atomic int served; /* whether any call ran by a plan */
} ap_state;

extern ap_state ap_preload;
extern const char *const ap_kind_names[AP_PAGE_KINDS];

/* Sets `problem`, unless it is set already. */
void ap_complain(char problem[AP_TEXT], const char *format, ...) __attribute__((format(printf, 2, 3)));
void ap_read_settings(ap_settings *s, char problem[AP_TEXT]);
/* ANTIPHON_TRIED, for tests: seconds of calls by the plan and by the library, which replace those measured. "2:1" at all
 * processes, "2:1,1:2" at the first one of the world and at all others. False where it is not set, or no such text. */
int ap_trial_override(int process, double seconds[2]);
/* The same for call number `call`, by a candidate. "drawn:SEED" draws times, different ones at each process, with
 * outliers; which candidate is the fastest changes every 300 calls. */
void ap_learn_override(uint64_t call, ap_candidate candidate, double *seconds);
/* ANTIPHON_TRIED="turns:1x4,2x4,0x4", for recording calls: candidates (program, slices) in turn, not the learner's choice.
 * False where it is not set. */
int ap_learn_turn(uint64_t call, ap_candidate *candidate);
/* Collective over the world: waits for all processes without keeping processors busy. `certain`: all have this library. */
int ap_wait_for_world(int certain);

/* ---- tables (preload_tables.c) ---- */

/* Reads the usable books of the tables of $ANTIPHON_TABLE; returns their count. The first table must be for all processes of
 * the job. */
uint32_t ap_read_tables(const char *list, ap_table table[AP_MAX_BOOKS], char problem[AP_TEXT]);
/* What ANTIPHON_DEAD names now: 0: nothing is dead; i + 1: something is, and the book of table i is for that;
 * AP_NO_BOOK: something is, and no book is for it. */
enum { AP_NO_BOOK = 1 << 30 };
int ap_find_failure(void);
/* Whether a table has ranks on one host that are on several hosts here. */
int ap_contradicts_hosts(const ap_table *t);
/* Compiles a table before a job; AP_OK once its book is stored. */
int ap_table_store(const char *path, ap_error *error);
/* The bytes of a file, from malloc; NULL unless this user or root owns both the file and its folder. */
unsigned char *ap_read_trusted(const char *path, uint64_t *size);
/* The SHA-256 of a regular file; false if there is none. */
int ap_file_digest(const char *path, char digest[65]);
/* Starts a program of this package; returns the read end of a pipe from its output, or -1 and errno. `input`: out, our end of a
 * socket to its input; not a pipe, as writing after its end must not kill this process. NULL: it has no input. */
int ap_spawn(char *const *command, pid_t *child, int *input);

/* ---- communicators (preload_communicator.c) ---- */

/* Whether all processes can run a row's program: not yet checked; they can; one cannot. */
enum { AP_ROW_UNCHECKED, AP_ROW_RUNS, AP_ROW_REFUSED };

/* A row of a communicator: a page of the table that is for its processes. */
typedef struct {
    const ap_page *page;
    ap_program *program; /* NULL: calls are left to the library */
    ap_use *use;         /* counters of the page; NULL: there is no report */
    ap_range range;      /* with the root as a process of the communicator */
    int state;           /* AP_ROW_... */
} ap_row;

typedef struct {
    uint32_t count, me, ranks; /* number of rows; this process's rank in the table; number of ranks of the table */
    int32_t *rank_of;          /* per process of the communicator, its rank in the table */
    ap_row *row;               /* all rows, in the order of the tables */
    ap_chooser *chooser;       /* finds the row of a call */
} ap_rows;

void ap_rows_free(ap_rows *rows); /* frees what it holds */

typedef struct ap_cached_plan ap_cached_plan;
struct ap_cached_plan { /* a plan of this rank at one size; the same sizes are cached at all ranks */
    ap_cached_plan *next;
    ap_row *row;
    uint64_t unit, bytes; /* elements of a block (its bytes, unless values are combined); bytes of the call */
    uint32_t slices;      /* plan.h */
    int type;             /* of the engine (api.h) */
    ap_plan *plan[2]; /* out of place, in place; NULL: not needed yet */
};

/* A call made before plans were available: plans for such calls are prepared before the first call by a plan. */
typedef struct {
    int kind, root, type, in_place; /* root -1: none; type: of the engine (api.h) */
    uint64_t unit, bytes;           /* elements of a block (its bytes, unless values are combined); bytes of the call */
} ap_recent_call;

enum { AP_MAX_RECENT = 16 }; /* different calls that are remembered, to prepare their plans */
typedef struct preparation preparation; /* what the background thread works on (preload_auto_switch.c) */

/* Words that processes exchange to agree on switching to plans (preload_auto_switch.c): all get the maximum of each. From
 * process 0: the state of planning, bytes and digest (4 words) of the book; from all: how far they have prepared. */
enum { AP_STATUS, AP_SIZE, AP_DIGEST, AP_PREPARED = AP_DIGEST + 4, AP_QUERY_WORDS };
typedef struct ap_query ap_query;
struct ap_query {
    ap_query *next_query, **link; /* list of queries under way; the pointer to this one in it */
    uint64_t calls, next_call, asked_call; /* the number of calls so far, at the next query, and at the last one */
    uint64_t own[AP_QUERY_WORDS], agreed[AP_QUERY_WORDS];
    /* in this order: `request` is under way; it broadcasts the table, instead of exchanging words; preparing plans has
     * begun; the table has been broadcast */
    int pending, sends_table, prepares, was_sent;
    int leader; /* the process of the communicator that is process 0 of the world */
    MPI_Request request;
    unsigned char *table_bytes;           /* the table as received, if the cached file was not found; from malloc */
    ap_recent_call recent[AP_MAX_RECENT]; /* the latest first; the same at all processes, except in_place */
    int recents;
    preparation *preparation;
};

enum { AP_STAGED_IN, AP_STAGED_OUT, AP_STAGES }; /* staging memory, used in place of the caller's buffers */

typedef struct ap_trial ap_trial;
typedef struct ap_learning ap_learning;
typedef struct {
    MPI_Comm comm;
    int size, rank, reason; /* reason: AP_SERVED, or why its calls go to the library: it has no rows (yet) */
    int *process;           /* per process of the communicator, its number in the world */
    uint32_t number;        /* identifies its processes in watch.c; 0: not known yet */
    int needs_agreement;    /* its processes have not agreed on `failure` yet, so it has no rows */
    int failure;            /* the result of ap_find_failure */
    ap_query query;
    int broken; /* a call by a plan failed, so all later ones do; the staging memory may still be in use */
    ap_rows rows;
    ap_wire *wire;         /* connects its processes; NULL: not connected */
    int connect_tried;     /* connecting was tried, and is not tried again */
    uint64_t shared_bytes; /* shared memory that its wire takes, if that is limited */
    uint32_t calls;        /* first calls that plans could have served; not counted beyond ap_settings.new_calls */
    ap_cached_plan *plans; /* the latest used first */
    ap_trial *trials;      /* of unmeasured plans (preload_trial.c); the latest first */
    ap_learning *learning; /* preload_learn.c; the latest first */
    void *stage[AP_STAGES]; /* staging memory, allocated when needed, and its bytes */
    size_t stage_bytes[AP_STAGES];
    uint64_t *counts; /* of alltoallvs: bytes per block, then what the processes exchange; NULL: not allocated */
    int lacks_counts; /* a process has no memory for them */
} ap_group;

/* The group of a communicator, made at its first call and freed with it; NULL: out of memory. */
ap_group *ap_group_of(MPI_Comm comm);
/* Frees a group except its query, trials and learners, which other files free. */
void ap_group_free(ap_group *g);
/* Finds the rows of a communicator once there is a table; without any, sets its reason. False: out of memory. */
int ap_group_find_rows(ap_group *g);
/* Collective: connects its processes, unless that was tried before. Returns, alike at all of them, whether they are connected;
 * if not, the communicator has a reason, or `error` is set (in the call that tried). */
int ap_group_connect(ap_group *g, ap_error *error);
/* Collective, at the first call of a communicator that needs agreement: agrees on what is dead, and finds the rows. False:
 * `error` is set. */
int ap_group_agree_on_failure(ap_group *g, ap_error *error);
/* Whether a learner chooses how calls of a page are made: not if a fixed order of combining was requested, nor for
 * alltoallvs, whose counts hardly repeat. */
static inline int ap_is_learned(const ap_page *page) {
    return ap_preload.set.learns && !page->ordered && page->kind != AP_ALLTOALLV;
}
/* The row that serves a call; AP_SERVED, or why there is none. The row may have no program if a learner chooses
 * (ap_is_learned), among the library and the programs of other rows. */
int ap_group_choose_row(const ap_group *g, int kind, int root, uint64_t bytes, ap_row **row);
/* Staging memory `number` (AP_STAGED_...) of at least that many bytes; it belongs to the group. NULL: `error` is set. */
void *ap_group_staging(ap_group *g, int number, size_t bytes, ap_error *error);
/* Finds the rows and prepares plans for calls like these, in a copy of a communicator's group, without calling MPI, as a
 * background thread runs it; `pace` (prefault.h) has it pause, or stop. False if anything fails. */
int ap_group_prepare(ap_group *g, const ap_recent_call *recent, int count, ap_pace *pace);
/* Moves rows and plans from the copy to the group. */
void ap_group_adopt(ap_group *g, ap_group *copy);
void ap_group_clear(ap_group *g); /* frees its rows and plans */
/* The plan for a call by this row in these slices (plan.h), cached or new; making one for large calls, or in other slices than
 * planned, is collective. NULL: MPI failed (*code); or *refused: it failed at some process, and all know; or it failed at this
 * process alone (`error`). */
ap_plan *ap_plan_for(ap_group *g, ap_row *row, uint32_t slices, uint64_t unit, uint64_t bytes, int type, int in_place,
                     int *refused, int *code, ap_error *error);
/* The same for blocks of an alltoall with these bytes (ap_prepare_counts). It is not cached: the caller releases it. */
ap_plan *ap_plan_for_counts(ap_group *g, ap_row *row, const uint64_t *counts, uint64_t bytes, int *refused, int *code,
                            ap_error *error);
/* Collective in the first call: whether all processes have memory for the counts of an alltoallv. *code: an error of MPI. */
int ap_group_take_counts(ap_group *g, int *code, ap_error *error);
/* Collective until the row's state is known: whether all processes can run its program. *code: an error of MPI. */
int ap_row_usable(ap_group *g, ap_row *row, int *code, ap_error *error);

/* ---- plans that are made while the job runs (ANTIPHON_TABLE=auto, docs/auto.md) ---- */

enum { AP_PLANNING, AP_READY, AP_NEVER }; /* AP_STATUS of process 0; the greatest value wins */

typedef struct {
    /* how: the source of the plans, such as "kept" (cached); gain: predicted; notes: also why there are no plans */
    char how[16], machine[128], gain[600], notes[600];
    uint64_t since;                                    /* number of the first call by these plans; 0: there was none */
} ap_plan_summary;

/* preload_auto_plan.c */
extern ap_plan_summary ap_auto_summary;
extern char ap_auto_cache_path[AP_PATH]; /* the file of the answer; "": none is stored */
/* Collective over the world, in MPI_Init: takes the cached table, or begins to plan. False: MPI failed, or out of memory. */
int ap_auto_begin(void);
void ap_auto_end_planner(void);       /* stops reading and planning */
void ap_planner_lower_priority(void); /* from now on it only uses idle processors */
/* Process 0: AP_STATUS, AP_SIZE and AP_DIGEST of a query. */
void ap_auto_status(uint64_t words[AP_QUERY_WORDS]);
/* Parses an answer (runtimes/serve/auto_question.py): returns its book, from malloc, and its summary; NULL if it is damaged. */
unsigned char *ap_auto_read_answer(const unsigned char *answer, uint64_t bytes, uint64_t *size, ap_plan_summary *summary);
/* Makes the bytes, from malloc, the table, unless there is one already; else frees them. False: damaged, or not for this job. */
int ap_auto_install_table(unsigned char *bytes, uint64_t size);
int ap_auto_has_table(void);
int ap_auto_close_table(void); /* from now on no table can be installed; returns whether there is one */
/* Writes four words that identify a book. */
void ap_book_digest(const unsigned char *bytes, uint64_t size, uint64_t words[4]);

typedef struct ap_background ap_background;
/* Does work in a thread of low priority, or at once if there can be no thread. Now and then the work asks `pace`
 * (prefault.h) whether to pause or stop. NULL: out of memory. */
ap_background *ap_background_begin(void (*work)(void *argument, ap_pace *pace), void *argument);
int ap_background_done(const ap_background *b); /* whether the work has ended */
void ap_background_end(ap_background *b); /* asks it to stop, waits, and frees it */

/* preload_auto_switch.c */
/* Called before each call on a communicator that waits for plans (its reason is AP_WAITING). Returns 1 if this is the first call
 * by plans, or if `error` is set (out of memory, or MPI failed); 0: the library serves it. `plannable`: a plan could serve it. */
int ap_auto_before_call(ap_group *g, const ap_recent_call *call, int plannable, ap_error *error);
void ap_auto_release(ap_group *g); /* its communicator is freed */
void ap_auto_end(void);            /* collective over the world */

/* ---- calls ---- */

/* Lists of counts and displacements per process, as int, or as the large types of MPI 4. */
typedef struct {
    const int *count, *at;
    const MPI_Count *large_count;
    const MPI_Aint *large_at;
} ap_counts;

static inline int ap_has_counts(const ap_counts *c) { return c->count || c->large_count; }
static inline MPI_Count ap_count_at(const ap_counts *c, int i) { return c->count ? c->count[i] : c->large_count[i]; }
static inline MPI_Aint ap_displacement_at(const ap_counts *c, int i) { return c->at ? c->at[i] : c->large_at[i]; }

/* Functions of MPI: one per kind (alltoallv included), two with lists of counts that all processes know (reduce_scatter,
 * allgatherv), then all of them with large counts. */
enum {
    AP_REDUCESCATTER_LISTED = AP_PAGE_KINDS, AP_ALLGATHER_LISTED, AP_INT_FUNCTIONS, AP_FUNCTIONS = 2 * AP_INT_FUNCTIONS
};
typedef void (*ap_function)(void);

typedef struct {
    int kind, root, function; /* AP_BROADCAST, ...; root -1: none; function: as above, or the kind */
    MPI_Comm comm;
    ap_function own, library; /* this library's function, and MPI's */
    const void *send;
    void *recv;
    MPI_Count send_count, recv_count; /* elements of a block */
    MPI_Datatype send_type, recv_type;
    MPI_Op op;
    ap_counts counts;      /* of allgatherv and reduce_scatter; of an alltoallv, those of the blocks that it receives */
    ap_counts send_counts; /* of an alltoallv, those of the blocks that it sends */
} ap_call;

/* preload_buffers.c */
typedef struct {
    MPI_Count size; /* bytes of an element */
    int type;  /* of the engine (api.h); -1: the engine cannot combine it */
    int plain; /* elements are contiguous, without gaps */
} ap_data_type;

void ap_register_types(void);
int ap_type_of(MPI_Datatype type, ap_data_type *data); /* false: invalid; MPI will report that */
int ap_is_built_in(MPI_Datatype type);                 /* its handle is never used for another type */
int ap_operator_of(MPI_Op op);                         /* of the engine; -1: it has none */
/* Whether this process can have memory of GPUs. */
int ap_gpus_possible(void);
/* Collective: whether a buffer of this call is in the memory of a GPU at any process. Returns an error code of MPI. */
int ap_gpu_buffer_anywhere(const ap_call *call, int *anywhere);

/* Arguments with which calls go to the library because of their size; or (`every`) all calls of a function do. Such a call
 * reads only this one cache line, as it must take no longer than it takes to fetch a few lines from memory: a program that
 * computes between its calls leaves nothing in the caches. Read without a lock (a seqlock): `version` is odd while an entry
 * changes, and greater afterwards. */
typedef struct {
    _Atomic uint64_t comm, type;
    _Atomic int64_t count;
    _Atomic int32_t root, every; /* every: all calls of the function */
    _Atomic uint32_t version;
    ap_function library; /* the same whenever it is set */
} __attribute__((aligned(64))) ap_fallback_call;

enum { AP_FALLBACK_CALLS = 8 }; /* for each function */
extern __attribute__((visibility("hidden"))) ap_fallback_call ap_fallback_calls[AP_FUNCTIONS][AP_FALLBACK_CALLS];

static inline ap_fallback_call *ap_fallback_slot(int function, int64_t count) {
    /* multiplicative hash: the highest 3 bits, for 8 slots */
    return &ap_fallback_calls[function][((uint64_t)count * 0x9E3779B97F4A7C15u) >> 61];
}

static inline int ap_is_fallback(const ap_fallback_call *f, MPI_Comm comm, int root, int64_t count, MPI_Datatype type) {
    if (atomic_load_explicit(&f->every, memory_order_acquire)) return 1;
    const uint32_t version = atomic_load_explicit(&f->version, memory_order_acquire);
    if (atomic_load_explicit(&f->count, memory_order_relaxed) != count) return 0;
    if (atomic_load_explicit(&f->comm, memory_order_relaxed) != (uint64_t)(uintptr_t)comm) return 0;
    if (atomic_load_explicit(&f->type, memory_order_relaxed) != (uint64_t)(uintptr_t)type) return 0;
    if (atomic_load_explicit(&f->root, memory_order_relaxed) != root) return 0;
    atomic_thread_fence(memory_order_acquire);
    return version && !(version & 1) && atomic_load_explicit(&f->version, memory_order_relaxed) == version;
}
/* Makes the program call MPI's function `mpi` instead of this library's `own` (preload_bypass.c). */
void ap_bypass(ap_function own, ap_function mpi);
/* Called when a communicator is freed, as MPI may give its handle to another one. */
void ap_fallbacks_clear(void);

/* preload_serve.c: true if the call has been done, and *code is to be returned. Else the caller calls the library, and then
 * ap_served_by_library with *stopwatch. */
int ap_serve(const ap_call *call, double **stopwatch, int *code);
void ap_served_by_library(double *stopwatch);

/* preload_trial.c: whether a call with an unmeasured plan runs by that plan: AP_SERVED, or why the library gets it. Unless
 * *stopwatch is NULL, ap_trial_end must follow the call: it turns the time of the begin into the seconds since. Sometimes
 * collective; *code: an error of MPI. */
int ap_trial_begin(ap_group *g, const ap_row *row, int kind, uint64_t bytes, int op, double **stopwatch, int *code);
void ap_trial_end(double *stopwatch);
void ap_trials_free(ap_group *g);

/* preload_learn.c: chooses how a call is made. *row, *slices: in, the table's plan for it; out, the candidate, with *row NULL for
 * the library. Returns AP_SERVED: by *row, or the call fails (*code, of MPI, or `error`); else the reason why the library gets
 * it. *stopwatch: as of ap_trial_begin. Sometimes collective. */
int ap_learn_begin(ap_group *g, ap_row **row, uint32_t *slices, int kind, uint64_t bytes, double **stopwatch, int *code,
                   ap_error *error);
void ap_learn_refuse(ap_group *g); /* what ap_learn_begin has just chosen cannot run, at any process */
void ap_learning_free(ap_group *g);
/* At process 0: reads the file of what was learned, from malloc (NULL: none); writes it, with what this job has learned. */
char *ap_learned_read(ap_settings *s, char problem[AP_TEXT]);
void ap_learned_write(void);

/* What process 0 knows of a learner. */
typedef struct ap_learned ap_learned;
struct ap_learned {
    ap_learned *next;
    const ap_page *page;                     /* the table's page for these calls */
    const ap_page *program[AP_MAX_PROGRAMS]; /* per program (learn.h) its page; NULL: the library */
    uint32_t key[AP_MAX_PROGRAMS];           /* of its page, in the file; 0: the library */
    int scale, ranks, root; /* scale: log2 of the bytes */
    uint64_t bytes, calls;  /* of the calls that are timed */
    uint32_t arms, choices; /* lengths of `arm` and `choice` */
    ap_arm arm[AP_MAX_ARMS];
    ap_choice choice[AP_MAX_CHOICES];
};

/* preload_report.c */
void ap_report_call(ap_use *use, uint64_t bytes, double seconds);
void ap_report_fallback(int kind, int reason);
/* Enters a call in the file for other programs. `page`: NULL: by the library. */
void ap_report_watched(ap_group *g, int kind, const ap_page *page, uint32_t slices, uint64_t bytes, double seconds);
void ap_report_unused(void); /* without a report: warns if no call ran by a plan, as the tables are for other calls */
void ap_report(void); /* collective over the world */
extern ap_learned *ap_learned_records;

/* ---- without tables: measuring calls as programs make them ---- */

/* preload_init.c: collective over the world: prepares for calls by plans without LD_PRELOAD. False: MPI failed. */
int ap_init_for_measuring(void);

/* preload_measure.c: a call to measure; all processes of the communicator make the same. The same layout as in Python
 * (runtimes/engine). */
typedef struct {
    int32_t kind, root, type, op; /* root -1: there is none */
    int32_t count;                /* elements of a block */
    const void *send;
    void *recv;
} ap_timed_call;

typedef struct ap_measure ap_measure;

/* Collective over a communicator, given by its number in Fortran. `rank_of`: its processes as ranks of programs for `ranks`. */
ap_measure *ap_measure_open(int comm, const int32_t *rank_of, uint32_t ranks, ap_error *error);
/* Collective: the mean seconds of a call, over calls and processes, by this program; NULL: by the MPI library. */
int ap_measure_calls(ap_measure *m, ap_program *program, const ap_timed_call *timed, uint32_t calls, double *seconds,
                     ap_error *error);
void ap_measure_close(ap_measure *m);
