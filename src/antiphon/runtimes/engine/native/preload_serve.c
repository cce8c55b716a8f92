/* One collective call, from the wrappers of preload_calls.c: whether a plan serves it, where its data lies, running the plan.
 *
 * Whether a plan serves a call follows from what all its processes know (preload.h), so all decide alike.
 *
 * Threading: any thread, one call at a time on a communicator. The cache of fallback calls is changed under a lock and read
 *   without one: a reader checks that `version` is even and the same before and after.
 * Ownership: a call_state lives on the stack of its call; buffers are the caller's, staging memory the communicator's.
 */
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "copy.h"
#include "plan.h"
#include "preload.h"
#include "transport.h"
#include "transport_mpi.h"

static const char *const function_names[AP_PAGE_KINDS] = { /* by kind: those of programs (AP_KINDS), then alltoallv */
    "MPI_Bcast",          "MPI_Reduce",    "MPI_Scatter",  "MPI_Gather",   "MPI_Allgather",
    "MPI_Reduce_scatter", "MPI_Allreduce", "MPI_Alltoall", "MPI_Alltoallv"};

/* A call while it is served. `reason` is everywhere AP_SERVED, or why the library gets the call (preload.h). */
typedef struct {
    const ap_call *call;
    ap_group *g;
    ap_row *row; /* of the table, for this kind, root and size */
    ap_data_type send, recv;
    uint32_t slices;       /* of the row's plan, over those planned, times AP_PLANNED_SLICES */
    uint64_t unit;         /* elements of a block for the plan: bytes, unless values are combined (find_type) */
    uint64_t block, bytes; /* bytes of a block, and of the call */
    int at_root, type, op; /* type, op: of the engine (api.h) */
    uint64_t *counts; /* of an alltoallv: the bytes of each block, as ap_prepare_counts takes them */
} call_state;

/* ---- calls cached as fallbacks ---- */

ap_fallback_call ap_fallback_calls[AP_FUNCTIONS][AP_FALLBACK_CALLS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for changing entries */

/* Changes an entry to the arguments of a call, or clears it (NULL); the caller holds the lock. */
static void write_entry(ap_fallback_call *entry, const ap_call *c) {
    const uint32_t version = atomic_load_explicit(&entry->version, memory_order_relaxed);
    atomic_store_explicit(&entry->version, version + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&entry->count, c ? c->recv_count : -1, memory_order_relaxed);
    if (c) {
        entry->library = c->library;
        atomic_store_explicit(&entry->root, c->root, memory_order_relaxed);
        atomic_store_explicit(&entry->comm, (uint64_t)(uintptr_t)c->comm, memory_order_relaxed);
        atomic_store_explicit(&entry->type, (uint64_t)(uintptr_t)c->recv_type, memory_order_relaxed);
    }
    atomic_store_explicit(&entry->version, version + 2, memory_order_release);
}

/* Caches the arguments of a call that goes to the library because of its size, if they identify all equal calls. */
static void cache_fallback(const call_state *x) {
    const ap_call *c = x->call;
    if (ap_preload.set.report || ap_preload.set.watch_path[0] || ap_has_counts(&c->counts) || !ap_is_built_in(c->recv_type)) return;
    if (c->kind == AP_GATHER || c->kind == AP_SCATTER) return; /* their significant arguments differ between processes */
    pthread_mutex_lock(&lock);
    write_entry(ap_fallback_slot(c->function, c->recv_count), c);
    pthread_mutex_unlock(&lock);
}

/* From now on all calls of this function go to the library at once, if possible without passing through here (ap_bypass). */
static void pass_on_every_call(const ap_call *c) {
    /* But a communicator that waits for plans must count its calls, of every kind. */
    if (!ap_preload.on_is_final || ap_preload.automatic || ap_preload.set.report || ap_preload.set.watch_path[0]) return;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < AP_FALLBACK_CALLS; i++) {
        ap_fallback_call *entry = &ap_fallback_calls[c->function][i];
        entry->library = c->library;
        atomic_store_explicit(&entry->every, 1, memory_order_release);
    }
    ap_bypass(c->own, c->library);
    pthread_mutex_unlock(&lock);
}

/* Whether any table, for any communicator, has a plan for this kind. */
static int has_plans(int kind) {
    for (uint32_t t = 0; t < ap_preload.tables; t++) {
        const ap_book *book = ap_preload.table[t].book;
        for (uint32_t i = 0; i < book->pages; i++)
            if (book->page[i].kind == (uint32_t)kind && book->page[i].program >= 0) return 1;
    }
    return 0;
}

void ap_fallbacks_clear(void) {
    pthread_mutex_lock(&lock);
    for (int f = 0; f < AP_FUNCTIONS; f++)
        for (int i = 0; i < AP_FALLBACK_CALLS; i++)
            if (atomic_load_explicit(&ap_fallback_calls[f][i].version, memory_order_relaxed))
                write_entry(&ap_fallback_calls[f][i], NULL);
    pthread_mutex_unlock(&lock);
}

/* ---- whether a plan serves a call ---- */

static int is_reduction(int kind) { return kind == AP_REDUCE || kind == AP_REDUCESCATTER || kind == AP_ALLREDUCE; }

/* AP_SERVED, or why these counts per process, known to all processes, have no plan: plans need blocks of one size. */
static int compare_counts(const ap_counts *counts, int size) {
    int alike = 1;
    for (int i = 0; i < size; i++) {
        if (ap_count_at(counts, i) < 0) return AP_BAD_ARGUMENTS;
        alike &= ap_count_at(counts, i) == ap_count_at(counts, 0);
    }
    return alike ? AP_SERVED : AP_UNEVEN;
}

/* Finds the size of a call, alike at all processes, from the arguments that are significant at this one. AP_SERVED, or why no
 * plan serves it. */
static int measure_call(call_state *x) {
    const ap_call *c = x->call;
    int by_send = (c->kind == AP_GATHER && !x->at_root) || (c->kind == AP_SCATTER && x->at_root);
    MPI_Count count = by_send ? c->send_count : c->recv_count;
    ap_data_type *data = by_send ? &x->send : &x->recv;
    if (ap_has_counts(&c->counts)) {
        int reason = compare_counts(&c->counts, x->g->size);
        if (reason) return reason;
        count = ap_count_at(&c->counts, 0);
    }
    if (count < 0 || !ap_type_of(by_send ? c->send_type : c->recv_type, data)) return AP_BAD_ARGUMENTS;
    x->unit = (uint64_t)count;
    int one_block = c->kind == AP_BROADCAST || c->kind == AP_REDUCE || c->kind == AP_ALLREDUCE;
    uint64_t times = (uint64_t)(one_block ? 1 : x->g->size);
    if (__builtin_mul_overflow(x->unit, (uint64_t)data->size, &x->block) ||
        __builtin_mul_overflow(x->block, times, &x->bytes) || x->bytes > INT64_MAX)
        return AP_LARGE;
    return x->bytes ? AP_SERVED : AP_NO_DATA;
}

/* Sets type and operator for the plan; AP_SERVED, or why a plan cannot serve them. */
static int find_type(call_state *x) {
    const ap_call *c = x->call;
    if (!is_reduction(c->kind)) { /* types may differ between processes: move bytes, whose number all know */
        x->unit = x->block, x->type = AP_UINT8, x->op = AP_SUM; /* any operator: nothing is combined */
        /* Some process may have to pack, and all decide alike: no plan if MPI_Pack adds bytes of its own, or takes fewer. */
        if (!ap_preload.packs || (MPI_VERSION < 4 && x->block > INT_MAX)) return AP_LARGE;
        return AP_SERVED;
    }
    x->op = ap_operator_of(c->op), x->type = x->recv.type;
    if (x->op < 0) return AP_OTHER_OPERATOR;
    return x->type < 0 ? AP_OTHER_TYPE : AP_SERVED;
}

/* Whether a communicator is new; counts its calls. Connecting its processes takes as long as some calls: not worth it
 * for a communicator that is freed soon. */
static int is_new(call_state *x) {
    ap_group *g = x->g;
    if (g->connect_tried || g->comm == MPI_COMM_WORLD || g->calls >= ap_preload.set.new_calls) return 0;
    g->calls++;
    return 1;
}

/* AP_SERVED, or why the call is left to the library. */
static int check_call(call_state *x) {
    const ap_call *c = x->call;
    ap_group *g = x->g;
    /* the size is measured below while plans are awaited, and for those who watch */
    const int needs_size = g->reason == AP_WAITING || (g->reason == AP_NO_TABLE && ap_preload.set.watch_path[0]);
    if (g->reason && !needs_size) return g->reason;
    const int is_bad = ap_has_root(c->kind) && (c->root < 0 || c->root >= g->size);
    x->at_root = g->rank == c->root;
    int reason = is_bad ? AP_BAD_ARGUMENTS : measure_call(x);
    if (g->reason == AP_NO_TABLE) return AP_NO_TABLE;
    if (reason) return reason;
    if (g->reason) return g->reason;
    if ((reason = ap_group_choose_row(g, c->kind, c->root, x->bytes, &x->row))) {
        cache_fallback(x); /* the reason follows from these arguments alone, so equal calls have it, too */
        if (!has_plans(c->kind)) pass_on_every_call(c);
        return reason;
    }
    if ((reason = find_type(x))) return reason;
    if (x->row->state == AP_ROW_REFUSED && !ap_preload.set.learns) return AP_REFUSED;
    return is_new(x) ? AP_NEW_COMMUNICATOR : AP_SERVED;
}

/* ---- where its data lies ---- */

typedef struct {
    void *buffer; /* what the plan uses: the user's buffer, or staging memory with its elements as plain bytes */
    void *user;   /* the user's buffer */
    MPI_Count count; /* elements of `type` in a block, by this process's arguments */
    MPI_Count size;  /* bytes of an element */
    MPI_Datatype type;
    MPI_Aint extent;
    uint64_t blocks;         /* that the call sends or receives here; 0: arguments of this side are not significant */
    uint64_t bytes;          /* of all blocks, in `buffer` */
    const ap_counts *places; /* where blocks begin; NULL: one after another */
} buffer_side;

/* Makes a type of `count` elements at their absolute addresses, relative to another origin than MPI_BOTTOM, to which MPICH
 * refuses to unpack. Returns an MPI error code. */
static int type_seen_from(void *origin, MPI_Datatype type, int count, MPI_Datatype *moved_type) {
    const char *const bottom = MPI_BOTTOM;
    const MPI_Aint displacement = PMPI_Aint_diff((MPI_Aint)bottom, (MPI_Aint)origin);
    int code = PMPI_Type_create_hindexed(1, &count, &displacement, type, moved_type);
    return code ? code : PMPI_Type_commit(moved_type);
}

/* Packs elements into plain bytes (`into`), or unpacks them; `size` > 0: bytes per element. Returns an MPI error code. */
static int convert_elements(MPI_Comm comm, void *user, MPI_Datatype type, MPI_Aint extent, uint64_t size, uint64_t count,
                            char *bytes, int into) {
    const uint64_t max_elements = size < 1u << 30 ? (1u << 30) / size : 1; /* MPI counts packed bytes in an int */
    for (uint64_t done = 0; done < count;) {
        uint64_t n = count - done < max_elements ? count - done : max_elements;
        char *from = (char *)user + (MPI_Aint)done * extent, *to = bytes + done * size;
        const uint64_t elements = n, bytes_packed = n * size;
        const int bottom = from == (char *)MPI_BOTTOM;
        MPI_Datatype packed_type = type;
        int code = MPI_SUCCESS;
        /* any origin in our memory will do: the new type has the displacement of its elements from there */
        if (bottom) code = type_seen_from(bytes, type, (int)n, &packed_type), from = bytes, n = 1;
        if (code) return code;
#if MPI_VERSION >= 4
        MPI_Count at = 0;
        code = into ? PMPI_Pack_c(from, (MPI_Count)n, packed_type, to, (MPI_Count)bytes_packed, &at, comm)
                    : PMPI_Unpack_c(to, (MPI_Count)bytes_packed, &at, from, (MPI_Count)n, packed_type, comm);
#else
        int at = 0;
        code = into ? PMPI_Pack(from, (int)n, packed_type, to, (int)bytes_packed, &at, comm)
                    : PMPI_Unpack(to, (int)bytes_packed, &at, from, (int)n, packed_type, comm);
#endif
        if (bottom) PMPI_Type_free(&packed_type);
        if (code) return code;
        done += elements;
    }
    return MPI_SUCCESS;
}

/* The address of a block in the user's buffer. */
static char *user_block(const buffer_side *s, uint64_t block) {
    MPI_Aint elements = s->places ? ap_displacement_at(s->places, (int)block) : (MPI_Aint)block * (MPI_Aint)s->count;
    return (char *)s->user + elements * s->extent;
}

/* Packs blocks of the user's buffer into `buffer` (`into`), or unpacks them. Returns an MPI error code. */
static int convert_blocks(const call_state *x, const buffer_side *s, uint64_t first, uint64_t blocks, int into) {
    const uint64_t at_once = s->places ? 1 : blocks; /* blocks per conversion */
    int code = MPI_SUCCESS;
    for (uint64_t i = first; i < first + blocks && !code; i += at_once)
        code = convert_elements(x->call->comm, user_block(s, i), s->type, s->extent, (uint64_t)s->size,
                                at_once * (uint64_t)s->count, (char *)s->buffer + i * (uint64_t)s->count * (uint64_t)s->size,
                                into);
    return code;
}

/* Replaces a side's buffer by staging memory (AP_STAGED_...) of the same size. Like the functions below that take `error`, it
 * returns AP_OK or the error's code. */
static int use_staging(call_state *x, buffer_side *s, int number, ap_error *error) {
    s->buffer = ap_group_staging(x->g, number, s->bytes, error);
    return s->buffer ? AP_OK : error->code;
}

/* Staging memory for elements that are not contiguous. */
static int stage_elements(call_state *x, buffer_side *s, int number, ap_error *error) {
    MPI_Aint low;
    if (!s->bytes || PMPI_Type_get_extent(s->type, &low, &s->extent))
        return ap_fail(error, AP_INVALID, "a data type is empty here, and at other processes it is not");
    return use_staging(x, s, number, error);
}

typedef struct {
    buffer_side in, out;
    int in_place;
} buffer_sides;

/* Sets the bytes of a side by the caller's count and type, which need not be those of other processes. A count of -1:
 * the type is invalid (locate_buffers). */
static int set_bytes(buffer_side *s, const ap_data_type *data, ap_error *error) {
    if (!s->blocks) return AP_OK; /* its arguments are not significant */
    unsigned __int128 bytes = (unsigned __int128)s->count * (uint64_t)data->size * s->blocks;
    if (s->count < 0 || bytes > PTRDIFF_MAX) return ap_fail(error, AP_INVALID, "there is no memory of that size");
    s->size = data->size, s->bytes = (uint64_t)bytes;
    return AP_OK;
}

/* Whether the listed blocks, of equal size, lie one after another, from the beginning of the buffer. */
static int are_contiguous(const ap_call *c, int size) {
    for (int i = 0; i < size; i++)
        if (ap_displacement_at(&c->counts, i) != (MPI_Aint)i * (MPI_Aint)ap_count_at(&c->counts, 0)) return 0;
    return 1;
}

/* Finds the blocks that this process sends and receives, and whether the call is in place. Not for an alltoallv. */
static int locate_buffers(call_state *x, buffer_sides *out, ap_error *error) {
    const ap_call *c = x->call;
    const uint64_t all = (uint64_t)x->g->size;
    /* The blocks of a process that sends or gets any (`sends`, `gets` below); 'n': one per process. A broadcast has one
     * buffer, its output, and its input is MPI_IN_PLACE (preload_calls.c). */
    static const struct { char sends, gets; } blocks_of[AP_KINDS] = {
        [AP_BROADCAST] = {0, 1}, [AP_ALLGATHER] = {1, 'n'}, [AP_REDUCESCATTER] = {'n', 1}, [AP_ALLREDUCE] = {1, 1},
        [AP_ALLTOALL] = {'n', 'n'}, [AP_REDUCE] = {1, 1}, [AP_GATHER] = {1, 'n'}, [AP_SCATTER] = {'n', 1}};
    const int kind = c->kind, listed = ap_has_counts(&c->counts);
    const int takes_unit = kind == AP_REDUCESCATTER && listed; /* its counts are in the list, and all alike */
    buffer_sides s = {.in = {.type = c->send_type, .count = takes_unit ? (MPI_Count)x->unit : c->send_count},
                      .out = {.type = c->recv_type, .count = takes_unit ? (MPI_Count)x->unit : c->recv_count}};
    const int only_root_gets = kind == AP_REDUCE || kind == AP_GATHER, only_root_sends = kind == AP_SCATTER;
    const int gets = x->at_root || !only_root_gets, sends = x->at_root || !only_root_sends;
    s.in.user = sends ? (void *)(uintptr_t)c->send : NULL, s.out.user = gets ? c->recv : NULL;
    s.in.blocks = !sends ? 0 : blocks_of[kind].sends == 'n' ? all : (uint64_t)blocks_of[kind].sends;
    s.out.blocks = !gets ? 0 : blocks_of[kind].gets == 'n' ? all : (uint64_t)blocks_of[kind].gets;
    if (sends && c->send == MPI_IN_PLACE && kind == AP_REDUCESCATTER) {
        s.in.user = c->recv; /* not in place for the plan, which would overwrite the rest of the buffer */
    } else if (sends && c->send == MPI_IN_PLACE) {
        s.in_place = 1, s.in.blocks = 0, s.in.user = NULL;
    } else if (kind == AP_SCATTER && x->at_root && c->recv == MPI_IN_PLACE) {
        s.in_place = 1;
        s.out = s.in; /* the root's own block stays where it is */
        s.in.blocks = 0, s.in.user = NULL;
    }
    if (kind == AP_ALLGATHER && listed) s.out.count = ap_count_at(&c->counts, 0);
    if (kind == AP_ALLGATHER && listed && !are_contiguous(c, x->g->size)) s.out.places = &c->counts;
    s.in.buffer = s.in.user, s.out.buffer = s.out.user;
    if (s.in.blocks && !ap_type_of(s.in.type, &x->send)) s.in.count = -1;
    if (s.out.blocks && !ap_type_of(s.out.type, &x->recv)) s.out.count = -1;
    *out = s;
    return set_bytes(&out->in, &x->send, error) || set_bytes(&out->out, &x->recv, error) ? error->code : AP_OK;
}

/* Packs buffers whose elements or blocks are not contiguous. *unpacks: the result has to be unpacked into the user's buffer.
 * *code: an MPI error. */
static int pack_buffers(call_state *x, buffer_sides *s, int *unpacks, int *code, ap_error *error) {
    const ap_call *c = x->call;
    /* `out` is what the root of a scatter sends: nothing to unpack */
    int only_sent = c->kind == AP_SCATTER && x->at_root && s->in_place;
    *unpacks = 0, *code = MPI_SUCCESS;
    if (s->in.blocks && !x->send.plain) {
        if (stage_elements(x, &s->in, AP_STAGED_IN, error)) return error->code;
        *code = convert_blocks(x, &s->in, 0, s->in.blocks, /* into */ 1);
    }
    if (s->out.blocks && !*code && (!x->recv.plain || s->out.places)) {
        if (stage_elements(x, &s->out, AP_STAGED_OUT, error)) return error->code;
        /* what the plan reads from the output if the call is in place: this process's own block, or all */
        int reads_own_block = c->kind == AP_ALLGATHER || c->kind == AP_GATHER; /* in a broadcast only the root has data */
        int reads_output = s->in_place && (c->kind != AP_BROADCAST || x->at_root);
        uint64_t first = reads_own_block ? (uint64_t)x->g->rank : 0, blocks = reads_own_block ? 1 : s->out.blocks;
        if (reads_output) *code = convert_blocks(x, &s->out, first, blocks, /* into */ 1);
        *unpacks = !only_sent && !(c->kind == AP_BROADCAST && x->at_root);
    }
    return *code ? ap_fail(error, AP_TRANSPORT, "MPI could not bring elements together") : AP_OK;
}

/* ---- running ---- */

/* Prints an error, and raises one of this class on the communicator; returns the class. */
static int raise_error(MPI_Comm comm, int class, const char *function, const ap_error *error) {
    fprintf(stderr, "antiphon: %s on process %d: %s\n", function, ap_preload.rank, error->text);
    PMPI_Comm_call_errhandler(comm, class);
    return class;
}

/* The bytes that a process sends (`sends`) or receives by the counts of an alltoallv. */
static uint64_t count_bytes(const call_state *x, int process, int sends) {
    const uint64_t size = (uint64_t)x->g->size;
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < size; i++) bytes += x->counts[sends ? i * size + (uint64_t)process : (uint64_t)process * size + i];
    return bytes;
}

/* Runs an alltoallv by its plan, as run_plan does. */
static int run_counts(call_state *x, int *refused, int *code, ap_error *error) {
    ap_group *g = x->g;
    ap_plan *plan = ap_plan_for_counts(g, x->row, x->counts, x->bytes, refused, code, error);
    if (!plan) return *refused ? AP_OK : AP_INVALID;
    int failed = ap_run(plan, x->call->send, count_bytes(x, g->rank, /* sends */ 1), x->call->recv,
                        count_bytes(x, g->rank, /* sends */ 0), x->type, x->op, g->wire, ap_preload.set.timeout, error);
    ap_release(plan);
    if (failed) return failed;
    if (ap_preload.set.agrees && ap_mpi_wait_for_all(g->comm, ap_preload.set.timeout, "the end of the call", error))
        return error->code;
    return AP_OK;
}

/* Runs a call by its plan. AP_OK and *refused: all processes leave it to the library. Else an error of the engine, and in *code
 * that of MPI if there was one. */
static int run_plan(call_state *x, int *refused, int *code, ap_error *error) {
    ap_group *g = x->g;
    buffer_sides s;
    int unpacks = 0;
    *refused = 0;
    if (x->counts) return run_counts(x, refused, code, error);
    if (locate_buffers(x, &s, error)) return AP_INVALID;
    ap_plan *plan = ap_plan_for(g, x->row, x->slices, x->unit, x->bytes, x->type, s.in_place, refused, code, error);
    if (!plan) return *refused ? AP_OK : AP_INVALID;
    if (!is_reduction(x->call->kind) && pack_buffers(x, &s, &unpacks, code, error)) return AP_INVALID;
    /* equal buffers: a reduce_scatter in place, as MPI forbids them otherwise */
    int through_staging = s.in.buffer && s.in.buffer == s.out.buffer;
    if (through_staging && use_staging(x, &s.out, AP_STAGED_OUT, error)) return error->code;
    int failed = ap_run(plan, s.in.buffer, s.in.bytes, s.out.buffer, s.out.bytes, x->type, x->op, g->wire,
                        ap_preload.set.timeout, error);
    if (failed) return failed;
    if (ap_preload.set.agrees && ap_mpi_wait_for_all(g->comm, ap_preload.set.timeout, "the end of the call", error))
        return error->code;
    if (through_staging) ap_copy(s.out.user, s.out.buffer, (size_t)s.out.bytes);
    if (unpacks && (*code = convert_blocks(x, &s.out, 0, s.out.blocks, /* into */ 0)))
        return ap_fail(error, AP_TRANSPORT, "MPI could not spread elements");
    return AP_OK;
}

/* Returns 1 for ap_serve. Later calls that a plan would serve on this communicator fail, too. */
static int fail_call(call_state *x, int *code, const ap_error *error) {
    x->g->broken = 1;
    *code = raise_error(x->call->comm, MPI_ERR_OTHER, function_names[x->call->kind], error);
    return 1;
}

/* If calls are watched: the call that this thread leaves to the library, and when it began (seconds of ap_now; 0: no call). */
static _Thread_local call_state left_call;
static _Thread_local double left_since;

/* Counts a call that goes to the library. Returns 0 for ap_serve. */
static int fall_back(const call_state *x, int reason) {
    if (!x->g || !x->g->rank) ap_report_fallback(x->call->kind, reason);
    if (ap_preload.set.watch_path[0]) left_call = *x, left_since = ap_now();
    return 0;
}

void ap_served_by_library(double *stopwatch) {
    if (stopwatch) ap_trial_end(stopwatch);
    if (left_since > 0 && left_call.g)
        ap_report_watched(left_call.g, left_call.call->kind, NULL, 0, left_call.bytes, ap_now() - left_since);
    left_since = 0;
}

/* Whether first calls are to be compared with the library's: the plan is unmeasured, and was not made for a fixed order of
 * combining (which the library might not keep). */
static int needs_trial(const call_state *x) {
    const ap_page *page = x->row->page;
    return ap_preload.set.compares && !page->measured && !page->ordered;
}

/* Returns what ap_serve does. *stopwatch: NULL, or the seconds of this call; ap_served_by_library stops it for the library. */
static int serve_by_plan(call_state *x, double **stopwatch, int *code) {
    ap_error error = {0, ""};
    int refused = 0;
    if (!x->g) {
        ap_fail(&error, AP_MEMORY, "out of memory");
        *code = raise_error(x->call->comm, MPI_ERR_OTHER, function_names[x->call->kind], &error);
        return 1;
    }
    if (x->g->broken) {
        ap_fail(&error, AP_TRANSPORT, "an earlier call on this communicator failed");
        return fail_call(x, code, &error);
    }
    if (ap_preload.device) {
        int on_any_gpu = 0;
        if ((*code = ap_gpu_buffer_anywhere(x->call, &on_any_gpu))) return 1;
        if (on_any_gpu) return fall_back(x, AP_DEVICE);
    }
    *code = MPI_SUCCESS;
    const double began = ap_preload.set.report || ap_preload.set.watch_path[0] ? ap_now() : 0;
    const int learning = ap_is_learned(x->row->page);
    int reason = AP_SERVED;
    x->slices = AP_PLANNED_SLICES;
    if (learning) {
        reason = ap_learn_begin(x->g, &x->row, &x->slices, x->call->kind, x->bytes, stopwatch, code, &error);
    } else {
        if (x->row->state == AP_ROW_UNCHECKED && !ap_row_usable(x->g, x->row, code, &error)) {
            if (*code) return fail_call(x, code, &error);
            return fall_back(x, x->g->reason ? x->g->reason : AP_REFUSED);
        }
        const int op = is_reduction(x->call->kind) ? x->op : 0; /* equal at all processes; unused where nothing is combined */
        /* the bytes of uneven calls hardly repeat: those of a size class are compared */
        const uint64_t compared = x->counts ? (uint64_t)1 << (63 - __builtin_clzll(x->bytes)) : x->bytes;
        if (needs_trial(x)) reason = ap_trial_begin(x->g, x->row, x->call->kind, compared, op, stopwatch, code);
    }
    if (*code && !error.code) ap_fail(&error, AP_TRANSPORT, "what calls took could not be compared");
    if (*code) return fail_call(x, code, &error);
    if (reason) return fall_back(x, reason);
    if (run_plan(x, &refused, code, &error)) return fail_call(x, code, &error);
    /* Of a trial, the plan's turn then has the library's time: the row is refused from now on (alltoallv: for these counts). */
    if (refused && learning) ap_learn_refuse(x->g), *stopwatch = NULL;
    if (refused) return fall_back(x, AP_REFUSED);
    if (*stopwatch) ap_trial_end(*stopwatch);
    atomic_store_explicit(&ap_preload.served, 1, memory_order_relaxed);
    ap_use *use = x->row->use;
    if (ap_preload.set.report && use && !x->g->rank) ap_report_call(use, x->bytes, ap_now() - began);
    if (ap_preload.set.watch_path[0]) ap_report_watched(x->g, x->call->kind, x->row->page, x->slices, x->bytes, ap_now() - began);
    *code = MPI_SUCCESS;
    return 1;
}

/* ---- alltoallv: each process knows its own counts only ---- */

/* Writes the bytes of the blocks of one side of an alltoallv. False if a plan cannot use the user's buffer as it is. */
static int list_bytes(const call_state *x, const void *buffer, MPI_Datatype type, const ap_counts *counts, uint64_t *bytes) {
    ap_data_type data;
    MPI_Aint at = 0;
    if (buffer == MPI_IN_PLACE || !ap_type_of(type, &data) || !data.plain) return 0;
    for (int i = 0; i < x->g->size; i++) {
        const MPI_Count count = ap_count_at(counts, i);
        if (count < 0 || count > PTRDIFF_MAX / data.size || (count && ap_displacement_at(counts, i) != at)) return 0;
        bytes[i] = (uint64_t)count * (uint64_t)data.size;
        if (__builtin_add_overflow(at, (MPI_Aint)count, &at)) return 0;
    }
    return 1;
}

/* Exchanges the counts of an alltoallv: fills `counts` (receiver x sender) and `bytes`. AP_SERVED, or why no plan serves it, alike
 * at all processes. *code: an error of MPI. */
static int exchange_counts(call_state *x, int *code) {
    const ap_call *c = x->call;
    const size_t size = (size_t)x->g->size, row = 2 * size + 1; /* bytes to and from each process; whether plans can serve it */
    /* ap_group_take_counts has made room for size * size bytes of blocks, then a row of every process, then our own row */
    uint64_t *all = x->counts + size * size, *own = all + size * row;
    int reason = AP_SERVED;
    memset(own, 0, row * sizeof *own);
    own[2 * size] = list_bytes(x, c->send, c->send_type, &c->send_counts, own) &&
                    list_bytes(x, c->recv, c->recv_type, &c->counts, own + size);
    *code = PMPI_Allgather(own, (int)row, MPI_UINT64_T, all, (int)row, MPI_UINT64_T, c->comm);
    for (size_t r = 0; r < size && !*code; r++) {
        if (!all[r * row + 2 * size]) reason = AP_SPREAD;
        for (size_t s = 0; s < size; s++) {
            x->counts[r * size + s] = all[s * row + r];
            /* sender and receiver disagree: the library gets the call, and MPI reports what is wrong */
            if (x->counts[r * size + s] != all[r * row + size + s]) reason = AP_SPREAD;
        }
    }
    for (int i = 0; i < x->g->size && !*code; i++)
        for (int sends = 0; sends < 2; sends++) {
            const uint64_t bytes = count_bytes(x, i, sends);
            x->bytes = bytes > x->bytes ? bytes : x->bytes;
        }
    return reason ? reason : x->bytes ? AP_SERVED : AP_NO_DATA;
}

/* As ap_serve, for an alltoallv on a communicator of the job. */
static int serve_alltoallv(call_state *x, double **stopwatch, int *code) {
    ap_error error = {0, ""};
    int reason = !x->g ? AP_SERVED : x->g->reason;
    if (!has_plans(AP_ALLTOALLV)) {
        pass_on_every_call(x->call);
        return fall_back(x, AP_NO_PLAN);
    }
    /* These decide alike at all processes before they exchange anything: whether a plan serves any size (AP_OTHER_KIND
     * does not depend on the size), and the first calls. */
    if (!reason && x->g && ap_choose(x->g->rows.chooser, AP_ALLTOALLV, /* no root */ -1, /* any size */ 0) == AP_OTHER_KIND)
        reason = AP_NO_PLAN;
    if (!reason && x->g && !x->g->broken && is_new(x)) reason = AP_NEW_COMMUNICATOR;
    if (reason) return fall_back(x, reason);
    if (!x->g || x->g->broken) return serve_by_plan(x, stopwatch, code); /* which raises the error */
    if (!ap_group_take_counts(x->g, code, &error)) return *code ? fail_call(x, code, &error) : fall_back(x, AP_REFUSED);
    x->counts = x->g->counts;
    reason = exchange_counts(x, code);
    if (*code) ap_fail(&error, AP_TRANSPORT, "the counts of the processes could not be exchanged");
    if (!*code && !reason) reason = ap_group_choose_row(x->g, AP_ALLTOALLV, -1, x->bytes, &x->row);
    x->type = AP_UINT8, x->op = AP_SUM;
    return *code ? fail_call(x, code, &error) : reason ? fall_back(x, reason) : serve_by_plan(x, stopwatch, code);
}

/* Whether the call is in place at this process, as `locate_buffers` decides. */
static int is_in_place(const call_state *x) {
    const ap_call *c = x->call;
    if (c->kind == AP_SCATTER) return x->at_root && c->recv == MPI_IN_PLACE;
    return c->kind != AP_REDUCESCATTER && c->send == MPI_IN_PLACE && (x->at_root || c->kind != AP_GATHER);
}

/* Handles a call while its communicator waits for plans: AP_SERVED, or why it is left to the library; -1: it failed (*code). */
static int wait_for_plans(call_state *x, int *code) {
    ap_error error = {0, ""};
    const ap_call *c = x->call;
    int plannable = !find_type(x);
    ap_recent_call recent = {
        .kind = c->kind, .root = c->root, .unit = x->unit, .bytes = x->bytes, .type = x->type, .in_place = is_in_place(x)};
    int switches = ap_auto_before_call(x->g, &recent, plannable, &error);
    if (!error.code) return switches ? check_call(x) : x->g->reason;
    fail_call(x, code, &error);
    return -1;
}

/* A call that goes to the library must cost next to nothing here. */
int ap_serve(const ap_call *call, double **stopwatch, int *code) {
    call_state x;
    *stopwatch = NULL;
    if (!ap_preload.on) {
        pass_on_every_call(call);
        return 0;
    }
    if (call->comm == MPI_COMM_NULL) return 0;
    x = (call_state){.call = call, .g = ap_group_of(call->comm)};
    if (x.g && x.g->needs_agreement && !x.g->reason) {
        ap_error error = {0, ""};
        if (!has_plans(call->kind)) {
            pass_on_every_call(call);
            return fall_back(&x, AP_NO_PLAN);
        }
        if (!ap_group_agree_on_failure(x.g, &error)) return fail_call(&x, code, &error);
    }
    if (call->kind == AP_ALLTOALLV) return serve_alltoallv(&x, stopwatch, code);
    int reason = x.g ? check_call(&x) : AP_SERVED;
    if (reason == AP_WAITING && (reason = wait_for_plans(&x, code)) < 0) return 1;
    return reason ? fall_back(&x, reason) : serve_by_plan(&x, stopwatch, code);
}
