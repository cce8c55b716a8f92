/* Trials of unmeasured plans: the first calls of each kind and size class (power of two) run by the plan and by the MPI library
 * in turn, and the faster of the two serves all later ones. All processes make the same calls in the same order, so they take
 * the same turns; which of the two was faster is agreed upon once.
 *
 * Threading: one call at a time on a communicator, to which its trials belong.
 * Ownership: trials are kept with their communicator until ap_trials_free.
 */
#include <stdlib.h>

#include "clock.h"
#include "preload.h"

/* PAIRS: pairs of calls that count, after a first pair that sets up memory and connections. EARLY_CALLS: after this
 * number of calls, the first pair and one that counts, a clear difference decides already. */
enum { PAIRS = 3, TRIAL_CALLS = 2 * (PAIRS + 1), EARLY_CALLS = 4 };

/* A larger difference is not caused by the system's scheduling of processes. */
static const double CLEAR_SECONDS = 0.01;

struct ap_trial {
    ap_trial *next;
    const ap_row *row;      /* of the communicator: the plan on trial */
    int kind, scale, calls; /* scale: log2 of the bytes; calls: tried so far */
    int slower, decided;    /* whether the plan was slower; whether the trial is over */
    /* Of the last call by the plan. The library's call makes a pair with it only if both are equal. */
    uint64_t bytes;
    int op;
    double seconds[TRIAL_CALLS]; /* of each call; even: by the plan, odd: by the library */
};

/* The size class: log2 of the bytes, rounded down. */
static int scale_of(uint64_t bytes) {
    int scale = 0;
    while (bytes >>= 1) scale++;
    return scale;
}

/* Finds or makes the trial for such calls, and moves it to the front of the group's list; NULL: out of memory. */
static ap_trial *find_trial(ap_group *g, const ap_row *row, int kind, int scale) {
    for (ap_trial **at = &g->trials; *at; at = &(*at)->next) {
        ap_trial *trial = *at;
        if (trial->row != row || trial->kind != kind || trial->scale != scale) continue;
        *at = trial->next, trial->next = g->trials, g->trials = trial;
        return trial;
    }
    ap_trial *trial = calloc(1, sizeof *trial);
    if (trial) *trial = (ap_trial){.next = g->trials, .row = row, .kind = kind, .scale = scale}, g->trials = trial;
    return trial;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of every second call from `first` on: those by the plan (first 2) or by the library (first 3), without the
 * first pair. */
static double median_time(const double *seconds, int first) {
    double times[PAIRS];
    for (int i = 0; i < PAIRS; i++) times[i] = seconds[first + 2 * i];
    qsort(times, PAIRS, sizeof *times, by_size);
    return times[PAIRS / 2];
}

/* For tests: replaces the measured times by those of ANTIPHON_TRIED, if it is set. */
static void override_times(double *seconds) {
    double both[2];
    if (!ap_trial_override(ap_preload.rank, both)) return;
    for (int i = 0; i < TRIAL_CALLS; i++) seconds[i] = both[i % 2];
}

/* Whether the second pair decides: it differs more than twofold and clearly, in the same direction as the first pair. This
 * avoids further slow calls. */
static int is_clear(const double *seconds) {
    const int slower = seconds[2] > seconds[3];
    const double longer = seconds[2 + !slower], shorter = seconds[2 + slower];
    return longer > 2 * shorter && longer - shorter > CLEAR_SECONDS && slower == (seconds[0] > seconds[1]);
}

/* Decides a trial, unless it is early and not clear. Compares the times of the slowest process, so that all processes decide
 * alike. Returns an error code of MPI. */
static int decide_trial(ap_group *g, ap_trial *trial) {
    double slowest[TRIAL_CALLS];
    override_times(trial->seconds);
    int code = PMPI_Allreduce(trial->seconds, slowest, TRIAL_CALLS, MPI_DOUBLE, MPI_MAX, g->comm);
    if (code) return code;
    const int is_early = trial->calls == EARLY_CALLS;
    trial->decided = !is_early || is_clear(slowest);
    trial->slower = is_early ? slowest[2] > slowest[3] : median_time(slowest, 2) > median_time(slowest, 3);
    return code;
}

/* AP_SERVED: this call runs by the plan; else why the library gets it. *stopwatch: NULL if the call is not timed; else
 * it holds the time of its beginning, which ap_trial_end turns into the seconds since. Collective where a trial is
 * decided or a call is timed. *code: an error of MPI; after one, neither the plan nor the library may run the call. */
int ap_trial_begin(ap_group *g, const ap_row *row, int kind, uint64_t bytes, int op, double **stopwatch, int *code) {
    ap_trial *trial = find_trial(g, row, kind, scale_of(bytes));
    *stopwatch = NULL, *code = trial ? MPI_SUCCESS : MPI_ERR_NO_MEM;
    if (trial && !trial->decided && (trial->calls == EARLY_CALLS || trial->calls == TRIAL_CALLS)) *code = decide_trial(g, trial);
    if (*code) return AP_SERVED;
    if (trial->decided) return trial->slower ? AP_SLOWER : AP_SERVED;
    /* the second call of a pair differs from the first: begin the pair again */
    if (trial->calls % 2 && (trial->bytes != bytes || trial->op != op)) trial->calls--;
    trial->bytes = bytes, trial->op = op;
    /* a process that ends the last call late must not prolong this one */
    *code = PMPI_Barrier(g->comm);
    if (*code) return AP_SERVED;
    *stopwatch = &trial->seconds[trial->calls];
    **stopwatch = ap_now();
    return trial->calls++ % 2 ? AP_TRIED : AP_SERVED;
}

void ap_trial_end(double *stopwatch) { *stopwatch = ap_now() - *stopwatch; }

void ap_trials_free(ap_group *g) {
    for (ap_trial *trial = g->trials, *next; trial; trial = next) next = trial->next, free(trial);
    g->trials = NULL;
}
