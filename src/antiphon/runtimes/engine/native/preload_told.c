/* What ran and what did not, as text or as JSON. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "preload_job.h"

const char *const ap_kind_names[AP_KINDS] = {"broadcast", "reduce", "scatter", "gather", "allgather", "reducescatter",
                                             "allreduce", "alltoall"};

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
    [AP_OTHER_TYPE] = "plans do not combine its data type",
    [AP_OTHER_OPERATOR] = "plans do not combine by its operator",
    [AP_LARGE] = "it is too large for MPI_Pack",
    [AP_REFUSED] = "a process could not run the plan",
    [AP_WAITING] = "its plans were not there yet",
    [AP_NOT_PLANNED] = "no plans could be made",
    [AP_NEW] = "the communicator was new",
    [AP_NO_ROOM] = "other communicators had the memory that may be shared",
    [AP_UNEVEN] = "its counts differ",
    [AP_NONBLOCKING] = "it does not wait",
    [AP_DEVICE] = "a buffer is in the memory of a GPU",
    [AP_PERSISTENT] = "it is persistent",
    [AP_NO_SCRATCH] = "it needs more scratch than ANTIPHON_SCRATCH",
    [AP_TRIED] = "its first calls go both ways in turn",
    [AP_SLOWER] = "its first calls took longer by a plan",
    [AP_UNLIKE] = "not all processes have the same library",
};

const char *ap_reason(int reason) { return reason < 0 || reason >= AP_REASONS ? "" : reasons[reason]; }

void ap_use_add(ap_use *use, uint64_t bytes, double seconds) {
    use->least = use->calls && use->least < bytes ? use->least : bytes;
    use->most = use->most > bytes ? use->most : bytes;
    use->calls++, use->seconds += seconds;
}

ap_line ap_line_of(const ap_table *table, uint32_t number) {
    const ap_page *page = &table->book->page[number];
    return (ap_line){table->use ? table->use[number] : (ap_use){0, 0, 0, 0}, (int)page->kind, page->root, page->members,
                     page->label, page->label_bytes};
}

static void as_text(const ap_account *s) {
    static const ap_told none;
    fprintf(stderr, "antiphon: what ran, in %d processes\n", s->processes);
    for (size_t i = 0; i < s->lines; i++) {
        const ap_line *p = &s->line[i];
        if (!p->use.calls) continue;
        fprintf(stderr,
                "antiphon: %-13s %4u ranks %12llu..%llu bytes %8llu calls %12.6f s, mean %.2f us, by %.*s",
                ap_kind_names[p->kind], p->ranks, (unsigned long long)(p->use.least),
                (unsigned long long)p->use.most, (unsigned long long)p->use.calls, p->use.seconds,
                1e6 * p->use.seconds / (double)p->use.calls, (int)p->label_bytes, p->label);
        if (p->root >= 0) fprintf(stderr, ", root %d", p->root);
        fputc('\n', stderr);
    }
    for (int k = 0; k < AP_KINDS; k++)
        for (int r = 0; r < AP_REASONS; r++)
            if (s->left[k * AP_REASONS + r])
                fprintf(stderr, "antiphon: %-13s left to the library %llu times: %s\n", ap_kind_names[k],
                        (unsigned long long)s->left[k * AP_REASONS + r], reasons[r]);
    const ap_told *t = s->planned ? s->planned : &none;
    if (t->how[0])
        fprintf(stderr, "antiphon: auto: %s%s%s", t->how, t->machine[0] ? " for " : "", t->machine);
    if (t->since) fprintf(stderr, ", used from call %llu on", (unsigned long long)t->since);
    if (t->gain[0]) fprintf(stderr, "; predicted: %s", t->gain);
    if (t->how[0]) fprintf(stderr, "%s%s\n", t->notes[0] ? "; " : "", t->notes);
    if (s->warning[0]) fprintf(stderr, "antiphon: %s\n", s->warning);
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

static void auto_as_json(const ap_told *t, FILE *file) {
    const struct { const char *name, *text; } words[] = {
        {"how", t->how}, {"machine", t->machine}, {"predicted", t->gain}, {"notes", t->notes}};
    fprintf(file, ",\n  \"auto\": {\"since\": %llu", (unsigned long long)t->since);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        fprintf(file, ", \"%s\": ", words[i].name);
        put_text(file, words[i].text, strlen(words[i].text));
    }
    fputc('}', file);
}

static void as_json(const ap_account *s, FILE *file) {
    const char *comma = "";
    fprintf(file, "{\n  \"processes\": %d,\n  \"warning\": ", s->processes);
    put_text(file, s->warning, strlen(s->warning));
    if (s->planned && s->planned->how[0]) auto_as_json(s->planned, file);
    fprintf(file, ",\n  \"served\": [");
    for (size_t i = 0; i < s->lines; i++) {
        const ap_line *p = &s->line[i];
        if (!p->use.calls) continue;
        fprintf(file, "%s\n    {\"collective\": \"%s\", \"ranks\": %u, \"root\": %d, \"planner\": ", comma,
                ap_kind_names[p->kind], p->ranks, p->root);
        put_text(file, p->label, p->label_bytes);
        fprintf(file, ", \"from\": %llu, \"to\": %llu, \"calls\": %llu, \"seconds\": %.9g, \"mean\": %.9g}",
                (unsigned long long)(p->use.least), (unsigned long long)p->use.most,
                (unsigned long long)p->use.calls, p->use.seconds, p->use.seconds / (double)p->use.calls);
        comma = ",";
    }
    fprintf(file, "\n  ],\n  \"left\": [");
    comma = "";
    for (int k = 0; k < AP_KINDS; k++)
        for (int r = 0; r < AP_REASONS; r++) {
            uint64_t calls = s->left[k * AP_REASONS + r];
            if (!calls) continue;
            fprintf(file, "%s\n    {\"collective\": \"%s\", \"reason\": \"%s\", \"calls\": %llu}", comma, ap_kind_names[k],
                    reasons[r], (unsigned long long)calls);
            comma = ",";
        }
    fprintf(file, "\n  ]\n}\n");
}

void ap_account_write(const ap_account *s, const char *path) {
    FILE *file = path[0] ? fopen(path, "w") : NULL;
    if (file) {
        as_json(s, file);
        if (fclose(file)) fprintf(stderr, "antiphon: %s: %s\n", path, strerror(errno));
        return;
    }
    if (path[0]) fprintf(stderr, "antiphon: %s: %s\n", path, strerror(errno));
    as_text(s);
}
