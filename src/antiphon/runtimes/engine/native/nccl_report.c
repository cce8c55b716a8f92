/* What ran and what did not, told when the process ends. A call is counted once, by rank 0 of its communicator; each process that
 * has counted any tells of its own. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nccl_preload.h"

char ap_nccl_why[AP_TEXT];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all below */
static struct {
    ap_tables *set[AP_MOST_TABLES];
    uint32_t sets;
    uint64_t left[AP_KINDS][AP_REASONS];
    int processes, any, begun, leads; /* leads: one of its first ranks is 0 */
    char path[1024];
} told;

ap_tables *ap_nccl_tables(const unsigned char digest[64]) {
    ap_tables *found = NULL;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < told.sets && !found; i++)
        if (!memcmp(told.set[i]->digest, digest, 64)) found = told.set[i];
    pthread_mutex_unlock(&lock);
    return found;
}

void ap_nccl_keep_tables(ap_tables *t) {
    pthread_mutex_lock(&lock);
    if (told.sets < AP_MOST_TABLES) told.set[told.sets++] = t;
    pthread_mutex_unlock(&lock);
}

static void note(const ap_comm *c) {
    told.any = 1;
    told.processes = told.processes > c->size ? told.processes : c->size;
    memcpy(told.path, c->set.report_path, sizeof told.path);
}

void ap_nccl_count(const ap_comm *c, const ap_row *row, uint64_t bytes, double seconds) {
    pthread_mutex_lock(&lock);
    note(c);
    if (row->use) ap_use_add(row->use, bytes, seconds);
    pthread_mutex_unlock(&lock);
}

void ap_nccl_count_left(const ap_comm *c, int kind, int reason) {
    pthread_mutex_lock(&lock);
    note(c);
    told.left[kind][reason]++;
    pthread_mutex_unlock(&lock);
}

void ap_nccl_tell(const ap_comm *c, const char *what, const char *why) {
    fprintf(stderr, "antiphon: %s, rank %d of %d: %s\n", what, c->rank, c->size, why);
}

/* The file is that of who leads the job; others take one beside it. */
static void write_all(void) {
    size_t lines = 0, at = 0;
    for (uint32_t i = 0; i < told.sets; i++)
        for (uint32_t k = 0; k < told.set[i]->tables; k++) lines += told.set[i]->table[k].book->pages;
    ap_line *line = calloc(lines + 1, sizeof *line);
    for (uint32_t i = 0; line && i < told.sets; i++)
        for (uint32_t k = 0; k < told.set[i]->tables; k++)
            for (uint32_t p = 0; p < told.set[i]->table[k].book->pages; p++) line[at++] = ap_line_of(&told.set[i]->table[k], p);
    const ap_account a = {.processes = told.processes, .warning = ap_nccl_why, .line = line, .lines = at, .left = told.left[0]};
    ap_account_write(&a, told.path);
    free(line);
}

void ap_nccl_lead(int rank) {
    pthread_mutex_lock(&lock);
    if (rank < 0)
        told.begun = 1;
    else if (!told.begun)
        told.leads |= rank == 0;
    pthread_mutex_unlock(&lock);
}

__attribute__((destructor)) static void tell_at_the_end(void) {
    char host[64] = "", beside[1200];
    if (!told.any) return;
    gethostname(host, sizeof host - 1);
    if (told.path[0] && !told.leads) {
        snprintf(beside, sizeof beside, "%.900s.%s.%ld", told.path, host, (long)getpid());
        snprintf(told.path, sizeof told.path, "%.1023s", beside);
    }
    write_all();
}
