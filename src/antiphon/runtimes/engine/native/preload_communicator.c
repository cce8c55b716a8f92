/* The state of a communicator (ap_group): the pages of the tables that are for its processes (rows), its wire, and cached
 * plans.
 *
 * Threading: MPI allows one collective at a time on a communicator, so an ap_group needs no lock. Shared between
 *   communicators: programs (a lock while plans are prepared), the bytes of shared memory in use (atomic), and a small cache
 *   of looked-up communicators per thread, which the atomic `freed` invalidates.
 * Ownership: an ap_group is an attribute of its communicator and is freed with it (preload_init.c registers that). It owns its
 *   rows, wire, cached plans and staging memory; tables and programs belong to ap_preload. Its query, trials and learners
 *   are freed by the files that make them.
 */
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"
#include "preload.h"
#include "prefault.h"
#include "transport.h"
#include "transport_mpi.h"

/* ---- rows: pages of the tables that are for these processes ---- */

/* Whether all ranks that the table has on one host are on one host here. */
static int hosts_fit(const ap_group *g, const ap_book *book, const int *rank_of) {
    const int32_t *host = ap_preload.host;
    if (!book->host || ap_preload.set.any_hosts) return 1;
    if (!host) return 0;
    for (int i = 0; i < g->size; i++)
        for (int j = 0; j < i; j++)
            if (book->host[rank_of[i]] == book->host[rank_of[j]] && host[g->process[i]] != host[g->process[j]]) return 0;
    return 1;
}

/* The processes of a communicator as ranks of the machine. */
typedef struct {
    const int *rank_of; /* per process, its rank */
    int32_t *process_of;  /* per rank, its process; -1: none */
    int count; /* of processes */
} processes;

/* Whether a page is for the same ranks in another order, which does not matter as the collective has one block; then sets its
 * range. */
static int in_other_order(const ap_page *page, const processes *p, ap_range *range) {
    if (page->kind != AP_ALLREDUCE && page->kind != AP_BROADCAST && page->kind != AP_REDUCE) return 0;
    if (page->members != (uint32_t)p->count) return 0;
    for (uint32_t i = 0; i < page->members; i++)
        if (p->process_of[page->member[i]] < 0) return 0;
    *range = (ap_range){
        .kind = page->kind, .root = page->root < 0 ? -1 : p->process_of[page->root], .start = page->start, .stop = page->stop};
    return 1;
}

/* Adds a row for each page of a table that is for these ranks and of a kind that no earlier table has; returns their
 * count. `kinds`: of earlier tables, one bit per kind; `row`: NULL: only count. `use` of a row: the counters of its
 * page for the report, if there is to be one. */
static uint32_t add_pages(const ap_table *t, const processes *p, uint32_t *kinds, ap_row *row) {
    uint32_t rows = 0, new_kinds = 0;
    for (uint32_t i = 0; i < t->book->pages; i++) {
        const ap_page *page = &t->book->page[i];
        ap_range range;
        if (*kinds >> page->kind & 1 && !ap_preload.set.learns) continue; /* while learning, its plans are further candidates */
        if (!ap_range_of(page, p->rank_of, (uint32_t)p->count, &range) && !in_other_order(page, p, &range)) continue;
        new_kinds |= 1u << page->kind;
        if (row) {
            ap_row *r = &row[rows];
            *r = (ap_row){.page = page, .use = t->use ? &t->use[i] : NULL, .range = range};
            if (page->program >= 0) r->program = t->book->program[page->program];
        }
        rows++;
    }
    *kinds |= new_kinds;
    return rows;
}

/* Whether a book is for this failure, that is for what ANTIPHON_DEAD names (links, cards, hosts). `failure`: a result
 * of ap_find_failure: 0: nothing is dead; i + 1: what the book of table i is for; AP_NO_BOOK: no book is for it. */
static int is_for_failure(const ap_book *book, int failure) {
    if (failure == AP_NO_BOOK) return 0;
    if (!failure) return !book->dead_bytes;
    const ap_book *other = ap_preload.table[failure - 1].book;
    return book->dead_bytes == other->dead_bytes && !memcmp(book->dead, other->dead, book->dead_bytes);
}

/* Fills the rows, or counts them if `row` is NULL; returns their count and, in *kinds, their kinds (one bit each). With
 * `of_world`, by tables for all processes of the world, else by those for communicators of this size: a table that is
 * for as many ranks as this communicator has processes fits it, with processes as ranks. The first table of the list
 * (position 0) is for the world alone. */
static uint32_t add_tables(const ap_group *g, int of_world, const processes *p, ap_row *row, uint32_t *kinds) {
    uint32_t rows = 0;
    *kinds = 0;
    for (uint32_t i = 0; i < ap_preload.tables; i++) {
        const ap_table *t = &ap_preload.table[i];
        const int has_ranks = of_world ? t->of_world : t->position > 0 && t->book->ranks == (uint32_t)p->count;
        if (!has_ranks) continue;
        if (!hosts_fit(g, t->book, p->rank_of) || !is_for_failure(t->book, g->failure)) continue;
        rows += add_pages(t, p, kinds, row ? row + rows : NULL);
    }
    return rows;
}

/* False: out of memory. */
static int make_chooser(ap_rows *rows, int size) {
    ap_range *range = malloc(rows->count * sizeof *range);
    if (!range) return 0;
    for (uint32_t i = 0; i < rows->count; i++) range[i] = rows->row[i].range;
    rows->chooser = ap_chooser_open(range, rows->count, (uint32_t)size);
    free(range);
    return rows->chooser != NULL;
}

/* Finds rows as add_tables does. They replace earlier rows if they have more kinds of collectives than those (*kinds: the number
 * of kinds). False: out of memory. */
static int match_tables(const ap_group *g, int of_world, int *kinds, ap_rows *rows) {
    const size_t ranks = (size_t)(of_world ? ap_preload.size : g->size);
    int *rank_of = malloc((size_t)g->size * sizeof *rank_of);
    processes p = {.rank_of = rank_of, .process_of = malloc(ranks * sizeof *p.process_of), .count = g->size};
    int ok = p.process_of && rank_of, in_world = ok, replaced = 0;
    uint32_t kinds_here = 0; /* one bit per kind */
    for (size_t r = 0; ok && r < ranks; r++) p.process_of[r] = -1;
    for (int i = 0; i < g->size && in_world; i++) {
        in_world &= g->process[i] >= 0; /* spawned processes are not in this MPI_COMM_WORLD */
        rank_of[i] = of_world ? g->process[i] : i;
        if (in_world) p.process_of[rank_of[i]] = i;
    }
    uint32_t count = in_world ? add_tables(g, of_world, &p, NULL, &kinds_here) : 0;
    if (count && __builtin_popcount(kinds_here) > *kinds) {
        ap_row *row = malloc(count * sizeof *row);
        if ((ok = replaced = row != NULL)) {
            free(rows->row), free(rows->rank_of);
            rows->count = add_tables(g, of_world, &p, row, &kinds_here);
            rows->row = row, rows->rank_of = rank_of; /* int is int32_t wherever MPI runs */
            rows->me = (uint32_t)rank_of[g->rank], rows->ranks = (uint32_t)ranks;
            *kinds = __builtin_popcount(kinds_here);
        }
    }
    if (!replaced) free(rank_of);
    free(p.process_of);
    return ok;
}

/* Finds the rows; without any, sets the reason. False: out of memory. */
static int find_rows(ap_group *g) {
    int kinds = 0;
    g->rows = (ap_rows){.count = 0};
    int ok = match_tables(g, /* of_world */ 1, &kinds, &g->rows) && match_tables(g, /* of_world */ 0, &kinds, &g->rows);
    if (!g->rows.count) g->reason = AP_NO_TABLE;
    return ok && (!g->rows.count || make_chooser(&g->rows, g->size));
}

void ap_rows_free(ap_rows *rows) {
    free(rows->row), ap_chooser_close(rows->chooser), free(rows->rank_of);
    *rows = (ap_rows){.count = 0};
}

/* ---- the state of a communicator ---- */

enum { MAX_PLANS = 64, MAX_LEARNING_PLANS = 256 }; /* cached plans; a learner has several for each size */
static const uint64_t MAX_PLAN_BYTES = 1ull << 28; /* of calls with a cached plan: about the plans' scratch memory */
static const uint64_t AGREE_BYTES = 1ull << 20;    /* from this size on all processes agree whether they could allocate the plan */

/* A cache of communicators looked up by this thread, as asking MPI for an attribute takes longer than everything else. The
 * handle of a freed communicator may be used again, so a change of `freed` invalidates all entries. */
enum { LOOKUPS = 8 };
static _Atomic uint64_t freed = 1; /* not 0, so that the entries of a new thread, all zero, are invalid */
typedef struct {
    MPI_Comm comm;
    ap_group *group;
    uint64_t freed;
} lookup;
static _Thread_local lookup lookups[LOOKUPS];

/* Limit on the address space of shared memory, for all communicators but MPI_COMM_WORLD together. */
static const uint64_t MAX_SHARED_BYTES = 1ull << 26;
static _Atomic uint64_t shared_bytes;

static pthread_mutex_t programs = PTHREAD_MUTEX_INITIALIZER; /* a program may be used by one thread at a time */

/* Frees a list of plans. */
static void free_plans(ap_cached_plan *plan) {
    for (ap_cached_plan *next; plan; plan = next) {
        next = plan->next;
        ap_release(plan->plan[0]), ap_release(plan->plan[1]);
        free(plan);
    }
}

void ap_group_clear(ap_group *g) {
    free_plans(g->plans);
    ap_rows_free(&g->rows);
    g->plans = NULL;
}

/* `g` has neither rows nor plans: it waited for the table. */
void ap_group_adopt(ap_group *g, ap_group *copy) {
    g->plans = copy->plans, g->rows = copy->rows, g->reason = copy->reason;
    copy->plans = NULL, copy->rows = (ap_rows){.count = 0};
}

void ap_group_free(ap_group *g) {
    atomic_fetch_add(&freed, 1);
    if (g->wire && !ap_preload.finalized) ap_wire_close(g->wire); /* while MPI finalizes, it frees the wire's communicator itself */
    atomic_fetch_sub(&shared_bytes, g->shared_bytes);
    for (int i = 0; i < AP_STAGES && !g->broken; i++) free(g->stage[i]); /* if broken, messages may still use them */
    ap_group_clear(g);
    free(g->counts), free(g->process), free(g);
}

/* ---- finding a communicator ---- */

/* There is no table yet. Sets the reason: AP_WAITING if this communicator has all processes of the world, as the table will be
 * for these only. Sets the leader of the queries for the table: process 0 of the world, which plans. */
static void note_missing_table(ap_group *g) {
    g->reason = g->size == ap_preload.size ? AP_WAITING : AP_NO_TABLE;
    for (int i = 0; i < g->size; i++) {
        if (g->process[i] == MPI_UNDEFINED) g->reason = AP_NO_TABLE;
        if (g->process[i] == 0) g->query.leader = i;
    }
}

/* Finds the processes of a communicator, and its rows if there are tables. False: out of memory, or MPI failed. */
static int find_processes(ap_group *g) {
    MPI_Group group;
    int *numbers = malloc((size_t)g->size * sizeof *numbers), ok = numbers != NULL;
    g->process = malloc((size_t)g->size * sizeof *g->process);
    if (!ok || !g->process || PMPI_Comm_group(g->comm, &group)) {
        free(numbers);
        return 0;
    }
    for (int i = 0; i < g->size; i++) numbers[i] = i;
    ok = !PMPI_Group_translate_ranks(group, g->size, numbers, ap_preload.world, g->process);
    PMPI_Group_free(&group);
    free(numbers);
    if (ok && ap_preload.automatic) /* process 0 of the world plans while the job runs: the table comes later */
        note_missing_table(g);
    else if (ok && ap_preload.set.dead[0])
        g->needs_agreement = 1;
    else if (ok)
        ok = find_rows(g);
    return ok;
}

int ap_group_find_rows(ap_group *g) {
    g->reason = AP_SERVED;
    return find_rows(g);
}

/* Returns the group that is attached to a communicator, or a new one; NULL: out of memory, or MPI failed. */
static ap_group *look_up(MPI_Comm comm) {
    ap_group *g = NULL;
    int exists = 0, is_inter = 0;
    if (PMPI_Comm_get_attr(comm, ap_preload.keyval, &g, &exists)) return NULL;
    if (exists) return g;
    if (!(g = calloc(1, sizeof *g))) return NULL;
    g->comm = comm;
    int ok = !PMPI_Comm_test_inter(comm, &is_inter) && !PMPI_Comm_size(comm, &g->size) && !PMPI_Comm_rank(comm, &g->rank);
    g->reason = is_inter ? AP_INTERCOMMUNICATOR : g->size < 2 ? AP_ONE_PROCESS : AP_SERVED;
    if (ok && g->reason == AP_SERVED) ok = find_processes(g);
    if (ok && !PMPI_Comm_set_attr(comm, ap_preload.keyval, g)) return g;
    ap_group_free(g);
    return NULL;
}

ap_group *ap_group_of(MPI_Comm comm) {
    uint32_t at = (uint32_t)(((uint64_t)(uintptr_t)comm * 0x9E3779B97F4A7C15u) >> 61); /* a hash: 0 to LOOKUPS - 1 */
    uint64_t version = atomic_load_explicit(&freed, memory_order_acquire);
    lookup *last = &lookups[at];
    if (last->comm == comm && last->freed == version) return last->group;
    ap_group *g = look_up(comm);
    if (g) *last = (lookup){comm, g, version};
    return g;
}

/* ---- serving a call ---- */

int ap_group_choose_row(const ap_group *g, int kind, int root, uint64_t bytes, ap_row **row) {
    const int64_t number = ap_choose(g->rows.chooser, (uint32_t)kind, root, bytes);
    if (number < 0) return number == AP_OTHER_ROOT ? AP_NO_ROOT : AP_NO_PLAN;
    *row = &g->rows.row[number];
    const ap_page *page = (*row)->page;
    /* A page without a program leaves its sizes to the library. A learner may still try plans of other pages. */
    if (!(*row)->program && !ap_is_learned(page)) return page->measured ? AP_LIBRARY_FASTER : AP_UNMEASURED;
    return !page->measured && bytes < ap_preload.set.min_bytes ? AP_SMALL : AP_SERVED;
}

void *ap_group_staging(ap_group *g, int number, size_t bytes, ap_error *error) {
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

/* ---- agreeing, and connecting ---- */

/* What timeouts of the functions below report as the call that did not end. */
static const char agreement[] = "a call that makes something ready on this communicator";

/* Collective: the lowest process at which `ok` is false; INT_MAX: none. *code: an error of MPI, with `error`. */
static int first_failing_rank(const ap_group *g, int ok, int *code, ap_error *error) {
    int failing_rank = INT_MAX;
    ap_error failed = {0, ""};
    *code = MPI_SUCCESS;
    if (ap_mpi_minimum(g->comm, ok ? INT_MAX : g->rank, &failing_rank, ap_preload.set.timeout, agreement, &failed))
        *error = failed, *code = MPI_ERR_OTHER;
    return failing_rank;
}

int ap_group_agree_on_failure(ap_group *g, ap_error *error) {
    const int own = ap_find_failure();
    int greatest = own, least = own; /* of the failures that processes know; AP_NO_BOOK is above all others */
    /* A file ('@') may have changed in between: what some process knows to be dead is dead for all. Books are for single
     * failures, so none is for two different ones. */
    if (ap_preload.set.dead[0] == '@') {
        const double timeout = ap_preload.set.timeout;
        int negative = 0;
        if (ap_mpi_minimum(g->comm, -own, &negative, timeout, agreement, error)) return 0;
        greatest = -negative;
        if (greatest && ap_mpi_minimum(g->comm, own ? own : AP_NO_BOOK, &least, timeout, agreement, error)) return 0;
    }
    g->needs_agreement = 0, g->failure = greatest == least ? greatest : AP_NO_BOOK;
    if (g->failure == AP_NO_BOOK && !g->rank)
        fprintf(stderr, "antiphon: no table has plans for what ANTIPHON_DEAD names; the MPI library does it all\n");
    return find_rows(g) || (ap_fail(error, AP_MEMORY, "out of memory"), 0);
}

/* At the process that failed: prints why no process runs the row's program. */
static void report_failure(const ap_group *g, const ap_row *row, int failing, const ap_error *error) {
    if (failing == g->rank)
        fprintf(stderr, "antiphon: %s by %.*s is left to the MPI library: rank %d: %s\n", ap_kind_names[row->page->kind],
                (int)row->page->label_bytes, row->page->label, g->rank, error->text);
}

/* Whether this process can prepare a program, out of place and in place. */
static int try_program(const ap_group *g, const ap_row *row, ap_error *error) {
    int ok = 1;
    pthread_mutex_lock(&programs);
    for (int in_place = 0; in_place < 2 && ok; in_place++) {
        ap_plan *plan = ap_prepare(row->program, g->rows.me, in_place, /* unit */ 1, error);
        ok = plan != NULL;
        ap_release(plan);
    }
    pthread_mutex_unlock(&programs);
    return ok;
}

int ap_group_connect(ap_group *g, ap_error *error) {
    uint64_t used = atomic_load(&shared_bytes), available = MAX_SHARED_BYTES > used ? MAX_SHARED_BYTES - used : 0;
    int is_world = g->comm == MPI_COMM_WORLD;
    if (g->connect_tried) return g->wire != NULL;
    g->connect_tried = 1;
    if (ap_mpi_wait_for_all(g->comm, ap_preload.set.timeout, agreement, error)) return 0;
    /* memory_of: per process of the world, equal numbers can share memory; NULL if that could not be found out */
    const ap_vicinity vicinity = {.memory_of = ap_preload.memory_of,
                                  .index_of = g->process,
                                  .max_bytes = is_world ? UINT64_MAX : available,
                                  .used = &g->shared_bytes};
    /* without rows yet: plans will be for the world, in its order */
    const int32_t *rank_of = g->rows.rank_of ? g->rows.rank_of : g->process;
    const uint32_t ranks = g->rows.rank_of ? g->rows.ranks : (uint32_t)ap_preload.size;
    g->wire = ap_mpi_open(g->comm, rank_of, ranks, ap_preload.memory_of ? &vicinity : NULL, error);
    if (is_world) g->shared_bytes = 0; /* the limit is for all others: these bytes do not count */
    atomic_fetch_add(&shared_bytes, g->shared_bytes);
    if (!g->wire && error->code == AP_UNSUPPORTED) g->reason = AP_NO_SHARED_MEMORY;
    return g->wire != NULL;
}

/* As ap_group_connect; a timeout is an error (*code), as then the processes cannot agree on anything. */
static int connect_or_fail(ap_group *g, int *code, ap_error *error) {
    int ok = ap_group_connect(g, error);
    if (!ok && error->code == AP_TIMEOUT) *code = MPI_ERR_OTHER;
    return ok;
}

int ap_row_usable(ap_group *g, ap_row *row, int *code, ap_error *error) {
    *code = MPI_SUCCESS;
    if (row->state != AP_ROW_UNCHECKED) return row->state == AP_ROW_RUNS;
    int ok = connect_or_fail(g, code, error);
    /* Without the agreement below: ap_mpi_open gives the reason at all processes or at none, and after a timeout
     * nothing can be agreed on. */
    if (g->reason != AP_SERVED || *code) return 0;
    if (ok)
        ok = try_program(g, row, error);
    else if (!error->code)
        snprintf(error->text, sizeof error->text, "it has no connection");
    int failing = first_failing_rank(g, ok, code, error);
    if (*code) return 0;
    row->state = failing == INT_MAX ? AP_ROW_RUNS : AP_ROW_REFUSED;
    if (row->state == AP_ROW_REFUSED) report_failure(g, row, failing, error);
    return row->state == AP_ROW_RUNS;
}

/* ---- plans ---- */

/* Finds the cached plan of a size, and moves it to the front; the same at all processes, as the cache depends on calls alone. */
static ap_cached_plan *find_plan(ap_group *g, const ap_row *row, uint32_t slices, uint64_t unit, int type) {
    for (ap_cached_plan **at = &g->plans; *at; at = &(*at)->next) {
        ap_cached_plan *cached = *at;
        if (cached->unit != unit || cached->row != row || cached->type != type || cached->slices != slices) continue;
        *at = cached->next, cached->next = g->plans, g->plans = cached;
        return cached;
    }
    return NULL;
}

/* Frees the plans that were used longest ago, beyond the limits, but never the first, which is for this call. */
static void drop_old_plans(ap_group *g) {
    uint64_t bytes = 0;
    int count = 0, max_count = ap_preload.set.learns ? MAX_LEARNING_PLANS : MAX_PLANS;
    for (ap_cached_plan **at = &g->plans; *at; at = &(*at)->next) {
        bytes = (*at)->bytes > UINT64_MAX - bytes ? UINT64_MAX : bytes + (*at)->bytes;
        if (count++ && (count > max_count || bytes > MAX_PLAN_BYTES)) {
            free_plans(*at);
            *at = NULL;
            return;
        }
    }
}

/* A plan that is ready for calls of this type; NULL: `error` is set. */
static ap_plan *make_plan(const ap_group *g, const ap_row *row, uint32_t slices, uint64_t unit, int type, int in_place,
                          ap_error *error) {
    pthread_mutex_lock(&programs);
    ap_plan *plan = ap_prepare_sliced(row->program, g->rows.me, in_place, unit, slices, error);
    pthread_mutex_unlock(&programs);
    if (!plan || ap_make_ready(plan, type, error) == AP_OK) return plan;
    ap_release(plan);
    return NULL;
}

ap_plan *ap_plan_for(ap_group *g, ap_row *row, uint32_t slices, uint64_t unit, uint64_t bytes, int type, int in_place,
                     int *refused, int *code, ap_error *error) {
    ap_cached_plan *cached = find_plan(g, row, slices, unit, type);
    int is_new = !cached;
    *code = MPI_SUCCESS, *refused = 0;
    if (is_new) {
        cached = calloc(1, sizeof *cached);
        if (!cached) {
            ap_fail(error, AP_MEMORY, "out of memory");
            return NULL;
        }
        *cached = (ap_cached_plan){
            .next = g->plans, .row = row, .slices = slices, .unit = unit, .bytes = bytes, .type = type};
        g->plans = cached;
        drop_old_plans(g);
    }
    if (!cached->plan[in_place]) cached->plan[in_place] = make_plan(g, row, slices, unit, type, in_place, error);
    /* Once per size: whether a call is in place may differ between processes, so only some may make the other plan
     * later, and cannot agree. If one fails then, its call fails. Other slices than planned are a learner's trial: all
     * processes then drop that candidate, and the row stays. */
    if (is_new && (bytes >= AGREE_BYTES || slices != AP_PLANNED_SLICES)) {
        int failing = first_failing_rank(g, cached->plan[in_place] != NULL, code, error);
        if (!*code && failing != INT_MAX) {
            *refused = 1;
            if (slices == AP_PLANNED_SLICES) report_failure(g, row, failing, error), row->state = AP_ROW_REFUSED;
        }
        if (*code || failing != INT_MAX) {
            g->plans = cached->next;
            cached->next = NULL;
            free_plans(cached);
            return NULL;
        }
    }
    return cached->plan[in_place];
}

ap_plan *ap_plan_for_counts(ap_group *g, ap_row *row, const uint64_t *counts, uint64_t bytes, int *refused, int *code,
                            ap_error *error) {
    *code = MPI_SUCCESS, *refused = 0;
    pthread_mutex_lock(&programs);
    ap_plan *plan = ap_prepare_counts(row->program, g->rows.me, counts, error);
    pthread_mutex_unlock(&programs);
    int ok = plan && ap_make_ready(plan, AP_UINT8, error) == AP_OK;
    if (bytes >= AGREE_BYTES) {
        const int failing = first_failing_rank(g, ok, code, error);
        if (!*code && failing != INT_MAX) *refused = 1, report_failure(g, row, failing, error);
        ok = !*code && failing == INT_MAX;
    }
    if (ok) return plan;
    ap_release(plan);
    return NULL;
}

int ap_group_take_counts(ap_group *g, int *code, ap_error *error) {
    const size_t size = (size_t)g->size;
    *code = MPI_SUCCESS;
    if (g->counts || g->lacks_counts) return !g->lacks_counts;
    /* First, bytes per block. Then, for exchange_counts (preload_serve.c), a record per process, and this one's once more. A
     * record: bytes to every process, bytes from every process, and whether plans can serve them. */
    const size_t numbers = 2 * size + 1;
    g->counts = malloc((size * size + (size + 1) * numbers) * sizeof *g->counts);
    const int failing = first_failing_rank(g, g->counts != NULL, code, error);
    g->lacks_counts = *code || failing != INT_MAX;
    if (failing == g->rank)
        fprintf(stderr, "antiphon: alltoallv is left to the MPI library: rank %d has no memory for the counts\n", g->rank);
    if (g->lacks_counts) free(g->counts), g->counts = NULL;
    return !g->lacks_counts;
}

/* ---- before the first call ---- */

/* Prepares the plan for a call in a background thread; false: failed, or the thread is to stop. */
static int prepare_call(ap_group *g, const ap_recent_call *call, ap_pace *pace) {
    ap_row *row = NULL;
    ap_error error = {0, ""};
    /* What the library serves needs no preparation, nor does a row for a learner without a program of its own. */
    if (ap_group_choose_row(g, call->kind, call->root, call->bytes, &row) != AP_SERVED || !row->program) return 1;
    if (row->state == AP_ROW_UNCHECKED && !try_program(g, row, &error)) return 0;
    row->state = AP_ROW_RUNS; /* if all processes succeed; otherwise all drop their preparations */
    if (ap_pause(pace)) return 0;
    if (find_plan(g, row, AP_PLANNED_SLICES, call->unit, call->type)) return 1;
    ap_cached_plan *cached = calloc(1, sizeof *cached);
    if (!cached) return 0;
    *cached = (ap_cached_plan){.next = g->plans, .row = row, .slices = AP_PLANNED_SLICES, .unit = call->unit,
                               .bytes = call->bytes, .type = call->type};
    g->plans = cached;
    ap_plan *plan = make_plan(g, row, AP_PLANNED_SLICES, call->unit, call->type, call->in_place, &error);
    cached->plan[call->in_place] = plan;
    return plan && !ap_pause(pace) && !ap_warm(plan, call->type, pace, &error);
}

/* `g`: a copy of a group, whose plans and rows belong to the original; ap_group_adopt takes over what is prepared in it. */
int ap_group_prepare(ap_group *g, const ap_recent_call *recent, int count, ap_pace *pace) {
    uint64_t bytes = 0;
    int ok = 1, remaining = 0;
    g->reason = AP_SERVED, g->plans = NULL, g->rows = (ap_rows){.count = 0};
    if (!find_rows(g) || !g->rows.count) return 0;
    for (; remaining < count; remaining++) { /* the latest calls that fit into the cache */
        bytes += recent[remaining].bytes;
        if (bytes > MAX_PLAN_BYTES) break;
    }
    while (ok && remaining-- && !pace->stop)
        ok = prepare_call(g, &recent[remaining], pace); /* from the oldest call, so that the latest is in front of the cache */
    if (ok && g->wire) ap_mpi_prefault(g->wire, pace);
    return ok && !pace->stop;
}
