/* The names of NCCL that this library offers for calls: each is served by a plan, or handed on. */
#include "nccl_preload.h"

#define CALL(...)                                                                                                 \
    do {                                                                                                          \
        const ap_nccl_call call = {.comm = comm, .stream = stream, .count = count, .type = (int)type, __VA_ARGS__}; \
        return ap_nccl_do(&call);                                                                                 \
    } while (0)
#define BOTH .from = from, .to = to

AP_SEEN ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, ap_stream stream) {
    CALL(.kind = AP_SENDS, .from = from, .root = peer);
}

AP_SEEN ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, ap_stream stream) {
    CALL(.kind = AP_RECEIVES, .to = to, .root = peer);
}

AP_SEEN ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                   ncclComm_t comm, ap_stream stream) {
    CALL(.kind = AP_ALLREDUCE, .root = -1, .op = (int)op, BOTH);
}

AP_SEEN ncclResult_t ncclReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                                ncclComm_t comm, ap_stream stream) {
    CALL(.kind = AP_REDUCE, .root = root, .op = (int)op, BOTH);
}

AP_SEEN ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                       ncclComm_t comm, ap_stream stream) {
    CALL(.kind = AP_REDUCESCATTER, .root = -1, .op = (int)op, BOTH);
}

AP_SEEN ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                                   ap_stream stream) {
    CALL(.kind = AP_ALLGATHER, .root = -1, BOTH);
}

AP_SEEN ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                                   ap_stream stream) {
    CALL(.kind = AP_BROADCAST, .root = root, BOTH);
}

AP_SEEN ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm, ap_stream stream) {
    CALL(.kind = AP_BROADCAST, .root = root, .from = buffer, .to = buffer);
}

#ifdef AP_FOR_RCCL
AP_SEEN ncclResult_t ncclAllToAll(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                                  ap_stream stream) {
    CALL(.kind = AP_ALLTOALL, .root = -1, BOTH);
}
#else
AP_SEEN ncclResult_t ncclAlltoAll(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                                  ap_stream stream) {
    CALL(.kind = AP_ALLTOALL, .root = -1, BOTH);
}
#endif

AP_SEEN ncclResult_t ncclGather(const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                                ap_stream stream) {
    CALL(.kind = AP_GATHER, .root = root, BOTH);
}

AP_SEEN ncclResult_t ncclScatter(const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                                 ap_stream stream) {
    CALL(.kind = AP_SCATTER, .root = root, BOTH);
}
