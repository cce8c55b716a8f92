/* The report of a job: which calls ran by plans, which were left to the MPI library and why, as text or as JSON.
 *
 * Threading: counters may be changed by any thread during the job (a lock for uses of plans, atomics for fallbacks); the
 *   report is written by the thread that calls MPI_Finalize. A call is counted once, by process 0 of its communicator.
 * Ownership: counters of plans belong to their tables (ap_table.use), those of fallbacks to ap_preload.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"
#include "preload.h"
#include "watch.h"

static const char *const reasons[AP_REASONS] = {
    [AP_SERVED] = "",
    [AP_BAD_ARGUMENTS] = "the arguments are wrong",
    [AP_ONE_PROCESS] = "the communicator has one process",
    [AP_INTERCOMMUNICATOR] = "the communicator is one between two groups",
    [AP_NO_TABLE] = "no table is for these processes",
    [AP_NO_DATA] = "there is no data",
    [AP_NO_PLAN] = "the table has no plan for it",
    [AP_NO_ROOT] = "the table has no plan for this root",
    [AP_LIBRARY_FASTER] = "the table says that the library is faster",
    [AP_UNMEASURED] = "its size was not measured",
    [AP_SMALL] = "it is smaller than ANTIPHON_LEAST and was not measured",
    [AP_OTHER_TYPE] = "plans do not combine its data type",
    [AP_OTHER_OPERATOR] = "plans do not combine by its operator",
    [AP_LARGE] = "it is too large for MPI_Pack",
    [AP_REFUSED] = "a process could not run the plan",
    [AP_WAITING] = "its plans were not there yet",
    [AP_NOT_PLANNED] = "no plans could be made",
    [AP_NEW_COMMUNICATOR] = "the communicator was new",
    [AP_NO_SHARED_MEMORY] = "other communicators had the memory that may be shared",
    [AP_UNEVEN] = "its counts differ",
    [AP_NONBLOCKING] = "it does not wait",
    [AP_DEVICE] = "a buffer is in the memory of a GPU",
    [AP_PERSISTENT] = "it is persistent",
    [AP_TRIED] = "its first calls try plan and library in turn",
    [AP_SLOWER] = "its first calls took longer by a plan",
    [AP_LEARNING] = "learning tries the library, too",
    [AP_LEARNED] = "learning found the library faster",
    [AP_SPREAD] = "its blocks do not lie one after another, or types or counts differ between processes",
};

typedef struct { /* calls by one page of a table; for kind, root and ranks see ap_page */
    ap_use use;
    int kind, root; /* root: -1: none */
    uint32_t ranks;
    const char *label;
    uint32_t label_bytes;
} report_line;

typedef struct {
    int processes;       /* of the job */
    const char *warning; /* ap_preload.problem; "": none */
    const report_line *line; /* one per page, summed over all processes */
    size_t lines;
    const uint64_t *fallbacks;      /* by kind and reason */
    const ap_plan_summary *planned; /* of plans made during the job */
} report;

/* The line of page `number` of a table, with the counters of this process. */
static report_line line_of(const ap_table *table, uint32_t number) {
    const ap_page *page = &table->book->page[number];
    return (report_line){.use = table->use ? table->use[number] : (ap_use){.calls = 0}, .kind = (int)page->kind,
                         .root = page->root, .ranks = page->members, .label = page->label,
                         .label_bytes = page->label_bytes};
}

/* ---- what was learned ---- */

ap_learned *ap_learned_records;
static const char *const causes[] = { /* why a candidate was chosen (learn.h) */
    [AP_BY_SEARCH] = "first search", [AP_TOOK_LONGER] = "calls took longer", [AP_TOOK_LESS] = "calls took less",
    [AP_PROBE_WON] = "a probe was faster", [AP_LEARNED_BEFORE] = "learned before", [AP_OTHER_SIZE_NOW] = "calls of another size",
    [AP_REFUSED_BY_ONE] = "a process could not run another", [AP_AS_BEFORE] = "conditions are as before",
};

/* The name of a page in slices, such as "ring x2" for twice as many as planned; NULL: the library. `slice_ratio`:
 * slices over those planned, in units of 1 / AP_PLANNED_SLICES. */
static void name_page(const ap_page *page, int slice_ratio, char *name, size_t capacity) {
    if (!page)
        snprintf(name, capacity, "the library");
    else if (slice_ratio == AP_PLANNED_SLICES)
        snprintf(name, capacity, "%.*s", (int)page->label_bytes, page->label);
    else
        snprintf(name, capacity, "%.*s x%g", (int)page->label_bytes, page->label,
                 (double)slice_ratio / AP_PLANNED_SLICES);
}

/* Writes for a learner a line of its decisions, and a line for each candidate. */
static void write_learned_text(const ap_learned *r) {
    char name[AP_TEXT];
    fprintf(stderr, "antiphon: learned: %s of %llu bytes on %d ranks:", ap_kind_names[r->page->kind], (unsigned long long)r->bytes,
            r->ranks);
    for (uint32_t i = 0; i < r->choices; i++) {
        name_page(r->program[r->choice[i].candidate.program], r->choice[i].candidate.slices, name, sizeof name);
        fprintf(stderr, "%s %s from call %llu on (%s)", i ? ";" : "", name, (unsigned long long)r->choice[i].call + 1,
                causes[r->choice[i].why]);
    }
    fprintf(stderr, "%s\n", r->choices ? "" : " the search has not ended");
    for (uint32_t i = 0; i < r->arms; i++) {
        const ap_arm *a = &r->arm[i];
        name_page(r->program[a->candidate.program], a->candidate.slices, name, sizeof name);
        if (a->samples)
            fprintf(stderr, "antiphon:   %c %-32s %10.2f us (%.2f to %.2f, %llu calls)\n", a->chosen ? '*' : ' ', name,
                    1e6 * a->seconds, 1e6 * a->low, 1e6 * a->high, (unsigned long long)a->samples);
    }
}

/* ---- as text, as JSON ---- */

static void write_text(const report *totals) {
    fprintf(stderr, "antiphon: what ran, in %d processes\n", totals->processes);
    for (size_t i = 0; i < totals->lines; i++) {
        const report_line *line = &totals->line[i];
        if (!line->use.calls) continue;
        fprintf(stderr, "antiphon: %-13s %4u ranks %12llu..%llu bytes %8llu calls %12.6f s, mean %.2f us, by %.*s",
                ap_kind_names[line->kind], line->ranks, (unsigned long long)line->use.min_bytes,
                (unsigned long long)line->use.max_bytes, (unsigned long long)line->use.calls, line->use.seconds,
                1e6 * line->use.seconds / (double)line->use.calls, (int)line->label_bytes, line->label);
        if (line->root >= 0) fprintf(stderr, ", root %d", line->root);
        fputc('\n', stderr);
    }
    for (int k = 0; k < AP_PAGE_KINDS; k++)
        for (int r = AP_SERVED + 1; r < AP_REASONS; r++)
            if (totals->fallbacks[k * AP_REASONS + r])
                fprintf(stderr, "antiphon: %-13s left to the library %llu times: %s\n", ap_kind_names[k],
                        (unsigned long long)totals->fallbacks[k * AP_REASONS + r], reasons[r]);
    for (const ap_learned *record = ap_learned_records; record; record = record->next)
        write_learned_text(record);
    const ap_plan_summary *auto_plan = totals->planned;
    if (auto_plan->how[0]) { /* with ANTIPHON_TABLE=auto only */
        fprintf(stderr, "antiphon: auto: %s%s%s", auto_plan->how, auto_plan->machine[0] ? " for " : "", auto_plan->machine);
        if (auto_plan->since) fprintf(stderr, ", used from call %llu on", (unsigned long long)auto_plan->since);
        if (auto_plan->gain[0]) fprintf(stderr, "; predicted: %s", auto_plan->gain);
        fprintf(stderr, "%s%s\n", auto_plan->notes[0] ? "; " : "", auto_plan->notes);
    }
    if (totals->warning[0]) fprintf(stderr, "antiphon: %s\n", totals->warning);
}

/* Writes a string of JSON. */
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

/* Writes the field "auto" of the report. */
static void write_auto_json(const ap_plan_summary *t, FILE *file) {
    const struct { const char *name, *text; } words[] = {
        {"how", t->how}, {"machine", t->machine}, {"predicted", t->gain}, {"notes", t->notes}};
    fprintf(file, ",\n  \"auto\": {\"since\": %llu", (unsigned long long)t->since);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        fprintf(file, ", \"%s\": ", words[i].name);
        put_text(file, words[i].text, strlen(words[i].text));
    }
    fputc('}', file);
}

/* Writes the beginning of an object for a candidate; the caller adds more fields and the closing brace. */
static void put_candidate(const ap_learned *r, ap_candidate c, FILE *file) {
    const ap_page *page = r->program[c.program];
    fprintf(file, "{\"planner\": ");
    put_text(file, page ? page->label : "the library", page ? page->label_bytes : strlen("the library"));
    fprintf(file, ", \"slices\": %g", (double)c.slices / AP_PLANNED_SLICES);
}

/* Writes a learner's element of the list "learned". */
static void write_learned_json(const ap_learned *r, FILE *file) {
    const char *comma = "";
    fprintf(file, "\n    {\"collective\": \"%s\", \"ranks\": %d, \"root\": %d, \"nbytes\": %llu, \"calls\": %llu, \"candidates\": [",
            ap_kind_names[r->page->kind], r->ranks, r->page->root, (unsigned long long)r->bytes, (unsigned long long)r->calls);
    for (uint32_t i = 0; i < r->arms; i++) {
        const ap_arm *a = &r->arm[i];
        if (!a->samples) continue;
        fputs(comma, file), comma = ", ";
        put_candidate(r, a->candidate, file);
        fprintf(file, ", \"samples\": %llu, \"seconds\": %.9g, \"low\": %.9g, \"high\": %.9g, \"chosen\": %s}",
                (unsigned long long)a->samples, a->seconds, a->low, a->high, a->chosen ? "true" : "false");
    }
    fprintf(file, "], \"choices\": [");
    for (uint32_t i = 0; i < r->choices; i++) {
        fputs(i ? ", " : "", file);
        put_candidate(r, r->choice[i].candidate, file);
        fprintf(file, ", \"call\": %llu, \"why\": \"%s\", \"seconds\": %.9g}", (unsigned long long)r->choice[i].call + 1,
                causes[r->choice[i].why], r->choice[i].seconds);
    }
    fprintf(file, "]}");
}

static void write_json(const report *totals, FILE *file) {
    const char *comma = "";
    fprintf(file, "{\n  \"processes\": %d,\n  \"warning\": ", totals->processes);
    put_text(file, totals->warning, strlen(totals->warning));
    if (totals->planned->how[0]) write_auto_json(totals->planned, file);
    if (ap_preload.set.learns) fprintf(file, ",\n  \"learned\": [");
    for (const ap_learned *r = ap_learned_records; r; r = r->next) write_learned_json(r, file), fputs(r->next ? "," : "", file);
    if (ap_preload.set.learns) fprintf(file, "\n  ]");
    fprintf(file, ",\n  \"served\": [");
    for (size_t i = 0; i < totals->lines; i++) {
        const report_line *line = &totals->line[i];
        if (!line->use.calls) continue;
        fprintf(file, "%s\n    {\"collective\": \"%s\", \"ranks\": %u, \"root\": %d, \"planner\": ", comma,
                ap_kind_names[line->kind], line->ranks, line->root);
        put_text(file, line->label, line->label_bytes);
        fprintf(file, ", \"from\": %llu, \"to\": %llu, \"calls\": %llu, \"seconds\": %.9g, \"mean\": %.9g}",
                (unsigned long long)line->use.min_bytes, (unsigned long long)line->use.max_bytes,
                (unsigned long long)line->use.calls,
                line->use.seconds, line->use.seconds / (double)line->use.calls);
        comma = ",";
    }
    fprintf(file, "\n  ],\n  \"left\": [");
    comma = "";
    for (int k = 0; k < AP_PAGE_KINDS; k++)
        for (int r = AP_SERVED + 1; r < AP_REASONS; r++) {
            uint64_t calls = totals->fallbacks[k * AP_REASONS + r];
            if (!calls) continue;
            fprintf(file, "%s\n    {\"collective\": \"%s\", \"reason\": \"%s\", \"calls\": %llu}", comma, ap_kind_names[k],
                    reasons[r], (unsigned long long)calls);
            comma = ",";
        }
    fprintf(file, "\n  ]\n}\n");
}

/* Writes JSON to the file at `path`, or text to stderr if `path` is empty or cannot be opened. */
static void write_report(const report *s, const char *path) {
    FILE *file = path[0] ? fopen(path, "w") : NULL;
    if (file) {
        write_json(s, file);
        if (fclose(file)) fprintf(stderr, "antiphon: %s: %s\n", path, strerror(errno));
        return;
    }
    if (path[0]) fprintf(stderr, "antiphon: %s: %s\n", path, strerror(errno));
    write_text(s);
}

/* ---- counters, and their sums over all processes ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for all counters of calls by plans */

void ap_report_call(ap_use *u, uint64_t bytes, double seconds) {
    pthread_mutex_lock(&lock);
    if (!u->calls || bytes < u->min_bytes) u->min_bytes = bytes;
    if (bytes > u->max_bytes) u->max_bytes = bytes;
    u->calls++, u->seconds += seconds;
    pthread_mutex_unlock(&lock);
}

void ap_report_fallback(int kind, int reason) {
    atomic_fetch_add_explicit(&ap_preload.fallbacks[kind][reason], 1, memory_order_relaxed);
}

/* Enters a call in the file that other programs read (watch.c). `page`: NULL: it was made by the library. */
void ap_report_watched(ap_group *g, int kind, const ap_page *page, uint32_t slices, uint64_t bytes, double seconds) {
    char name[AP_TEXT];
    if (!g->process) return; /* one process, or two groups: its processes are not listed, and no plan serves it */
    /* names the group in the files of calls, alike at all its processes; 0: not computed yet, so it is never 0 */
    if (!g->number) g->number = 1 | ap_crc32((const unsigned char *)g->process, (size_t)g->size * sizeof *g->process);
    name_page(page, (int)slices, name, sizeof name);
    const ap_watched about = {.group = g->number, .ranks = (uint32_t)g->size, .rank = (uint32_t)g->rank,
                              .collective = ap_kind_names[kind], .schedule = name};
    ap_watch_call(&about, bytes, seconds);
}

/* Sums at process 0; ap_report frees them. */
typedef struct {
    uint64_t *calls;                    /* per page, followed by the fallbacks by kind and reason */
    uint64_t *max_bytes, *inverted_min; /* per page, the second behind the first: UINT64_MAX - min_bytes, so MPI_MAX fits both */
    double *seconds;                    /* per page */
    size_t pages;                       /* of all tables */
} sums;

static size_t count_pages(void) {
    size_t pages = 0;
    for (uint32_t t = 0; t < ap_preload.tables; t++) pages += ap_preload.table[t].book->pages;
    return pages;
}

/* The line of a page, counted over all tables. */
static report_line line_at(size_t number) {
    uint32_t t = 0;
    while (number >= ap_preload.table[t].book->pages) number -= ap_preload.table[t++].book->pages;
    return line_of(&ap_preload.table[t], (uint32_t)number);
}

/* Sums the counters of all processes; false if any process is out of memory. `own`, of this process: calls of each page, the
 * fallbacks by kind and reason, and of each page the greatest size and the inverted least size. */
static int sum_counters(sums *s) {
    const size_t fallback_count = (size_t)AP_PAGE_KINDS * AP_REASONS, n = s->pages, counts = n + fallback_count;
    uint64_t *own = calloc(3 * n + fallback_count, sizeof *own);
    double *seconds = calloc(n + 1, sizeof *seconds);
    s->calls = calloc(counts, sizeof *s->calls), s->max_bytes = calloc(2 * n + 1, sizeof *s->max_bytes);
    s->seconds = calloc(n + 1, sizeof *s->seconds), s->inverted_min = s->max_bytes + n;
    int allocated = own && seconds && s->calls && s->max_bytes && s->seconds, ok = 0;
    if (PMPI_Allreduce(&allocated, &ok, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD)) ok = 0;
    for (size_t i = 0; ok && i < n; i++) {
        ap_use u = line_at(i).use;
        own[i] = u.calls, seconds[i] = u.seconds;
        own[counts + i] = u.max_bytes, own[counts + n + i] = u.calls ? UINT64_MAX - u.min_bytes : 0;
    }
    for (size_t i = 0; ok && i < fallback_count; i++)
        own[n + i] = atomic_load(&ap_preload.fallbacks[i / AP_REASONS][i % AP_REASONS]);
    if (ok)
        ok = !PMPI_Reduce(own, s->calls, (int)counts, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD) &&
              !PMPI_Reduce(own + counts, s->max_bytes, (int)(2 * n), MPI_UINT64_T, MPI_MAX, 0, MPI_COMM_WORLD) &&
              !PMPI_Reduce(seconds, s->seconds, (int)n, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    free(own), free(seconds);
    return ok;
}

/* Warn if no call ran by a plan because the tables are for other calls than the job makes, which nothing else would
 * show. Process 0 looks at its own counters, which include the calls on MPI_COMM_WORLD. Calls that no plan could serve
 * (wrong arguments, one process, no data) do not count; a call left to the library for any reason but a missing plan,
 * root or table keeps this silent. */
void ap_report_unused(void) {
    ap_state *p = &ap_preload;
    int kind = -1, reason = AP_SERVED;
    if (p->rank || !p->tables || p->served) return;
    for (int k = 0; k < AP_PAGE_KINDS; k++)
        for (int r = 0; r < AP_REASONS; r++) {
            if (!atomic_load(&p->fallbacks[k][r]) || r == AP_BAD_ARGUMENTS || r == AP_ONE_PROCESS || r == AP_NO_DATA) continue;
            if (r != AP_NO_PLAN && r != AP_NO_ROOT && r != AP_NO_TABLE) return;
            if (kind < 0) kind = k, reason = r;
        }
    if (kind >= 0)
        fprintf(stderr,
                "antiphon: no call ran by a plan (%s: %s); tune for what the program calls: ANTIPHON_REPORT=1 lists it\n",
                ap_kind_names[kind], reasons[reason]);
}

/* Collective over the job; process 0 writes the report. */
void ap_report(void) {
    sums s = {.pages = count_pages()};
    report_line *line = calloc(s.pages + 1, sizeof *line);
    if (sum_counters(&s) && !ap_preload.rank && line) {
        for (size_t i = 0; i < s.pages; i++) {
            line[i] = line_at(i);
            line[i].use = (ap_use){.calls = s.calls[i], .min_bytes = UINT64_MAX - s.inverted_min[i],
                                   .max_bytes = s.max_bytes[i], .seconds = s.seconds[i]};
        }
        const report totals = {.processes = ap_preload.size, .warning = ap_preload.problem, .line = line, .lines = s.pages,
                              .fallbacks = s.calls + s.pages, .planned = &ap_auto_summary};
        write_report(&totals, ap_preload.set.report_path);
    }
    free(s.calls), free(s.max_bytes), free(s.seconds), free(line);
}
