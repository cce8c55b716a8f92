/* Instances of a plan's tasks (plan.h) after splitting; their dependencies, and the order in which messages start. A task is a
 * message, a fold (combines values) or a join (has no data: it ends when all that it waits for has ended).
 *
 * For example, a send of 512 KiB is split into four instances of 128 KiB. A send that forwards what a receive has brought
 * may then start with the first quarter as soon as that has arrived (a fine edge, from instance to instance), unless the
 * memory of the two overlaps in another way than quarter by quarter (a coarse edge: it waits for the whole task).
 *
 * Functions return AP_OK or an error code, unless they say otherwise.
 *
 * Threading: as its plan: one thread at a time.
 * Ownership: an ap_layout belongs to its plan; ap_forget_layout frees its arrays.
 */
#include <stdlib.h>
#include <string.h>

#include "plan.h"
#include "transport.h"

/* An array of zeros; NULL only if memory runs out, also for 0 elements. `size`: bytes of an element, 4 for the many uint32_t. */
static void *allocate(size_t count, size_t size) { return calloc(count ? count : 1, size); }

void ap_forget_layout(ap_layout *l) {
    free(l->task), free(l->pending), free(l->lane), free(l->queue), free(l->lane_of);
    free(l->fine.begin), free(l->fine.to), free(l->coarse.begin), free(l->coarse.to);
    free(l->waiting), free(l->remaining), free(l->work), free(l->head), free(l->flying), free(l->stage);
    free(l->record);
    memset(l, 0, sizeof *l);
}

static int is_message(const ap_task *s) { return s->kind == AP_SEND || s->kind == AP_RECEIVE; }

/* The number of instances of a task: its pieces, else the parts that it is split into. Depends only on numbers that sender
 * and receiver share, so both split alike.
 * `split`: bytes of a part; 0: not split; AP_USUAL_SPLIT (1): parts of 128 KiB, at most four. `slices`: AP_PLANNED_SLICES (4)
 * for as many slices as planned, 8 for twice as many. */
static uint32_t count_instances(const ap_plan *plan, const ap_task *s, size_t item) {
    uint64_t split = plan->split, slices = plan->slices;
    if (s->pieces > 1 || s->kind == AP_JOIN) return s->pieces;
    if ((!split && slices <= AP_PLANNED_SLICES) || !s->elements) return 1;
    uint64_t bytes = split, max_parts = AP_MOST_INSTANCES; /* bytes: of a part */
    /* with twice as many slices as planned, twice as many parts of half the size */
    if (split == AP_USUAL_SPLIT) bytes = ((uint64_t)AP_PLANNED_SLICES << 17) / slices, max_parts = slices;
    /* a plan that is not split, but shall run in n times as many slices: at most n parts, of 16 KiB at least */
    if (!split) bytes = 1 << 14, max_parts = slices / AP_PLANNED_SLICES;
    uint64_t elements_per_part = bytes / item, n = (s->elements - 1) / elements_per_part + 1;
    return (uint32_t)(n > max_parts ? max_parts : n);
}

typedef struct {
    ap_stretch where;
    uint32_t task;
} task_stretch;

/* The order of buffer, begin and length. */
static int by_stretch(const void *a, const void *b) {
    const task_stretch *x = a, *y = b;
    if (x->where.buffer != y->where.buffer) return x->where.buffer < y->where.buffer ? -1 : 1;
    if (x->where.begin != y->where.begin) return x->where.begin < y->where.begin ? -1 : 1;
    return x->where.length < y->where.length ? -1 : x->where.length > y->where.length;
}

/* Marks the split tasks whose instances must not be waited for one by one (`coarse`). Waiting one by one is safe only if each
 * stretch of the task is, compared with all stretches of other split tasks, either identical or disjoint: then instance i of
 * one overlaps in memory only instance i of the other. */
static int mark_coarse_tasks(ap_plan *plan, ap_error *error) {
    size_t count = 0, n = 0;
    for (uint32_t o = 0; o < plan->tasks; o++)
        if (plan->task[o].instances > plan->task[o].pieces) count += plan->task[o].stretches;
    task_stretch *all = allocate(count, sizeof *all);
    if (!all) return ap_fail(error, AP_MEMORY, "out of memory");
    for (uint32_t o = 0; o < plan->tasks; o++) {
        ap_task *s = &plan->task[o];
        s->coarse = 0;
        if (s->instances <= s->pieces) continue;
        /* a message is split over all its stretches end to end (stage.h), so its parts are no parts of each stretch */
        s->coarse = is_message(s) && s->stretches > 1;
        for (uint32_t i = 0; i < s->stretches; i++) all[n++] = (task_stretch){plan->stretch[s->stretch + i], o};
    }
    qsort(all, n, sizeof *all, by_stretch);
    for (size_t i = 0, j; i < n; i = j) { /* i to j - 1: stretches that overlap, which is safe only if all of them are equal */
        uint64_t end = all[i].where.begin + all[i].where.length;
        int same = 1;
        for (j = i + 1; j < n && all[j].where.buffer == all[i].where.buffer && all[j].where.begin < end; j++) {
            same &= by_stretch(&all[i], &all[j]) == 0;
            uint64_t other = all[j].where.begin + all[j].where.length;
            end = other > end ? other : end;
        }
        for (size_t k = i; k < j && !same; k++) plan->task[all[k].task].coarse = 1;
    }
    free(all);
    return AP_OK;
}

/* Counts and numbers the instances of all tasks, and allocates the arrays of instances. */
static int number_instances(ap_plan *plan, ap_layout *l, ap_error *error) {
    uint64_t total = 0;
    ap_workload workload = {0, 0};
    for (uint32_t o = 0; o < plan->tasks; o++) {
        ap_task *s = &plan->task[o];
        s->first = (uint32_t)total, s->instances = count_instances(plan, s, l->item);
        total += s->instances;
        /* bounds the work of a run (program.h), which may be AP_FEW_INSTANCES times that of the program as tasks are split */
        if (!ap_add_workload(&workload, s->instances, s->stretches, s->waits, AP_FEW_INSTANCES * (uint64_t)AP_MOST_WORK) ||
            total > UINT32_MAX - 1)
            return ap_fail(error, AP_UNSUPPORTED, "rank %u: too many messages; split at more bytes, or use fewer pieces",
                           plan->rank);
    }
    l->instances = (uint32_t)total;
    l->task = allocate(total, 4), l->pending = allocate(total, 4), l->lane = allocate(total, 4),
    l->waiting = allocate(total, 4);
    l->work = allocate(total, 4), l->stage = allocate(total, sizeof(void *)), l->remaining = allocate(plan->tasks, 4);
    if (!l->task || !l->pending || !l->lane || !l->waiting || !l->work || !l->stage || !l->remaining)
        return ap_fail(error, AP_MEMORY, "out of memory");
    for (uint32_t o = 0; o < plan->tasks; o++)
        for (uint32_t i = 0; i < plan->task[o].instances; i++) l->task[plan->task[o].first + i] = o;
    return mark_coarse_tasks(plan, error);
}

/* Whether instance i of x may wait for instance i of y alone. That holds for equal numbers of pieces by the definition of a
 * program (docs/program.md), and for split tasks unless one is coarse (mark_coarse_tasks). */
static int wait_by_instance(const ap_task *x, const ap_task *y) {
    if (x->pieces > 1 || y->pieces > 1) return x->pieces == y->pieces;
    return x->instances > 1 && x->instances == y->instances && x->elements == y->elements && !x->coarse && !y->coarse;
}

/* Builds the edges from tasks and instances to those that wait for them, and counts in `pending` what each waits for. */
static int connect_edges(ap_plan *plan, ap_layout *l, ap_error *error) {
    uint64_t fine = 0, coarse = 0;
    l->fine.begin = allocate((size_t)l->instances + 1, 4), l->coarse.begin = allocate((size_t)plan->tasks + 1, 4);
    if (!l->fine.begin || !l->coarse.begin) return ap_fail(error, AP_MEMORY, "out of memory");
    for (int pass = 0; pass < 2; pass++) { /* the first counts edges, the second stores them */
        for (uint32_t o = 0; o < plan->tasks; o++) {
            const ap_task *x = &plan->task[o];
            for (uint32_t w = 0; w < x->waits; w++) {
                uint32_t awaited = plan->wait[x->first_wait + w];
                const ap_task *y = &plan->task[awaited];
                if (wait_by_instance(x, y)) {
                    for (uint32_t i = 0; i < x->instances; i++) {
                        if (pass == 0)
                            l->fine.begin[y->first + i + 1]++, fine++;
                        else
                            l->fine.to[l->fine.begin[y->first + i]++] = x->first + i, l->pending[x->first + i]++;
                    }
                } else if (pass == 0) {
                    l->coarse.begin[awaited + 1]++, coarse++;
                } else {
                    l->coarse.to[l->coarse.begin[awaited]++] = o;
                    for (uint32_t i = 0; i < x->instances; i++) l->pending[x->first + i]++;
                }
            }
        }
        if (pass == 1) break;
        if (fine > UINT32_MAX) return ap_fail(error, AP_UNSUPPORTED, "rank %u: too many waits of pieces", plan->rank);
        l->fine.to = allocate(fine, 4), l->coarse.to = allocate(coarse, 4);
        if (!l->fine.to || !l->coarse.to) return ap_fail(error, AP_MEMORY, "out of memory");
        for (uint32_t i = 0; i < l->instances; i++) l->fine.begin[i + 1] += l->fine.begin[i];
        for (uint32_t o = 0; o < plan->tasks; o++) l->coarse.begin[o + 1] += l->coarse.begin[o];
    }
    /* filling moved every beginning to its end: move them back */
    memmove(l->fine.begin + 1, l->fine.begin, 4 * (size_t)l->instances), l->fine.begin[0] = 0;
    memmove(l->coarse.begin + 1, l->coarse.begin, 4 * (size_t)plan->tasks), l->coarse.begin[0] = 0;
    return AP_OK;
}

typedef struct {
    /* lane: bit 63: it sends; channel; peer. key: the time at which it is due, times `slices` of the plan to stay a
     * whole number. Piece i of a task is due at `when` + 2 i as planned. In n = slices / AP_PLANNED_SLICES times as
     * many slices, n of them make a planned one, so slice i is due at `when` + 2 i / n. Of equal keys, the smaller
     * instance is first. */
    uint64_t lane, key;
    uint32_t instance;
} message;

static int by_lane(const void *a, const void *b) {
    const message *x = a, *y = b;
    if (x->lane != y->lane) return x->lane < y->lane ? -1 : 1;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x->instance < y->instance ? -1 : x->instance > y->instance;
}

/* The elements of a message's instance. */
static uint64_t elements_of(const ap_plan *plan, const ap_task *s, uint32_t instance) {
    uint64_t total = 0;
    if (s->pieces == 1) {
        uint64_t i = instance - s->first, n = s->instances;
        return (uint64_t)((unsigned __int128)s->elements * (i + 1) / n) - (uint64_t)((unsigned __int128)s->elements * i / n);
    }
    for (uint32_t k = 0; k < s->stretches; k++) total += ap_piece_of(plan, s, instance, k).length;
    return total;
}

/* Sorts the messages into lanes. */
static int order_messages(ap_plan *plan, ap_layout *l, ap_error *error) {
    size_t n = 0;
    message *all = allocate(l->instances, sizeof *all);
    l->queue = allocate(l->instances, 4);
    if (!all || !l->queue) {
        free(all);
        return ap_fail(error, AP_MEMORY, "out of memory");
    }
    for (uint32_t i = 0; i < l->instances; i++) {
        const ap_task *s = &plan->task[l->task[i]];
        l->lane[i] = AP_NO_LANE;
        if (!is_message(s) || !elements_of(plan, s, i)) continue;
        uint64_t piece = s->pieces > 1 ? i - s->first : 0;
        uint64_t lane = (uint64_t)(s->kind == AP_SEND) << 63 | (uint64_t)s->channel << 32 | s->peer;
        all[n++] = (message){lane, (uint64_t)s->when * plan->slices + 2 * piece * AP_PLANNED_SLICES, i};
        l->messages++, l->sends += s->kind == AP_SEND;
        if (s->kind == AP_RECEIVE) l->received += elements_of(plan, s, i);
    }
    qsort(all, n, sizeof *all, by_lane);
    for (size_t i = 0; i < n; i++) l->lanes += i == 0 || all[i].lane != all[i - 1].lane;
    l->lane_of = allocate(l->lanes, sizeof(ap_lane)), l->head = allocate(l->lanes, 4), l->flying = allocate(l->lanes, 4);
    if (!l->lane_of || !l->head || !l->flying) {
        free(all);
        return ap_fail(error, AP_MEMORY, "out of memory");
    }
    uint32_t lane = 0;
    for (size_t i = 0; i < n; i++) {
        lane += i > 0 && all[i].lane != all[i - 1].lane;
        const ap_task *s = &plan->task[l->task[all[i].instance]];
        if (i == 0 || all[i].lane != all[i - 1].lane)
            l->lane_of[lane] = (ap_lane){s->peer, s->channel, (uint32_t)i, (uint32_t)i, s->kind == AP_SEND};
        l->lane_of[lane].end++;
        l->queue[i] = all[i].instance, l->lane[all[i].instance] = lane;
    }
    free(all);
    return AP_OK;
}

/* Builds the layout of a plan for elements of `item` bytes, unless it is that already. */
int ap_lay_out(ap_plan *plan, size_t item, ap_error *error) {
    ap_layout *l = &plan->layout;
    if (l->item == item && l->split == plan->split) return AP_OK; /* `slices` never change in a plan */
    ap_forget_layout(l);
    l->item = item, l->split = plan->split;
    int code = number_instances(plan, l, error);
    if (!code) code = connect_edges(plan, l, error);
    if (!code) code = order_messages(plan, l, error);
    if (code) ap_forget_layout(l);
    return code;
}
