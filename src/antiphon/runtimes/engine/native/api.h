/* The native engine: runs the programs that `antiphon export --to program` writes (docs/program.md).
 *
 *   ap_program  a program file, checked; knows no size, type or operator
 *   ap_plan     the work of one rank at one size: addresses, order of starts, dependencies; reused between runs
 *   ap_wire     a transport: messages between ranks, in order per peer and channel; one connection of this process
 *
 * No function ends the process or prints. On failure a function returns a code (or NULL) and fills an ap_error.
 *
 * Threading: a program, a plan and a wire may be used by one thread at a time; different ones by different threads.
 * Ownership: a program is freed by ap_close, a plan by ap_release, a wire by ap_wire_close. Wires come from the functions
 *   *_open of transport.h and transport_*.h. A plan outlives its program; bytes and buffers are the caller's and outlive
 *   their use.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define AP_ABI 3 /* changes whenever a signature or structure here does */

typedef struct ap_program ap_program;
typedef struct ap_plan ap_plan;
typedef struct ap_wire ap_wire;
typedef struct ap_pace ap_pace; /* how background work proceeds (prefault.h); here as several headers pass it on */

/* Codes of an ap_error. STUCK: no operation can start, as the program is wrong. MISMATCH: processes are in different calls.
 * STOPPED: a signal handler raised an exception while the call waited. */
enum {
    AP_OK = 0, AP_INVALID = 1, AP_UNSUPPORTED = 2, AP_MEMORY = 3, AP_TRANSPORT = 4, AP_TIMEOUT = 5, AP_STUCK = 6,
    AP_MISMATCH = 7, AP_STOPPED = 8
};

/* Data types; the first twelve are numbered as in NCCL. */
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
    uint32_t kind, ranks, members, roots, blocks, channels; /* kind: the collective (program.h); the others are counts */
    uint32_t variants;      /* bit 0: the file has a program for calls out of place, bit 1: in place */
    uint64_t buffer_weight; /* the bytes of a call = buffer_weight * unit * bytes of an element */
} ap_facts;

/* What a run of a plan needs: elements of its buffers; instances of operations (plan.h), messages, and sends among these. */
typedef struct {
    uint64_t input, output, scratch;
    uint64_t instances, messages, sends;
} ap_needs;

int ap_abi(void);

/* Opens a program file in memory, after checking its head. `bytes` are not copied and must not change until ap_close. */
ap_program *ap_open_bytes(const void *bytes, size_t size, ap_error *error);
void ap_close(ap_program *program);
void ap_describe(const ap_program *program, ap_facts *facts);

/* Makes the plan of this rank, after checking its section of the file in full. `unit`: elements per weight 1 of a block. The
 * plan does not need its program any longer. */
ap_plan *ap_prepare(const ap_program *program, uint32_t rank, int in_place, uint64_t unit, ap_error *error);
/* The same with other numbers of slices than planned. `slices`: in quarters of the planned number: 4 leaves it, 8 doubles it.
 * All ranks must choose the same. */
ap_plan *ap_prepare_sliced(const ap_program *program, uint32_t rank, int in_place, uint64_t unit, uint32_t slices,
                           ap_error *error);
/* Makes the plan of an uneven alltoall, out of place, by a program for one of even blocks: a transfer that moves a
 * share of an even block moves the same share of the uneven one. counts[r * members + s] elements go from member s to
 * member r. Blocks lie one after another. All ranks must pass the same. */
ap_plan *ap_prepare_counts(const ap_program *program, uint32_t rank, const uint64_t *counts, ap_error *error);
void ap_release(ap_plan *plan);
void ap_get_needs(const ap_plan *plan, ap_needs *needs);

/* Splits messages of more than `bytes`, so that the first piece is combined while the next one arrives. All ranks must choose
 * the same. 0: never. Without this call: into at most four pieces of 128 KiB or more if values are combined or broadcast, else
 * never. */
int ap_split(ap_plan *plan, uint64_t bytes, ap_error *error);

/* Allocates the memory that a run with this type needs; otherwise the first run allocates it. */
int ap_make_ready(ap_plan *plan, int type, ap_error *error);

/* Runs all operations of this rank. `input_bytes` and `output_bytes`: the sizes of the caller's buffers; if one is smaller than
 * the plan needs, nothing is touched (AP_INVALID). In place `input` is ignored. The run ends after `timeout` seconds without
 * any progress (0: no limit); after that, or AP_TRANSPORT, the wire can only be closed. */
int ap_run(ap_plan *plan, const void *input, uint64_t input_bytes, void *output, uint64_t output_bytes, int type, int operation,
           ap_wire *wire, double timeout, ap_error *error);

/* Bytes of an element; 0: no such type. */
size_t ap_type_size(int type);

/* result = ((operand 0 + operand 1) + operand 2) + ..., with the operator for +: what a fold of a program does. */
void ap_fold(void *result, const void *const *operands, size_t operand_count, size_t elements, int type, int operation);
/* Divides each value by `count`, as an average does with the sum. */
void ap_divide(void *values, size_t elements, uint64_t count, int type);

/* Identifies a collective call: all processes of a group must make the same one. The members before `rank` are compared; the
 * numbers for kinds, operators and types are chosen by the caller of this library. */
typedef struct {
    uint64_t group;  /* digest of what else must be the same, such as the book */
    uint64_t number; /* of the call in the group */
    uint64_t bytes;
    uint8_t kind, operation, type, stage, unused[4]; /* stage: 0: the call itself; above 0: an exchange before or after it */
    int32_t root;
    uint32_t rank; /* that makes the call */
} ap_call_id;

/* From now on each ap_run, ap_agree and ap_run_uneven over this wire is the call that *call identifies when it begins.
 * A message of another call ends it with AP_MISMATCH. All processes of a wire must compare calls, or none. (Wires of
 * threads cannot.) */
void ap_wire_call(ap_wire *wire, const ap_call_id *call);
/* After AP_MISMATCH: the call that the other process made. */
void ap_wire_other_call(const ap_wire *wire, ap_call_id *other);
/* Before closing: AP_MISMATCH if a message of a past call has arrived that no receive took. (Messages that arrive later, or lie
 * within MPI, are not seen.) */
int ap_wire_check_unreceived(ap_wire *wire, ap_error *error);
/* Returns when all processes have begun the same call; moves no data. */
int ap_agree(ap_wire *wire, double timeout, ap_error *error);

/* An alltoall of uneven lengths, for which there is no plan: `send_bytes` to each rank, one block after another at `from`, and
 * `receive_bytes` from each to `to`, which must not overlap. *outcome, the same at all ranks:
 * MOVED: the data has moved. EVEN: nothing has moved, as all lengths are the same, and a plan can serve the call.
 * DISAGREED: nothing has moved, as a rank does not send what another expects. */
enum { AP_MOVED, AP_EVEN, AP_DISAGREED };
int ap_run_uneven(ap_wire *wire, const void *from, const uint64_t *send_bytes, void *to, const uint64_t *receive_bytes,
                  double timeout, int *outcome, ap_error *error);

/* An event of a rank: a message, a fold (combination of values) or a whole call. Times are by the clock of its ap_trace; an end
 * of 0: it has not ended. A message begins when it is handed to the transport, and ends when the transport reports it done. */
typedef struct {
    int64_t begin, end;
    uint64_t bytes;    /* of a message or of a fold's result; 0 for a call */
    uint32_t peer;     /* the other rank of a message, else the rank itself */
    uint32_t when;     /* in the order of the program (docs/program.md): messages of step s at 2 s, its folds at 2 s + 1 */
    uint32_t instance; /* number of the message or fold in the rank's plan (plan.h); for a call the number of the run */
    uint16_t channel;
    uint8_t kind; /* AP_TRACE_... */
    uint8_t unused;
} ap_record;

/* As AP_SEND, AP_RECEIVE and AP_FOLD (program.h); 3 would be a join, which is not recorded. */
enum { AP_TRACE_SEND, AP_TRACE_RECEIVE, AP_TRACE_FOLD, AP_TRACE_CALL = 4 };

/* A ring buffer of events: number i is record[i % capacity], and `capacity` is a power of two. All memory is the caller's. */
typedef struct {
    ap_record *record;
    uint64_t capacity;
    uint64_t count; /* records begun so far, also those overwritten */
    uint32_t calls; /* runs begun so far */
    uint32_t ticks; /* 1: times in ticks of the processor's counter, if it has one; 0: ns of CLOCK_MONOTONIC */
} ap_trace;

/* Functions of Python, by which a call that waits for long lets signal handlers run. */
typedef struct {
    int (*ensure)(void);                      /* PyGILState_Ensure */
    int (*check)(void);                       /* PyErr_CheckSignals */
    void (*fetch)(void **, void **, void **); /* PyErr_Fetch */
    void (*release)(int);                     /* PyGILState_Release */
    void *raised[3];                          /* after AP_STOPPED: the exception that a handler raised */
    int32_t in_main_thread;                   /* whether the next call is: Python runs handlers only there */
} ap_python_signals;

/* From now on calls over this wire check signals; NULL: no more. The memory must stay until then. */
void ap_wire_set_signals(ap_wire *wire, ap_python_signals *signals);

/* From now on each ap_run over this wire writes records there; NULL: no more. The memory must stay until then. */
void ap_wire_trace(ap_wire *wire, ap_trace *trace);

/* Reads both clocks at once: that of the trace, and CLOCK_MONOTONIC in nanoseconds. */
void ap_trace_moment(const ap_trace *trace, int64_t moments[2]);

/* Waits until no message of this wire is under way, and closes it. NULL: nothing to do. */
void ap_wire_close(ap_wire *wire);
