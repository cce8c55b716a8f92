/* What plans that come during a job need before the first call by them: the table, and for calls like those that there were
 * their plans and the memory of these. It is made beside the program's calls. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "preload.h"
#include "touch.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the one table */
static int ended;                                        /* none is taken any more */

struct ap_early {
    ap_beside *beside;
    int how;
    ap_group group; /* a copy */
    ap_noted noted[AP_MOST_NOTED];
    int notes;
    uint64_t all[AP_SAID]; /* which table */
    unsigned char *coming; /* its bytes; NULL: from the file */
};

/* ---- the one table of this job ---- */

/* Whether two books are the same; nobody is deceived who makes both himself. */
void ap_book_digest(const unsigned char *bytes, uint64_t size, uint64_t words[4]) {
    for (int i = 0; i < 4; i++) words[i] = size + (uint64_t)i;
    for (uint64_t at = 0; at < size; at += 8) {
        uint64_t word = 0, *to = &words[at / 8 % 4];
        memcpy(&word, bytes + at, size - at < 8 ? (size_t)(size - at) : 8);
        *to = (*to ^ word) * 0x9E3779B97F4A7C15u;
        *to ^= *to >> 29;
    }
}

int ap_early_load(unsigned char *bytes, uint64_t size) {
    ap_state *p = &ap_preload;
    ap_table t = {.bytes = bytes, .size = size, .of_world = 1};
    ap_error error = {0, ""};
    t.book = ap_book_open(bytes, size, &error);
    if (t.book && p->set.report) t.use = calloc(t.book->pages + 1ul, sizeof *t.use);
    int good = t.book && t.book->ranks == (uint32_t)p->size && (t.use || !p->set.report) && !ap_spread_over_hosts(&t);
    pthread_mutex_lock(&lock);
    if (good && !p->tables && !ended) {
        p->table[0] = t;
        p->tables = 1;
        t = (ap_table){0};
    }
    pthread_mutex_unlock(&lock);
    ap_book_close(t.book);
    free(t.use), free(t.bytes);
    return good;
}

static int has_table(void) {
    pthread_mutex_lock(&lock);
    int has = ap_preload.tables != 0;
    pthread_mutex_unlock(&lock);
    return has;
}

/* If they are what process 0 has. */
static void load_if(unsigned char *book, uint64_t size, const uint64_t *all) {
    uint64_t words[4];
    ap_book_digest(book, size, words);
    if (size == all[AP_SIZE] && !memcmp(words, all + AP_DIGEST, sizeof words))
        ap_early_load(book, size);
    else
        free(book);
}

/* From the file where it is kept. */
static void load_kept(const uint64_t *all, ap_pace *pace) {
    uint64_t bytes = 0, size = 0;
    ap_told told;
    unsigned char *whole = ap_auto_kept[0] ? ap_read_ours(ap_auto_kept, &bytes) : NULL;
    unsigned char *book = whole ? ap_auto_answer(whole, bytes, &size, &told) : NULL;
    free(whole);
    ap_rest(pace);
    if (book) load_if(book, size, all);
}

/* ---- beside the calls ---- */

static void make_ready(void *given, ap_pace *pace) {
    ap_early *e = given;
    if (!has_table() && e->coming)
        load_if(e->coming, e->all[AP_SIZE], e->all), e->coming = NULL;
    else if (!has_table())
        load_kept(e->all, pace);
    e->how = AP_LACKING;
    ap_rest(pace);
    if (has_table()) e->how = ap_group_ready(&e->group, e->noted, e->notes, pace) ? AP_WARM : AP_COLD;
}

void ap_early_end(ap_turns *t) {
    ap_early *e = t->early;
    if (!e) return;
    ap_beside_end(e->beside);
    ap_group_drop(&e->group);
    free(e->coming), free(e);
    t->early = NULL;
}

/* The same calls are noted at all processes, as this is the same call at all. */
void ap_early_begin(ap_group *g) {
    ap_turns *t = &g->turns;
    ap_error error = {0, ""};
    ap_early_end(t);
    ap_group_connect(g, &error);
    if (g->reason != AP_WAITING) return;
    if (!(t->early = calloc(1, sizeof *t->early))) return;
    ap_early *e = t->early;
    e->group = *g, e->notes = t->notes, e->coming = t->coming;
    memcpy(e->noted, t->noted, sizeof e->noted);
    memcpy(e->all, t->all, sizeof e->all);
    t->coming = NULL;
    e->group.kept = NULL, e->group.found = (ap_matched){.rows = 0};
    if (!(e->beside = ap_beside_begin(make_ready, e))) e->how = has_table() ? AP_COLD : AP_LACKING;
}

uint64_t ap_early_how(const ap_turns *t) {
    if (!t->early) return has_table() ? AP_COLD : AP_LACKING;
    return t->early->beside && !ap_beside_done(t->early->beside) ? AP_AT_IT : (uint64_t)t->early->how;
}

ap_group *ap_early_group(ap_turns *t) { return &t->early->group; }

int ap_early_last(void) {
    pthread_mutex_lock(&lock);
    ended = 1;
    int has = ap_preload.tables != 0;
    pthread_mutex_unlock(&lock);
    return has;
}
