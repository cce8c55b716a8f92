/* Seconds of a monotonic clock.
 *
 * Threading: any. Ownership: none.
 */
#pragma once

#include <time.h>

static inline double ap_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
