/* Prefaulting: the system provides memory page by page on the first write, which is slow; this touches the pages beforehand
 * and leaves their contents as they are.
 *
 * Threading: may run on a background thread beside users of the same memory, as it only ORs bytes with 0 atomically; any
 *   thread may set `stop` of a pace. Ownership: all memory is the caller's, and must stay mapped until the function returns.
 */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>

#include "api.h"

/* How background work proceeds. `stop`: any thread sets it to end the work. `gentle`: after about a tenth of a
 * millisecond the work sleeps for ten times as long, so that it never delays a thread on this processor, perhaps one
 * that actively waits for a message, by more than that tenth. */
struct ap_pace {
    _Atomic int stop;
    int gentle;
};

/* Called between two parts of background work: rests; true if the work must stop. */
static inline int ap_pause(ap_pace *pace) {
    const struct timespec pause = {0, 1000000}; /* 1 ms */
    if (pace->gentle && !atomic_load_explicit(&pace->stop, memory_order_relaxed)) nanosleep(&pause, NULL);
    return atomic_load_explicit(&pace->stop, memory_order_relaxed);
}

/* Touches the pages of `memory`, PIECE bytes between two pauses (about 0.1 ms). POPULATE_WRITE: MADV_POPULATE_WRITE of Linux
 * 5.14, which older headers lack; where it fails, each page is touched. */
static inline void ap_prefault(void *memory, size_t bytes, ap_pace *pace) {
    enum { PAGE = 4096, PIECE = 64 * PAGE, POPULATE_WRITE = 23 };
    uintptr_t at = (uintptr_t)memory & ~(uintptr_t)(PAGE - 1), end = (uintptr_t)memory + bytes;
    for (uintptr_t next; memory && at < end; at = next) {
        next = end - at < PIECE ? end : at + PIECE;
        int done = 0;
#ifdef __linux__
        done = !madvise((void *)at, next - at, POPULATE_WRITE);
#endif
        for (uintptr_t page = at < (uintptr_t)memory ? (uintptr_t)memory : at; !done && page < next;
             page = (page & ~(uintptr_t)(PAGE - 1)) + PAGE)
            atomic_fetch_or_explicit((_Atomic unsigned char *)page, 0, memory_order_relaxed);
        if (ap_pause(pace)) return;
    }
}
