/* The entries of NCCL that nccl_choose.c defines or calls, and NCCL's per-call configuration.
 *
 * Written from NCCL's documentation, as NCCL 2.31 has them: later versions only append to the configuration, whose
 * size shows which members it has. With AP_NCCL_H all of it comes from NCCL's own nccl.h instead.
 *
 * Threading and ownership: declarations only.
 */
#pragma once

#ifdef AP_NCCL_H
#include <nccl.h>
#else
#include <limits.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { ncclSuccess = 0, ncclSystemError = 2 } ncclResult_t;
typedef int ncclDataType_t, ncclRedOp_t;
typedef struct ncclComm *ncclComm_t;
typedef struct CUstream_st *cudaStream_t;
typedef struct { char internal[128]; } ncclUniqueId;
/* The beginning of the configuration of a communicator: no more of it is read. */
typedef struct { size_t size; unsigned magic, version; int blocking; } ncclConfig_t;
typedef struct {
    size_t size;
    unsigned magic, version;
    void *ext;
    int minCTAs, maxCTAs, nvlsCTAs, cgaClusterSize;
    const char *algSelection; /* names of algorithms (selection_of); NULL: NCCL chooses */
    int forceAlgSelection, CTAPolicy;
    uint64_t userProfilerTag; /* a number that profilers show beside the call */
} ncclCollConfig_t;
/* Size, NCCL's magic number, version 2.31.0; then every member is unset (INT_MIN, NULL, a tag of 0) but forceAlgSelection.
 * That is 1 by default: if NCCL cannot follow algSelection, the call fails. With 0 NCCL then chooses by itself. */
#define NCCL_COLLCONFIG_INITIALIZER \
    {sizeof(ncclCollConfig_t), 0xcafebeef, 23100, NULL, INT_MIN, INT_MIN, INT_MIN, INT_MIN, NULL, 1, INT_MIN, 0}

ncclResult_t ncclGroupStart(void), ncclGroupEnd(void);
ncclResult_t ncclCommInitRank(ncclComm_t *, int, ncclUniqueId, int);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *);
ncclResult_t ncclCommInitRankScalable(ncclComm_t *, int, int, int, ncclUniqueId *, ncclConfig_t *);
ncclResult_t ncclCommInitAll(ncclComm_t *, int, const int *);
ncclResult_t ncclCommSplit(ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *);
ncclResult_t ncclCommDestroy(ncclComm_t), ncclCommAbort(ncclComm_t);
ncclResult_t ncclCommCount(const ncclComm_t, int *), ncclCommUserRank(const ncclComm_t, int *);

#define AP_DECLARE(name, ...) \
    ncclResult_t name(const void *, void *, size_t, ncclDataType_t, __VA_ARGS__, cudaStream_t); \
    ncclResult_t name##Config(const void *, void *, size_t, ncclDataType_t, __VA_ARGS__, cudaStream_t, const ncclCollConfig_t *)
AP_DECLARE(ncclAllReduce, ncclRedOp_t, ncclComm_t);
AP_DECLARE(ncclReduceScatter, ncclRedOp_t, ncclComm_t);
AP_DECLARE(ncclBroadcast, int, ncclComm_t);
AP_DECLARE(ncclReduce, ncclRedOp_t, int, ncclComm_t);
AP_DECLARE(ncclAllGather, ncclComm_t);
AP_DECLARE(ncclAlltoAll, ncclComm_t);
AP_DECLARE(ncclGather, int, ncclComm_t);
AP_DECLARE(ncclScatter, int, ncclComm_t);
#endif
