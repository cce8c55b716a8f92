/* Calls of a running job where another program can see them (antiphon watch): a small file per process (watch.c).
 *
 * Threading: any; nothing locks. Ownership: ap_watch_close removes the file; the memory stays until the process ends. */
#pragma once

#include <stdint.h>

typedef struct {
    uint32_t group, ranks, rank; /* group: equal at the processes of a group, unlike other ones; rank: in it */
    const char *collective, *schedule;
} ap_watched;
/* Makes the file, once in a process; an errno if that fails. `rank`: of the job, -1: unknown. */
int ap_watch_open(const char *folder, int32_t rank);
void ap_watch_call(const ap_watched *about, uint64_t bytes, double seconds); /* it ends now; without a file: nothing */
void ap_watch_close(void);
