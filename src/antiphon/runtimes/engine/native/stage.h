/* Messages that consist of several stretches of memory (ap_stretch, plan.h), and the staging memory in which they are packed.
 *
 * Threading: that of the plan: one thread at a time. Ownership: staging memory comes from the plan's pool and returns there.
 */
#pragma once

#include <stdlib.h>
#include <string.h>

#include "plan.h"

enum { AP_WINDOW = 16 }; /* messages of a lane (to or from one peer on one channel) that are under way at once */

/* Iterates over the segments of a message: the memory that belongs to one instance of a task (plan.h). A task whose
 * program says `pieces` has an instance per piece, and each stretch is cut into pieces. A task without pieces may be
 * split into n instances: its stretches are then one sequence of elements, and instance i gets elements `low` to
 * `high`, the i-th of n equal parts of it; else `high` is UINT64_MAX. `instance`: its number in the plan; those of the
 * task begin at task->first, where i is 0. `passed`: elements of earlier stretches. `next`: number of the stretch to
 * visit next. */
typedef struct {
    const ap_task *task;
    uint32_t instance, next;
    uint64_t low, high, passed;
} ap_cursor;

static inline ap_cursor ap_segments(const ap_task *s, uint32_t instance) {
    ap_cursor c = {.task = s, .instance = instance, .low = 0, .high = UINT64_MAX};
    if (s->pieces == 1 && s->instances > 1) {
        uint64_t i = instance - s->first, n = s->instances;
        c.low = (uint64_t)((unsigned __int128)s->elements * i / n);
        c.high = (uint64_t)((unsigned __int128)s->elements * (i + 1) / n);
    }
    return c;
}

/* Sets *out to the next segment; false after the last one. */
static inline int ap_next_segment(const ap_plan *plan, ap_cursor *c, ap_stretch *out) {
    while (c->next < c->task->stretches) {
        uint32_t k = c->next++;
        if (c->high == UINT64_MAX) {
            *out = ap_piece_of(plan, c->task, c->instance, k);
        } else {
            *out = plan->stretch[c->task->stretch + k];
            uint64_t begin = c->passed, end = c->passed += out->length;
            uint64_t low = begin > c->low ? begin : c->low, high = end < c->high ? end : c->high;
            if (low >= high) continue;
            out->begin += low - begin, out->length = high - low;
        }
        if (out->length) return 1;
    }
    return 0;
}

/* The class of staging memory for that many bytes: 2^class bytes, at least 64: a cache line, which has room for the
 * pointer of the pool's list, too. */
static inline int ap_size_class(size_t bytes) {
    int i = 6;
    while (i < 63 && (size_t)1 << i < bytes) i++;
    return i;
}

/* Staging memory from the pool, a linked list per class whose links lie in the memory itself; else from malloc. */
static inline void *ap_take_stage(ap_plan *plan, size_t bytes) {
    int i = ap_size_class(bytes);
    void *block = plan->pool[i];
    if (!block) return malloc((size_t)1 << i);
    memcpy(&plan->pool[i], block, sizeof block);
    return block;
}

/* Returns staging memory to the pool. `bytes`: as for ap_take_stage. */
static inline void ap_give_stage(ap_plan *plan, void *stage, size_t bytes) {
    int i = ap_size_class(bytes);
    memcpy(stage, &plan->pool[i], sizeof stage);
    plan->pool[i] = stage;
}

/* The bytes of an instance of a message, with elements of `item` bytes. If they lie in one stretch of memory, that is *only;
 * else *several becomes 1 (the caller sets it to 0 before), and the message must be packed in staging memory. If there are
 * no bytes, *only stays as the caller has set it. */
static inline size_t ap_message_bytes(const ap_plan *plan, size_t item, const ap_task *s, uint32_t instance, ap_stretch *only,
                                      int *several) {
    ap_cursor c = ap_segments(s, instance);
    uint64_t total = 0;
    int count = 0;
    for (ap_stretch stretch; ap_next_segment(plan, &c, &stretch); count++) {
        if (!count)
            *only = stretch;
        else if (*several == 0 && only->buffer == stretch.buffer && only->begin + only->length == stretch.begin)
            only->length += stretch.length;
        else
            *several = 1;
        total += stretch.length;
    }
    return (size_t)total * item;
}
