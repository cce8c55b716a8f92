/* The file of a process that is watched (runtimes/engine/watched.py reads it): rows of counters, and a ring of the latest calls.
 * A row is for calls of one group, collective, size class (power of two) and schedule. Its n-th call is the same one at all
 * processes of the group, so a reader that has the files of a host, where clocks agree, sees who began last. It may look at any
 * time: `state` says that the names of a row are complete, and the number of an entry of the ring is WRITTEN while it changes.
 *
 * Threading: any thread, without locks. Ownership: the file is mapped until the process ends.
 */
#include "watch.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"

/* Rows and latest calls of a file, and bytes of texts. runtimes/engine/watched.py has the same numbers and the same
 * layout. */
enum { ROWS = 256, CALLS = 1024, NAME = 16, SCHEDULE = 64, TABLE = 1024 };
enum { FREE = 0, CHANGING, READY }; /* states of a row */
#define WRITTEN UINT64_MAX            /* number of an entry that a thread is writing */

typedef struct {
    _Atomic uint32_t state;
    uint32_t group, ranks, rank, size_class, unused; /* size_class: log2 of the bytes; unused: aligns what follows */
    _Atomic uint64_t calls, bytes, nanoseconds; /* bytes: of the latest call; nanoseconds: of all calls together */
    char collective[NAME], schedule[SCHEDULE];
} watch_row;
typedef struct {
    _Atomic uint64_t number; /* from 1, in the order of the process */
    uint64_t call, row;      /* call: of its row, from 0 */
    double began, ended;     /* seconds of ap_now */
} watch_moment;
static struct watch_file {
    char magic[NAME];
    int32_t process, rank;
    double began;
    _Atomic uint64_t numbers, missed; /* calls so far; those for which there was no row */
    char table[TABLE];                /* ANTIPHON_TABLE */
    watch_row row[ROWS];
    watch_moment moment[CALLS];
} *_Atomic opened; /* the mapped file; NULL: calls are not watched */
static char path[4096];

/* Makes the file of this process, once; returns an errno if that fails. `rank`: of the job, -1: unknown. */
int ap_watch_open(const char *folder, int32_t rank) {
    struct watch_file *f = MAP_FAILED;
    if (atomic_load(&opened)) return 0;
    if (mkdir(folder, 0700) && errno != EEXIST) return errno;
    /* another library in this process has another address */
    snprintf(path, sizeof path, "%s/%d.%" PRIxPTR, folder, (int)getpid(), (uintptr_t)&opened);
    const int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0) return errno;
    int code = posix_fallocate(file, 0, sizeof *f); /* a full disk must not end the job by a signal later */
    if (!code && (f = mmap(NULL, sizeof *f, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)) == MAP_FAILED) code = errno;
    close(file);
    if (code) return unlink(path), code;
    f->process = (int32_t)getpid(), f->rank = rank, f->began = ap_now();
    snprintf(f->table, sizeof f->table, "%s", getenv("ANTIPHON_TABLE") ? getenv("ANTIPHON_TABLE") : "");
    memcpy(f->magic, "antiphon-watch1", NAME);
    atomic_store(&opened, f);
    return 0;
}

/* Finds the row of such calls, or takes a free one; NULL: all are used. */
static watch_row *find_row(struct watch_file *f, const ap_watched *about, uint32_t size_class) {
    for (watch_row *row = f->row; row < f->row + ROWS; row++) {
        uint32_t state = atomic_load_explicit(&row->state, memory_order_acquire);
        if (state == FREE && atomic_compare_exchange_strong(&row->state, &state, CHANGING)) {
            row->group = about->group, row->ranks = about->ranks, row->rank = about->rank, row->size_class = size_class;
            snprintf(row->collective, sizeof row->collective, "%s", about->collective);
            snprintf(row->schedule, sizeof row->schedule, "%s", about->schedule);
            atomic_store_explicit(&row->state, READY, memory_order_release);
            return row;
        }
        while (row->state != READY) {} /* another thread writes its names */
        if (row->group == about->group && row->ranks == about->ranks && row->rank == about->rank &&
            row->size_class == size_class && !strncmp(row->collective, about->collective, NAME - 1) &&
            !strncmp(row->schedule, about->schedule, SCHEDULE - 1))
            return row;
    }
    return NULL;
}

/* Enters a call that took `seconds` and ends now. */
void ap_watch_call(const ap_watched *about, uint64_t bytes, double seconds) {
    struct watch_file *f = atomic_load_explicit(&opened, memory_order_acquire);
    if (!f) return;
    const double ended = ap_now();
    watch_row *row = find_row(f, about, bytes ? 63 - (uint32_t)__builtin_clzll(bytes) : 0);
    if (!row) {
        f->missed++;
        return;
    }
    const uint64_t call = row->calls++, number = f->numbers++;
    row->bytes = bytes;
    row->nanoseconds += (uint64_t)(1e9 * seconds);
    watch_moment *m = &f->moment[number % CALLS];
    /* Only one thread at a time writes an entry: else one that is held up until others have made CALLS calls would mix its call
     * with a later one. The entry then lacks the call that came second; the counters have both. */
    uint64_t before = atomic_load_explicit(&m->number, memory_order_relaxed);
    if (before == WRITTEN || before > number || !atomic_compare_exchange_strong(&m->number, &before, WRITTEN)) return;
    atomic_thread_fence(memory_order_release);
    m->call = call, m->row = (uint64_t)(row - f->row), m->began = ended - seconds, m->ended = ended;
    atomic_store_explicit(&m->number, number + 1, memory_order_release);
}

void ap_watch_close(void) {
    struct watch_file *f = atomic_exchange(&opened, NULL);
    if (f && f->process == (int32_t)getpid()) unlink(path); /* not in a process that has forked */
}
