/* The work of one rank at one size (ap_plan): plan.c prepares it, layout.c orders it, engine.c runs it.
 *
 * Threading: a plan is used by one thread at a time. Ownership: ap_release frees the plan with its tasks, layout and staging
 *   memory (`pool`); buffers are the caller's.
 */
#pragma once

#include "program.h"

/* Consecutive elements of one buffer. `stride`: elements from one piece to the next in scratch; 0 in other buffers, where the
 * pieces lie one behind the other. */
typedef struct {
    uint32_t buffer;
    uint64_t begin, length, stride;
} ap_stretch;

/* A task: an operation of the program at this size: a message, a fold (combines values) or a join (only waits). It runs as
 * one or more instances, each of which does a part of its data. */
typedef struct {
    uint8_t kind;
    uint8_t coarse; /* it is split, but tasks that wait for it must wait for all of its instances (layout.c) */
    uint32_t peer, channel, when; /* when: order of the program; messages of step s at 2 s, its folds at 2 s + 1 */
    uint32_t pieces;              /* slices: those of the program, scaled by `slices` of the plan; 1: not sliced */
    uint32_t instances;           /* one per piece; without pieces, one per message or fold that it is split into */
    uint32_t first;               /* number of its first instance */
    uint32_t stretch, stretches;  /* its data: plan->stretch[stretch] and following; a fold's result is the first */
    uint64_t elements;            /* of the whole message, or of a fold's result */
    uint32_t first_wait, waits;   /* tasks that must be complete before: plan->wait[first_wait] and following */
} ap_task;

/* A lane: the messages to or from one peer on one channel, in the order in which they start: instances queue[begin] to
 * queue[end - 1] of the layout. */
typedef struct {
    uint32_t peer, channel, begin, end;
    int sends; /* 0: it receives */
} ap_lane;

/* Elements that an average divides by `count` at the end. */
typedef struct {
    ap_stretch where;
    uint64_t count;
} ap_division;

/* Edges of a graph, by source: those of i are to[begin[i]] to to[begin[i + 1] - 1]. */
typedef struct {
    uint32_t *begin, *to;
} ap_edges;

/* Instances and their order, for elements of `item` bytes and a split (ap_plan); rebuilt when either changes. */
typedef struct {
    size_t item;
    uint64_t split;
    uint32_t instances, lanes;
    uint32_t *task;    /* of each instance */
    uint32_t *pending; /* per instance, the number of instances and tasks that it waits for */
    uint32_t *lane;    /* per instance, the number of its lane; AP_NO_LANE if it is no message, or an empty one */
    uint32_t *queue;   /* instances by lane, in order */
    ap_lane *lane_of;  /* by number of a lane */
    ap_edges fine;                      /* from an instance to those that wait for it, not for its whole task */
    ap_edges coarse;                    /* from a task to the tasks whose every instance waits for all of it */
    uint64_t messages, sends; /* numbers of messages: all, and those from this rank */
    uint64_t received;        /* elements of all messages to this rank */
    /* the state of a run */
    uint32_t *waiting;   /* per instance, the number of its `pending` that are not complete yet */
    uint32_t *remaining; /* per task, its instances that are not complete */
    uint32_t *work;      /* queue of folds and joins that are ready */
    uint32_t *head, *flying; /* per lane, its next message (in `queue`); messages that are started, not complete */
    void **stage;        /* per instance, its staging memory (stage.h) or NULL */
    uint64_t *record;    /* per message under way, its record if runs are traced; else NULL */
} ap_layout;

enum { AP_NO_LANE = 0xFFFFFFFFu };

/* AP_USUAL_SPLIT: messages of 128 KiB, but at most four; more would cost more latency than their overlap gains.
 * AP_PLANNED_SLICES: the value of `slices` for as many slices as the program says. */
enum { AP_USUAL_SPLIT = 1, AP_PLANNED_SLICES = 4 };

struct ap_plan {
    int in_place;
    uint32_t rank, tasks, divisions;
    uint32_t slices;   /* slices per message over the number that the program says, times 4 (AP_PLANNED_SLICES) */
    uint64_t sizes[3]; /* elements of input, output, scratch */
    ap_task *task;
    ap_stretch *stretch;
    ap_division *division;
    uint32_t *wait;
    uint64_t split; /* messages of more bytes are split (ap_split). 0: none is; AP_USUAL_SPLIT (1): as said above */
    ap_layout layout;
    unsigned char *scratch;
    size_t scratch_bytes;
    void *pool[64]; /* staging memory that is free, by size: 2^i bytes (stage.h) */
    int broken; /* a run failed: the plan can only be released */
};

/* Bytes of input, output and scratch, with elements of `item` bytes. */
int ap_extents(const ap_plan *plan, size_t item, uint64_t bytes[3], ap_error *error);

/* Builds the layout as ap_lay_out does; also touches all the memory that a run with this type needs, and pauses or stops as
 * `pace` says (prefault.h). */
int ap_warm(ap_plan *plan, int type, ap_pace *pace, ap_error *error);

/* Builds the layout for elements of `item` bytes, unless it is built. These functions return AP_OK or an error's code. */
int ap_lay_out(ap_plan *plan, size_t item, ap_error *error);
void ap_forget_layout(ap_layout *layout);

/* The part of a task's stretch number `index` that belongs to an instance. */
static inline ap_stretch ap_piece_of(const ap_plan *plan, const ap_task *task, uint32_t instance, uint32_t index) {
    ap_stretch s = plan->stretch[task->stretch + index];
    if (task->instances == 1) return s;
    uint64_t i = instance - task->first, n = task->instances;
    uint64_t low = (uint64_t)((unsigned __int128)s.length * i / n);
    uint64_t high = (uint64_t)((unsigned __int128)s.length * (i + 1) / n);
    s.begin += s.stride ? i * s.stride : low;
    s.length = high - low;
    return s;
}
