/* How many units of weight every rank hands over and gets, from the head of a program file alone: kind, members, roots,
 * weights, and the relation of a custom collective (docs/program.md, "Where data lies"). No section is believed in this.
 */
#include <stdlib.h>

#include "program.h"
#include "transport.h"

static const uint64_t MOST_WEIGHT = (uint64_t)1 << 61; /* of all blocks together */
enum { MOST_BLOCKS = 1 << 25 };

typedef struct {
    const int32_t *rank; /* NULL: every member has every block */
    uint32_t count;
} holders;

typedef struct {
    ap_program *program;
    const ap_facts *facts;
    const int32_t *member, *root;
    const int64_t *weight;
} head;

static int damaged(ap_error *error, const char *what) {
    return ap_fail(error, AP_INVALID, "the program file is damaged: the numbers in its head do not fit together: %s", what);
}

/* Members ascend, roots are members, none is named twice. */
static int names_fit(const head *h) {
    const ap_facts *f = h->facts;
    int rooted = f->kind <= AP_GATHER, good = rooted == (f->roots > 0) && f->members && f->members <= f->ranks;
    if (f->kind < AP_KINDS && f->members < 2) good = 0;
    for (uint32_t i = 0; i < f->members && good; i++)
        good = h->member[i] >= 0 && (uint32_t)h->member[i] < f->ranks && (!i || h->member[i - 1] < h->member[i]);
    if (!good || !rooted) return good;
    unsigned char *free_root = calloc(f->ranks, 1);
    if (!free_root) return 0;
    for (uint32_t i = 0; i < f->members; i++) free_root[h->member[i]] = 1;
    for (uint32_t i = 0; i < f->roots && good; i++) {
        good = h->root[i] >= 0 && (uint32_t)h->root[i] < f->ranks && free_root[h->root[i]];
        if (good) free_root[h->root[i]] = 0;
    }
    free(free_root);
    return good;
}

static int add_weights(const head *h) {
    uint64_t sum = 0;
    h->program->even = 1;
    for (uint32_t b = 0; b < h->facts->blocks; b++) {
        if (h->weight[b] < 0 || (uint64_t)h->weight[b] > MOST_WEIGHT - sum) return 0;
        sum += (uint64_t)h->weight[b];
        h->program->even &= h->weight[b] == 1;
    }
    h->program->line = sum;
    return 1;
}

/* Blocks are numbered by the first side, then by the second. */
static int built_in(const head *h, ap_error *error) {
    const ap_facts *f = h->facts;
    const holders all = {NULL, 1}, members = {h->member, f->members}, roots = {h->root, f->roots};
    const holders side[AP_KINDS][2] = {
        [AP_BROADCAST] = {roots, all}, [AP_REDUCE] = {all, roots},         [AP_SCATTER] = {roots, members},
        [AP_GATHER] = {members, roots}, [AP_ALLGATHER] = {members, all},   [AP_REDUCESCATTER] = {all, members},
        [AP_ALLREDUCE] = {all, all},    [AP_ALLTOALL] = {members, members}};
    const holders first = side[f->kind][0], last = side[f->kind][1];
    ap_sides *sides = h->program->sides;
    if ((uint64_t)first.count * last.count != f->blocks) return damaged(error, "its blocks are not those of its kind");
    for (uint32_t b = 0; b < f->blocks; b++) {
        int64_t from = first.rank ? first.rank[b % first.count] : -1, to = last.rank ? last.rank[b / first.count] : -1;
        uint64_t weight = (uint64_t)h->weight[b];
        if (from >= 0) sides[from].input += weight, sides[from].both += weight;
        if (to >= 0) sides[to].output += weight, sides[to].both += to == from ? 0 : weight;
    }
    for (uint32_t i = 0; i < f->members; i++) {
        ap_sides *one = &sides[h->member[i]];
        if (!first.rank) one->input = one->both = h->program->line;
        if (!last.rank) one->output = one->both = h->program->line;
        if (f->kind == AP_ALLTOALL) one->both = one->input; /* what is sent makes room for what comes */
    }
    return AP_OK;
}

static int by_number(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Each (rank, block) counts once on a side, however many contributions it has. */
static int related(const head *h, ap_error *error) {
    const ap_facts *f = h->facts;
    const unsigned char *b = h->program->bytes;
    const uint64_t count[2] = {u32_at(b + 80), u32_at(b + 84)};
    const unsigned char *at = b + h->program->relation;
    uint64_t *key = calloc(count[0] + count[1] + 1, sizeof *key), n = 0, blocks = 0;
    int good = key != NULL;
    if (!good) return ap_fail(error, AP_MEMORY, "out of memory");
    for (int side = 0; side < 2; at += 3 * padded(4 * count[side]), side++)
        for (uint64_t i = 0; i < count[side]; i++) {
            uint64_t block = u32_at(at + 4 * i), rank = u32_at(at + padded(4 * count[side]) + 4 * i);
            good &= block < f->blocks && rank < f->ranks;
            blocks = block + 1 > blocks ? block + 1 : blocks;
            key[n++] = rank << 32 | block << 1 | (uint64_t)side; /* below 2^24, 2^25 */
        }
    good &= blocks == f->blocks;
    if (good) qsort(key, n, sizeof *key, by_number);
    for (uint64_t i = 0; i < n && good; i++) {
        if (i && key[i] == key[i - 1]) continue;
        ap_sides *one = &h->program->sides[key[i] >> 32];
        uint64_t weight = (uint64_t)h->weight[(key[i] & 0xFFFFFFFFu) >> 1];
        if (key[i] & 1)
            one->output += weight;
        else
            one->input += weight;
        if (!i || key[i] >> 1 != key[i - 1] >> 1) one->both += weight;
    }
    free(key);
    return good ? AP_OK : damaged(error, "its relation names what is not there");
}

int ap_read_sides(ap_program *p, ap_error *error) {
    const ap_facts *f = &p->facts;
    const unsigned char *at = p->bytes + AP_PROGRAM_HEADER;
    head h = {.program = p, .facts = f, .member = (const int32_t *)(const void *)at};
    h.root = (const int32_t *)(const void *)(at + padded(4ull * f->members));
    h.weight = (const int64_t *)(const void *)((const unsigned char *)h.root + padded(4ull * f->roots));
    if (f->blocks > MOST_BLOCKS || !names_fit(&h)) return damaged(error, "its members, roots or blocks");
    if (!add_weights(&h)) return damaged(error, "its weights");
    if (!(p->sides = calloc(f->ranks, sizeof *p->sides))) return ap_fail(error, AP_MEMORY, "out of memory");
    int code = f->kind < AP_KINDS ? built_in(&h, error) : related(&h, error);
    uint64_t most = 1;
    for (uint32_t r = 0; r < f->ranks; r++) {
        most = p->sides[r].input > most ? p->sides[r].input : most;
        most = p->sides[r].output > most ? p->sides[r].output : most;
    }
    if (!code && most != f->buffer_weight) code = damaged(error, "its greatest buffer");
    return code;
}
