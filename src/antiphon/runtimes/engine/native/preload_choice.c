/* Whether a plan, or a general schedule, serves a call: by what all of its processes know. */
#include "preload_choice.h"

#include <limits.h>

int ap_reduces(int kind) {
    return kind == AP_REDUCE || kind == AP_REDUCESCATTER || kind == AP_ALLREDUCE || kind == AP_SCAN || kind == AP_EXSCAN;
}

int ap_kind_of_rows(int kind) {
    static const int kinds[AP_NAMES] = {
        [AP_ALLGATHERV] = AP_ALLGATHER, [AP_ALLTOALLV] = AP_ALLTOALL, [AP_GATHERV] = AP_GATHER,
        [AP_SCATTERV] = AP_SCATTER, [AP_SCAN] = AP_ALLREDUCE, [AP_EXSCAN] = AP_ALLREDUCE};
    return kind < AP_KINDS ? kind : kinds[kind];
}

int ap_is_between_two(int kind) { return kind == AP_ALLTOALLV || kind == AP_GATHERV || kind == AP_SCATTERV; }

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
static int measure(ap_choice *x) {
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
static int look_at_two(ap_choice *x) {
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

int ap_find_type(ap_choice *x) {
    const ap_call *c = x->call;
    if (!ap_reduces(c->kind)) { /* types may differ between processes: what all know is the bytes */
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
static int is_new(ap_choice *x) {
    ap_group *g = x->g;
    return !g->wired && g->comm != MPI_COMM_WORLD && g->calls < ap_preload.set.after && g->calls++ < ap_preload.set.after;
}

int ap_way_of(ap_choice *x) {
    const ap_call *c = x->call;
    ap_group *g = x->g;
    int rooted = c->kind <= AP_GATHER || c->kind == AP_GATHERV || c->kind == AP_SCATTERV;
    if (g->reason && g->reason != AP_WAITING) return g->reason;
    if (rooted && (c->root < 0 || c->root >= g->size)) return AP_SILENT;
    x->at_root = g->rank == c->root, x->general = 0;
    int reason = ap_is_between_two(c->kind) ? look_at_two(x) : measure(x);
    if (!reason && g->reason) return g->reason;
    if (!reason && ap_is_between_two(c->kind))
        reason = ap_group_every_size(g, ap_kind_of_rows(c->kind), c->root) ? AP_SERVED : AP_UNKNOWN_SIZE;
    else if (!reason)
        reason = ap_group_row(g, ap_kind_of_rows(c->kind), c->root, x->bytes, &x->row);
    if (!reason && !ap_is_between_two(c->kind)) reason = ap_find_type(x);
    if (reason) return reason;
    if (x->general && !g->near) return AP_FAR;
    if (x->general && !ap_is_between_two(c->kind) && x->bytes >= ap_general_most(c->kind)) return AP_LONG;
    if (x->general ? g->general < 0 : x->row->state < 0) return AP_REFUSED;
    return is_new(x) ? AP_NEW : AP_SERVED;
}
