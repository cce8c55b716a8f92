/* The names of NCCL and RCCL that a preloaded library meets, as far as we need them: written down from what NCCL documents
 * of them. With AP_NCCL_H they are those of NCCL's own nccl.h, so that a compiler holds ours against it. */
#ifndef ANTIPHON_NCCL_NAMES_H
#define ANTIPHON_NCCL_NAMES_H

#include <stddef.h>
#include <stdint.h>

#ifdef AP_NCCL_H
#include <nccl.h>
typedef cudaStream_t ap_stream;
#else
#ifdef __cplusplus
extern "C" {
#endif
typedef void *ap_stream; /* a pointer to what nobody looks into, in CUDA and HIP alike */
typedef struct ncclComm *ncclComm_t;
typedef struct {
    char internal[128];
} ncclUniqueId;
typedef enum {
    ncclSuccess, ncclUnhandledCudaError, ncclSystemError, ncclInternalError, ncclInvalidArgument, ncclInvalidUsage,
    ncclRemoteError, ncclInProgress
} ncclResult_t;
typedef enum {
    ncclInt8, ncclUint8, ncclInt32, ncclUint32, ncclInt64, ncclUint64, ncclFloat16, ncclFloat32, ncclFloat64, ncclBfloat16,
    ncclFloat8e4m3, ncclFloat8e5m2, ncclNumTypes
} ncclDataType_t;
typedef enum {
    ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg, ncclNumOps, ncclMaxRedOp = 0x7fffffff
} ncclRedOp_t; /* from ncclNumOps on: those that a program has made */
typedef struct ncclConfig ncclConfig_t;
typedef struct ncclSimInfo ncclSimInfo_t;

ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config);
ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int ranks, int rank, int count, ncclUniqueId *ids,
                                      ncclConfig_t *config);
ncclResult_t ncclCommInitAll(ncclComm_t *comms, int count, const int *devices);
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *made, ncclConfig_t *config);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error);
ncclResult_t ncclCommCount(const ncclComm_t comm, int *count);
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank);
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *info);
ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, ap_stream stream);
ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, ap_stream stream);
ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           ap_stream stream);
ncclResult_t ncclReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, ap_stream stream);
ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, ap_stream stream);
ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           ap_stream stream);
ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           ap_stream stream);
ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm, ap_stream stream);
ncclResult_t ncclAlltoAll(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                          ap_stream stream);
ncclResult_t ncclGather(const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                        ap_stream stream);
ncclResult_t ncclScatter(const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                         ap_stream stream);
#ifdef __cplusplus
}
#endif
#endif

#endif
