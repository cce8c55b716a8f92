/* NCCL's own functions: those that stand behind this library in the order of the loader, or in the library that we are told. */
#include <dlfcn.h>

#include "nccl_preload.h"

static ap_reals reals;
_Thread_local int ap_inside;

static void find(void) {
    void *behind = ap_nccl_behind ? ap_nccl_behind : RTLD_NEXT;
#define FIND(NAME) *(void **)&reals.NAME = dlsym(behind, "nccl" #NAME);
    AP_REALS(FIND)
#ifdef AP_FOR_RCCL
    *(void **)&reals.AlltoAll = dlsym(behind, "ncclAllToAll");
#endif
}

const ap_reals *ap_real(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find);
    return &reals;
}

size_t ap_nccl_size(int type) { return type < 0 || type >= ncclNumTypes ? 0 : type > ncclBfloat16 ? 1 : ap_type_size(type); }

ncclResult_t ap_nccl_leave(const ap_nccl_call *c) {
    const ncclDataType_t type = (ncclDataType_t)c->type;
    const ncclRedOp_t op = (ncclRedOp_t)c->op;
    switch (c->kind) {
    case AP_SENDS: return AP_REAL(Send, c->from, c->count, type, c->root, c->comm, c->stream);
    case AP_RECEIVES: return AP_REAL(Recv, c->to, c->count, type, c->root, c->comm, c->stream);
    case AP_BROADCAST: return AP_REAL(Broadcast, c->from, c->to, c->count, type, c->root, c->comm, c->stream);
    case AP_REDUCE: return AP_REAL(Reduce, c->from, c->to, c->count, type, op, c->root, c->comm, c->stream);
    case AP_SCATTER: return AP_REAL(Scatter, c->from, c->to, c->count, type, c->root, c->comm, c->stream);
    case AP_GATHER: return AP_REAL(Gather, c->from, c->to, c->count, type, c->root, c->comm, c->stream);
    case AP_ALLGATHER: return AP_REAL(AllGather, c->from, c->to, c->count, type, c->comm, c->stream);
    case AP_REDUCESCATTER: return AP_REAL(ReduceScatter, c->from, c->to, c->count, type, op, c->comm, c->stream);
    case AP_ALLREDUCE: return AP_REAL(AllReduce, c->from, c->to, c->count, type, op, c->comm, c->stream);
    }
    return AP_REAL(AlltoAll, c->from, c->to, c->count, type, c->comm, c->stream);
}
