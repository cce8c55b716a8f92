/* Plans that nobody has measured, beside the library's own: the first calls of a kind and about a size go both ways in turn,
 * and what took less time is kept to. All processes make the same calls in the same order, so all are at the same turn; which
 * way was faster they ask each other once. */
#include <stdlib.h>

#include "clock.h"
#include "preload.h"

/* Pairs that count. One of each way goes before: it makes what is kept, memory and connections. EARLY: the calls after which
 * a clear difference decides. */
enum { PAIRS = 3, CALLS = 2 * (PAIRS + 1), EARLY = 4 };

/* A difference above this many seconds is no accident of scheduling. */
static const double CLEAR_SECONDS = 0.01;

struct ap_trial {
    ap_trial *next;
    const ap_row *row;
    int kind, scale, calls; /* scale: of bytes, in powers of two */
    int slower, decided;    /* the plan was slower; no more calls are tried */
    uint64_t bytes;         /* of the call by the plan: only one like it by the other way makes a pair with it */
    int op;
    double spent[CALLS];
};

static int scale_of(uint64_t bytes) {
    int scale = 0;
    while (bytes >>= 1) scale++;
    return scale;
}

/* The one for such calls, put first; NULL: there is no memory. */
static ap_trial *find(ap_group *g, const ap_row *row, int kind, int scale) {
    for (ap_trial **at = &g->trials; *at; at = &(*at)->next) {
        ap_trial *t = *at;
        if (t->row != row || t->kind != kind || t->scale != scale) continue;
        *at = t->next, t->next = g->trials, g->trials = t;
        return t;
    }
    ap_trial *made = calloc(1, sizeof *made);
    if (made) *made = (ap_trial){.next = g->trials, .row = row, .kind = kind, .scale = scale}, g->trials = made;
    return made;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of the calls from there on, every other one. */
static double median(const double *spent, int first) {
    double of[PAIRS];
    for (int i = 0; i < PAIRS; i++) of[i] = spent[first + 2 * i];
    qsort(of, PAIRS, sizeof *of, by_size);
    return of[PAIRS / 2];
}

static void take_given(double *spent) {
    double seconds[2];
    if (!ap_tried(ap_preload.rank, seconds)) return;
    for (int i = 0; i < CALLS; i++) spent[i] = seconds[i % 2];
}

/* One pair decides only where both its calls and those before it differ the same way, and more than twofold: calls that take
 * so long are not to be made the slow way any oftener. */
static int is_clear(const double *spent) {
    const int slower = spent[2] > spent[3];
    const double most = spent[2 + !slower], least = spent[2 + slower];
    return most > 2 * least && most - least > CLEAR_SECONDS && slower == (spent[0] > spent[1]);
}

/* Compare by what the slowest process took, so that all processes decide alike. */
static int decide(ap_group *g, ap_trial *t) {
    double slowest[CALLS];
    take_given(t->spent);
    int code = PMPI_Allreduce(t->spent, slowest, CALLS, MPI_DOUBLE, MPI_MAX, g->comm);
    if (code) return code;
    const int early = t->calls == EARLY;
    t->decided = !early || is_clear(slowest);
    t->slower = early ? slowest[2] > slowest[3] : median(slowest, 2) > median(slowest, 3);
    return code;
}

int ap_trial_turn(ap_group *g, const ap_row *row, int kind, uint64_t bytes, int op, double **spent, int *code) {
    ap_trial *t = find(g, row, kind, scale_of(bytes));
    *spent = NULL, *code = t ? MPI_SUCCESS : MPI_ERR_NO_MEM;
    if (t && !t->decided && (t->calls == EARLY || t->calls == CALLS)) *code = decide(g, t);
    if (*code) return AP_SERVED;
    if (t->decided) return t->slower ? AP_SLOWER : AP_SERVED;
    if (t->calls % 2 && (t->bytes != bytes || t->op != op)) t->calls--;
    t->bytes = bytes, t->op = op;
    /* all begin together, or who was late in one call would be waited for in the next */
    if ((*code = PMPI_Barrier(g->comm))) return AP_SERVED;
    *spent = &t->spent[t->calls];
    **spent = ap_now();
    return t->calls++ % 2 ? AP_TRIED : AP_SERVED;
}

void ap_trial_over(double *spent) { *spent = ap_now() - *spent; }

void ap_trials_forget(ap_group *g) {
    for (ap_trial *t = g->trials, *next; t; t = next) next = t->next, free(t);
    g->trials = NULL;
}
