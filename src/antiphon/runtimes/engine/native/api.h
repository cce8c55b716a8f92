/* The native engine: runs the programs that `antiphon export --to program` writes (docs/program.md).
 *
 *   ap_program  a program file, checked; knows no size, type or operator
 *   ap_plan     the work of one rank at one size: addresses, order of starts, dependencies; reused between runs
 *   ap_wire     a transport: messages between ranks, in order per peer and channel
 *
 * No function ends the process or prints. On failure a function returns a code (or NULL) and fills an ap_error.
 *
 * Threading: a program, a plan and a wire may be used by one thread at a time; different ones by different threads.
 * Ownership: what a function named *_open or ap_prepare returns is freed by *_close or ap_release; a plan outlives its
 *   program, bytes and buffers are the caller's and outlive their use.
 */
#ifndef ANTIPHON_API_H
#define ANTIPHON_API_H

#include <stddef.h>
#include <stdint.h>

#define AP_ABI 2

typedef struct ap_program ap_program;
typedef struct ap_plan ap_plan;
typedef struct ap_wire ap_wire;
typedef struct ap_pace ap_pace; /* of work beside a program (prefault.h) */

enum {
    AP_OK = 0, AP_INVALID = 1, AP_UNSUPPORTED = 2, AP_MEMORY = 3, AP_TRANSPORT = 4, AP_TIMEOUT = 5, AP_STUCK = 6,
    AP_MISMATCH = 7, AP_STOPPED = 8
};

/* The first twelve are numbered as in NCCL. */
enum {
    AP_INT8, AP_UINT8, AP_INT32, AP_UINT32, AP_INT64, AP_UINT64, AP_FLOAT16, AP_FLOAT32, AP_FLOAT64, AP_BFLOAT16,
    AP_FLOAT8_E4M3, AP_FLOAT8_E5M2, AP_INT16, AP_UINT16, AP_TYPES
};
enum { AP_SUM, AP_PROD, AP_MAX, AP_MIN, AP_AVG, AP_OPERATORS };

typedef struct {
    int32_t code;
    char text[252];
} ap_error;

typedef struct {
    uint32_t kind, ranks, members, roots, blocks, channels, variants;
    uint64_t buffer_weight; /* the bytes of a call = buffer_weight * unit * bytes of an element */
} ap_facts;

typedef struct {
    uint64_t input, output, scratch; /* elements */
    uint64_t instances, messages, sends;
} ap_needs;

int ap_abi(void);

/* `bytes` are used where they are and must stay as they are until ap_close. Checks the head. */
ap_program *ap_open_bytes(const void *bytes, size_t size, ap_error *error);
void ap_close(ap_program *program);
void ap_describe(const ap_program *program, ap_facts *facts);

/* Checks the section of this rank in full; unit: elements of a unit of weight (of a block, if all are equal).
 * A plan does not need its program any longer. */
ap_plan *ap_prepare(const ap_program *program, uint32_t rank, int in_place, uint64_t unit, ap_error *error);
void ap_release(ap_plan *plan);
void ap_ask(const ap_plan *plan, ap_needs *needs);

/* Messages of more bytes than this travel as several, so that one is combined while the next one comes. All ranks must
 * choose alike. 0: never. Where it is not called: into at most four of 128 KiB or more where values are combined or
 * broadcast, else never. */
int ap_split(ap_plan *plan, uint64_t bytes, ap_error *error);

/* Takes the memory that a run with this type needs; else the first run does. */
int ap_ready(ap_plan *plan, int type, ap_error *error);

/* Runs to the end of what this rank does. `input_bytes` and `output_bytes` are what the caller really has there: with less
 * than the plan needs nothing is touched (AP_INVALID). In place `input` is not looked at. `timeout` seconds without any
 * progress end the run (0: never); after that, or AP_TRANSPORT, the wire can only be closed. */
int ap_run(ap_plan *plan, const void *input, uint64_t input_bytes, void *output, uint64_t output_bytes, int type, int operation,
           ap_wire *wire, double timeout, ap_error *error);

size_t ap_type_size(int type);

/* result = operands combined from the left, as a fold does. For tests. */
void ap_fold(void *result, const void *const *operands, size_t operand_count, size_t elements, int type, int operation);
void ap_divide(void *values, size_t elements, uint64_t count, int type);

/* What all processes of a group must call alike. Only what stands before `rank`, the caller, is compared; the numbers for
 * kinds, operators and types are the caller's own. */
typedef struct {
    uint64_t group;  /* what else they must have alike: the book */
    uint64_t number; /* of the call in the group */
    uint64_t bytes;
    uint8_t kind, operation, type, stage, unused[4]; /* stage: 0 the call itself, else what it needs before */
    int32_t root;
    uint32_t rank;
} ap_called;

/* From now on each ap_run, ap_agree and ap_uneven over this wire is the call that stands in *call when it begins; a message of
 * another call ends it with AP_MISMATCH. All processes of a wire do so, or none. (Not over the wires of threads.) */
void ap_wire_call(ap_wire *wire, const ap_called *call);
/* After AP_MISMATCH: what the other one called. */
void ap_wire_theirs(const ap_wire *wire, ap_called *other);
/* Before the end: AP_MISMATCH where a message of a call up to the last one lies here that no receive took. (What comes later,
 * and what MPI keeps, is not seen.) */
int ap_wire_left(ap_wire *wire, ap_error *error);
/* Ends when all processes have begun the same call; no data moves. */
int ap_agree(ap_wire *wire, double timeout, ap_error *error);

/* A call for which no plan can be: `send_bytes` to each rank, which stand one after another at `from`, and `receive_bytes` from
 * each to `to`, which is other memory. In *outcome, alike at all: the data has moved; or nothing has, as what one rank sends
 * is not what another expects; or nothing has, as all lengths between all are the same, and a plan can serve the call. */
enum { AP_MOVED, AP_EVEN, AP_DISAGREED };
int ap_uneven(ap_wire *wire, const void *from, const uint64_t *send_bytes, void *to, const uint64_t *receive_bytes,
              double timeout, int *outcome, ap_error *error);

/* One thing that a rank did. Times are of the clock of its ap_trace; an end of 0: it has not ended. A message begins when
 * it is handed to the transport, and has ended when the transport says so; both are the engine's own moments. */
typedef struct {
    int64_t begin, end;
    uint64_t bytes;    /* of a message; of a fold those of its result; of a call 0 */
    uint32_t peer;     /* of a message, else the rank itself */
    uint32_t when;     /* as in the program (docs/program.md): step 2 s, combinations 2 s + 1 */
    uint32_t instance; /* piece or part of its operation, numbered in the whole rank; of a call its number */
    uint16_t channel;
    uint8_t kind; /* AP_TRACE_... */
    uint8_t unused;
} ap_record;

enum { AP_TRACE_SEND, AP_TRACE_RECEIVE, AP_TRACE_FOLD, AP_TRACE_CALL = 4 };

/* A ring: record number i stands at i modulo `capacity`, a power of two. Memory and counts are the caller's. */
typedef struct {
    ap_record *record;
    uint64_t capacity;
    uint64_t count; /* records ever begun */
    uint32_t calls; /* runs ever begun */
    uint32_t ticks; /* times are those of the processor's own counter, where it has one; 0: ns of CLOCK_MONOTONIC */
} ap_trace;

/* Python's functions of these kinds of names, by which a call that waits lets handlers of signals run. */
typedef struct {
    int (*ensure)(void);                      /* PyGILState_Ensure */
    int (*check)(void);                       /* PyErr_CheckSignals */
    void (*fetch)(void **, void **, void **); /* PyErr_Fetch */
    void (*release)(int);                     /* PyGILState_Release */
    void *raised[3];                          /* of a call that came to AP_STOPPED */
    int32_t in_main_thread;                   /* the next call: only there handlers of signals run */
} ap_hearing;

/* NULL: no more. The memory stays until then. */
void ap_wire_hear(ap_wire *wire, ap_hearing *hearing);

/* From now on each ap_run over this wire writes records there; NULL: no more. The memory stays until then. */
void ap_wire_trace(ap_wire *wire, ap_trace *trace);

/* One moment by the clock of a trace, and in nanoseconds of CLOCK_MONOTONIC. */
void ap_trace_moment(const ap_trace *trace, int64_t moments[2]);

/* Waits until nothing of this wire is under way, and gives it up. */
void ap_wire_close(ap_wire *wire);

#endif
