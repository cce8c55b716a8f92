/* The run of a plan: one loop that starts what is ready, combines what has come, and polls the transport.
 *
 * An operation of the program is a message (send or receive), a fold (combining values, fold.h) or a join (which only waits).
 * It is carried out in one or more instances (layout.c), each of which is ready once all that it waits for is complete.
 *
 * Whatever is ready starts, except that messages of one lane (peer, channel, direction) start in their order: one of the
 * two ways that docs/program.md allows. At most AP_WINDOW messages of a lane are under way; as the first unfinished one of
 * every lane always may start, that cannot deadlock either.
 *
 * Threading: a plan and a wire are used by one thread at a time, the caller's; the loop starts none.
 * Ownership: the state of a run is on the stack and in the plan's layout, which a failed run leaves unusable (`broken`).
 */
#include <stdlib.h>
#include <string.h>

#include "copy.h"
#include "fold.h"
#include "plan.h"
#include "stage.h"
#include "prefault.h"
#include "trace.h"
#include "transport.h"

enum { BATCH = 64, POLL_BYTES = 1 << 15 }; /* completions taken at once; bytes combined between two polls of the transport */

typedef struct {
    ap_plan *plan;
    ap_layout *l;             /* the plan's */
    unsigned char *memory[3]; /* input, output, scratch: by AP_INPUT, AP_OUTPUT, AP_SCRATCH */
    size_t item;              /* bytes of an element */
    int type, operation;      /* api.h */
    ap_wire *wire;
    ap_error *error;
    double timeout;             /* seconds; 0: none */
    uint32_t done;              /* instances that are complete */
    uint32_t first, last;       /* ready folds and joins: work[first] to work[last - 1] */
    uint32_t active;            /* messages that the transport has */
    uint64_t folded;            /* bytes combined since it was polled */
    ap_trace *trace;            /* NULL: nothing is recorded */
    int64_t clock;              /* its last reading */
    int clock_is_current;       /* nothing that takes time was done since */
    int64_t arrival_time;       /* when the transport reported what has arrived */
} run;

/* Where a stretch begins in memory. */
static unsigned char *address_of(const run *r, ap_stretch s) { return r->memory[s.buffer] + s.begin * r->item; }

/* Copies the data of a message into its staging memory (`into`), or from there to its stretches, which ap_segments
 * (stage.h) lists. */
static void copy_stage(run *r, uint32_t instance, unsigned char *stage, int into) {
    ap_cursor c = ap_segments(&r->plan->task[r->l->task[instance]], instance);
    for (ap_stretch s; ap_next_segment(r->plan, &c, &s); stage += s.length * r->item) {
        if (into)
            ap_copy(stage, address_of(r, s), s.length * r->item);
        else
            ap_copy(address_of(r, s), stage, s.length * r->item);
    }
}

/* ---- what is recorded, on request ---- */

/* A record of an instance that begins now. */
static ap_record record_of(const run *r, uint32_t instance, size_t bytes) {
    const ap_task *s = &r->plan->task[r->l->task[instance]];
    uint32_t later = s->pieces > 1 ? 2 * (instance - s->first) : 0; /* piece i is due at the time of the task + 2 i */
    return (ap_record){.begin = r->clock, .bytes = bytes, .peer = s->peer, .when = s->when + later, .instance = instance,
                       .channel = (uint16_t)s->channel, .kind = s->kind};
}

/* Reading the clock takes about as long as the rest of recording: one reading serves for all that happens at once. */
static int64_t read_clock(run *r) {
    if (!r->clock_is_current) r->clock = ap_clock(r->trace), r->clock_is_current = 1;
    return r->clock;
}

/* Begins the record of a message. A receive only waits from here on, so an older reading of the clock will do for it. */
static void record_start(run *r, uint32_t instance, size_t bytes, int sends) {
    if (sends) read_clock(r);
    r->l->record[instance] = ap_trace_begin(r->trace, record_of(r, instance, bytes));
}

/* Begins the record of the call (*number); allocates the table of records of messages under way. */
static int record_call(run *r, uint64_t *number) {
    ap_layout *l = r->l;
    if (!l->record) l->record = calloc(l->instances ? l->instances : 1, sizeof *l->record);
    if (!l->record) return ap_fail(r->error, AP_MEMORY, "out of memory");
    *number = ap_trace_begin(r->trace, (ap_record){.begin = read_clock(r), .peer = r->plan->rank, .kind = AP_TRACE_CALL,
                                             .instance = r->trace->calls++});
    return AP_OK;
}

/* ---- instances; functions return AP_OK or the error's code ---- */

/* Queues a fold or join that is ready, or a send that is complete once copied: each instance once, so `work` has room. */
static void push_work(run *r, uint32_t instance) { r->l->work[r->last++] = instance; }

static int start_lane(run *r, uint32_t lane);

/* Counts one wait of an instance as done. After its last one, a message starts if it is the next of its lane; a fold or
 * join is queued. */
static int release_instance(run *r, uint32_t instance) {
    if (--r->l->waiting[instance]) return AP_OK;
    if (r->l->lane[instance] == AP_NO_LANE) {
        push_work(r, instance);
        return AP_OK;
    }
    return start_lane(r, r->l->lane[instance]);
}

/* Counts an instance as complete, for those that wait for it and, with the last one of a task, for those that wait for the task. */
static int finish_instance(run *r, uint32_t instance) {
    ap_layout *l = r->l;
    uint32_t task = l->task[instance];
    int code = AP_OK;
    r->done++;
    for (uint32_t e = l->fine.begin[instance]; e < l->fine.begin[instance + 1] && !code; e++)
        code = release_instance(r, l->fine.to[e]);
    if (--l->remaining[task]) return code;
    for (uint32_t e = l->coarse.begin[task]; e < l->coarse.begin[task + 1]; e++) {
        const ap_task *waiter = &r->plan->task[l->coarse.to[e]];
        for (uint32_t i = 0; i < waiter->instances && !code; i++) code = release_instance(r, waiter->first + i);
    }
    return code;
}

/* Starts a message. *is_complete: its waiters may go on at once, as a send from staging memory has been copied there. */
static int start_message(run *r, uint32_t instance, int *is_complete) {
    const ap_task *s = &r->plan->task[r->l->task[instance]];
    ap_stretch only = {0, 0, 0, 0};
    int several = 0;
    size_t bytes = ap_message_bytes(r->plan, r->item, s, instance, &only, &several);
    unsigned char *data = address_of(r, only);
    *is_complete = 0;
    if (r->trace) record_start(r, instance, bytes, s->kind == AP_SEND);
    if (several) {
        data = r->l->stage[instance] = ap_take_stage(r->plan, bytes);
        if (!data) return ap_fail(r->error, AP_MEMORY, "out of memory");
        if (s->kind == AP_SEND) copy_stage(r, instance, data, /* into */ 1), *is_complete = 1;
    }
    r->active++, r->clock_is_current = 0;
    if (s->kind == AP_SEND) return r->wire->send(r->wire, s->peer, s->channel, data, bytes, instance, r->error);
    return r->wire->receive(r->wire, s->peer, s->channel, data, bytes, instance, r->error);
}

/* Starts the next messages of a lane, as many as are ready and AP_WINDOW allows. */
static int start_lane(run *r, uint32_t lane) {
    ap_layout *l = r->l;
    int code = AP_OK, is_complete;
    while (!code && l->head[lane] < l->lane_of[lane].end && l->flying[lane] < AP_WINDOW) {
        uint32_t instance = l->queue[l->head[lane]];
        if (l->waiting[instance]) break;
        l->head[lane]++, l->flying[lane]++;
        code = start_message(r, instance, &is_complete);
        if (!code && is_complete) push_work(r, instance); /* finishing it here could recurse into this lane */
    }
    return code;
}

/* Called when the transport has reported a message done. Its staging memory, if any, goes back to the plan's pool. */
static int finish_message(run *r, uint32_t instance) {
    ap_layout *l = r->l;
    const ap_task *s = &r->plan->task[l->task[instance]];
    uint32_t lane = l->lane[instance];
    int code = AP_OK, staged = l->stage[instance] != NULL;
    r->active--, l->flying[lane]--;
    if (r->trace) ap_trace_end(r->trace, l->record[instance], r->arrival_time);
    if (staged) {
        r->clock_is_current = 0;
        ap_stretch only;
        int several = 0;
        size_t bytes = ap_message_bytes(r->plan, r->item, s, instance, &only, &several);
        if (s->kind == AP_RECEIVE) copy_stage(r, instance, l->stage[instance], /* into */ 0);
        ap_give_stage(r->plan, l->stage[instance], bytes);
        l->stage[instance] = NULL;
    }
    /* a send from staging memory was finished when it had been copied there */
    if (s->kind == AP_RECEIVE || !staged) code = finish_instance(r, instance);
    return code ? code : start_lane(r, lane);
}

/* Finishes the messages that the transport reports done; `block`: waits until there are some. */
static int poll_transport(run *r, int block) {
    uint32_t numbers[BATCH];
    int count = 0;
    int code = r->wire->completed(r->wire, block, r->timeout, numbers, BATCH, &count, r->error);
    r->folded = 0, r->clock_is_current = 0;
    if (r->trace && count) r->arrival_time = read_clock(r);
    for (int i = 0; i < count && !code; i++) code = finish_message(r, numbers[i]);
    return code;
}

enum { MAX_LOCAL_OPERANDS = 16 }; /* on the stack; more are allocated */

/* Combines the values of a fold's instance: stretch 0 of the task is the result, the others are the operands. */
static int fold_instance(run *r, uint32_t instance, const ap_task *s) {
    const void *local_operands[MAX_LOCAL_OPERANDS], **operands = local_operands;
    ap_stretch to = ap_piece_of(r->plan, s, instance, 0);
    uint32_t count = s->stretches - 1;
    if (!to.length || !count) return AP_OK;
    if (count > MAX_LOCAL_OPERANDS) operands = malloc(count * sizeof *operands);
    if (!operands) return ap_fail(r->error, AP_MEMORY, "out of memory");
    for (uint32_t k = 0; k < count; k++) operands[k] = address_of(r, ap_piece_of(r->plan, s, instance, k + 1));
    ap_fold(address_of(r, to), operands, count, to.length, r->type, r->operation);
    if (operands != local_operands) free(operands);
    r->folded += to.length * r->item * count;
    return AP_OK;
}

/* The same, recorded. */
static int traced_fold(run *r, uint32_t instance, const ap_task *s) {
    read_clock(r);
    ap_record record = record_of(r, instance, ap_piece_of(r->plan, s, instance, 0).length * r->item);
    int code = fold_instance(r, instance, s);
    r->clock_is_current = 0, record.end = read_clock(r);
    ap_trace_begin(r->trace, record);
    return code;
}

/* Runs all instances. */
static int run_plan(run *r) {
    ap_layout *l = r->l;
    int code = AP_OK;
    for (uint32_t i = 0; i < l->instances && !code; i++)
        if (!l->pending[i] && l->lane[i] == AP_NO_LANE) push_work(r, i);
    for (uint32_t i = 0; i < l->lanes && !code; i++)
        if (!l->lane_of[i].sends) code = start_lane(r, i); /* receives first, so that data need not be buffered on arrival */
    for (uint32_t i = 0; i < l->lanes && !code; i++)
        if (l->lane_of[i].sends) code = start_lane(r, i);
    while (!code && (r->done < l->instances || r->active)) {
        if (r->first < r->last) {
            uint32_t instance = l->work[r->first++];
            const ap_task *s = &r->plan->task[l->task[instance]];
            /* joins, empty messages, and sends that staging memory has completed have nothing to do here */
            if (s->kind == AP_FOLD) code = r->trace ? traced_fold(r, instance, s) : fold_instance(r, instance, s);
            if (!code) code = finish_instance(r, instance);
            if (!code && r->active && r->folded >= POLL_BYTES) code = poll_transport(r, /* block */ 0);
        } else if (r->active) {
            code = poll_transport(r, /* block */ 1);
        } else {
            return ap_fail(r->error, AP_STUCK, "rank %u: nothing can go on after %u of %u operations; the program is wrong",
                           r->plan->rank, r->done, l->instances);
        }
    }
    return code;
}

/* Makes the plan's scratch at least `bytes` large; its contents are lost, as each run fills it anew. */
static int take_scratch(ap_plan *plan, size_t bytes, ap_error *error) {
    if (bytes <= plan->scratch_bytes) return AP_OK;
    free(plan->scratch);
    plan->scratch_bytes = 0;
    plan->scratch = aligned_alloc(64, (bytes + 63) & ~(size_t)63); /* whole cache lines */
    if (!plan->scratch) return ap_fail(error, AP_MEMORY, "no memory for %zu bytes of scratch", bytes);
    plan->scratch_bytes = bytes;
    return AP_OK;
}

/* Sets the state of a run in the layout to that at its beginning. */
static void reset_layout(ap_layout *l, const ap_plan *plan) {
    memcpy(l->waiting, l->pending, 4 * (size_t)l->instances);
    for (uint32_t o = 0; o < plan->tasks; o++) l->remaining[o] = plan->task[o].instances;
    for (uint32_t i = 0; i < l->lanes; i++) l->head[i] = l->lane_of[i].begin, l->flying[i] = 0;
}

/* Checks that the arguments of ap_run fit the plan and the wire. */
static int check_call(const ap_plan *plan, int type, int operation, const ap_wire *wire, ap_error *error) {
    if (!ap_type_size(type)) return ap_fail(error, AP_INVALID, "there is no data type number %d", type);
    if (operation < 0 || operation >= AP_OPERATORS)
        return ap_fail(error, AP_INVALID, "there is no operator number %d", operation);
    if (!wire) return ap_fail(error, AP_INVALID, "the connection has been closed");
    if (plan->broken || wire->broken)
        return ap_fail(error, AP_TRANSPORT, "an earlier run failed; make a new plan and a new connection");
    for (uint32_t o = 0; o < plan->tasks; o++)
        if ((plan->task[o].kind == AP_SEND || plan->task[o].kind == AP_RECEIVE) && plan->task[o].peer >= wire->ranks)
            return ap_fail(error, AP_INVALID, "the program has messages to rank %u, but there are %u ranks", plan->task[o].peer,
                           wire->ranks);
    return AP_OK;
}

/* A buffer of the caller must be as large as the plan needs; one that the plan does not touch may be NULL. */
static int check_buffer(const ap_plan *plan, int buffer, const void *buffer_address, uint64_t bytes, uint64_t needed,
                        ap_error *error) {
    if (needed <= (buffer_address ? bytes : 0)) return AP_OK;
    return ap_fail(error, AP_INVALID, "rank %u: its %s has %llu bytes, %llu are needed", plan->rank,
                   buffer == AP_INPUT ? "input" : "output", (unsigned long long)(buffer_address ? bytes : 0),
                   (unsigned long long)needed);
}

/* Does what a run with this type needs and what can be done before it: builds the layout, allocates scratch. */
int ap_make_ready(ap_plan *plan, int type, ap_error *error) {
    size_t item = ap_type_size(type);
    if (!item) return ap_fail(error, AP_INVALID, "there is no data type number %d", type);
    uint64_t needed[3];
    int code = ap_extents(plan, item, needed, error);
    if (!code) code = ap_lay_out(plan, item, error);
    return code ? code : take_scratch(plan, needed[AP_SCRATCH], error);
}

/* Runs all operations of this rank, at most `timeout` seconds without progress (0: no limit). A failed run leaves plan
 * and wire `broken`, as messages may still arrive in their memory. */
int ap_run(ap_plan *plan, const void *input, uint64_t input_bytes, void *output, uint64_t output_bytes, int type, int operation,
           ap_wire *wire, double timeout, ap_error *error) {
    size_t item = ap_type_size(type);
    uint64_t needed[3] = {0, 0, 0};
    int code = check_call(plan, type, operation, wire, error);
    if (!code) code = ap_extents(plan, item, needed, error);
    if (!code) code = check_buffer(plan, AP_INPUT, input, input_bytes, needed[AP_INPUT], error);
    if (!code) code = check_buffer(plan, AP_OUTPUT, output, output_bytes, needed[AP_OUTPUT], error);
    if (!code) code = ap_lay_out(plan, item, error);
    if (!code) code = take_scratch(plan, needed[AP_SCRATCH], error);
    if (code) return code;
    /* the input is only read: the reader of the file refuses operations that write there */
    run r = {.plan = plan, .l = &plan->layout, .memory = {(unsigned char *)(uintptr_t)input, output, plan->scratch},
             .item = item, .type = type, .operation = operation, .wire = wire, .error = error, .timeout = timeout,
             .trace = wire->trace};
    uint64_t call = 0;
    if (r.trace) code = record_call(&r, &call);
    if (code) return code;
    reset_layout(r.l, plan);
    /* what this run receives bounds the memory for messages that arrive too early (sockets_types.h) */
    wire->expected = r.l->received * item + r.l->messages * AP_MESSAGE_OVERHEAD;
    ap_begin_call(wire);
    code = run_plan(&r);
    if (code) {
        plan->broken = 1;
        ap_wire_break(wire);
        return code;
    }
    if (operation == AP_AVG)
        for (uint32_t i = 0; i < plan->divisions; i++)
            ap_divide(address_of(&r, plan->division[i].where), plan->division[i].where.length, plan->division[i].count, type);
    if (r.trace) ap_trace_end(r.trace, call, operation == AP_AVG ? ap_clock(r.trace) : read_clock(&r));
    return AP_OK;
}

void ap_wire_trace(ap_wire *wire, ap_trace *trace) { wire->trace = trace; }

void ap_trace_moment(const ap_trace *trace, int64_t moments[2]) {
    int64_t closest = INT64_MAX;
    /* of 16 readings, keep the one that took least time: it was interrupted least */
    for (int i = 0; i < 16; i++) {
        int64_t before = ap_clock(trace), at = ap_nanoseconds(), after = ap_clock(trace);
        if (after - before < closest) closest = after - before, moments[0] = before + (after - before) / 2, moments[1] = at;
    }
}

void ap_wire_close(ap_wire *wire) {
    if (wire) wire->close(wire);
}

/* ---- touching memory before the first run ---- */

/* Allocates and touches staging memory for as many messages as can be under way (AP_WINDOW of each lane), and leaves it in the
 * plan's pool. All is taken before any is given back: else the pool would return the same memory. False: out of memory. */
static int prefault_stages(ap_plan *plan, size_t item, ap_pace *pace) {
    ap_layout *l = &plan->layout;
    int ok = 1;
    for (uint32_t i = 0; i < l->lanes; i++) {
        const ap_lane *lane = &l->lane_of[i];
        uint32_t end = lane->end - lane->begin < AP_WINDOW ? lane->end : lane->begin + AP_WINDOW;
        for (uint32_t q = lane->begin; q < end && ok; q++) {
            uint32_t instance = l->queue[q];
            ap_stretch only = {0, 0, 0, 0};
            int several = 0;
            size_t bytes = ap_message_bytes(plan, item, &plan->task[l->task[instance]], instance, &only, &several);
            if (!several) continue;
            l->stage[instance] = ap_take_stage(plan, bytes);
            ok = l->stage[instance] != NULL;
            if (ok) ap_prefault(l->stage[instance], bytes, pace);
        }
    }
    for (uint32_t instance = 0; instance < l->instances; instance++) {
        if (!l->stage[instance]) continue;
        ap_stretch only = {0, 0, 0, 0};
        int several = 0;
        ap_give_stage(plan, l->stage[instance],
                      ap_message_bytes(plan, item, &plan->task[l->task[instance]], instance, &only, &several));
        l->stage[instance] = NULL;
    }
    return ok;
}

/* As ap_make_ready, and touches the memory; pauses, or stops early, as `pace` says (prefault.h). */
int ap_warm(ap_plan *plan, int type, ap_pace *pace, ap_error *error) {
    int code = ap_make_ready(plan, type, error);
    if (code) return code;
    ap_prefault(plan->scratch, plan->scratch_bytes, pace);
    return prefault_stages(plan, ap_type_size(type), pace) ? AP_OK : ap_fail(error, AP_MEMORY, "out of memory");
}
