/* What the environment says, at the one process that asks it: the settings, and which tables there are. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "preload_job.h"

enum { USUAL_AFTER = 8 }; /* calls */
static const uint64_t USUAL_SCRATCH = 64u << 20, MOST_SCRATCH = (uint64_t)1 << 40;

void ap_complain(char why[AP_TEXT], const char *format, ...) {
    va_list rest;
    if (why[0]) return;
    va_start(rest, format);
    vsnprintf(why, AP_TEXT, format, rest);
    va_end(rest);
}

/* "2KB", "64KiB", "1e6": as everywhere in Antiphon. */
static int read_size(const char *text, uint64_t *bytes) {
    static const char letters[] = "kmgtp";
    char *end;
    double value = strtod(text, &end);
    if (end == text || !(value >= 0)) return 0;
    while (*end == ' ') end++;
    const char *letter = *end ? strchr(letters, *end | 0x20) : NULL;
    if (letter) {
        int binary = end[1] == 'i';
        for (const char *l = letters; l <= letter; l++) value *= binary ? 1024 : 1000;
        end += 1 + binary;
    }
    if (*end == 'B' || *end == 'b') end++;
    if (*end || value > 1e18) return 0;
    *bytes = (uint64_t)value;
    return 1;
}

int ap_tried(int process, double seconds[2]) {
    const char *at = getenv("ANTIPHON_TRIED");
    for (int i = 0; at && *at; i++) {
        double one[2];
        for (int k = 0; k < 2; k++) {
            char *end;
            one[k] = strtod(at, &end);
            if (end == at || !(one[k] >= 0) || *end != (k ? *end ? ',' : 0 : ':')) return 0;
            at = end + (*end != 0);
        }
        if (i <= process) seconds[0] = one[0], seconds[1] = one[1];
        if (!*at) return at[-1] != ',';
    }
    return 0;
}

void ap_read_settings(ap_settings *s, char why[AP_TEXT]) {
    const char *least = getenv("ANTIPHON_LEAST"), *timeout = getenv("ANTIPHON_TIMEOUT"), *report = getenv("ANTIPHON_REPORT");
    const char *anywhere = getenv("ANTIPHON_ANYWHERE"), *after = getenv("ANTIPHON_AFTER"), *scratch = getenv("ANTIPHON_SCRATCH");
    const char *device = getenv("ANTIPHON_DEVICE");
    char *end;
    *s = (ap_settings){.least = 2000, .after = USUAL_AFTER, .scratch = USUAL_SCRATCH};
    if (least && *least && !read_size(least, &s->least)) {
        ap_complain(why, "ANTIPHON_LEAST=%.60s is no size; 2KB is taken", least);
        least = NULL;
    }
    if (after && *after) {
        unsigned long calls = strtoul(after, &end, 10);
        if (*end || *after == '-' || calls > UINT32_MAX)
            ap_complain(why, "ANTIPHON_AFTER=%.60s is no number of calls; %d is taken", after, USUAL_AFTER);
        else
            s->after = (uint32_t)calls;
    }
    if (timeout && *timeout) {
        s->timeout = strtod(timeout, &end);
        if (*end || !(s->timeout >= 0)) {
            ap_complain(why, "ANTIPHON_TIMEOUT=%.60s is no number of seconds; there is no limit", timeout);
            s->timeout = 0;
        }
    }
    s->tries = !(least && *least) && s->timeout <= 0; /* what MPI does has no end */
    if (scratch && *scratch && (!read_size(scratch, &s->scratch) || s->scratch > MOST_SCRATCH)) {
        ap_complain(why, "ANTIPHON_SCRATCH=%.60s is no size; 64MiB is taken", scratch);
        s->scratch = USUAL_SCRATCH;
    }
    const char *tried = getenv("ANTIPHON_TRIED");
    double seconds[2];
    if (tried && *tried && !ap_tried(0, seconds))
        ap_complain(why, "ANTIPHON_TRIED=%.60s does not say what calls took, as 2:1 does; they are timed", tried);
    s->report = report && *report && strcmp(report, "0");
    s->anywhere = anywhere && *anywhere && strcmp(anywhere, "0");
    s->device = device && *device ? strcmp(device, "0") != 0 : -1;
    if (s->report && strcmp(report, "1")) snprintf(s->report_path, sizeof s->report_path, "%s", report);
}

/* Takes one table, if it can be of use. */
static uint32_t take(const char *path, int world, int position, ap_table *table, char why[AP_TEXT]) {
    ap_error error = {0, ""};
    uint64_t size = 0;
    unsigned char *bytes = ap_table_bytes(path, &size, &error);
    ap_book *book = bytes ? ap_book_open(bytes, size, &error) : NULL;
    if (!book) {
        ap_complain(why, "ANTIPHON_TABLE: %s%s%s", bytes ? path : "", bytes ? ": " : "", error.text);
    } else if (world && position == 0 && book->ranks != (uint32_t)world) {
        ap_complain(why, "ANTIPHON_TABLE: %.150s is for %u ranks; this job has %d", path, book->ranks, world);
    } else {
        *table = (ap_table){.book = book, .bytes = bytes, .size = size, .position = position,
                            .of_world = book->ranks == (uint32_t)world};
        return 1;
    }
    ap_book_close(book);
    free(bytes);
    return 0;
}

uint32_t ap_read_tables(const char *list, int world, ap_table table[AP_MOST_TABLES], char why[AP_TEXT]) {
    uint32_t tables = 0;
    if (!list || !*list) {
        ap_complain(why, "ANTIPHON_TABLE is not set");
        return 0;
    }
    char *copy = strdup(list);
    int position = 0;
    for (char *at = copy, *next; at; at = next, position++) {
        next = strchr(at, ':');
        if (next) *next++ = 0;
        if (!*at) continue;
        if (tables == AP_MOST_TABLES) {
            ap_complain(why, "ANTIPHON_TABLE names more than %d tables", AP_MOST_TABLES);
            break;
        }
        tables += take(at, world, position, &table[tables], why);
    }
    free(copy);
    if (!tables) ap_complain(why, "ANTIPHON_TABLE names no table");
    return tables;
}
