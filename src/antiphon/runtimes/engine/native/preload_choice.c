/* Whether a plan serves a call: by what all of its processes know. */
#include "preload_choice.h"

#include <limits.h>
#include <pthread.h>

/* ---- calls that are left to the library ---- */

ap_left_call ap_left_calls[AP_LEFT_CALLS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of who changes them */

static void change(ap_left_call *l, const ap_call *c) {
    const uint32_t version = atomic_load_explicit(&l->version, memory_order_relaxed);
    atomic_store_explicit(&l->version, version + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&l->kind, c ? c->kind : -1, memory_order_relaxed);
    if (c) {
        atomic_store_explicit(&l->root, c->root, memory_order_relaxed);
        atomic_store_explicit(&l->count, c->recv_count, memory_order_relaxed);
        atomic_store_explicit(&l->comm, (uint64_t)(uintptr_t)c->comm, memory_order_relaxed);
        atomic_store_explicit(&l->type, (uint64_t)(uintptr_t)c->recv_type, memory_order_relaxed);
    }
    atomic_store_explicit(&l->version, version + 2, memory_order_release);
}

/* Of a call whose size decided, by arguments that are the same whenever it is made again. */
static void remember(const ap_choice *x) {
    const ap_call *c = x->call;
    if (ap_preload.set.report || ap_listed(&c->gets) || !ap_is_built_in(c->recv_type)) return;
    if (c->kind == AP_GATHER || c->kind == AP_SCATTER) return; /* which arguments count depends on the process */
    pthread_mutex_lock(&lock);
    change(ap_left_slot(c->kind, c->recv_count), c);
    pthread_mutex_unlock(&lock);
}

void ap_left_forget(void) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < AP_LEFT_CALLS; i++)
        if (atomic_load_explicit(&ap_left_calls[i].version, memory_order_relaxed)) change(&ap_left_calls[i], NULL);
    pthread_mutex_unlock(&lock);
}

/* ---- how a call goes ---- */

int ap_reduces(int kind) { return kind == AP_REDUCE || kind == AP_REDUCESCATTER || kind == AP_ALLREDUCE; }

/* Of counts that are listed, alike at all processes. Plans have blocks of one size. */
static int compare_counts(const ap_list *l, int size) {
    int alike = 1;
    for (int i = 0; i < size; i++) {
        if (ap_count_at(l, i) < 0) return AP_SILENT;
        alike &= ap_count_at(l, i) == ap_count_at(l, 0);
    }
    return alike ? AP_SERVED : AP_UNEVEN;
}

/* What all processes know of its size: by the arguments that are significant here. */
static int measure(ap_choice *x) {
    const ap_call *c = x->call;
    int by_send = (c->kind == AP_GATHER && !x->at_root) || (c->kind == AP_SCATTER && x->at_root);
    MPI_Count count = by_send ? c->send_count : c->recv_count;
    const ap_kind_of_data *data = by_send ? &x->send : &x->recv;
    if (ap_listed(&c->gets)) {
        int reason = compare_counts(&c->gets, x->g->size);
        if (reason) return reason;
        count = ap_count_at(&c->gets, 0);
    }
    if (count < 0 || !ap_type_of(by_send ? c->send_type : c->recv_type, by_send ? &x->send : &x->recv)) return AP_SILENT;
    x->unit = (uint64_t)count;
    int alone = c->kind == AP_BROADCAST || c->kind == AP_REDUCE || c->kind == AP_ALLREDUCE;
    uint64_t times = (uint64_t)(alone ? 1 : x->g->size);
    if (__builtin_mul_overflow(x->unit, (uint64_t)data->size, &x->block) || __builtin_mul_overflow(x->block, times, &x->bytes) ||
        x->bytes > INT64_MAX)
        return AP_LARGE;
    return x->bytes ? AP_SERVED : AP_EMPTY;
}

int ap_find_type(ap_choice *x) {
    const ap_call *c = x->call;
    if (!ap_reduces(c->kind)) { /* types may differ between processes: what all know is the bytes */
        x->unit = x->block, x->type = AP_UINT8, x->op = AP_SUM;
        if (!ap_preload.packs || (MPI_VERSION < 4 && x->block > INT_MAX)) return AP_LARGE;
        return AP_SERVED;
    }
    x->op = ap_operator_of(c->op), x->type = x->recv.type;
    if (x->op < 0) return AP_OTHER_OPERATOR;
    return x->type < 0 ? AP_OTHER_TYPE : AP_SERVED;
}

/* Connecting the processes of a communicator takes as long as some calls do: those that are soon freed go without. */
static int is_new(ap_choice *x) {
    ap_group *g = x->g;
    return !g->wired && g->comm != MPI_COMM_WORLD && g->calls < ap_preload.set.after && g->calls++ < ap_preload.set.after;
}

int ap_way_of(ap_choice *x) {
    const ap_call *c = x->call;
    ap_group *g = x->g;
    if (g->reason && g->reason != AP_WAITING) return g->reason;
    if (c->kind <= AP_GATHER && (c->root < 0 || c->root >= g->size)) return AP_SILENT;
    x->at_root = g->rank == c->root;
    int reason = measure(x);
    if (reason) return reason;
    if (g->reason) return g->reason;
    if ((reason = ap_group_row(g, c->kind, c->root, x->bytes, &x->row))) {
        remember(x);
        return reason;
    }
    if ((reason = ap_find_type(x))) return reason;
    if (x->row->state < 0) return AP_REFUSED;
    return is_new(x) ? AP_NEW : AP_SERVED;
}
