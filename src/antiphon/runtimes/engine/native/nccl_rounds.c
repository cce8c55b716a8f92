/* A plan as rounds: all messages with one key are a group of NCCL, then come the folds with the next.
 *
 * An operation waits for others with smaller keys alone, and a send and its receive have the same key (docs/program.md). So
 * rounds in the order of keys are a legal way to run it: among the ranks that are in the round with the least key, all
 * messages of that round have both their ends.
 */
#include <stdlib.h>
#include <string.h>

#include "nccl_preload.h"
#include "stage.h"
#include "transport.h"

enum { ALIGNED = 64 };
static const uint64_t NO_STAGE = UINT64_MAX;
static pthread_mutex_t programs = PTHREAD_MUTEX_INITIALIZER; /* one thread at a time reads them */

static uint64_t aligned(uint64_t bytes) { return (bytes + ALIGNED - 1) & ~(uint64_t)(ALIGNED - 1); }
static int is_message(const ap_step *s) { return s->kind == AP_SEND || s->kind == AP_RECEIVE; }
static const ap_step *step_of(const ap_rounds *r, uint32_t i) { return &r->plan->step[r->plan->layout.step[i]]; }

/* Between two ranks the messages of a round match in their order, so that must be the same at both. */
static int by_key(const void *a, const void *b) {
    const ap_turn *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    if (x->channel != y->channel) return x->channel < y->channel ? -1 : 1;
    return x->instance < y->instance ? -1 : x->instance > y->instance;
}

static size_t bytes_of(const ap_rounds *r, uint32_t instance, ap_stretch *only, int *several) {
    *several = 0, *only = (ap_stretch){0, 0, 0, 0};
    return ap_message_bytes(r->plan, r->item, step_of(r, instance), instance, only, several);
}

static int list_turns(ap_rounds *r, ap_error *error) {
    const ap_layout *l = &r->plan->layout;
    r->turn = calloc(l->instances + 1ul, sizeof *r->turn);
    if (!r->turn) return ap_fail(error, AP_MEMORY, "out of memory");
    for (uint32_t i = 0; i < l->instances; i++) {
        const ap_step *s = step_of(r, i);
        ap_stretch only;
        int several;
        if (s->kind == AP_JOIN) continue;
        if (is_message(s) ? !bytes_of(r, i, &only, &several) : !ap_piece_of(r->plan, s, i, 0).length) continue;
        uint64_t piece = s->pieces > 1 ? i - s->first : 0;
        r->turn[r->turns++] = (ap_turn){s->when + 2 * piece, i, is_message(s) ? s->channel : 0, NO_STAGE};
    }
    qsort(r->turn, r->turns, sizeof *r->turn, by_key);
    return AP_OK;
}

/* Where bytes of several stretches are brought together: anew in each round. */
static uint64_t place_stages(ap_rounds *r) {
    uint64_t most = 0, used = 0;
    for (uint32_t i = 0; i < r->turns; i++) {
        ap_turn *t = &r->turn[i];
        ap_stretch only;
        int several;
        if (i && t->key != t[-1].key) used = 0;
        if (!is_message(step_of(r, t->instance))) continue;
        size_t bytes = bytes_of(r, t->instance, &only, &several);
        if (!several) continue;
        t->stage = used;
        used += aligned(bytes);
        most = used > most ? used : most;
    }
    return most;
}

ap_rounds *ap_rounds_new(const ap_row *row, uint32_t rank, int in_place, uint64_t unit, size_t item, ap_error *error) {
    ap_rounds *r = calloc(1, sizeof *r);
    if (!r) {
        ap_fail(error, AP_MEMORY, "out of memory");
        return NULL;
    }
    *r = (ap_rounds){.row = row, .unit = unit, .item = item, .in_place = in_place};
    pthread_mutex_lock(&programs);
    r->plan = ap_prepare(row->program, rank, in_place, unit, error);
    pthread_mutex_unlock(&programs);
    if (!r->plan || ap_split(r->plan, 0, error) || ap_lay_out(r->plan, item, error) || list_turns(r, error)) {
        ap_rounds_end(r);
        return NULL;
    }
    r->beside = aligned(r->plan->sizes[AP_SCRATCH] * item) + place_stages(r);
    r->scratch = r->beside + (row->page->kind == AP_REDUCESCATTER ? aligned(unit * item) : 0);
    return r;
}

void ap_rounds_end(ap_rounds *r) {
    if (!r) return;
    ap_release(r->plan);
    free(r->turn), free(r);
}

/* ---- what all ranks know of it ---- */

/* Above the length of a part in units, whatever the size. */
static uint64_t weight_of(const ap_section *s, const ap_part *part) {
    const ap_point *from = &s->point[part->begin], *to = &s->point[part->end];
    return (uint64_t)(to->whole - from->whole) + (to->part > from->part);
}

static int bound_section(const ap_section *s, ap_bound *b, ap_error *error) {
    ap_bound mine = {1, 0, 4 * ALIGNED}; /* 1: a result beside it */
    for (uint32_t i = 0; i < s->slots; i++) {
        const ap_class *c = &s->class[s->slot[i]];
        mine.weight += (uint64_t)c->whole + (c->part > 0), mine.each += 1 + c->pieces;
    }
    for (uint32_t o = 0; o < s->operations; o++) {
        const ap_operation *op = &s->operation[o];
        int message = op->kind == AP_SEND || op->kind == AP_RECEIVE;
        if (op->kind == AP_FOLD && op->parts - 1 > AP_MOST_OPERANDS)
            return ap_fail(error, AP_UNSUPPORTED, "it combines more than %d at once", AP_MOST_OPERANDS);
        if (!message || op->parts < 2) continue;
        for (uint32_t i = 0; i < op->parts; i++) mine.weight += weight_of(s, &s->part[op->first_part + i]), mine.each++;
        mine.fixed += (uint64_t)ALIGNED * op->pieces;
    }
    b->weight = mine.weight > b->weight ? mine.weight : b->weight;
    b->each = mine.each > b->each ? mine.each : b->each;
    b->fixed = mine.fixed > b->fixed ? mine.fixed : b->fixed;
    return AP_OK;
}

/* Whether a call of this kind may ever be one in place, by how they are carried out here. */
static int may_be_in_place(uint32_t kind) { return kind != AP_REDUCESCATTER && kind != AP_ALLTOALL; }

int ap_bound_of(const ap_row *row, ap_bound *bound, ap_error *error) {
    ap_facts facts;
    *bound = (ap_bound){0, 0, 0};
    ap_describe(row->program, &facts);
    int code = AP_OK;
    pthread_mutex_lock(&programs);
    for (uint32_t m = 0; m < row->page->members && !code; m++)
        for (int in_place = 0; in_place <= may_be_in_place(facts.kind) && !code; in_place++) {
            ap_section s;
            code = ap_read_section(row->program, (uint32_t)row->page->member[m], in_place, &s, error);
            if (!code) code = bound_section(&s, bound, error);
        }
    pthread_mutex_unlock(&programs);
    return code;
}

int ap_peers_of(const ap_row *row, uint32_t rank, unsigned char *peers, ap_error *error) {
    ap_section s;
    pthread_mutex_lock(&programs);
    int code = ap_read_section(row->program, rank, 0, &s, error);
    for (uint32_t o = 0; o < s.operations && !code; o++) {
        if (s.operation[o].kind == AP_SEND) peers[s.operation[o].peer] |= 1;
        if (s.operation[o].kind == AP_RECEIVE) peers[s.operation[o].peer] |= 2;
    }
    pthread_mutex_unlock(&programs);
    return code;
}

/* ---- running ---- */

static unsigned char *address(const ap_running *r, ap_stretch s) { return r->memory[s.buffer] + s.begin * r->rounds->item; }

static int in_round(const ap_running *r, uint32_t at, uint64_t key) {
    return at < r->rounds->turns && r->rounds->turn[at].key == key && is_message(step_of(r->rounds, r->rounds->turn[at].instance));
}

/* Between the stretches of a message and where they are brought together. */
static int bring(const ap_running *r, const ap_turn *t, int together) {
    const ap_rounds *d = r->rounds;
    ap_cursor c = ap_segments(step_of(d, t->instance), t->instance);
    unsigned char *stage = r->stages + t->stage;
    for (ap_stretch s; ap_next_segment(d->plan, &c, &s); stage += s.length * d->item) {
        unsigned char *there = address(r, s);
        if (ap_device_copy(together ? stage : there, together ? there : stage, s.length * d->item, r->queue)) return 1;
    }
    return 0;
}

static int fold(const ap_running *r, const ap_turn *t) {
    const ap_rounds *d = r->rounds;
    const ap_step *s = step_of(d, t->instance);
    const void *operands[AP_MOST_OPERANDS];
    ap_stretch to = ap_piece_of(d->plan, s, t->instance, 0);
    uint32_t count = s->stretches - 1;
    for (uint32_t k = 0; k < count; k++) operands[k] = address(r, ap_piece_of(d->plan, s, t->instance, k + 1));
    if (count > 1) return ap_device_fold(address(r, to), operands, count, to.length, r->type, r->op, r->queue);
    if (operands[0] == address(r, to)) return 0;
    return ap_device_copy(address(r, to), operands[0], to.length * d->item, r->queue);
}

int ap_running_over(const ap_running *r) { return r->at == r->rounds->turns; }

static int folds(ap_running *r) {
    const ap_rounds *d = r->rounds;
    while (r->at < d->turns && !is_message(step_of(d, d->turn[r->at].instance)))
        if (fold(r, &d->turn[r->at++])) return 1;
    if (!ap_running_over(r)) return 0;
    for (uint32_t i = 0; r->op == AP_AVG && i < d->plan->divisions; i++) {
        const ap_division *by = &d->plan->division[i];
        if (by->where.length && by->count > 1 &&
            ap_device_divide(address(r, by->where), by->where.length, by->count, r->type, r->queue))
            return 1;
    }
    return r->copy_to ? ap_device_copy(r->copy_to, r->memory[AP_OUTPUT], r->copy_bytes, r->queue) : 0;
}

int ap_running_begin(ap_running *r) { return folds(r); }

int ap_running_pack(ap_running *r) {
    const ap_turn *turn = r->rounds->turn;
    for (uint32_t i = r->at; in_round(r, i, turn[r->at].key); i++)
        if (turn[i].stage != NO_STAGE && step_of(r->rounds, turn[i].instance)->kind == AP_SEND && bring(r, &turn[i], 1)) return 1;
    return 0;
}

ncclResult_t ap_running_messages(ap_running *r) {
    const ap_turn *turn = r->rounds->turn;
    ncclResult_t code = ncclSuccess;
    for (uint32_t i = r->at; !code && in_round(r, i, turn[r->at].key); i++) {
        const ap_step *s = step_of(r->rounds, turn[i].instance);
        ap_stretch only;
        int several;
        size_t bytes = bytes_of(r->rounds, turn[i].instance, &only, &several);
        unsigned char *data = several ? r->stages + turn[i].stage : address(r, only);
        int peer = r->place_of[s->peer];
        code = s->kind == AP_SEND ? AP_REAL(Send, data, bytes, ncclUint8, peer, r->comm, (ap_stream)r->queue)
                                  : AP_REAL(Recv, data, bytes, ncclUint8, peer, r->comm, (ap_stream)r->queue);
    }
    return code;
}

int ap_running_fold(ap_running *r) {
    const ap_turn *turn = r->rounds->turn;
    for (uint64_t key = turn[r->at].key; in_round(r, r->at, key); r->at++) {
        const ap_turn *t = &turn[r->at];
        if (t->stage != NO_STAGE && step_of(r->rounds, t->instance)->kind == AP_RECEIVE && bring(r, t, 0)) return 1;
    }
    return folds(r);
}
