/* One call: whether a plan serves it, where its data lies, and running the plan. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "copy.h"
#include "preload.h"
#include "transport.h"

static const char *const names[AP_NAMES] = {
    "MPI_Bcast", "MPI_Reduce", "MPI_Scatter", "MPI_Gather", "MPI_Allgather", "MPI_Reduce_scatter", "MPI_Allreduce",
    "MPI_Alltoall", "MPI_Allgatherv", "MPI_Alltoallv", "MPI_Gatherv", "MPI_Scatterv", "MPI_Scan", "MPI_Exscan",
    "MPI_Alltoallw"};

typedef struct {
    const ap_call *call;
    ap_group *g;
    ap_row *row;
    ap_kind_of_data send, recv;
    uint64_t unit, block, bytes; /* elements and bytes of a block; bytes of the call */
    int at_root, type, op;
    int general;      /* by a schedule that needs no plan */
    MPI_Aint width;   /* of elements that such a one combines */
} choice;

/* ---- whether it is served ---- */

static int reduces(int kind) {
    return kind == AP_REDUCE || kind == AP_REDUCESCATTER || kind == AP_ALLREDUCE || kind == AP_SCAN || kind == AP_EXSCAN;
}

/* Which kind of plan tells whether a call is served. */
static int kind_of_rows(int kind) {
    static const int kinds[AP_NAMES] = {
        [AP_ALLGATHERV] = AP_ALLGATHER, [AP_ALLTOALLV] = AP_ALLTOALL, [AP_GATHERV] = AP_GATHER,
        [AP_SCATTERV] = AP_SCATTER, [AP_SCAN] = AP_ALLREDUCE, [AP_EXSCAN] = AP_ALLREDUCE};
    return kind < AP_KINDS ? kind : kinds[kind];
}

/* Only two processes know how much goes from one to the other. */
static int is_between_two(int kind) { return kind == AP_ALLTOALLV || kind == AP_GATHERV || kind == AP_SCATTERV; }

/* Counts that are listed: all of them in *sum, and whether they are alike. False: one is wrong. */
static int add_up(const ap_list *l, int size, MPI_Count *sum, int *alike) {
    *sum = 0, *alike = 1;
    for (int i = 0; i < size; i++) {
        const MPI_Count count = ap_count_at(l, i);
        if (count < 0 || __builtin_add_overflow(*sum, count, sum)) return 0;
        *alike &= count == ap_count_at(l, 0);
    }
    return 1;
}

/* What all processes know of its size: by the arguments that are significant here. */
static int measure(choice *x) {
    const ap_call *c = x->call;
    int by_send = (c->kind == AP_GATHER && !x->at_root) || (c->kind == AP_SCATTER && x->at_root), alike = 1;
    MPI_Count count = by_send ? c->send_count : c->recv_count, sum = 0;
    const ap_kind_of_data *data = by_send ? &x->send : &x->recv;
    if (ap_listed(&c->gets)) {
        if (!add_up(&c->gets, x->g->size, &sum, &alike)) return AP_SILENT;
        count = ap_count_at(&c->gets, 0);
        x->general = !alike;
    }
    if (count < 0 || !ap_type_of(by_send ? c->send_type : c->recv_type, by_send ? &x->send : &x->recv)) return AP_SILENT;
    x->unit = (uint64_t)count;
    int alone = c->kind == AP_BROADCAST || c->kind == AP_REDUCE || c->kind == AP_ALLREDUCE || c->kind == AP_SCAN ||
                c->kind == AP_EXSCAN;
    uint64_t times = (uint64_t)(alone ? 1 : x->g->size);
    if (!alike) x->unit = (uint64_t)sum, times = 1;
    if (__builtin_mul_overflow(x->unit, (uint64_t)data->size, &x->block) || __builtin_mul_overflow(x->block, times, &x->bytes) ||
        x->bytes > INT64_MAX)
        return AP_LARGE;
    return x->bytes ? AP_SERVED : AP_EMPTY;
}

/* Of what only two know the size of: that the arguments which are significant here are right. */
static int look_at_two(choice *x) {
    const ap_call *c = x->call;
    const int all = c->kind == AP_ALLTOALLV;
    MPI_Count sum = c->kind == AP_GATHERV ? c->send_count : c->recv_count;
    int alike;
    x->general = 1;
    if ((all || c->kind == AP_GATHERV) && (all || x->at_root) && !add_up(&c->gets, x->g->size, &sum, &alike)) return AP_SILENT;
    if ((all || c->kind == AP_SCATTERV) && (all || x->at_root) && !(all && c->send == MPI_IN_PLACE) &&
        !add_up(&c->sends, x->g->size, &sum, &alike))
        return AP_SILENT;
    if (sum < 0 || !ap_type_of(c->kind == AP_GATHERV && !x->at_root ? c->send_type : c->recv_type, &x->recv)) return AP_SILENT;
    x->bytes = (uint64_t)sum * (uint64_t)x->recv.size; /* as far as it is known here, for the report */
    return ap_preload.packs ? AP_SERVED : AP_LARGE;
}

/* What is done with its elements, and whether a plan can do it. */
static int find_type(choice *x) {
    const ap_call *c = x->call;
    if (!reduces(c->kind)) { /* types may differ between processes: what all know is the bytes */
        x->unit = x->block, x->type = AP_UINT8, x->op = AP_SUM;
        if (!ap_preload.packs || (MPI_VERSION < 4 && x->block > INT_MAX)) return AP_LARGE;
        return AP_SERVED;
    }
    x->op = ap_operator_of(c->op), x->type = x->recv.type;
    if (x->op < 0 || x->type < 0) x->op = x->type = -1;
    x->general |= x->type < 0 || c->kind == AP_SCAN || c->kind == AP_EXSCAN;
    x->width = x->type < 0 ? ap_combined_by(c->op, c->recv_type, &x->recv) : (MPI_Aint)x->recv.size;
    return x->width > 0 ? AP_SERVED : x->recv.class && x->recv.class != 'o' ? AP_OTHER_OPERATOR : AP_OTHER_TYPE;
}

/* Connecting the processes of a communicator takes as long as some calls do: those that are soon freed go without. */
static int is_new(choice *x) {
    ap_group *g = x->g;
    return !g->wired && g->comm != MPI_COMM_WORLD && g->calls < ap_preload.set.after && g->calls++ < ap_preload.set.after;
}

static int choose(choice *x) {
    const ap_call *c = x->call;
    ap_group *g = x->g;
    int rooted = c->kind <= AP_GATHER || c->kind == AP_GATHERV || c->kind == AP_SCATTERV;
    if (g->reason && g->reason != AP_WAITING) return g->reason;
    if (rooted && (c->root < 0 || c->root >= g->size)) return AP_SILENT;
    x->at_root = g->rank == c->root, x->general = 0;
    int reason = is_between_two(c->kind) ? look_at_two(x) : measure(x);
    if (!reason && g->reason) return g->reason;
    if (!reason && is_between_two(c->kind))
        reason = ap_group_every_size(g, kind_of_rows(c->kind), c->root) ? AP_SERVED : AP_UNKNOWN_SIZE;
    else if (!reason)
        reason = ap_group_row(g, kind_of_rows(c->kind), c->root, x->bytes, &x->row);
    if (!reason && !is_between_two(c->kind)) reason = find_type(x);
    if (reason) return reason;
    if (x->general && !g->near) return AP_FAR;
    if (x->general && !is_between_two(c->kind) && x->bytes >= ap_general_most(c->kind)) return AP_LONG;
    if (x->general ? g->general < 0 : x->row->state < 0) return AP_REFUSED;
    return is_new(x) ? AP_NEW : AP_SERVED;
}

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

int ap_pack(MPI_Comm comm, void *user, MPI_Datatype type, MPI_Aint extent, uint64_t size, uint64_t count, char *bytes, int into) {
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
static int copy(const choice *x, const side *s, uint64_t first, uint64_t blocks, int into) {
    const uint64_t at_once = s->places ? 1 : blocks;
    int code = MPI_SUCCESS;
    for (uint64_t i = first; i < first + blocks && !code; i += at_once)
        code = ap_pack(x->call->comm, user_block(s, i), s->type, s->extent, (uint64_t)s->size, at_once * (uint64_t)s->count,
                       (char *)s->buffer + i * (uint64_t)s->count * (uint64_t)s->size, into);
    return code;
}

/* Memory of ours in a side's place, for as many bytes as it has. */
static int aside(choice *x, side *s, int number, ap_error *error) {
    s->buffer = ap_group_stage(x->g, number, s->bytes, error);
    return s->buffer ? AP_OK : error->code;
}

/* Memory for the bytes of elements that are not plain. */
static int stage(choice *x, side *s, int number, ap_error *error) {
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
static int locate(choice *x, sides *out, ap_error *error) {
    const ap_call *c = x->call;
    const uint64_t all = (uint64_t)x->g->size;
    static const struct { char sends, gets; } everywhere[AP_KINDS] = {
        [AP_BROADCAST] = {0, 1}, [AP_ALLGATHER] = {1, 'n'}, [AP_REDUCESCATTER] = {'n', 1}, [AP_ALLREDUCE] = {1, 1},
        [AP_ALLTOALL] = {'n', 'n'}, [AP_REDUCE] = {1, 1}, [AP_GATHER] = {1, 'n'}, [AP_SCATTER] = {'n', 1}};
    const int kind = kind_of_rows(c->kind), even = kind == AP_REDUCESCATTER && ap_listed(&c->gets); /* all alike: of a block */
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
    if (c->kind == AP_ALLGATHERV) s.out.count = ap_count_at(&c->gets, 0);
    if (c->kind == AP_ALLGATHERV && !in_a_row(c, x->g->size)) s.out.places = &c->gets;
    s.in.buffer = s.in.user, s.out.buffer = s.out.user;
    if (s.in.blocks && !ap_type_of(s.in.type, &x->send)) s.in.count = -1;
    if (s.out.blocks && !ap_type_of(s.out.type, &x->recv)) s.out.count = -1;
    *out = s;
    return measured(&out->in, &x->send, error) || measured(&out->out, &x->recv, error);
}

/* Makes plain bytes of what is not; true in *back if the result has to be brought to the user's elements. */
static int gather_bytes(choice *x, sides *s, int *back, int *code, ap_error *error) {
    const ap_call *c = x->call;
    int only_sent = c->kind == AP_SCATTER && x->at_root && s->in_place;
    *back = 0, *code = MPI_SUCCESS;
    if (s->in.blocks && !x->send.plain) {
        if (stage(x, &s->in, AP_STAGED_IN, error)) return error->code;
        *code = copy(x, &s->in, 0, s->in.blocks, 1);
    }
    if (s->out.blocks && !*code && (!x->recv.plain || s->out.places)) {
        if (stage(x, &s->out, AP_STAGED_OUT, error)) return error->code;
        int own = kind_of_rows(c->kind) == AP_ALLGATHER || c->kind == AP_GATHER;
        int loads = s->in_place && (c->kind != AP_BROADCAST || x->at_root);
        if (loads) *code = copy(x, &s->out, own ? (uint64_t)x->g->rank : 0, own ? 1 : s->out.blocks, 1);
        *back = !only_sent && !(c->kind == AP_BROADCAST && x->at_root);
    }
    return *code ? ap_fail(error, AP_TRANSPORT, "MPI could not bring elements together") : AP_OK;
}

/* ---- running ---- */

int ap_raise(MPI_Comm comm, const char *what, const ap_error *error) {
    fprintf(stderr, "antiphon: %s on process %d: %s\n", what, ap_preload.rank, error->text);
    PMPI_Comm_call_errhandler(comm, MPI_ERR_OTHER);
    return MPI_ERR_OTHER;
}

/* AP_OK, and *left if all processes leave it to the library. */
static int run(choice *x, int *left, int *code, ap_error *error) {
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
    if (!reduces(x->call->kind) && gather_bytes(x, &s, &back, code, error)) return AP_INVALID;
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

static int fail(choice *x, int *code, const ap_error *error) {
    x->g->broken = 1;
    *code = ap_raise(x->call->comm, names[x->call->kind], error);
    return 1;
}

/* By a schedule that needs no plan; the same outcomes. */
static int run_general(choice *x, int *code, ap_error *error) {
    const ap_call *c = x->call;
    *code = MPI_SUCCESS;
    if (!reduces(c->kind)) return ap_general_move(x->g, c, code, error);
    const ap_elements elements = {x->g, c, x->unit, (uint64_t)x->width, x->type, x->op};
    return ap_general_fold(&elements, code, error);
}

static int leave(const choice *x, int reason) {
    if (ap_preload.set.report && (!x->g || !x->g->rank)) ap_report_left(x->call->kind, reason);
    return 0;
}

static int serve(choice *x, int *code) {
    ap_error error = {0, ""};
    int left = 0;
    if (!x->g) {
        ap_fail(&error, AP_MEMORY, "out of memory");
        *code = ap_raise(x->call->comm, names[x->call->kind], &error);
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
    double began = ap_preload.set.report ? ap_now() : 0;
    int works = x->general ? ap_group_general(x->g, code, &error) : x->row->state || ap_row_works(x->g, x->row, code, &error);
    if (!works) {
        if (*code) return fail(x, code, &error);
        return leave(x, x->g->reason ? x->g->reason : AP_REFUSED);
    }
    if (x->general ? run_general(x, code, &error) : run(x, &left, code, &error)) return fail(x, code, &error);
    if (left) return leave(x, AP_REFUSED);
    ap_use *use = x->general ? &ap_preload.general[x->call->kind][x->g->size != ap_preload.size] : x->row->use;
    if (ap_preload.set.report && use && !x->g->rank) ap_report_call(use, x->bytes, ap_now() - began);
    *code = MPI_SUCCESS;
    return 1;
}

/* Whether this process has its data where the result goes, as `locate` finds it. */
static int is_in_place(const choice *x) {
    const ap_call *c = x->call;
    if (c->kind == AP_SCATTER) return x->at_root && c->recv == MPI_IN_PLACE;
    return c->kind != AP_REDUCESCATTER && c->send == MPI_IN_PLACE && (x->at_root || c->kind != AP_GATHER);
}

/* A call of a communicator that has no plans yet: why it is left to the library, if it is. -1: it failed, see *code. */
static int wait_for_plans(choice *x, int *code) {
    ap_error error = {0, ""};
    const ap_call *c = x->call;
    uint64_t unit = x->unit;
    int plannable = !find_type(x) && !x->general;
    ap_noted noted = {.kind = c->kind, .root = c->root, .unit = x->unit, .bytes = x->bytes, .type = x->type,
                      .in_place = is_in_place(x)};
    x->unit = unit;
    int first = ap_auto_turn(x->g, &noted, plannable, &error);
    if (!error.code) return first ? choose(x) : x->g->reason;
    fail(x, code, &error);
    return -1;
}

/* What is left to the library must have cost next to nothing here. */
int ap_serve(const ap_call *call, int *code) {
    choice x;
    if (!ap_preload.on || call->comm == MPI_COMM_NULL) return 0;
    x.call = call, x.g = ap_group_of(call->comm), x.row = NULL, x.general = 0, x.bytes = 0;
    int reason = x.g ? choose(&x) : AP_SERVED;
    if (reason == AP_WAITING && call->kind < AP_KINDS && !x.general && (reason = wait_for_plans(&x, code)) < 0) return 1;
    return reason ? leave(&x, reason) : serve(&x, code);
}
