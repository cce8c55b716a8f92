/* Makes a rank's plan for a size from its section of the program: addresses, each checked to lie in its buffer.
 *
 * All sizes and addresses of a run are computed here, in 128 bits, and refused above AP_MOST_ELEMENTS; so all that is
 * computed from them later (an address times the bytes of an element, a piece of a message) is below 2^63. ap_extents
 * returns the bytes that each buffer of the caller must have.
 *
 * Threading: a plan is used by one thread at a time; different plans of a program may be prepared at once.
 * Ownership: a plan owns its tables, layout, scratch and staging memory; it does not need its program any longer.
 */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

#include "transport.h"

typedef __int128 wide; /* for elements and addresses, whose products with weights need more than 64 bits */

static const wide MAX_ELEMENTS = (wide)AP_MOST_ELEMENTS;

/* The number of slices of an operation that has `pieces` in the program: times plan->slices / AP_PLANNED_SLICES,
 * rounded up. Any number is correct: slice i of an operation waits for slice i of another, and messages keep an order
 * in which each comes after all that it waits for (order_messages). */
static uint32_t slice_count(const ap_plan *plan, uint32_t pieces) {
    return pieces > 1 ? (uint32_t)(((uint64_t)pieces * plan->slices + AP_PLANNED_SLICES - 1) / AP_PLANNED_SLICES) : pieces;
}

typedef struct {
    const ap_program *program;
    const ap_section *section; /* of this rank */
    uint64_t unit;             /* elements per weight 1 */
    const uint64_t *count;     /* elements per block of an alltoall of uneven blocks; NULL: of `unit` elements each */
    wide *line;                /* with `count`: the first element of each block on the line, and the end */
    wide *place[2];            /* with `count`: the same of this rank's blocks in its input, and in its output */
    wide *at;         /* element of each point on the line */
    uint64_t *offset; /* per slot, its first element in scratch */
    uint64_t *stride; /* per slot, elements from one piece to the next */
    uint64_t *capacity; /* per slot, elements of all its pieces */
} addresses;

/* unit * whole + floor(unit * part / denominator): below 2^121, as the line is at most 2^61 and unit below 2^59. With counts, the
 * point divides its block in the same proportion. */
static wide at_point(const addresses *a, ap_point point) {
    const wide begin = a->count ? a->line[point.whole] : (wide)a->unit * point.whole;
    const uint64_t elements = !point.part ? 0 : a->count ? a->count[point.whole] : a->unit;
    return begin + (wide)((unsigned __int128)elements * (uint64_t)point.part / a->program->denominator);
}

/* Where a point lies in the caller's input or output: the base moves it by `shift` units. Negative: outside. */
static wide in_buffer(const addresses *a, const ap_base *b, uint32_t point) {
    if (!a->count) return a->at[point] + (wide)a->unit * b->shift;
    const int64_t whole = a->section->point[point].whole;
    const wide block = (wide)whole + b->shift; /* in the buffer */
    const uint64_t blocks = b->buffer == AP_INPUT ? a->section->input_weight : a->section->output_weight;
    return block < 0 || block > (wide)blocks ? -1 : a->place[b->buffer][block] + a->at[point] - a->line[whole];
}

static int fail_address(ap_error *error, uint32_t rank, const char *object, uint64_t number) {
    return ap_fail(error, AP_INVALID, "the program file is wrong: rank %u, %s %llu lies outside of its buffer", rank, object,
                   (unsigned long long)number);
}

/* With counts, the equal parts of a program that share a slot differ in length: sets `capacity` of each slot to the longest part
 * that is written there. */
static void measure_slots(addresses *a) {
    const ap_section *s = a->section;
    for (uint32_t o = 0; o < s->operations; o++) {
        const ap_operation *op = &s->operation[o];
        /* a receive writes all its parts, a fold the first one */
        const uint32_t written = op->kind == AP_RECEIVE ? op->parts : op->kind == AP_FOLD && op->parts;
        for (uint32_t i = op->first_part; i < op->first_part + written; i++) {
            const ap_part part = s->part[i];
            const ap_base *b = &s->base[part.base];
            const wide length = a->at[part.end] - a->at[part.begin];
            if (b->buffer == AP_SCRATCH && length > (wide)a->capacity[b->slot]) a->capacity[b->slot] = (uint64_t)length;
        }
    }
}

/* Lays the slots one behind the other in scratch. Slots of a class have the same size, whole + part / denominator units, and
 * pieces. Like all functions here with `error`, unless they return a pointer, it returns AP_OK or the error's code. */
static int resolve_slots(addresses *a, ap_plan *plan, ap_error *error) {
    const ap_section *s = a->section;
    wide total = 0;
    if (a->count) measure_slots(a);
    for (uint32_t i = 0; i < s->slots; i++) {
        const ap_class *c = &s->class[s->slot[i]];
        unsigned __int128 part = (unsigned __int128)a->unit * (uint64_t)c->part + a->program->denominator - 1;
        wide size = a->count ? (wide)a->capacity[i] : (wide)a->unit * c->whole + (wide)(part / a->program->denominator);
        const uint32_t pieces = slice_count(plan, c->pieces);
        wide stride = (size + pieces - 1) / pieces;
        if (stride > MAX_ELEMENTS || stride * pieces > MAX_ELEMENTS - total)
            return ap_fail(error, AP_INVALID, "rank %u: %llu elements per unit need more scratch than there can be", plan->rank,
                           (unsigned long long)a->unit);
        a->offset[i] = (uint64_t)total, a->stride[i] = (uint64_t)stride;
        a->capacity[i] = (uint64_t)(stride * pieces);
        total += stride * pieces;
    }
    plan->sizes[AP_SCRATCH] = (uint64_t)total;
    return AP_OK;
}

/* The stretch of memory of a part; false if it does not lie within its buffer, or within its slot of scratch (whose first
 * element is the base's `origin`, a point). */
static int resolve_part(const addresses *a, const ap_plan *plan, ap_part part, uint32_t pieces, ap_stretch *out) {
    const ap_base *b = &a->section->base[part.base];
    wide begin = a->at[part.begin], length = a->at[part.end] - begin;
    if (length < 0 || length > MAX_ELEMENTS) return 0;
    out->buffer = b->buffer, out->length = (uint64_t)length, out->stride = 0;
    if (b->buffer != AP_SCRATCH) {
        begin = in_buffer(a, b, part.begin);
        if (begin < 0 || begin + length > (wide)plan->sizes[b->buffer]) return 0;
        out->begin = (uint64_t)begin;
        return 1;
    }
    wide inside = begin - a->at[b->origin], capacity = a->capacity[b->slot], piece = length;
    if (pieces > 1) {
        wide stride = a->stride[b->slot];
        piece = (length + pieces - 1) / pieces; /* the longest */
        out->stride = (uint64_t)stride;
        if (piece > stride) return 0;
        piece += stride * (pieces - 1); /* from the beginning of the first to the end of the last */
    }
    if (inside < 0 || inside + piece > capacity) return 0;
    out->begin = a->offset[b->slot] + (uint64_t)inside;
    return 1;
}

/* Appends a stretch to a task. With `merge`, one that follows the last in memory extends that, and an empty one is left out. */
static void append_part(ap_plan *plan, ap_task *task, ap_stretch s, int merge) {
    if (merge && !s.length) return;
    if (merge && task->stretches) {
        ap_stretch *last = &plan->stretch[task->stretch + task->stretches - 1];
        if (last->buffer == s.buffer && last->begin + last->length == s.begin) {
            last->length += s.length;
            return;
        }
    }
    plan->stretch[task->stretch + task->stretches++] = s;
}

/* Fills the tasks, with their stretches and waits, and the divisions: what an average divides at the end (ap_finish). */
static int resolve_tasks(addresses *a, ap_plan *plan, ap_error *error) {
    const ap_section *s = a->section;
    uint32_t used = 0, sliced = 0; /* stretches so far; pieces of the first operation that has several */
    for (uint32_t o = 0; o < s->operations; o++) {
        const ap_operation *op = &s->operation[o];
        ap_task *task = &plan->task[o];
        int message = op->kind == AP_SEND || op->kind == AP_RECEIVE;
        const uint32_t pieces = slice_count(plan, op->pieces);
        if (op->pieces > 1 && !sliced) sliced = op->pieces;
        /* Operations with equal numbers wait slice by slice (layout.c): rounding must not make different numbers equal. */
        if (op->pieces > 1 && op->pieces != sliced && plan->slices % AP_PLANNED_SLICES)
            return ap_fail(error, AP_UNSUPPORTED, "rank %u: operations differ in slices, so a run may only have a multiple of them",
                           plan->rank);
        *task = (ap_task){.kind = (uint8_t)op->kind, .peer = op->peer, .channel = op->channel, .when = op->when,
                          .pieces = pieces, .stretch = used, .first_wait = op->first_wait, .waits = op->waits};
        for (uint32_t i = 0; i < op->parts; i++) {
            ap_stretch where;
            if (!resolve_part(a, plan, s->part[op->first_part + i], pieces, &where))
                return fail_address(error, plan->rank, "operation", o);
            if (message || i == 0) task->elements += where.length; /* of a fold only the result counts */
            if (task->elements > (uint64_t)MAX_ELEMENTS) return fail_address(error, plan->rank, "operation", o);
            if (op->kind == AP_FOLD && where.length != task->elements)
                return ap_fail(error, AP_INVALID,
                               "the program file is wrong: rank %u, the parts of operation %u differ in length", plan->rank, o);
            /* stretches of folds correspond to each other, and those of sliced messages are cut one by one */
            append_part(plan, task, where, /* merge */ message && pieces == 1);
        }
        used += task->stretches;
    }
    for (uint32_t i = 0; i < s->finishes; i++) {
        const ap_finish *f = &s->finish[i];
        if (!resolve_part(a, plan, (ap_part){f->begin, f->end, f->base}, 1, &plan->division[i].where))
            return fail_address(error, plan->rank, "finish", i);
        plan->division[i].count = f->count;
    }
    memcpy(plan->wait, s->wait, sizeof(uint32_t) * s->waits);
    return AP_OK;
}

/* Sums of n counts, `step` from one to the next: place[i] is the sum of the first i. */
static void add_up(const uint64_t *count, uint64_t step, uint64_t n, wide *place) {
    place[0] = 0;
    for (uint64_t i = 0; i < n; i++) place[i + 1] = place[i] + count[i * step];
}

/* Fills `line` and `place` from the counts, and the sizes of the buffers. Block b goes from member b mod M to member b div M. */
static int resolve_counts(addresses *a, ap_plan *plan, ap_error *error) {
    const uint64_t members = a->program->facts.members;
    const unsigned char *member = a->program->bytes + AP_PROGRAM_HEADER; /* within the head: it has been checked */
    uint64_t me = 0;
    while (me < members && u32_at(member + 4 * me) != plan->rank) me++;
    add_up(a->count, 1, members * members, a->line);
    /* each is below 2^64, and there are at most 2^25 blocks: the sum does not overflow */
    if (a->line[members * members] >= MAX_ELEMENTS)
        return ap_fail(error, AP_INVALID, "rank %u: these counts have more elements than there can be", plan->rank);
    const uint64_t own = me < members ? members : 0; /* blocks that it sends, and receives */
    add_up(a->count + (own ? me : 0), members, own, a->place[AP_INPUT]);
    add_up(a->count + (own ? me * members : 0), 1, own, a->place[AP_OUTPUT]);
    for (int side = AP_INPUT; side <= AP_OUTPUT; side++) plan->sizes[side] = (uint64_t)a->place[side][own];
    return AP_OK;
}

/* Computes the sizes of buffers and the points, and then all else. */
static int resolve_all(addresses *a, ap_plan *plan, ap_error *error) {
    const ap_section *s = a->section;
    int code = AP_OK;
    if (a->unit >= (uint64_t)MAX_ELEMENTS || (wide)s->input_weight * a->unit >= MAX_ELEMENTS ||
        (wide)s->output_weight * a->unit >= MAX_ELEMENTS)
        return ap_fail(error, AP_INVALID, "rank %u: %llu elements per unit are no size", plan->rank,
                       (unsigned long long)a->unit);
    plan->sizes[AP_INPUT] = plan->in_place ? 0 : s->input_weight * a->unit;
    plan->sizes[AP_OUTPUT] = s->output_weight * a->unit;
    if (a->count) code = resolve_counts(a, plan, error);
    if (code) return code;
    for (uint32_t i = 0; i < s->points; i++) {
        a->at[i] = at_point(a, s->point[i]);
        if (a->at[i] > MAX_ELEMENTS) return fail_address(error, plan->rank, "point", i);
    }
    code = resolve_slots(a, plan, error);
    return code ? code : resolve_tasks(a, plan, error);
}

/* An array of zeros; NULL only if memory runs out, also for 0 elements. */
static void *allocate(size_t count, size_t size) { return calloc(count ? count : 1, size); }

/* Allocates the tables of a plan, and fills them from this rank's section. `counts`: see `addresses`. */
static int fill_plan(const ap_program *program, const ap_section *s, uint64_t unit, const uint64_t *counts, ap_plan *plan,
                     ap_error *error) {
    const uint64_t blocks = counts ? program->facts.blocks : 0, own = counts ? program->facts.members : 0;
    addresses a = {.program = program, .section = s, .unit = unit, .count = counts, .at = allocate(s->points, sizeof(wide)),
                   .line = allocate(blocks + 1, sizeof(wide)),
                   .place = {allocate(own + 1, sizeof(wide)), allocate(own + 1, sizeof(wide))},
                   .offset = allocate(s->slots, 8), .stride = allocate(s->slots, 8), .capacity = allocate(s->slots, 8)};
    plan->task = allocate(s->operations, sizeof(ap_task));
    plan->stretch = allocate(s->parts, sizeof(ap_stretch));
    plan->division = allocate(s->finishes, sizeof(ap_division));
    plan->wait = allocate(s->waits, sizeof(uint32_t));
    int code = AP_OK;
    if (!a.at || !a.line || !a.place[0] || !a.place[1] || !a.offset || !a.stride || !a.capacity || !plan->task ||
        !plan->stretch || !plan->division || !plan->wait)
        code = ap_fail(error, AP_MEMORY, "out of memory");
    else
        code = resolve_all(&a, plan, error);
    free(a.at), free(a.line), free(a.place[0]), free(a.place[1]), free(a.offset), free(a.stride), free(a.capacity);
    return code;
}

/* The plan's `split` by default, for a kind of collective. Splitting helps where a rank combines data, or forwards all of it: it
 * can go on with the first part while the next arrives. For other collectives more messages only cost more. */
static uint64_t usual_split(uint32_t kind) {
    return kind == AP_SCATTER || kind == AP_GATHER || kind == AP_ALLGATHER || kind == AP_ALLTOALL ? 0 : AP_USUAL_SPLIT;
}

/* As ap_prepare_sliced; with `counts` as ap_prepare_counts. */
static ap_plan *prepare(const ap_program *program, uint32_t rank, int in_place, uint64_t unit, uint32_t slices,
                        const uint64_t *counts, ap_error *error) {
    ap_section s;
    if (ap_read_section(program, rank, in_place, &s, error)) return NULL;
    ap_plan *plan = calloc(1, sizeof *plan);
    if (!plan) {
        ap_fail(error, AP_MEMORY, "out of memory");
        return NULL;
    }
    plan->rank = rank, plan->in_place = !!in_place, plan->tasks = s.operations, plan->divisions = s.finishes;
    plan->slices = slices, plan->split = usual_split(program->facts.kind);
    if (fill_plan(program, &s, unit, counts, plan, error)) {
        ap_release(plan);
        return NULL;
    }
    return plan;
}

ap_plan *ap_prepare(const ap_program *program, uint32_t rank, int in_place, uint64_t unit, ap_error *error) {
    return prepare(program, rank, in_place, unit, AP_PLANNED_SLICES, /* counts */ NULL, error);
}

ap_plan *ap_prepare_sliced(const ap_program *program, uint32_t rank, int in_place, uint64_t unit, uint32_t slices,
                           ap_error *error) {
    if (slices) return prepare(program, rank, in_place, unit, slices, /* counts */ NULL, error);
    ap_fail(error, AP_INVALID, "0 slices: a message has at least one");
    return NULL;
}

ap_plan *ap_prepare_counts(const ap_program *program, uint32_t rank, const uint64_t *counts, ap_error *error) {
    if (program->facts.kind == AP_ALLTOALL && program->even)
        return prepare(program, rank, /* in_place */ 0, /* unit */ 1, AP_PLANNED_SLICES, counts, error);
    ap_fail(error, AP_INVALID, "only a program for an alltoall of even blocks runs with other counts");
    return NULL;
}

void ap_release(ap_plan *plan) {
    if (!plan) return;
    ap_forget_layout(&plan->layout);
    for (int i = 0; i < 64; i++) /* each a list of free memory, linked through its first bytes (stage.h) */
        for (void *next, *block = plan->pool[i]; block; block = next) {
            memcpy(&next, block, sizeof next);
            free(block);
        }
    free(plan->task), free(plan->stretch), free(plan->division), free(plan->wait);
    if (!plan->broken) free(plan->scratch); /* else the transport may still write there: leaked */
    free(plan);
}

/* Bytes of input, output and scratch, with elements of `item` bytes. */
int ap_extents(const ap_plan *plan, size_t item, uint64_t bytes[3], ap_error *error) {
    for (int i = 0; i < 3; i++) {
        unsigned __int128 all = (unsigned __int128)plan->sizes[i] * item;
        if (all > PTRDIFF_MAX)
            return ap_fail(error, AP_INVALID, "rank %u: %llu elements are more than there can be", plan->rank,
                           (unsigned long long)plan->sizes[i]);
        bytes[i] = (uint64_t)all;
    }
    return AP_OK;
}

/* From now on messages of more than `bytes` are split; 0: none is. All ranks must choose the same. */
int ap_split(ap_plan *plan, uint64_t bytes, ap_error *error) {
    /* at least 64, so that a part has at least one element; 1 is AP_USUAL_SPLIT */
    if (bytes && bytes < 64) return ap_fail(error, AP_INVALID, "messages are split at 64 bytes or more, not %d", (int)bytes);
    plan->split = bytes;
    return AP_OK;
}

void ap_get_needs(const ap_plan *plan, ap_needs *needs) {
    *needs = (ap_needs){plan->sizes[0],         plan->sizes[1],        plan->sizes[2],
                        plan->layout.instances, plan->layout.messages, plan->layout.sends};
}
