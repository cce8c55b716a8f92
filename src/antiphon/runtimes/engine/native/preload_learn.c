/* Learning (ANTIPHON_LEARN=1): each call runs by the candidate that a learner chooses (learn.c), instead of by the plan that the
 * table has for it. A candidate is a program in a number of slices. Programs: that plan's, those of the table for neighbouring
 * sizes and of further tables (each a row of the communicator, ap_row), and program 0: the library's own collective.
 *
 * A learner belongs to a communicator, a row and a size class (power of two). Only calls of one size of the class are timed, as
 * others take longer or shorter. After many calls of other sizes in a row, the size of the last of them is timed instead.
 * Process 0 of the world has a record (ap_learned) of each learner on its communicators, for the report, and for the file that
 * keeps what was learned (ANTIPHON_LEARNED). It reads that file in MPI_Init and broadcasts it, so all learners begin alike.
 * Fields of a line, by tabs:
 *
 *     collective, ranks, root, bytes, key of the plan (0: the library), slices, samples, seconds, low, high, chosen, planner
 *
 * seconds, low, high: the latest, least and greatest median time of a call (ap_arm); samples: calls timed; chosen: 1 or 0.
 *
 * Tests set ANTIPHON_TRIED (preload.h): times instead of those measured, or "turns:..." with candidates to run.
 *
 * Threading: a learner is used by the calls of its communicator, one at a time; records have a lock.
 * Ownership: learners are freed with their communicator, records stay.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "preload.h"
#include "transport.h"

/* MAX_ALTERNATIVES: programs beside the library and the plan of the table. OTHER_CALLS: calls of other sizes in a row
 * until the timed size changes. MIN_SLICED_BYTES: smaller calls are not tried in other numbers of slices. */
enum { MAX_ALTERNATIVES = 3, OTHER_CALLS = 32, MIN_SLICED_BYTES = 1 << 15 };

/* A learner with what the preload needs of it: the rows of its programs, the calls that are timed, its record. */
struct ap_learning {
    ap_learning *next;
    const ap_row *row;
    int kind, scale, other_calls; /* scale: log2 of the bytes; other_calls: calls of other sizes in a row */
    uint64_t bytes, calls; /* of the calls that are timed: the bytes of each, and their number so far */
    ap_learner *learner;
    ap_row *row_of[AP_MAX_PROGRAMS]; /* per program its row; the first is NULL: the library */
    uint32_t programs, key[AP_MAX_PROGRAMS]; /* their number; their keys in the file (ap_page) */
    double *last; /* where the learner keeps the time of the last call that was timed, by `candidate`; NULL: none */
    ap_candidate candidate;
    ap_learned *record;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for records */

/* Finds or makes the record of a learner; NULL: none is kept. Communicators with the same page and size share a record. */
static ap_learned *find_record(const ap_group *g, const ap_learning *l) {
    ap_learned *record;
    if (ap_preload.rank || (!ap_preload.set.report && !ap_preload.set.learned_path[0])) return NULL;
    pthread_mutex_lock(&lock);
    for (record = ap_learned_records; record; record = record->next)
        if (record->page == l->row->page && record->scale == l->scale && record->ranks == g->size) break;
    if (!record && (record = calloc(1, sizeof *record))) {
        *record = (ap_learned){.next = ap_learned_records, .page = l->row->page, .scale = l->scale, .ranks = g->size,
                               .root = l->row->range.root, .bytes = l->bytes};
        ap_learned_records = record;
    }
    for (uint32_t i = 1; record && i < l->programs; i++) record->program[i] = l->row_of[i]->page;
    if (record) memcpy(record->key, l->key, sizeof l->key);
    pthread_mutex_unlock(&lock);
    return record;
}

/* Copies what the learner knows of each candidate (arms) and its decisions so far (choices) to its record, if it has one. */
static void write_record(const ap_learning *l) {
    ap_learned *record = l->record;
    if (!record) return;
    pthread_mutex_lock(&lock);
    record->bytes = l->bytes, record->calls = l->calls;
    record->arms = ap_learner_arms(l->learner, record->arm);
    record->choices = ap_learner_choices(l->learner, record->choice);
    pthread_mutex_unlock(&lock);
}

/* ---- the file of what was learned ---- */

static const char header[] = "antiphon-learned\t1\n";
static const int64_t MAX_FILE = 1 << 24; /* bytes; what is beyond is not read */
static const double MAX_SECONDS = 1e9;   /* of a call: no plausible time, so the line is damaged */

/* COLLECTIVE_TEXT, PLANNER_TEXT: bytes with the final zero (one more than sscanf reads). MAX_LABEL: bytes written. */
enum { COLLECTIVE_TEXT = 16, PLANNER_TEXT = 128, MAX_LABEL = 120 };

typedef struct { /* the fields of a line; planner is for people: nothing depends on it */
    char collective[COLLECTIVE_TEXT], planner[PLANNER_TEXT];
    int ranks, root, slices, chosen;
    uint32_t key;
    uint64_t bytes, samples;
    double seconds, low, high;
} learned_line;

/* The size class: log2 of the bytes, rounded down. */
static int scale_of(uint64_t bytes) { return bytes ? 63 - __builtin_clzll(bytes) : 0; }

/* Whether the text begins with a valid line. */
static int parse_line(const char *text, learned_line *x) {
    return sscanf(text, "%15[a-z]\t%d\t%d\t%" SCNu64 "\t%" SCNx32 "\t%d\t%" SCNu64 "\t%lf\t%lf\t%lf\t%d\t%127[^\t\n]", x->collective,
                  &x->ranks, &x->root, &x->bytes, &x->key, &x->slices, &x->samples, &x->seconds, &x->low, &x->high,
                  &x->chosen, x->planner) == 12 &&
           x->samples && x->low > 0 && x->low <= x->seconds && x->seconds <= x->high && x->high < MAX_SECONDS &&
           x->slices >= AP_MIN_SLICES && x->slices <= AP_MAX_SLICES;
}

static const char *next_line(const char *text) {
    const char *end = strchr(text, '\n');
    return end ? end + 1 : text + strlen(text);
}

char *ap_learned_read(ap_settings *s, char problem[AP_TEXT]) {
    FILE *file = s->learned_path[0] ? fopen(s->learned_path, "r") : NULL;
    char *text = file ? calloc(1, (size_t)MAX_FILE + 1) : NULL;
    if (s->learned_path[0] && !file && errno != ENOENT) {
        ap_complain(problem, "ANTIPHON_LEARNED: %.150s: %s", s->learned_path, strerror(errno));
        s->learned_path[0] = 0;
    }
    if (text && fread(text, 1, (size_t)MAX_FILE, file) && strncmp(text, header, sizeof header - 1)) {
        ap_complain(problem, "ANTIPHON_LEARNED: %.150s is no file of what was learned; it stays as it is", s->learned_path);
        s->learned_path[0] = text[0] = 0;
    }
    if (file) fclose(file);
    char *exact = text ? strdup(text) : NULL;
    free(text);
    return exact;
}

/* Passes the lines of the file about its calls and programs to a new learner. */
static void recall(const ap_group *g, ap_learning *l) {
    learned_line x;
    uint32_t checksum[AP_MAX_PROGRAMS] = {0}; /* the keys of files from before there were others */
    for (uint32_t p = 1; ap_preload.set.learned_path[0] && p < l->programs; p++) {
        checksum[p] = ap_crc32(l->row_of[p]->program->bytes, l->row_of[p]->program->size);
        l->key[p] = l->row_of[p]->page->key ? l->row_of[p]->page->key : checksum[p];
    }
    for (const char *line = ap_preload.learned ? ap_preload.learned : ""; *line; line = next_line(line)) {
        if (!parse_line(line, &x) || strcmp(x.collective, ap_kind_names[l->kind]) || x.ranks != g->size) continue;
        if (x.root != l->row->range.root || scale_of(x.bytes) != l->scale) continue;
        for (uint32_t p = 0; p < l->programs; p++)
            if (l->key[p] == x.key || checksum[p] == x.key)
                ap_learner_recall(l->learner, &(ap_arm){.candidate = {(int32_t)p, x.slices}, .usable = 1, .chosen = x.chosen,
                                                        .samples = x.samples, .seconds = x.seconds, .low = x.low, .high = x.high});
    }
}

/* Writes a line for each candidate that was measured. */
static void write_lines(const ap_learned *r, FILE *file) {
    static const char library[] = "the library";
    for (uint32_t i = 0; i < r->arms; i++) {
        const ap_arm *a = &r->arm[i];
        const ap_page *page = r->program[a->candidate.program];
        const uint32_t label_bytes = page ? page->label_bytes : sizeof library - 1;
        if (!a->samples) continue;
        /* parse_line accepts only low <= seconds <= high; so it is written in any case */
        fprintf(file, "%s\t%d\t%d\t%" PRIu64 "\t%" PRIx32 "\t%d\t%" PRIu64 "\t%.9g\t%.9g\t%.9g\t%d\t%.*s\n",
                ap_kind_names[r->page->kind], r->ranks, r->root, r->bytes, r->key[a->candidate.program], a->candidate.slices,
                a->samples, a->seconds, a->low < a->seconds ? a->low : a->seconds, a->high > a->seconds ? a->high : a->seconds,
                a->chosen, (int)(label_bytes < MAX_LABEL ? label_bytes : MAX_LABEL), page ? page->label : library);
    }
}

/* Whether this job has learned about the calls of a line. */
static int is_replaced(const learned_line *x) {
    for (const ap_learned *r = ap_learned_records; r; r = r->next)
        if (r->choices && !strcmp(x->collective, ap_kind_names[r->page->kind]) && x->ranks == r->ranks && x->root == r->root &&
            scale_of(x->bytes) == r->scale)
            return 1;
    return 0;
}

void ap_learned_write(void) {
    const char *path = ap_preload.set.learned_path;
    char draft[AP_PATH + 32], problem[AP_TEXT] = "";
    learned_line x;
    if (ap_preload.rank || !path[0]) return;
    char *earlier = ap_learned_read(&ap_preload.set, problem); /* another job may have written it since this one began */
    if (problem[0]) {
        fprintf(stderr, "antiphon: %s\n", problem);
        free(earlier);
        return;
    }
    snprintf(draft, sizeof draft, "%s.%d.new", path, (int)getpid()); /* jobs that end at once must not share it */
    FILE *file = fopen(draft, "w");
    if (file) {
        fputs(header, file);
        for (const char *line = earlier ? earlier : ""; *line; line = next_line(line))
            if (parse_line(line, &x) && !is_replaced(&x)) fwrite(line, 1, (size_t)(next_line(line) - line), file);
        for (const ap_learned *r = ap_learned_records; r; r = r->next)
            if (r->choices) write_lines(r, file);
    }
    free(earlier);
    if (file && !fclose(file) && !rename(draft, path)) return;
    fprintf(stderr, "antiphon: ANTIPHON_LEARNED: %s: %s\n", path, strerror(errno));
    if (file) unlink(draft);
}

/* ---- candidates ---- */

/* Adds rows whose programs can serve the same calls, the nearest in the table first: those for neighbouring sizes. */
static void add_alternatives(const ap_group *g, ap_learning *l) {
    const int64_t rows = g->rows.count, own = l->row - g->rows.row;
    for (int64_t distance = 1; distance < rows; distance++)
        for (int side = -1; side <= 1; side += 2) {
            const int64_t i = own + side * distance;
            if (i < 0 || i >= rows || l->programs == 2 + MAX_ALTERNATIVES) continue;
            ap_row *other = &g->rows.row[i];
            int is_new = other->program && other->state != AP_ROW_REFUSED && other->range.kind == l->row->range.kind &&
                         other->range.root == l->row->range.root;
            for (uint32_t k = 1; k < l->programs; k++) is_new &= l->row_of[k]->program != other->program;
            if (is_new) l->row_of[l->programs++] = other;
        }
}

/* Finds or makes the learner of such calls, and moves it to the front; NULL: out of memory. */
static ap_learning *find_learning(ap_group *g, ap_row *row, int kind, uint64_t bytes) {
    const int scale = scale_of(bytes);
    for (ap_learning **at = &g->learning; *at; at = &(*at)->next) {
        ap_learning *l = *at;
        if (l->row != row || l->kind != kind || l->scale != scale) continue;
        *at = l->next, l->next = g->learning, g->learning = l;
        return l;
    }
    ap_learning *l = calloc(1, sizeof *l);
    if (!l) return NULL;
    *l = (ap_learning){.next = g->learning, .row = row, .kind = kind, .scale = scale, .bytes = bytes, .programs = 1};
    if (row->program) l->row_of[l->programs++] = row;
    add_alternatives(g, l);
    const int first = row->program ? 1 : 0; /* the program that the table has for such calls */
    l->learner = ap_learner_open(l->programs, first, /* library */ 1, /* searches slices */ bytes >= MIN_SLICED_BYTES);
    if (l->learner) {
        recall(g, l);
        g->learning = l, l->record = find_record(g, l);
        return l;
    }
    free(l);
    return NULL;
}

/* Exchanges what processes have measured, if it is time. False: an error of MPI (*code), or the processes disagree. */
static int exchange(ap_group *g, ap_learning *l, int *code, ap_error *error) {
    double own[AP_LEARNER_NUMBERS], agreed[AP_LEARNER_NUMBERS];
    if (l->last) ap_learn_override(l->calls, l->candidate, l->last); /* for tests: another time */
    const int numbers = ap_learner_report(l->learner, own);
    if (!numbers) return 1;
    const double began = ap_now();
    if ((*code = PMPI_Allreduce(own, agreed, numbers, MPI_DOUBLE, MPI_MAX, g->comm))) return 0;
    ap_learner_exchanged(l->learner, ap_now() - began);
    if (!ap_learner_update(l->learner, agreed)) {
        ap_fail(error, AP_MISMATCH, "processes chose different plans while learning; run without ANTIPHON_LEARN");
        *code = MPI_ERR_OTHER;
        return 0;
    }
    write_record(l);
    return 1;
}

/* Whether calls of this size are those that are timed. */
static int is_timed(ap_learning *l, uint64_t bytes) {
    if (l->bytes == bytes) {
        l->other_calls = 0;
        return 1;
    }
    if (++l->other_calls < OTHER_CALLS) return 0;
    l->bytes = bytes, l->other_calls = 0, l->last = NULL;
    ap_learner_restart(l->learner);
    return 1;
}

/* Chooses how a call is made. *row, *slices: in, the table's plan for it; out, the candidate, with *row NULL for the
 * library. AP_SERVED: by *row, or the call fails (*code, of MPI, or `error`); else why the library gets it. *stopwatch:
 * NULL if the call is not timed; else it holds the time of its beginning, which ap_trial_end turns into the seconds
 * since. */
int ap_learn_begin(ap_group *g, ap_row **row, uint32_t *slices, int kind, uint64_t bytes, double **stopwatch, int *code,
                   ap_error *error) {
    ap_learning *l = find_learning(g, *row, kind, bytes);
    int aligns = 0;
    *code = l ? MPI_SUCCESS : MPI_ERR_NO_MEM, *stopwatch = NULL;
    if (!l) return AP_SERVED;
    if (l->programs == 1) return AP_LIBRARY_FASTER; /* there is no choice */
    if (is_timed(l, bytes)) {
        if (!exchange(g, l, code, error)) return AP_SERVED;
        l->calls++;
        *stopwatch = l->last = ap_learner_begin(l->learner, &l->candidate, &aligns);
        /* "turns:..." may name more programs than there are for this call */
        if (ap_learn_turn(l->calls - 1, &l->candidate)) l->candidate.program %= (int32_t)l->programs;
    }
    /* calls that are not timed run by the candidate of the last one that was: the first call of a learner is timed */
    *row = l->row_of[l->candidate.program], *slices = (uint32_t)l->candidate.slices;
    if (*row && (*row)->state != AP_ROW_RUNS && !ap_row_usable(g, *row, code, error) && !*code) {
        ap_learn_refuse(g);
        *row = NULL, *stopwatch = NULL;
    }
    /* a process that ends the last call late must not prolong this one */
    if (!*code && aligns && *stopwatch) *code = PMPI_Barrier(g->comm);
    if (*stopwatch) **stopwatch = ap_now(); /* ap_trial_end turns it into the seconds since */
    return *row || *code ? AP_SERVED : ap_learner_is_searching(l->learner) ? AP_LEARNING : AP_LEARNED;
}

/* The candidate that ap_learn_begin has just chosen (the first learner of the list) cannot run at some process. */
void ap_learn_refuse(ap_group *g) {
    ap_learner_refuse(g->learning->learner);
    g->learning->last = NULL;
}

void ap_learning_free(ap_group *g) {
    for (ap_learning *l = g->learning, *next; l; l = next) next = l->next, ap_learner_close(l->learner), free(l);
    g->learning = NULL;
}
