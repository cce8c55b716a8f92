/* What is kept with a communicator: which pages of the tables are for it, its wire, the plans made so far. */
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "preload.h"
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

static pthread_mutex_t programs = PTHREAD_MUTEX_INITIALIZER; /* one thread at a time reads them */

static void drop(ap_kept *kept) {
    for (ap_kept *next; kept; kept = next) {
        next = kept->next;
        ap_release(kept->plan[0]), ap_release(kept->plan[1]);
        free(kept);
    }
}

int ap_group_forget(MPI_Comm comm, int keyval, void *value, void *extra) {
    ap_group *g = value;
    (void)comm, (void)keyval, (void)extra;
    if (!ap_preload.over) ap_auto_forget(g);
    atomic_fetch_add(&freed, 1);
    drop(g->kept);
    if (g->wire && !ap_preload.over) ap_wire_close(g->wire); /* while MPI ends it frees communicators itself */
    if (!g->broken) free(g->stage[0]), free(g->stage[1]);
    free(g->row), ap_chooser_close(g->chooser), free(g->rank_of), free(g);
    return MPI_SUCCESS;
}

/* ---- which pages are for it ---- */

/* Ranks that the table has on one host must be on one host. */
static int hosts_fit(const ap_book *book, const int *process, int count) {
    const ap_state *p = &ap_preload;
    if (!book->host || p->anywhere) return 1;
    if (!p->host) return 0;
    for (int i = 0; i < count; i++)
        for (int j = 0; j < i; j++)
            if (book->host[i] == book->host[j] && p->host[process[i]] != p->host[process[j]]) return 0;
    return 1;
}

/* Marks the pages of a table that are for these ranks, of kinds that no earlier table has. */
static uint32_t take_pages(const ap_table *t, const int *rank_of, int count, uint32_t *kinds, ap_row *row) {
    uint32_t found = 0, mine = 0;
    for (uint32_t i = 0; i < t->book->pages; i++) {
        const ap_page *page = &t->book->page[i];
        ap_range range;
        if ((*kinds >> page->kind & 1) || !ap_range_of(page, rank_of, (uint32_t)count, &range)) continue;
        mine |= 1u << page->kind;
        if (row) {
            ap_row *r = &row[found];
            *r = (ap_row){.page = page, .use = t->use ? &t->use[i] : NULL, .range = range};
            if (page->program >= 0) r->program = t->book->program[page->program];
        }
        found++;
    }
    *kinds |= mine;
    return found;
}

/* Fills the rows, or counts them where there is no place for them yet. */
static uint32_t take_tables(int of_world, const int *rank_of, const int *process, int count, ap_row *row) {
    uint32_t found = 0, kinds = 0;
    for (uint32_t i = 0; i < ap_preload.tables; i++) {
        const ap_table *t = &ap_preload.table[i];
        if (t->of_world != of_world) continue;
        if (!of_world && (t->book->ranks != (uint32_t)count || !hosts_fit(t->book, process, count))) continue;
        found += take_pages(t, rank_of, count, &kinds, row ? row + found : NULL);
    }
    return found;
}

static int make_chooser(ap_group *g) {
    ap_range *range = malloc(g->rows * sizeof *range);
    if (!range) return 0;
    for (uint32_t i = 0; i < g->rows; i++) range[i] = g->row[i].range;
    g->chooser = ap_chooser_open(range, g->rows, (uint32_t)g->size);
    free(range);
    return g->chooser != NULL;
}

/* First by what its processes are in MPI_COMM_WORLD, then by tables for its number of ranks. */
static int match(ap_group *g, const int *process) {
    int *rank_of = malloc((size_t)g->size * sizeof *rank_of), good = rank_of != NULL;
    for (int of_world = 1; good && of_world >= 0 && !g->rows; of_world--) {
        int known = 1;
        for (int i = 0; i < g->size; i++) {
            known &= process[i] != MPI_UNDEFINED; /* those that were spawned are not of this world */
            rank_of[i] = of_world ? process[i] : i;
        }
        uint32_t count = known ? take_tables(of_world, rank_of, process, g->size, NULL) : 0;
        if (!count) continue;
        if (!(g->row = malloc(count * sizeof *g->row))) good = 0;
        if (good) g->rows = take_tables(of_world, rank_of, process, g->size, g->row);
        g->me = (uint32_t)rank_of[g->rank], g->ranks = (uint32_t)(of_world ? ap_preload.size : g->size);
    }
    if (good && g->rows) good = make_chooser(g);
    if (!g->rows) g->reason = AP_STRANGERS;
    if (good && g->rows)
        g->rank_of = rank_of; /* int is int32_t wherever MPI runs */
    else
        free(rank_of);
    return good;
}

/* There is no table yet: it will be for all processes of the world, and for no fewer. */
static void wait_for_plans(ap_group *g, const int *process) {
    g->reason = g->size == ap_preload.size ? AP_WAITING : AP_STRANGERS;
    for (int i = 0; i < g->size; i++) {
        if (process[i] == MPI_UNDEFINED) g->reason = AP_STRANGERS;
        if (process[i] == 0) g->turns.leader = i;
    }
}

static int find_processes(ap_group *g) {
    MPI_Group group;
    int *numbers = malloc(2 * (size_t)g->size * sizeof *numbers), good = numbers != NULL;
    if (!good || PMPI_Comm_group(g->comm, &group)) {
        free(numbers);
        return 0;
    }
    for (int i = 0; i < g->size; i++) numbers[i] = i;
    good = !PMPI_Group_translate_ranks(group, g->size, numbers, ap_preload.world, numbers + g->size);
    PMPI_Group_free(&group);
    if (good && ap_preload.automatic && g->reason != AP_WAITING)
        wait_for_plans(g, numbers + g->size);
    else if (good)
        g->reason = AP_SERVED, good = match(g, numbers + g->size);
    free(numbers);
    return good;
}

int ap_group_begin(ap_group *g) { return find_processes(g); }

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

/* ---- agreeing ---- */

/* The least rank at which something is not good; INT_MAX: all is well. */
static int ask_all(const ap_group *g, int good, int *code) {
    int mine = good ? INT_MAX : g->rank, least = INT_MAX;
    *code = PMPI_Allreduce(&mine, &least, 1, MPI_INT, MPI_MIN, g->comm);
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
        ap_plan *plan = ap_prepare(row->program, g->me, in_place, 1, error);
        good = plan != NULL;
        ap_release(plan);
    }
    pthread_mutex_unlock(&programs);
    return good;
}

int ap_row_works(ap_group *g, ap_row *row, int *code, ap_error *error) {
    *code = MPI_SUCCESS;
    if (row->state) return row->state > 0;
    if (!g->wired) {
        g->wired = 1;
        g->wire = ap_mpi_open(g->comm, g->rank_of, g->ranks, error);
    }
    int good = g->wire != NULL;
    if (good)
        good = try_row(g, row, error);
    else if (!error->text[0])
        snprintf(error->text, sizeof error->text, "it has no connection");
    int who = ask_all(g, good, code);
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
    ap_plan *plan = ap_prepare(row->program, g->me, in_place, unit, error);
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
        int who = ask_all(g, k->plan[in_place] != NULL, code);
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
