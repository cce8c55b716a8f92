/* Calls that come together: which go by plans, on which stream, and in which order all is asked for.
 *
 * What a group holds goes on side by side, whatever one of it waits for: messages between two and collectives that are left
 * to NCCL are asked for first, on the program's streams; collectives by plans have a stream of their own for each
 * communicator, if there is anything beside them. Calls of one communicator follow each other, as NCCL's do.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "nccl_preload.h"

enum { MOST_KEPT = 64, CHUNK = 64 }; /* elements: what is cut is cut at multiples of so many */

/* ---- which way ---- */

typedef struct {
    const ap_nccl_call *call;
    ap_comm *c;   /* NULL: nothing is known of it */
    ap_row *row;  /* NULL: left to NCCL */
    uint64_t unit, most, bytes; /* elements of a block, and at most at once; bytes of the call */
    size_t item;
    int type;
} way;

static int reduces(int kind) { return kind == AP_REDUCE || kind == AP_REDUCESCATTER || kind == AP_ALLREDUCE; }
static int is_one_block(int kind) { return kind == AP_BROADCAST || kind == AP_REDUCE || kind == AP_ALLREDUCE; }

/* The greatest unit whose scratch no rank lacks. */
static uint64_t most_at_once(const ap_comm *c, const ap_bound *b, size_t item) {
    if (!b->weight || b->fixed + b->each * item > c->set.scratch) return 0;
    return (c->set.scratch - b->fixed - b->each * item) / b->weight / item;
}

static int choose(way *w) {
    const ap_nccl_call *k = w->call;
    const ap_comm *c = w->c;
    const size_t size = ap_nccl_size(k->type);
    if (c->reason) return c->reason;
    if (!size || (k->kind <= AP_GATHER && (k->root < 0 || k->root >= c->size))) return AP_SILENT;
    uint64_t block = 0;
    if (__builtin_mul_overflow((uint64_t)k->count, (uint64_t)size, &block) ||
        __builtin_mul_overflow(block, (uint64_t)(is_one_block(k->kind) ? 1 : c->size), &w->bytes) || w->bytes > INT64_MAX)
        return AP_SILENT;
    if (!w->bytes) return AP_EMPTY;
    ap_row *row = NULL;
    int reason = ap_pick(&c->found, c->set.least, k->kind, k->root, w->bytes, &row);
    if (reason) return reason;
    if (reduces(k->kind) && (k->op < 0 || k->op >= ncclNumOps)) return AP_OTHER_OPERATOR;
    if (reduces(k->kind) && k->type > ncclBfloat16) return AP_OTHER_TYPE;
    if (row->state < 0) return AP_REFUSED;
    w->item = reduces(k->kind) ? size : 1, w->type = reduces(k->kind) ? k->type : AP_UINT8;
    w->unit = block / w->item, w->most = most_at_once(c, &c->bound[row - c->found.row], w->item);
    if (w->unit > w->most && (!is_one_block(k->kind) || w->most < CHUNK)) return AP_NO_SCRATCH;
    w->most = w->unit > w->most ? w->most / CHUNK * CHUNK : w->unit;
    w->row = row;
    return AP_SERVED;
}

/* ---- where its data lies ---- */

typedef struct {
    const void *in;
    void *out;
    int in_place, beside; /* beside: the result is made elsewhere, and brought to `out` in the end */
} sides;

static sides locate(const way *w) {
    const ap_nccl_call *k = w->call;
    const int me = w->c->rank, at_root = me == k->root;
    const uint64_t block = w->unit * w->item;
    const char *from = k->from;
    char *to = k->to;
    sides s = {.in = from, .out = to};
    switch (k->kind) {
    case AP_BROADCAST:
        s.in_place = at_root && from == to;
        if (!at_root) s.in = NULL;
        break;
    case AP_REDUCE:
        s.in_place = at_root && from == to;
        if (!at_root) s.out = NULL;
        break;
    case AP_GATHER:
        s.in_place = at_root && from == to + (uint64_t)me * block;
        if (!at_root) s.out = NULL;
        break;
    case AP_SCATTER:
        s.in_place = at_root && to == from + (uint64_t)me * block;
        if (s.in_place) s.out = (void *)(uintptr_t)from; /* nothing is written there: its own block stays where it is */
        if (!at_root) s.in = NULL;
        break;
    case AP_ALLGATHER: s.in_place = from == to + (uint64_t)me * block; break;
    case AP_REDUCESCATTER: s.beside = to == from + (uint64_t)me * block; break;
    case AP_ALLREDUCE: s.in_place = from == to; break;
    }
    if (s.in_place) s.in = NULL;
    return s;
}

/* ---- plans that are kept ---- */

static const ap_rounds *rounds_for(way *w, int in_place, uint64_t unit, ap_error *error) {
    ap_comm *c = w->c;
    for (ap_rounds **at = &c->kept; *at; at = &(*at)->next) {
        ap_rounds *r = *at;
        if (r->row != w->row || r->unit != unit || r->item != w->item || r->in_place != in_place) continue;
        *at = r->next, r->next = c->kept, c->kept = r;
        return r;
    }
    ap_rounds *made = ap_rounds_new(w->row, c->found.me, in_place, unit, w->item, error);
    if (made) made->next = c->kept, c->kept = made;
    return made;
}

/* Between batches: nobody uses those that go. */
static void forget_old(ap_comm *c) {
    int count = 0;
    for (ap_rounds **at = &c->kept; *at;) {
        ap_rounds *r = *at;
        if (++count <= MOST_KEPT) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        ap_rounds_end(r);
    }
}

/* ---- the communicators of a batch ---- */

typedef struct {
    ap_comm *c;
    ap_track *track;
    uint32_t streams, served, next, count, room; /* runs: those asked for, and all */
    ap_stream *stream;
    ap_queue queue;
    ap_running *run;
    int alone;
} member;

typedef struct {
    way *way;
    member *member;
    uint32_t ways, members, left;
} batch;

static int fail(ap_comm *c, const char *what, const char *why) {
    ap_nccl_tell(c, what, why);
    c->broken = 1;
    return 1;
}

static int refused(member *m) { return fail(m->c, "a stream", ap_device_why()); }

static member *member_of(batch *b, ap_comm *c) {
    for (uint32_t i = 0; i < b->members; i++)
        if (b->member[i].c == c) return &b->member[i];
    b->member[b->members] = (member){.c = c};
    return &b->member[b->members++];
}

static int add_stream(member *m, ap_stream stream, uint32_t most) {
    for (uint32_t i = 0; i < m->streams; i++)
        if (m->stream[i] == stream) return 1;
    if (!m->stream && !(m->stream = malloc(most * sizeof *m->stream))) return 0;
    m->stream[m->streams++] = stream;
    return 1;
}

/* One run of a plan, of all of a call or of some of its elements. */
static int add_run(member *m, way *w, const sides *s, uint64_t first, uint64_t unit, uint64_t *scratch, ap_error *error) {
    const ap_rounds *r = rounds_for(w, s->in_place, unit, error);
    const uint64_t at = first * w->item;
    if (!r) return 0;
    if (m->count == m->room) {
        uint32_t room = m->room ? 2 * m->room : 4;
        ap_running *more = realloc(m->run, room * sizeof *more);
        if (!more) return 0;
        m->run = more, m->room = room;
    }
    m->run[m->count++] = (ap_running){
        .rounds = r, .comm = m->c->own, .place_of = m->c->place_of, .type = w->type, .op = reduces(w->call->kind) ? w->call->op : AP_SUM,
        .memory = {s->in ? (unsigned char *)(uintptr_t)s->in + at : NULL, s->out ? (unsigned char *)s->out + at : NULL, NULL},
        .copy_to = s->beside ? s->out : NULL, .copy_bytes = unit * w->item};
    *scratch = r->scratch > *scratch ? r->scratch : *scratch;
    return 1;
}

/* What is to run for a communicator, and where. */
static int prepare(batch *b, member *m) {
    uint64_t scratch = 0;
    ap_error error = {0, "out of memory"};
    forget_old(m->c);
    for (uint32_t i = 0; i < b->ways; i++) {
        way *w = &b->way[i];
        if (w->c != m->c || !w->row) continue;
        const sides s = locate(w);
        for (uint64_t at = 0; at < w->unit; at += w->most) {
            uint64_t n = w->unit - at < w->most ? w->unit - at : w->most;
            if (!add_run(m, w, &s, at, n, &scratch, &error)) return fail(m->c, "a plan", error.text);
        }
    }
    m->track = ap_track_of(m->c, m->stream[0], scratch);
    if (!m->track) return fail(m->c, "scratch", ap_device_why());
    m->alone = b->members == 1 && !b->left && m->streams == 1;
    m->queue = m->alone ? (ap_queue)m->stream[0] : m->track->queue;
    for (uint32_t i = 0; i < m->count; i++) {
        ap_running *r = &m->run[i];
        unsigned char *scratch_at = m->track->scratch.memory;
        r->queue = m->queue, r->memory[AP_SCRATCH] = scratch_at;
        r->stages = scratch_at + ((r->rounds->plan->sizes[AP_SCRATCH] * r->rounds->item + 63) & ~(uint64_t)63);
        if (r->copy_to) r->memory[AP_OUTPUT] = scratch_at + r->rounds->beside;
    }
    return 0;
}

/* What comes on its streams waits for what came before on this communicator; ours for the streams. */
static int fork_streams(member *m) {
    ap_track *t = m->track;
    for (uint32_t i = 0; i < m->streams; i++) {
        if (t->marked && (t->spread || t->last != m->stream[i]) && ap_mark_await(t->mark, m->stream[i])) return refused(m);
        if (m->alone || !m->count) continue;
        if (ap_mark_set(t->fork, m->stream[i]) || ap_mark_await(t->fork, m->queue)) return refused(m);
    }
    return 0;
}

static int join_streams(member *m) {
    ap_track *t = m->track;
    for (uint32_t i = 0; i < m->streams && !m->alone && m->count; i++)
        if (ap_mark_set(t->fork, m->queue) || ap_mark_await(t->fork, m->stream[i])) return refused(m);
    for (uint32_t i = 0; i < m->streams && m->streams > 1; i++)
        if (ap_mark_set(t->fork, m->stream[i]) || ap_mark_await(t->fork, t->queue)) return refused(m);
    t->spread = m->streams > 1, t->last = m->stream[0], t->marked = 1;
    return ap_mark_set(t->mark, t->spread ? t->queue : (ap_queue)t->last) ? refused(m) : 0;
}

/* ---- asking for all of it ---- */

static ncclResult_t ask_left(batch *b) {
    ncclResult_t code = ncclSuccess;
    if (!b->left) return code;
    if (b->ways == 1) return ap_nccl_leave(b->way[0].call);
    if ((code = AP_REAL(GroupStart))) return code;
    for (uint32_t i = 0; i < b->ways && (!code || code == ncclInProgress); i++)
        if (!b->way[i].row) code = ap_nccl_leave(b->way[i].call);
    ncclResult_t ended = AP_REAL(GroupEnd);
    return code && code != ncclInProgress ? code : ended;
}

static int take_device(const member *m) { return ap_device_take(m->c->device); }

/* A round of every communicator, then the next one: so that of ranks which one thread asks for none is far ahead. */
static ncclResult_t one_round(batch *b, int *over) {
    ncclResult_t code = ncclSuccess;
    *over = 1;
    for (uint32_t i = 0; i < b->members; i++) {
        member *m = &b->member[i];
        if (m->next == m->count) continue;
        *over = 0;
        if (take_device(m)) return ncclUnhandledCudaError;
        while (m->next < m->count && ap_running_over(&m->run[m->next])) m->next++;
        if (m->next < m->count && ap_running_pack(&m->run[m->next])) return ncclUnhandledCudaError;
    }
    if (*over) return code;
    if ((code = AP_REAL(GroupStart))) return code;
    for (uint32_t i = 0; i < b->members && !code; i++) {
        member *m = &b->member[i];
        if (m->next < m->count) code = ap_running_messages(&m->run[m->next]);
    }
    ncclResult_t ended = AP_REAL(GroupEnd);
    if (code || ended) return code ? code : ended;
    for (uint32_t i = 0; i < b->members; i++) {
        member *m = &b->member[i];
        if (m->next == m->count) continue;
        if (take_device(m) || ap_running_fold(&m->run[m->next])) return ncclUnhandledCudaError;
        if (ap_running_over(&m->run[m->next]) && ++m->next < m->count && ap_running_begin(&m->run[m->next]))
            return ncclUnhandledCudaError;
    }
    return ncclSuccess;
}

static ncclResult_t ask_served(batch *b) {
    ncclResult_t code = ncclSuccess;
    int over = 0;
    for (uint32_t i = 0; i < b->members; i++) {
        member *m = &b->member[i];
        if (m->count && (take_device(m) || ap_running_begin(&m->run[0]))) return ncclUnhandledCudaError;
    }
    while (!over && !code) code = one_round(b, &over);
    return code;
}

static ncclResult_t carry_out(batch *b) {
    ncclResult_t code = ncclSuccess, left;
    for (uint32_t i = 0; i < b->members; i++) {
        member *m = &b->member[i];
        if (m->c->broken) return ncclInternalError;
        if (take_device(m) || prepare(b, m) || fork_streams(m)) return ncclUnhandledCudaError;
    }
    left = ask_left(b);
    if (left && left != ncclInProgress) return left;
    code = ask_served(b);
    for (uint32_t i = 0; i < b->members && code; i++) fail(b->member[i].c, "a call by a plan", code == ncclUnhandledCudaError ? ap_device_why() : "NCCL refuses");
    for (uint32_t i = 0; i < b->members && !code; i++)
        if (take_device(&b->member[i]) || join_streams(&b->member[i])) code = ncclUnhandledCudaError;
    return code ? code : left;
}

static void count_all(const batch *b, const int *reasons, double seconds) {
    for (uint32_t i = 0; i < b->ways; i++) {
        const way *w = &b->way[i];
        ap_nccl_note(i, reasons[i], w->row ? w->row->page : NULL);
        if (!w->c || w->call->kind >= AP_KINDS || !w->c->set.report || w->c->rank) continue;
        if (w->row)
            ap_nccl_count(w->c, w->row, w->bytes, seconds / (b->ways - b->left));
        else
            ap_nccl_count_left(w->c, w->call->kind, reasons[i]);
    }
}

enum { FEW = 4 };

ncclResult_t ap_nccl_batch(const ap_nccl_call *calls, uint32_t count) {
    way few_ways[FEW], *ways = count > FEW ? malloc(count * sizeof *ways) : few_ways;
    member few_members[FEW], *members = count > FEW ? malloc(count * sizeof *members) : few_members;
    int few_reasons[FEW], *reasons = count > FEW ? malloc(count * sizeof *reasons) : few_reasons, device = 0, good = 1;
    batch b = {.way = ways, .member = members, .ways = count};
    ncclResult_t code = ncclSystemError;
    double began = ap_now();
    for (uint32_t i = 0; ways && members && reasons && i < count && good; i++) {
        ways[i] = (way){.call = &calls[i], .c = ap_comm_of(calls[i].comm)};
        reasons[i] = AP_SERVED;
        if (ways[i].c && calls[i].kind < AP_KINDS) reasons[i] = choose(&ways[i]);
        b.left += !ways[i].row;
        if (ways[i].c && ways[i].c->own) good = add_stream(member_of(&b, ways[i].c), calls[i].stream, count);
    }
    if (ways && members && reasons && good) {
        int moved = b.members && !ap_device_current(&device);
        code = b.members ? carry_out(&b) : ask_left(&b);
        if (moved) (void)ap_device_take(device);
        if (!code || code == ncclInProgress) count_all(&b, reasons, ap_now() - began);
    }
    for (uint32_t i = 0; members && i < b.members; i++) free(members[i].stream), free(members[i].run);
    if (count > FEW) free(ways), free(members), free(reasons);
    return code;
}
