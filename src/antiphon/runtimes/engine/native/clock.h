/* Seconds of a monotonic clock.
 *
 * Threading: any. Ownership: none.
 */
#ifndef ANTIPHON_CLOCK_H
#define ANTIPHON_CLOCK_H

#include <time.h>

static inline double ap_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
