/* One call: whether a plan serves it, where its data lies, and running the plan. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "copy.h"
#include "preload.h"
#include "transport.h"

static const char *const names[AP_KINDS] = {"MPI_Bcast", "MPI_Reduce", "MPI_Scatter", "MPI_Gather",
                                            "MPI_Allgather", "MPI_Reduce_scatter", "MPI_Allreduce", "MPI_Alltoall"};

typedef struct {
    const ap_call *call;
    ap_group *g;
    ap_row *row;
    ap_kind_of_data send, recv;
    uint64_t unit, block, bytes; /* elements and bytes of a block; bytes of the call */
    int at_root, type, op;
} choice;

/* ---- whether it is served ---- */

static int reduces(int kind) { return kind == AP_REDUCE || kind == AP_REDUCESCATTER || kind == AP_ALLREDUCE; }

/* The count of a block: of an MPI_Reduce_scatter the one that all have; -1 where they differ. */
static MPI_Count count_of(const ap_call *c, int size) {
    if (!c->counts && !c->large_counts) return c->recv_count;
    MPI_Count first = c->counts ? c->counts[0] : c->large_counts[0];
    for (int i = 1; i < size; i++)
        if ((c->counts ? c->counts[i] : c->large_counts[i]) != first) return -1;
    return first;
}

/* What all processes know of its size: by the arguments that are significant here. */
static int measure(choice *x) {
    const ap_call *c = x->call;
    int by_send = (c->kind == AP_GATHER && !x->at_root) || (c->kind == AP_SCATTER && x->at_root);
    MPI_Count count = by_send ? c->send_count : count_of(c, x->g->size);
    const ap_kind_of_data *data = by_send ? &x->send : &x->recv;
    if (count < 0) return c->counts || c->large_counts ? AP_UNEVEN : AP_SILENT;
    if (!ap_type_of(by_send ? c->send_type : c->recv_type, by_send ? &x->send : &x->recv)) return AP_SILENT;
    x->unit = (uint64_t)count;
    int alone = c->kind == AP_BROADCAST || c->kind == AP_REDUCE || c->kind == AP_ALLREDUCE;
    if (__builtin_mul_overflow(x->unit, (uint64_t)data->size, &x->block) ||
        __builtin_mul_overflow(x->block, (uint64_t)(alone ? 1 : x->g->size), &x->bytes) || x->bytes > INT64_MAX)
        return AP_LARGE;
    return x->bytes ? AP_SERVED : AP_EMPTY;
}

/* What the engine is to do with its elements. */
static int find_type(choice *x) {
    const ap_call *c = x->call;
    if (reduces(c->kind)) {
        if ((x->op = ap_operator_of(c->op)) < 0) return AP_OTHER_OPERATOR;
        if ((x->type = x->recv.type) < 0) return AP_OTHER_TYPE;
    } else { /* types may differ between processes: what all know is the bytes */
        x->unit = x->block, x->type = AP_UINT8, x->op = AP_SUM;
        if (!ap_preload.packs || (MPI_VERSION < 4 && x->block > INT_MAX)) return AP_LARGE;
    }
    return AP_SERVED;
}

/* Connecting the processes of a communicator takes as long as some calls do: those that are soon freed go without. */
static int is_new(choice *x) {
    ap_group *g = x->g;
    return !g->wired && g->comm != MPI_COMM_WORLD && g->calls < ap_preload.after && g->calls++ < ap_preload.after;
}

static int choose(choice *x) {
    const ap_call *c = x->call;
    ap_group *g = x->g;
    int rooted = c->kind <= AP_GATHER;
    if (g->reason && g->reason != AP_WAITING) return g->reason;
    if (rooted && (c->root < 0 || c->root >= g->size)) return AP_SILENT;
    x->at_root = g->rank == c->root;
    int reason = measure(x);
    if (!reason && g->reason) return g->reason;
    if (!reason) reason = ap_group_row(g, c->kind, c->root, x->bytes, &x->row);
    if (!reason) reason = find_type(x);
    if (reason) return reason;
    if (x->row->state < 0) return AP_REFUSED;
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
} side;

/* Between the user's elements and plain bytes; at most 2^30 of these at once. */
static int copy(const choice *x, const side *s, uint64_t first, uint64_t blocks, int into) {
    const uint64_t size = (uint64_t)s->size, most = size < 1u << 30 ? (1u << 30) / size : 1;
    uint64_t count = blocks * (uint64_t)s->count, done = first * (uint64_t)s->count;
    for (uint64_t end = done + count; done < end;) {
        uint64_t n = end - done < most ? end - done : most;
        char *user = (char *)s->user + (MPI_Aint)done * s->extent;
        char *bytes = (char *)s->buffer + done * size;
        int code;
#if MPI_VERSION >= 4
        MPI_Count at = 0;
        code = into ? PMPI_Pack_c(user, (MPI_Count)n, s->type, bytes, (MPI_Count)(n * size), &at, x->call->comm)
                    : PMPI_Unpack_c(bytes, (MPI_Count)(n * size), &at, user, (MPI_Count)n, s->type, x->call->comm);
#else
        int at = 0;
        code = into ? PMPI_Pack(user, (int)n, s->type, bytes, (int)(n * size), &at, x->call->comm)
                    : PMPI_Unpack(bytes, (int)(n * size), &at, user, (int)n, s->type, x->call->comm);
#endif
        if (code) return code;
        done += n;
    }
    return MPI_SUCCESS;
}

/* Memory of ours in a side's place, for as many bytes as it has. */
static int aside(choice *x, side *s, int number, ap_error *error) {
    ap_group *g = x->g;
    if (g->stage_bytes[number] < s->bytes) {
        free(g->stage[number]);
        g->stage_bytes[number] = 0;
        if (!(g->stage[number] = malloc(s->bytes)))
            return ap_fail(error, AP_MEMORY, "no memory for %llu bytes beside the caller's", (unsigned long long)s->bytes);
        g->stage_bytes[number] = s->bytes;
    }
    s->buffer = g->stage[number];
    return AP_OK;
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

/* How many blocks a process hands over and gets, and whether they share one buffer. */
static int locate(choice *x, sides *out, ap_error *error) {
    const ap_call *c = x->call;
    const uint64_t all = (uint64_t)x->g->size;
    static const struct { char sends, gets; } everywhere[AP_KINDS] = {
        [AP_BROADCAST] = {0, 1}, [AP_ALLGATHER] = {1, 'n'}, [AP_REDUCESCATTER] = {'n', 1}, [AP_ALLREDUCE] = {1, 1},
        [AP_ALLTOALL] = {'n', 'n'}, [AP_REDUCE] = {1, 1}, [AP_GATHER] = {1, 'n'}, [AP_SCATTER] = {'n', 1}};
    int even = c->counts || c->large_counts; /* all counts are alike: of a block */
    sides s = {.in = {.type = c->send_type, .count = even ? (MPI_Count)x->unit : c->send_count},
               .out = {.type = c->recv_type, .count = even ? (MPI_Count)x->unit : c->recv_count}};
    int gets = x->at_root || !(c->kind == AP_REDUCE || c->kind == AP_GATHER), sends = x->at_root || c->kind != AP_SCATTER;
    s.in.user = sends ? (void *)(uintptr_t)c->send : NULL, s.out.user = gets ? c->recv : NULL;
    s.in.blocks = !sends ? 0 : everywhere[c->kind].sends == 'n' ? all : (uint64_t)everywhere[c->kind].sends;
    s.out.blocks = !gets ? 0 : everywhere[c->kind].gets == 'n' ? all : (uint64_t)everywhere[c->kind].gets;
    if (sends && c->send == MPI_IN_PLACE && c->kind == AP_REDUCESCATTER) {
        s.in.user = c->recv; /* the result alone is written there, in front: in place a plan would write elsewhere, too */
    } else if (sends && c->send == MPI_IN_PLACE) {
        s.in_place = 1, s.in.blocks = 0, s.in.user = NULL;
    } else if (c->kind == AP_SCATTER && x->at_root && c->recv == MPI_IN_PLACE) {
        s.in_place = 1;
        s.out = s.in; /* nothing is written there: its own block stays where it is */
        s.in.blocks = 0, s.in.user = NULL;
    }
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
        if (stage(x, &s->in, 0, error)) return error->code;
        *code = copy(x, &s->in, 0, s->in.blocks, 1);
    }
    if (s->out.blocks && !*code && !x->recv.plain) {
        if (stage(x, &s->out, 1, error)) return error->code;
        int own = c->kind == AP_ALLGATHER || c->kind == AP_GATHER;
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
    if (beside && aside(x, &s.out, 1, error)) return error->code;
    int failed = ap_run(plan, s.in.buffer, s.in.bytes, s.out.buffer, s.out.bytes, x->type, x->op, g->wire,
                        ap_preload.timeout, error);
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

static int leave(const choice *x, int reason) {
    if (ap_preload.report && (!x->g || !x->g->rank)) ap_report_left(x->call->kind, reason);
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
    double began = ap_preload.report ? ap_now() : 0;
    if (!x->row->state && !ap_row_works(x->g, x->row, code, &error)) {
        if (*code) return fail(x, code, &error);
        return leave(x, x->g->reason ? x->g->reason : AP_REFUSED);
    }
    if (run(x, &left, code, &error)) return fail(x, code, &error);
    if (left) return leave(x, AP_REFUSED);
    if (x->row->use && !x->g->rank) ap_report_call(x->row, x->bytes, ap_now() - began);
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
    int plannable = !find_type(x);
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
    x.call = call, x.g = ap_group_of(call->comm), x.row = NULL;
    int reason = x.g ? choose(&x) : AP_SERVED;
    if (reason == AP_WAITING && (reason = wait_for_plans(&x, code)) < 0) return 1;
    return reason ? leave(&x, reason) : serve(&x, code);
}
