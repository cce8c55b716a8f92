/* Record what a rank did and when, on request: a ring of records in the caller's memory, the newest replace the oldest.
 *
 * Threading: written by the thread that runs the plan, read by the caller between runs. Ownership: the caller's.
 */
#pragma once

#include <time.h>

#include "api.h"

static inline int64_t ap_nanoseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* The time of a trace: ticks of the processor's counter if `ticks` is set, else nanoseconds. Reading the counter takes
 * half as long as asking the kernel; the caller that starts a trace decides whether the counter is reliable. */
static inline int64_t ap_clock(const ap_trace *t) {
#if defined(__x86_64__)
    if (t->ticks) return (int64_t)__builtin_ia32_rdtsc();
#else
    (void)t;
#endif
    return ap_nanoseconds();
}

/* Adds a record; returns its number, for ap_trace_end. The capacity is a power of two, so `& (capacity - 1)` is the
 * remainder. */
static inline uint64_t ap_trace_begin(ap_trace *t, ap_record r) {
    uint64_t number = t->count++;
    t->record[number & (t->capacity - 1)] = r;
    return number;
}

static inline void ap_trace_end(ap_trace *t, uint64_t number, int64_t at) {
    if (t->count - number <= t->capacity) t->record[number & (t->capacity - 1)].end = at;
}
