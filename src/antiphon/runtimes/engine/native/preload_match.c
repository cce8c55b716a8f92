/* Which pages of the tables are for the processes of a communicator. */
#include <stdlib.h>

#include "preload.h"

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

/* The processes of a communicator as ranks of the machine. */
typedef struct {
    const int *rank_of; /* of each of its processes */
    int32_t *place_of;  /* of each rank which process it is; -1: none */
    int count;
} processes;

/* Where blocks have no order, it does not matter which of its processes the communicator counts first. */
static int in_other_order(const ap_page *page, const processes *p, ap_range *range) {
    if (page->kind != AP_ALLREDUCE && page->kind != AP_BROADCAST && page->kind != AP_REDUCE) return 0;
    if (page->members != (uint32_t)p->count) return 0;
    for (uint32_t i = 0; i < page->members; i++)
        if (p->place_of[page->member[i]] < 0) return 0;
    *range = (ap_range){.kind = page->kind, .root = page->root < 0 ? -1 : p->place_of[page->root], .start = page->start,
                        .stop = page->stop};
    return 1;
}

/* Marks the pages of a table that are for these ranks, of kinds that no earlier table has. */
static uint32_t take_pages(const ap_table *t, const processes *p, uint32_t *kinds, ap_row *row) {
    uint32_t found = 0, mine = 0;
    for (uint32_t i = 0; i < t->book->pages; i++) {
        const ap_page *page = &t->book->page[i];
        ap_range range;
        if (*kinds >> page->kind & 1) continue;
        if (!ap_range_of(page, p->rank_of, (uint32_t)p->count, &range) && !in_other_order(page, p, &range)) continue;
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

/* Fills the rows, or counts them where there is no place for them yet. A further table for all processes is also one for
 * as many in another order. */
static uint32_t take_tables(int of_world, const processes *p, const int *process, ap_row *row, uint32_t *all) {
    uint32_t found = 0, kinds = 0;
    for (uint32_t i = 0; i < ap_preload.tables; i++) {
        const ap_table *t = &ap_preload.table[i];
        if (of_world ? !t->of_world : !t->position) continue;
        if (!of_world && (t->book->ranks != (uint32_t)p->count || !hosts_fit(t->book, process, p->count))) continue;
        found += take_pages(t, p, &kinds, row ? row + found : NULL);
    }
    *all = kinds;
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

/* By tables for all processes, or by those for as many ranks as there are processes here: instead of what was found
 * before, if that had fewer collectives. False where there is no memory. */
static int match_one(ap_group *g, int of_world, int *kinds) {
    const int *process = g->process;
    const size_t ranks = (size_t)(of_world ? ap_preload.size : g->size);
    int *rank_of = malloc((size_t)g->size * sizeof *rank_of);
    processes p = {.rank_of = rank_of, .place_of = malloc(ranks * sizeof *p.place_of), .count = g->size};
    int good = p.place_of && rank_of, known = good, taken = 0;
    uint32_t found = 0;
    for (size_t r = 0; good && r < ranks; r++) p.place_of[r] = -1;
    for (int i = 0; i < g->size && known; i++) {
        known &= process[i] != MPI_UNDEFINED; /* those that were spawned are not of this world */
        rank_of[i] = of_world ? process[i] : i;
        if (known) p.place_of[rank_of[i]] = i;
    }
    uint32_t count = known ? take_tables(of_world, &p, process, NULL, &found) : 0;
    if (count && __builtin_popcount(found) > *kinds) {
        ap_row *row = malloc(count * sizeof *row);
        if ((good = taken = row != NULL)) {
            free(g->row), free(g->rank_of);
            g->rows = take_tables(of_world, &p, process, row, &found);
            g->row = row, g->rank_of = rank_of; /* int is int32_t wherever MPI runs */
            g->me = (uint32_t)rank_of[g->rank], g->ranks = (uint32_t)ranks;
            *kinds = __builtin_popcount(found);
        }
    }
    if (!taken) free(rank_of);
    free(p.place_of);
    return good;
}

/* By what its processes are in MPI_COMM_WORLD; by tables for its number of ranks, if they have more. */
int ap_group_match(ap_group *g) {
    int kinds = 0, good = match_one(g, 1, &kinds) && match_one(g, 0, &kinds);
    if (good && g->rows) good = make_chooser(g);
    if (!g->rows) g->reason = AP_STRANGERS;
    return good;
}
