/* What ran and what did not, told when MPI ends. A call is counted once, by process 0 of its communicator. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "preload.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void ap_report_call(ap_use *u, uint64_t bytes, double seconds) {
    pthread_mutex_lock(&lock);
    ap_use_add(u, bytes, seconds);
    pthread_mutex_unlock(&lock);
}

void ap_report_left(int kind, int reason) {
    atomic_fetch_add_explicit(&ap_preload.left[kind][reason], 1, memory_order_relaxed);
}

typedef struct {
    uint64_t *calls, *most, *unleast; /* unleast: UINT64_MAX - least, as MPI takes the greatest of all */
    double *seconds;
    size_t pages, counts;
} sums;

static size_t all_pages(void) {
    size_t pages = 0;
    for (uint32_t t = 0; t < ap_preload.tables; t++) pages += ap_preload.table[t].book->pages;
    return pages;
}

static ap_line tell(size_t number) {
    uint32_t t = 0;
    while (number >= ap_preload.table[t].book->pages) number -= ap_preload.table[t++].book->pages;
    return ap_line_of(&ap_preload.table[t], (uint32_t)number);
}

/* Over all processes; all rows of counts: those of the pages, then why calls were left. */
static int collect(sums *s) {
    const size_t left = (size_t)AP_KINDS * AP_REASONS, n = s->pages, counts = n + left;
    uint64_t *mine = calloc(3 * n + left, sizeof *mine);
    double *seconds = calloc(n + 1, sizeof *seconds);
    s->calls = calloc(counts, sizeof *s->calls), s->most = calloc(2 * n + 1, sizeof *s->most);
    s->seconds = calloc(n + 1, sizeof *s->seconds), s->unleast = s->most + n;
    int good = mine && seconds && s->calls && s->most && s->seconds, all = 0;
    if (PMPI_Allreduce(&good, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD)) all = 0;
    for (size_t i = 0; all && i < n; i++) {
        ap_use u = tell(i).use;
        mine[i] = u.calls, seconds[i] = u.seconds;
        mine[counts + i] = u.most, mine[counts + n + i] = u.calls ? UINT64_MAX - u.least : 0;
    }
    for (size_t i = 0; all && i < left; i++) mine[n + i] = atomic_load(&ap_preload.left[i / AP_REASONS][i % AP_REASONS]);
    if (all)
        all = !PMPI_Reduce(mine, s->calls, (int)counts, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD) &&
              !PMPI_Reduce(mine + counts, s->most, (int)(2 * n), MPI_UINT64_T, MPI_MAX, 0, MPI_COMM_WORLD) &&
              !PMPI_Reduce(seconds, s->seconds, (int)n, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    free(mine), free(seconds);
    return all;
}

/* A table that is for other calls than those of the job serves none: without a report nothing would show it. Process 0 alone
 * looks at what it counted, the calls on MPI_COMM_WORLD among them; reasons that a table or a setting intends say nothing. */
void ap_report_unused(void) {
    ap_state *p = &ap_preload;
    int kind = -1, why = AP_SERVED;
    if (p->rank || !p->tables || p->served) return;
    for (int k = 0; k < AP_KINDS; k++)
        for (int r = 0; r < AP_REASONS; r++) {
            if (!atomic_load(&p->left[k][r]) || r == AP_SILENT || r == AP_ALONE || r == AP_EMPTY) continue;
            if (r != AP_NO_PLAN && r != AP_NO_ROOT && r != AP_STRANGERS) return;
            if (kind < 0) kind = k, why = r;
        }
    if (kind >= 0)
        fprintf(stderr, "antiphon: no call ran by a plan (%s: %s); tune for what the program calls: ANTIPHON_REPORT=1 lists it\n",
                ap_kind_names[kind], ap_reason(why));
}

void ap_report(void) {
    sums s = {.pages = all_pages()};
    ap_line *line = calloc(s.pages + 1, sizeof *line);
    if (collect(&s) && !ap_preload.rank && line) {
        for (size_t i = 0; i < s.pages; i++) {
            line[i] = tell(i);
            line[i].use = (ap_use){s.calls[i], UINT64_MAX - s.unleast[i], s.most[i], s.seconds[i]};
        }
        const ap_account a = {.processes = ap_preload.size, .warning = ap_preload.why, .line = line, .lines = s.pages,
                              .left = s.calls + s.pages, .planned = &ap_auto_told};
        ap_account_write(&a, ap_preload.set.report_path);
    }
    free(s.calls), free(s.most), free(s.seconds), free(line);
}
