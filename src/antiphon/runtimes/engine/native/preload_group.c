/* What is kept with a communicator: which pages of the tables are for it, its wire, the plans made so far. */
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"
#include "preload.h"
#include "touch.h"
#include "transport.h"
#include "transport_mpi.h"

enum { MOST_KEPT = 64 };
static const uint64_t MOST_KEPT_BYTES = 1ull << 28; /* of the calls that plans are kept for: their scratch is about that */
static const uint64_t AGREE_BYTES = 1ull << 20;     /* calls of so many ask all processes whether they have the memory */

/* What this thread has looked up last: asking MPI for an attribute takes longer than all else. When a communicator is
 * freed its handle may come back as another, so then nothing looked up before counts. */
enum { LOOKED_UP = 8 };
static _Atomic uint64_t freed = 1;
typedef struct {
    MPI_Comm comm;
    ap_group *group;
    uint64_t freed;
} lookup;
static _Thread_local lookup looked_up[LOOKED_UP];

/* Of all communicators but MPI_COMM_WORLD together: address space more than that is not taken. */
static const uint64_t MOST_SHARED = 1ull << 26;
static _Atomic uint64_t shared_bytes;

static pthread_mutex_t programs = PTHREAD_MUTEX_INITIALIZER; /* one thread at a time reads them */

static void drop(ap_kept *kept) {
    for (ap_kept *next; kept; kept = next) {
        next = kept->next;
        ap_release(kept->plan[0]), ap_release(kept->plan[1]);
        free(kept);
    }
}

void ap_group_drop(ap_group *g) {
    drop(g->kept);
    ap_trials_forget(g);
    ap_unmatch(&g->found);
    g->kept = NULL;
}

void ap_group_take(ap_group *g, ap_group *ready) {
    g->kept = ready->kept, g->found = ready->found, g->reason = ready->reason;
    ready->kept = NULL, ready->found = (ap_matched){.rows = 0};
}

int ap_group_forget(MPI_Comm comm, int keyval, void *value, void *extra) {
    ap_group *g = value;
    (void)comm, (void)keyval, (void)extra;
    ap_auto_forget(g);
    atomic_fetch_add(&freed, 1);
    ap_left_forget();
    if (g->wire && !ap_preload.over) ap_wire_close(g->wire); /* while MPI ends it frees communicators itself */
    atomic_fetch_sub(&shared_bytes, g->taken);
    for (int i = 0; i < AP_STAGES && !g->broken; i++) free(g->stage[i]);
    ap_group_drop(g);
    free(g->process), free(g);
    return MPI_SUCCESS;
}

/* ---- beginning ---- */

/* Finds the rows; where there are none it has a reason. False: there is no memory. */
static int match(ap_group *g) {
    const ap_state *p = &ap_preload;
    const ap_matching m = {.size = g->size, .rank = g->rank, .process = g->process, .world = p->size, .host = p->host,
                           .anywhere = p->set.anywhere, .table = p->table, .tables = p->tables};
    int good = ap_match(&m, &g->found);
    if (!g->found.rows) g->reason = AP_STRANGERS;
    return good;
}

/* There is no table yet: it will be for all processes of the world, and for no fewer. */
static void wait_for_plans(ap_group *g) {
    g->reason = g->size == ap_preload.size ? AP_WAITING : AP_STRANGERS;
    for (int i = 0; i < g->size; i++) {
        if (g->process[i] == MPI_UNDEFINED) g->reason = AP_STRANGERS;
        if (g->process[i] == 0) g->turns.leader = i;
    }
}

static int find_processes(ap_group *g) {
    MPI_Group group;
    int *numbers = malloc((size_t)g->size * sizeof *numbers), good = numbers != NULL;
    g->process = malloc((size_t)g->size * sizeof *g->process);
    if (!good || !g->process || PMPI_Comm_group(g->comm, &group)) {
        free(numbers);
        return 0;
    }
    for (int i = 0; i < g->size; i++) numbers[i] = i;
    good = !PMPI_Group_translate_ranks(group, g->size, numbers, ap_preload.world, g->process);
    PMPI_Group_free(&group);
    free(numbers);
    if (good && ap_preload.automatic)
        wait_for_plans(g);
    else if (good)
        good = match(g);
    return good;
}

int ap_group_begin(ap_group *g) {
    g->reason = AP_SERVED;
    return match(g);
}

static ap_group *look_up(MPI_Comm comm) {
    ap_group *g = NULL;
    int found = 0, between = 0;
    if (PMPI_Comm_get_attr(comm, ap_preload.keyval, &g, &found)) return NULL;
    if (found) return g;
    if (!(g = calloc(1, sizeof *g))) return NULL;
    g->comm = comm;
    int good = !PMPI_Comm_test_inter(comm, &between) && !PMPI_Comm_size(comm, &g->size) && !PMPI_Comm_rank(comm, &g->rank);
    g->reason = between ? AP_BETWEEN : g->size < 2 ? AP_ALONE : AP_SERVED;
    if (good && g->reason == AP_SERVED) good = find_processes(g);
    if (good && !PMPI_Comm_set_attr(comm, ap_preload.keyval, g)) return g;
    ap_group_forget(comm, 0, g, NULL);
    return NULL;
}

ap_group *ap_group_of(MPI_Comm comm) {
    uint32_t at = (uint32_t)(((uint64_t)(uintptr_t)comm * 0x9E3779B97F4A7C15u) >> 61);
    uint64_t now = atomic_load_explicit(&freed, memory_order_acquire);
    lookup *last = &looked_up[at];
    if (last->comm == comm && last->freed == now) return last->group;
    ap_group *g = look_up(comm);
    if (g) *last = (lookup){comm, g, now};
    return g;
}

/* ---- which row a call goes by ---- */

int ap_group_row(const ap_group *g, int kind, int root, uint64_t bytes, ap_row **row) {
    return ap_pick(&g->found, ap_preload.set.least, kind, root, bytes, row);
}

void *ap_group_stage(ap_group *g, int number, size_t bytes, ap_error *error) {
    if (g->stage_bytes[number] < bytes) {
        free(g->stage[number]);
        g->stage_bytes[number] = 0;
        if (!(g->stage[number] = malloc(bytes))) {
            ap_fail(error, AP_MEMORY, "no memory for %llu bytes beside the caller's", (unsigned long long)bytes);
            return NULL;
        }
        g->stage_bytes[number] = bytes;
    }
    return g->stage[number];
}

/* ---- agreeing ---- */

static const char what[] = "a call that makes something ready on this communicator";

/* The least rank at which something is not good; INT_MAX: all is well. */
static int ask_all(const ap_group *g, int good, int *code, ap_error *error) {
    int least = INT_MAX;
    ap_error failed = {0, ""};
    *code = MPI_SUCCESS;
    if (ap_mpi_least(g->comm, good ? INT_MAX : g->rank, &least, ap_preload.set.timeout, what, &failed))
        *error = failed, *code = MPI_ERR_OTHER;
    return least;
}

static void tell(const ap_group *g, const ap_row *row, int who, const ap_error *error) {
    if (who == g->rank)
        fprintf(stderr, "antiphon: %s by %.*s is left to the MPI library: rank %d: %s\n", ap_kind_names[row->page->kind],
                (int)row->page->label_bytes, row->page->label, g->rank, error->text);
}

static int try_row(const ap_group *g, const ap_row *row, ap_error *error) {
    int good = 1;
    pthread_mutex_lock(&programs);
    for (int in_place = 0; in_place < 2 && good; in_place++) {
        ap_plan *plan = ap_prepare(row->program, g->found.me, in_place, 1, error);
        good = plan != NULL;
        ap_release(plan);
    }
    pthread_mutex_unlock(&programs);
    return good;
}

int ap_group_connect(ap_group *g, ap_error *error) {
    uint64_t taken = atomic_load(&shared_bytes), room = MOST_SHARED > taken ? MOST_SHARED - taken : 0;
    int is_world = g->comm == MPI_COMM_WORLD;
    if (g->wired) return g->wire != NULL;
    g->wired = 1;
    if (ap_mpi_meet(g->comm, ap_preload.set.timeout, what, error)) return 0;
    const ap_vicinity vicinity = {ap_preload.near, g->process, is_world ? UINT64_MAX : room, &g->taken};
    /* while plans are waited for they will be for the world, in its order */
    const int32_t *rank_of = g->found.rank_of ? g->found.rank_of : g->process;
    const uint32_t ranks = g->found.rank_of ? g->found.ranks : (uint32_t)ap_preload.size;
    g->wire = ap_mpi_open(g->comm, rank_of, ranks, ap_preload.near ? &vicinity : NULL, error);
    if (is_world) g->taken = 0;
    atomic_fetch_add(&shared_bytes, g->taken);
    if (!g->wire && error->code == AP_UNSUPPORTED) g->reason = AP_NO_ROOM;
    return g->wire != NULL;
}

/* Where others were waited for in vain they are asked nothing: that is an error. */
static int connected(ap_group *g, int *code, ap_error *error) {
    int good = ap_group_connect(g, error);
    if (!good && error->code == AP_TIMEOUT) *code = MPI_ERR_OTHER;
    return good;
}

int ap_row_works(ap_group *g, ap_row *row, int *code, ap_error *error) {
    *code = MPI_SUCCESS;
    if (row->state) return row->state > 0;
    int good = connected(g, code, error);
    if (g->reason || *code) return 0;
    if (good)
        good = try_row(g, row, error);
    else if (!error->code)
        snprintf(error->text, sizeof error->text, "it has no connection");
    int who = ask_all(g, good, code, error);
    if (*code) return 0;
    row->state = who == INT_MAX ? 1 : -1;
    if (row->state < 0) tell(g, row, who, error);
    return row->state > 0;
}

/* ---- plans ---- */

/* The entry for a size, put first; the same at all processes, as it hangs on the calls alone. */
static ap_kept *find_kept(ap_group *g, const ap_row *row, uint64_t unit, int type) {
    for (ap_kept **at = &g->kept; *at; at = &(*at)->next) {
        ap_kept *k = *at;
        if (k->unit != unit || k->row != row || k->type != type) continue;
        *at = k->next, k->next = g->kept, g->kept = k;
        return k;
    }
    return NULL;
}

static void forget_old(ap_group *g) {
    uint64_t bytes = 0;
    int count = 0;
    for (ap_kept **at = &g->kept; *at; at = &(*at)->next) {
        bytes = (*at)->bytes > UINT64_MAX - bytes ? UINT64_MAX : bytes + (*at)->bytes;
        if (count++ && (count > MOST_KEPT || bytes > MOST_KEPT_BYTES)) {
            drop(*at);
            *at = NULL;
            return;
        }
    }
}

static ap_plan *make_plan(const ap_group *g, const ap_row *row, uint64_t unit, int type, int in_place, ap_error *error) {
    pthread_mutex_lock(&programs);
    ap_plan *plan = ap_prepare(row->program, g->found.me, in_place, unit, error);
    pthread_mutex_unlock(&programs);
    if (!plan || !ap_ready(plan, type, error)) return plan;
    ap_release(plan);
    return NULL;
}

ap_plan *ap_plan_for(ap_group *g, ap_row *row, uint64_t unit, uint64_t bytes, int type, int in_place, int *code,
                     ap_error *error) {
    ap_kept *k = find_kept(g, row, unit, type);
    int is_new = !k;
    *code = MPI_SUCCESS;
    if (is_new) {
        if (!(k = calloc(1, sizeof *k))) {
            ap_fail(error, AP_MEMORY, "out of memory");
            return NULL;
        }
        *k = (ap_kept){.next = g->kept, .row = row, .unit = unit, .bytes = bytes, .type = type};
        g->kept = k;
        forget_old(g);
    }
    if (!k->plan[in_place]) k->plan[in_place] = make_plan(g, row, unit, type, in_place, error);
    if (is_new && bytes >= AGREE_BYTES) {
        int who = ask_all(g, k->plan[in_place] != NULL, code, error);
        if (!*code && who != INT_MAX) {
            tell(g, row, who, error);
            row->state = -1;
        }
        if (*code || who != INT_MAX) {
            g->kept = k->next;
            k->next = NULL;
            drop(k);
            return NULL;
        }
    }
    return k->plan[in_place];
}

/* ---- before the first call ---- */

static int plan_early(ap_group *g, const ap_noted *n, ap_pace *pace) {
    ap_row *row = NULL;
    ap_error error = {0, ""};
    if (ap_group_row(g, n->kind, n->root, n->bytes, &row)) return 1;
    if (!row->state && !try_row(g, row, &error)) return 0;
    row->state = 1; /* at all, or they drop it all */
    if (ap_rest(pace)) return 0;
    if (find_kept(g, row, n->unit, n->type)) return 1;
    ap_kept *k = calloc(1, sizeof *k);
    if (!k) return 0;
    *k = (ap_kept){.next = g->kept, .row = row, .unit = n->unit, .bytes = n->bytes, .type = n->type};
    g->kept = k;
    ap_plan *plan = k->plan[n->in_place] = make_plan(g, row, n->unit, n->type, n->in_place, &error);
    return plan && !ap_rest(pace) && !ap_warm(plan, n->type, pace, &error);
}

int ap_group_ready(ap_group *g, const ap_noted *noted, int count, ap_pace *pace) {
    uint64_t bytes = 0;
    int good = 1, last = 0;
    g->reason = AP_SERVED, g->kept = NULL, g->found = (ap_matched){.rows = 0};
    if (!match(g) || !g->found.rows) return 0;
    while (last < count && (bytes += noted[last].bytes) <= MOST_KEPT_BYTES) last++;
    while (good && last-- && !pace->stop) good = plan_early(g, &noted[last], pace); /* those of the last call come first */
    if (good && g->wire) ap_mpi_touch(g->wire, pace);
    return good && !pace->stop;
}
