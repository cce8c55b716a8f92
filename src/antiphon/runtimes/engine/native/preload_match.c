/* Which pages of the tables are for the processes of a communicator. */
#include <stdlib.h>

#include "preload_job.h"

/* Ranks that the table has on one host must be on one host. */
static int hosts_fit(const ap_matching *m, const ap_book *book, const int *rank_of) {
    if (!book->host || m->anywhere) return 1;
    if (!m->host) return 0;
    for (int i = 0; i < m->size; i++)
        for (int j = 0; j < i; j++)
            if (book->host[rank_of[i]] == book->host[rank_of[j]] && m->host[m->process[i]] != m->host[m->process[j]]) return 0;
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
static uint32_t take_tables(const ap_matching *m, int of_world, const processes *p, ap_row *row, uint32_t *all) {
    uint32_t found = 0, kinds = 0;
    for (uint32_t i = 0; i < m->tables; i++) {
        const ap_table *t = &m->table[i];
        if (of_world ? !t->of_world : !t->position || t->book->ranks != (uint32_t)p->count) continue;
        if (!hosts_fit(m, t->book, p->rank_of)) continue;
        found += take_pages(t, p, &kinds, row ? row + found : NULL);
    }
    *all = kinds;
    return found;
}

static int make_chooser(ap_matched *out, int size) {
    ap_range *range = malloc(out->rows * sizeof *range);
    if (!range) return 0;
    for (uint32_t i = 0; i < out->rows; i++) range[i] = out->row[i].range;
    out->chooser = ap_chooser_open(range, out->rows, (uint32_t)size);
    free(range);
    return out->chooser != NULL;
}

/* By tables for all processes, or by those for as many ranks as there are processes here: instead of what was found
 * before, if that had fewer collectives. False where there is no memory. */
static int match_one(const ap_matching *m, int of_world, int *kinds, ap_matched *out) {
    const size_t ranks = (size_t)(of_world ? m->world : m->size);
    int *rank_of = malloc((size_t)m->size * sizeof *rank_of);
    processes p = {.rank_of = rank_of, .place_of = malloc(ranks * sizeof *p.place_of), .count = m->size};
    int good = p.place_of && rank_of, known = good, taken = 0;
    uint32_t found = 0;
    for (size_t r = 0; good && r < ranks; r++) p.place_of[r] = -1;
    for (int i = 0; i < m->size && known; i++) {
        known &= m->process[i] >= 0; /* those that were spawned are not of this world */
        rank_of[i] = of_world ? m->process[i] : i;
        if (known) p.place_of[rank_of[i]] = i;
    }
    uint32_t count = known ? take_tables(m, of_world, &p, NULL, &found) : 0;
    if (count && __builtin_popcount(found) > *kinds) {
        ap_row *row = malloc(count * sizeof *row);
        if ((good = taken = row != NULL)) {
            free(out->row), free(out->rank_of);
            out->rows = take_tables(m, of_world, &p, row, &found);
            out->row = row, out->rank_of = rank_of; /* int is int32_t wherever MPI and NCCL run */
            out->me = (uint32_t)rank_of[m->rank], out->ranks = (uint32_t)ranks;
            *kinds = __builtin_popcount(found);
        }
    }
    if (!taken) free(rank_of);
    free(p.place_of);
    return good;
}

int ap_match(const ap_matching *m, ap_matched *out) {
    int kinds = 0;
    *out = (ap_matched){.rows = 0};
    int good = match_one(m, 1, &kinds, out) && match_one(m, 0, &kinds, out);
    return good && (!out->rows || make_chooser(out, m->size));
}

void ap_unmatch(ap_matched *m) {
    free(m->row), ap_chooser_close(m->chooser), free(m->rank_of);
    *m = (ap_matched){.rows = 0};
}

int ap_pick(const ap_matched *m, uint64_t least, int kind, int root, uint64_t bytes, ap_row **row) {
    int64_t found = ap_choose(m->chooser, (uint32_t)kind, root, bytes);
    if (found < 0) return found == AP_OTHER_ROOT ? AP_NO_ROOT : AP_NO_PLAN;
    *row = &m->row[found];
    const ap_page *page = (*row)->page;
    if (!(*row)->program) return page->measured ? AP_FASTER : AP_UNMEASURED;
    return !page->measured && bytes < least ? AP_SMALL : AP_SERVED;
}
