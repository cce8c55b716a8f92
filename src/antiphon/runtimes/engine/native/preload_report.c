/* What ran and what did not, told when MPI ends. A call is counted once, by process 0 of its communicator. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "preload.h"

const char *const ap_kind_names[AP_NAMES] = {"broadcast", "reduce", "scatter", "gather", "allgather", "reducescatter",
                                             "allreduce", "alltoall", "allgatherv", "alltoallv", "gatherv", "scatterv",
                                             "scan", "exscan", "alltoallw"};

static const char *const reasons[AP_REASONS] = {
    [AP_SERVED] = "",
    [AP_SILENT] = "the arguments are wrong",
    [AP_ALONE] = "the communicator has one process",
    [AP_BETWEEN] = "the communicator is one between two groups",
    [AP_STRANGERS] = "no table is for these processes",
    [AP_EMPTY] = "there is no data",
    [AP_NO_PLAN] = "the table has no plan for it",
    [AP_NO_ROOT] = "the table has no plan for this root",
    [AP_FASTER] = "the table says that the library is faster",
    [AP_UNMEASURED] = "its size was not measured",
    [AP_SMALL] = "it is smaller than ANTIPHON_LEAST and was not measured",
    [AP_OTHER_TYPE] = "its data type has gaps, or is only moved",
    [AP_OTHER_OPERATOR] = "its operator is not for its type",
    [AP_LARGE] = "it is too large for MPI_Pack",
    [AP_REFUSED] = "a process could not run the plan",
    [AP_WAITING] = "its plans were not there yet",
    [AP_NOT_PLANNED] = "no plans could be made",
    [AP_NEW] = "the communicator was new",
    [AP_NO_ROOM] = "other communicators had the memory that may be shared",
    [AP_FAR] = "no plan is for it, and not all of its processes share memory",
    [AP_LONG] = "no plan is for it, and MPI was measured to be as fast with so much data",
    [AP_UNKNOWN_SIZE] = "its size is not known to all, and the table does not serve every size",
    [AP_OTHER_FORM] = "each of its blocks has a type",
    [AP_NONBLOCKING] = "it does not wait",
    [AP_DEVICE] = "a buffer is in the memory of a GPU",
    [AP_PERSISTENT] = "it is persistent",
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void ap_report_call(ap_use *u, uint64_t bytes, double seconds) {
    pthread_mutex_lock(&lock);
    u->least = u->calls && u->least < bytes ? u->least : bytes;
    u->most = u->most > bytes ? u->most : bytes;
    u->calls++, u->seconds += seconds;
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

/* What there is to tell of: the pages, and behind them what general schedules did. */
enum { GENERAL = 2 * AP_NAMES };

typedef struct {
    ap_use use;
    int kind, root;
    uint32_t ranks; /* 0: different ones */
    const char *label;
    uint32_t label_bytes;
} told;

static told tell(size_t number) {
    static const char label[] = "all with all";
    uint32_t t = 0;
    if (number >= all_pages()) {
        const size_t i = number - all_pages();
        const uint32_t ranks = i % 2 ? 0 : (uint32_t)ap_preload.size;
        return (told){ap_preload.general[i / 2][i % 2], (int)(i / 2), -1, ranks, label, sizeof label - 1};
    }
    while (number >= ap_preload.table[t].book->pages) number -= ap_preload.table[t++].book->pages;
    const ap_page *page = &ap_preload.table[t].book->page[number];
    const ap_use *use = ap_preload.table[t].use;
    return (told){use ? use[number] : (ap_use){0, 0, 0, 0}, (int)page->kind, page->root, page->members, page->label, page->label_bytes};
}

/* Over all processes; all rows of counts: those of the pages, then why calls were left. */
static int collect(sums *s) {
    const size_t left = (size_t)AP_NAMES * AP_REASONS, n = s->pages, counts = n + left;
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

static void as_text(const sums *s) {
    fprintf(stderr, "antiphon: what ran, in %d processes\n", ap_preload.size);
    for (size_t i = 0; i < s->pages; i++) {
        const told p = tell(i);
        if (!s->calls[i]) continue;
        fprintf(stderr,
                "antiphon: %-13s %4u ranks %12llu..%llu bytes %8llu calls %12.6f s, mean %.2f us, by %.*s",
                ap_kind_names[p.kind], p.ranks, (unsigned long long)(UINT64_MAX - s->unleast[i]),
                (unsigned long long)s->most[i], (unsigned long long)s->calls[i], s->seconds[i],
                1e6 * s->seconds[i] / (double)s->calls[i], (int)p.label_bytes, p.label);
        if (p.root >= 0) fprintf(stderr, ", root %d", p.root);
        fputc('\n', stderr);
    }
    for (int k = 0; k < AP_NAMES; k++)
        for (int r = 0; r < AP_REASONS; r++)
            if (s->calls[s->pages + (size_t)(k * AP_REASONS + r)])
                fprintf(stderr, "antiphon: %-13s left to the library %llu times: %s\n", ap_kind_names[k],
                        (unsigned long long)s->calls[s->pages + (size_t)(k * AP_REASONS + r)], reasons[r]);
    const ap_told *t = &ap_auto_told;
    if (t->how[0])
        fprintf(stderr, "antiphon: auto: %s%s%s", t->how, t->machine[0] ? " for " : "", t->machine);
    if (t->since) fprintf(stderr, ", used from call %llu on", (unsigned long long)t->since);
    if (t->gain[0]) fprintf(stderr, "; predicted: %s", t->gain);
    if (t->how[0]) fprintf(stderr, "%s%s\n", t->notes[0] ? "; " : "", t->notes);
    if (ap_preload.why[0]) fprintf(stderr, "antiphon: %s\n", ap_preload.why);
}

static void put_text(FILE *file, const char *text, size_t bytes) {
    fputc('"', file);
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\')
            fprintf(file, "\\%c", c);
        else if (c < 0x20)
            fprintf(file, "\\u%04x", c);
        else
            fputc(c, file);
    }
    fputc('"', file);
}

static void auto_as_json(FILE *file) {
    const ap_told *t = &ap_auto_told;
    const struct { const char *name, *text; } words[] = {
        {"how", t->how}, {"machine", t->machine}, {"predicted", t->gain}, {"notes", t->notes}};
    fprintf(file, ",\n  \"auto\": {\"since\": %llu", (unsigned long long)t->since);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        fprintf(file, ", \"%s\": ", words[i].name);
        put_text(file, words[i].text, strlen(words[i].text));
    }
    fputc('}', file);
}

static void as_json(const sums *s, FILE *file) {
    const char *comma = "";
    fprintf(file, "{\n  \"processes\": %d,\n  \"warning\": ", ap_preload.size);
    put_text(file, ap_preload.why, strlen(ap_preload.why));
    if (ap_auto_told.how[0]) auto_as_json(file);
    fprintf(file, ",\n  \"served\": [");
    for (size_t i = 0; i < s->pages; i++) {
        const told p = tell(i);
        if (!s->calls[i]) continue;
        fprintf(file, "%s\n    {\"collective\": \"%s\", \"ranks\": %u, \"root\": %d, \"planner\": ", comma,
                ap_kind_names[p.kind], p.ranks, p.root);
        put_text(file, p.label, p.label_bytes);
        fprintf(file, ", \"from\": %llu, \"to\": %llu, \"calls\": %llu, \"seconds\": %.9g, \"mean\": %.9g}",
                (unsigned long long)(UINT64_MAX - s->unleast[i]), (unsigned long long)s->most[i],
                (unsigned long long)s->calls[i], s->seconds[i], s->seconds[i] / (double)s->calls[i]);
        comma = ",";
    }
    fprintf(file, "\n  ],\n  \"left\": [");
    comma = "";
    for (int k = 0; k < AP_NAMES; k++)
        for (int r = 0; r < AP_REASONS; r++) {
            uint64_t calls = s->calls[s->pages + (size_t)(k * AP_REASONS + r)];
            if (!calls) continue;
            fprintf(file, "%s\n    {\"collective\": \"%s\", \"reason\": \"%s\", \"calls\": %llu}", comma, ap_kind_names[k],
                    reasons[r], (unsigned long long)calls);
            comma = ",";
        }
    fprintf(file, "\n  ]\n}\n");
}

void ap_report(void) {
    sums s = {.pages = all_pages() + GENERAL};
    if (collect(&s) && !ap_preload.rank) {
        FILE *file = ap_preload.report_path[0] ? fopen(ap_preload.report_path, "w") : NULL;
        if (file) {
            as_json(&s, file);
            if (fclose(file)) fprintf(stderr, "antiphon: %s: %s\n", ap_preload.report_path, strerror(errno));
        } else {
            if (ap_preload.report_path[0])
                fprintf(stderr, "antiphon: %s: %s\n", ap_preload.report_path, strerror(errno));
            as_text(&s);
        }
    }
    free(s.calls), free(s.most), free(s.seconds);
}
