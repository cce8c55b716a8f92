/* One call: where its data lies, and running the plan. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "copy.h"
#include "preload_choice.h"
#include "transport.h"

static const char *const names[AP_KINDS] = {"MPI_Bcast",     "MPI_Reduce",         "MPI_Scatter",   "MPI_Gather",
                                            "MPI_Allgather", "MPI_Reduce_scatter", "MPI_Allreduce", "MPI_Alltoall"};

/* ---- where its data lies ---- */

typedef struct {
    void *buffer; /* the user's, or a copy as plain bytes */
    void *user;
    MPI_Count count; /* elements of `type` in a block, as this process says */
    MPI_Count size;  /* bytes of one */
    MPI_Datatype type;
    MPI_Aint extent;
    uint64_t blocks;
    uint64_t bytes; /* of all blocks: what `buffer` really has */
    const ap_list *places; /* NULL: blocks lie one after another */
} side;

/* MPICH refuses to unpack to MPI_BOTTOM: the same elements as seen from somewhere else. */
static int from_elsewhere(void *here, MPI_Datatype type, int count, MPI_Datatype *made) {
    const MPI_Aint back = PMPI_Aint_diff(MPI_BOTTOM, here);
    int code = PMPI_Type_create_hindexed(1, &count, &back, type, made);
    return code ? code : PMPI_Type_commit(made);
}

/* Between elements and plain bytes, of which an element has `size` > 0. */
static int pack(MPI_Comm comm, void *user, MPI_Datatype type, MPI_Aint extent, uint64_t size, uint64_t count, char *bytes, int into) {
    const uint64_t most = size < 1u << 30 ? (1u << 30) / size : 1;
    for (uint64_t done = 0; done < count;) {
        uint64_t n = count - done < most ? count - done : most;
        char *from = (char *)user + (MPI_Aint)done * extent, *to = bytes + done * size;
        const uint64_t elements = n, room = n * size;
        const int bottom = from == (char *)MPI_BOTTOM;
        MPI_Datatype seen = type;
        int code = MPI_SUCCESS;
        if (bottom) code = from_elsewhere(bytes, type, (int)n, &seen), from = bytes, n = 1;
        if (code) return code;
#if MPI_VERSION >= 4
        MPI_Count at = 0;
        code = into ? PMPI_Pack_c(from, (MPI_Count)n, seen, to, (MPI_Count)room, &at, comm)
                    : PMPI_Unpack_c(to, (MPI_Count)room, &at, from, (MPI_Count)n, seen, comm);
#else
        int at = 0;
        code = into ? PMPI_Pack(from, (int)n, seen, to, (int)room, &at, comm)
                    : PMPI_Unpack(to, (int)room, &at, from, (int)n, seen, comm);
#endif
        if (bottom) PMPI_Type_free(&seen);
        if (code) return code;
        done += elements;
    }
    return MPI_SUCCESS;
}

/* Where a block of the user's begins. */
static char *user_block(const side *s, uint64_t block) {
    MPI_Aint elements = s->places ? ap_place_at(s->places, (int)block) : (MPI_Aint)block * (MPI_Aint)s->count;
    return (char *)s->user + elements * s->extent;
}

/* Between the user's elements and plain bytes. */
static int copy(const ap_choice *x, const side *s, uint64_t first, uint64_t blocks, int into) {
    const uint64_t at_once = s->places ? 1 : blocks;
    int code = MPI_SUCCESS;
    for (uint64_t i = first; i < first + blocks && !code; i += at_once)
        code = pack(x->call->comm, user_block(s, i), s->type, s->extent, (uint64_t)s->size, at_once * (uint64_t)s->count,
                    (char *)s->buffer + i * (uint64_t)s->count * (uint64_t)s->size, into);
    return code;
}

/* Memory of ours in a side's place, for as many bytes as it has. */
static int aside(ap_choice *x, side *s, int number, ap_error *error) {
    s->buffer = ap_group_stage(x->g, number, s->bytes, error);
    return s->buffer ? AP_OK : error->code;
}

/* Memory for the bytes of elements that are not plain. */
static int stage(ap_choice *x, side *s, int number, ap_error *error) {
    MPI_Aint low;
    if (!s->bytes || PMPI_Type_get_extent(s->type, &low, &s->extent))
        return ap_fail(error, AP_INVALID, "a data type is empty here, and at other processes it is not");
    return aside(x, s, number, error);
}

typedef struct {
    side in, out;
    int in_place;
} sides;

/* By the caller's count and type, which need not be those of other processes. */
static int measured(side *s, const ap_kind_of_data *data, ap_error *error) {
    if (!s->blocks) return AP_OK; /* what is said of it means nothing */
    unsigned __int128 bytes = (unsigned __int128)s->count * (uint64_t)data->size * s->blocks;
    if (s->count < 0 || bytes > PTRDIFF_MAX) return ap_fail(error, AP_INVALID, "there is no memory of that size");
    s->size = data->size, s->bytes = (uint64_t)bytes;
    return AP_OK;
}

/* Whether blocks that are alike lie one after another, from the beginning. */
static int in_a_row(const ap_call *c, int size) {
    for (int i = 0; i < size; i++)
        if (ap_place_at(&c->gets, i) != (MPI_Aint)i * (MPI_Aint)ap_count_at(&c->gets, 0)) return 0;
    return 1;
}

/* How many blocks a process hands over and gets, and whether they share one buffer. */
static int locate(ap_choice *x, sides *out, ap_error *error) {
    const ap_call *c = x->call;
    const uint64_t all = (uint64_t)x->g->size;
    static const struct { char sends, gets; } everywhere[AP_KINDS] = {
        [AP_BROADCAST] = {0, 1}, [AP_ALLGATHER] = {1, 'n'}, [AP_REDUCESCATTER] = {'n', 1}, [AP_ALLREDUCE] = {1, 1},
        [AP_ALLTOALL] = {'n', 'n'}, [AP_REDUCE] = {1, 1}, [AP_GATHER] = {1, 'n'}, [AP_SCATTER] = {'n', 1}};
    const int kind = c->kind, listed = ap_listed(&c->gets), even = kind == AP_REDUCESCATTER && listed; /* of a block */
    sides s = {.in = {.type = c->send_type, .count = even ? (MPI_Count)x->unit : c->send_count},
               .out = {.type = c->recv_type, .count = even ? (MPI_Count)x->unit : c->recv_count}};
    int gets = x->at_root || !(kind == AP_REDUCE || kind == AP_GATHER), sends = x->at_root || kind != AP_SCATTER;
    s.in.user = sends ? (void *)(uintptr_t)c->send : NULL, s.out.user = gets ? c->recv : NULL;
    s.in.blocks = !sends ? 0 : everywhere[kind].sends == 'n' ? all : (uint64_t)everywhere[kind].sends;
    s.out.blocks = !gets ? 0 : everywhere[kind].gets == 'n' ? all : (uint64_t)everywhere[kind].gets;
    if (sends && c->send == MPI_IN_PLACE && kind == AP_REDUCESCATTER) {
        s.in.user = c->recv; /* the result alone is written there, in front: in place a plan would write elsewhere, too */
    } else if (sends && c->send == MPI_IN_PLACE) {
        s.in_place = 1, s.in.blocks = 0, s.in.user = NULL;
    } else if (kind == AP_SCATTER && x->at_root && c->recv == MPI_IN_PLACE) {
        s.in_place = 1;
        s.out = s.in; /* nothing is written there: its own block stays where it is */
        s.in.blocks = 0, s.in.user = NULL;
    }
    if (kind == AP_ALLGATHER && listed) s.out.count = ap_count_at(&c->gets, 0);
    if (kind == AP_ALLGATHER && listed && !in_a_row(c, x->g->size)) s.out.places = &c->gets;
    s.in.buffer = s.in.user, s.out.buffer = s.out.user;
    if (s.in.blocks && !ap_type_of(s.in.type, &x->send)) s.in.count = -1;
    if (s.out.blocks && !ap_type_of(s.out.type, &x->recv)) s.out.count = -1;
    *out = s;
    return measured(&out->in, &x->send, error) || measured(&out->out, &x->recv, error);
}

/* Makes plain bytes of what is not; true in *back if the result has to be brought to the user's elements. */
static int gather_bytes(ap_choice *x, sides *s, int *back, int *code, ap_error *error) {
    const ap_call *c = x->call;
    int only_sent = c->kind == AP_SCATTER && x->at_root && s->in_place;
    *back = 0, *code = MPI_SUCCESS;
    if (s->in.blocks && !x->send.plain) {
        if (stage(x, &s->in, AP_STAGED_IN, error)) return error->code;
        *code = copy(x, &s->in, 0, s->in.blocks, 1);
    }
    if (s->out.blocks && !*code && (!x->recv.plain || s->out.places)) {
        if (stage(x, &s->out, AP_STAGED_OUT, error)) return error->code;
        int own = c->kind == AP_ALLGATHER || c->kind == AP_GATHER;
        int loads = s->in_place && (c->kind != AP_BROADCAST || x->at_root);
        if (loads) *code = copy(x, &s->out, own ? (uint64_t)x->g->rank : 0, own ? 1 : s->out.blocks, 1);
        *back = !only_sent && !(c->kind == AP_BROADCAST && x->at_root);
    }
    return *code ? ap_fail(error, AP_TRANSPORT, "MPI could not bring elements together") : AP_OK;
}

/* ---- running ---- */

int ap_raise(MPI_Comm comm, int class, const char *what, const ap_error *error) {
    fprintf(stderr, "antiphon: %s on process %d: %s\n", what, ap_preload.rank, error->text);
    PMPI_Comm_call_errhandler(comm, class);
    return class;
}

/* AP_OK, and *left if all processes leave it to the library. */
static int run(ap_choice *x, int *left, int *code, ap_error *error) {
    ap_group *g = x->g;
    sides s;
    int back = 0;
    *left = 0;
    if (locate(x, &s, error)) return AP_INVALID;
    ap_plan *plan = ap_plan_for(g, x->row, x->unit, x->bytes, x->type, s.in_place, code, error);
    if (!plan) {
        *left = !*code && x->row->state < 0;
        return *left ? AP_OK : AP_INVALID;
    }
    if (!ap_reduces(x->call->kind) && gather_bytes(x, &s, &back, code, error)) return AP_INVALID;
    int beside = s.in.buffer && s.in.buffer == s.out.buffer; /* a reduce_scatter in place; out of place MPI forbids it */
    if (beside && aside(x, &s.out, AP_STAGED_OUT, error)) return error->code;
    int failed = ap_run(plan, s.in.buffer, s.in.bytes, s.out.buffer, s.out.bytes, x->type, x->op, g->wire,
                        ap_preload.set.timeout, error);
    if (failed) return failed;
    if (beside) ap_copy(s.out.user, s.out.buffer, (size_t)s.out.bytes);
    if (back && (*code = copy(x, &s.out, 0, s.out.blocks, 0)))
        return ap_fail(error, AP_TRANSPORT, "MPI could not spread elements");
    return AP_OK;
}

static int fail(ap_choice *x, int *code, const ap_error *error) {
    x->g->broken = 1;
    *code = ap_raise(x->call->comm, MPI_ERR_OTHER, names[x->call->kind], error);
    return 1;
}

static int leave(const ap_choice *x, int reason) {
    if (!x->g || !x->g->rank) ap_report_left(x->call->kind, reason);
    return 0;
}

/* Whether its first calls go both ways in turn: nobody has measured the plan, or promised the same order of combining at
 * each call. */
static int is_tried(const ap_choice *x) {
    const ap_page *page = x->row->page;
    return ap_preload.set.tries && !page->measured && !page->ordered;
}

static int serve(ap_choice *x, double **spent, int *code) {
    ap_error error = {0, ""};
    int left = 0;
    if (!x->g) {
        ap_fail(&error, AP_MEMORY, "out of memory");
        *code = ap_raise(x->call->comm, MPI_ERR_OTHER, names[x->call->kind], &error);
        return 1;
    }
    if (x->g->broken) {
        ap_fail(&error, AP_TRANSPORT, "an earlier call on this communicator failed");
        return fail(x, code, &error);
    }
    if (ap_preload.device) {
        int anywhere = 0;
        if ((*code = ap_device_anywhere(x->call, &anywhere))) return 1;
        if (anywhere) return leave(x, AP_DEVICE);
    }
    *code = MPI_SUCCESS;
    const double began = ap_preload.set.report ? ap_now() : 0;
    if (!x->row->state && !ap_row_works(x->g, x->row, code, &error)) {
        if (*code) return fail(x, code, &error);
        return leave(x, x->g->reason ? x->g->reason : AP_REFUSED);
    }
    const int op = ap_reduces(x->call->kind) ? x->op : 0; /* all name the same one; types may differ where data is moved */
    int reason = is_tried(x) ? ap_trial_turn(x->g, x->row, x->call->kind, x->bytes, op, spent, code) : AP_SERVED;
    if (*code && !error.code) ap_fail(&error, AP_TRANSPORT, "what its first calls took could not be compared");
    if (*code) return fail(x, code, &error);
    if (reason) return leave(x, reason);
    if (run(x, &left, code, &error)) return fail(x, code, &error);
    if (left) return leave(x, AP_REFUSED);
    if (*spent) ap_trial_over(*spent);
    atomic_store_explicit(&ap_preload.served, 1, memory_order_relaxed);
    ap_use *use = x->row->use;
    if (ap_preload.set.report && use && !x->g->rank) ap_report_call(use, x->bytes, ap_now() - began);
    *code = MPI_SUCCESS;
    return 1;
}

/* Whether this process has its data where the result goes, as `locate` finds it. */
static int is_in_place(const ap_choice *x) {
    const ap_call *c = x->call;
    if (c->kind == AP_SCATTER) return x->at_root && c->recv == MPI_IN_PLACE;
    return c->kind != AP_REDUCESCATTER && c->send == MPI_IN_PLACE && (x->at_root || c->kind != AP_GATHER);
}

/* A call of a communicator that has no plans yet: why it is left to the library, if it is. -1: it failed, see *code. */
static int wait_for_plans(ap_choice *x, int *code) {
    ap_error error = {0, ""};
    const ap_call *c = x->call;
    uint64_t unit = x->unit;
    int plannable = !ap_find_type(x);
    ap_noted noted = {.kind = c->kind, .root = c->root, .unit = x->unit, .bytes = x->bytes, .type = x->type,
                      .in_place = is_in_place(x)};
    x->unit = unit;
    int first = ap_auto_turn(x->g, &noted, plannable, &error);
    if (!error.code) return first ? ap_way_of(x) : x->g->reason;
    fail(x, code, &error);
    return -1;
}

/* What is left to the library must have cost next to nothing here. */
int ap_serve(const ap_call *call, double **spent, int *code) {
    ap_choice x;
    *spent = NULL;
    if (!ap_preload.on || call->comm == MPI_COMM_NULL) return 0;
    x.call = call, x.g = ap_group_of(call->comm), x.row = NULL, x.bytes = 0;
    int reason = x.g ? ap_way_of(&x) : AP_SERVED;
    if (reason == AP_WAITING && (reason = wait_for_plans(&x, code)) < 0) return 1;
    return reason ? leave(&x, reason) : serve(&x, spent, code);
}
