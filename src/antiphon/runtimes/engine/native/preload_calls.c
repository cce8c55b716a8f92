/* The names of MPI that this library offers when it is preloaded: each is served by a plan, or handed on. */
#include "preload.h"

#define SERVED(...) \
    const ap_call call = {.comm = comm, __VA_ARGS__}; \
    int code; \
    if (ap_serve(&call, &code)) return code

/* Twice: for counts of type int, and for the large ones that MPI 4 has. */
#define CALLS(LARGE, count_of, place_of, COUNT, AT) \
    AP_SEEN int MPI_Allreduce##LARGE(const void *a, void *b, count_of n, MPI_Datatype t, MPI_Op op, MPI_Comm comm) { \
        SERVED(.kind = AP_ALLREDUCE, .root = -1, .send = a, .recv = b, .send_count = n, .recv_count = n, .send_type = t, \
               .recv_type = t, .op = op); \
        return PMPI_Allreduce##LARGE(a, b, n, t, op, comm); \
    } \
    AP_SEEN int MPI_Reduce##LARGE(const void *a, void *b, count_of n, MPI_Datatype t, MPI_Op op, int root, MPI_Comm comm) { \
        SERVED(.kind = AP_REDUCE, .root = root, .send = a, .recv = b, .send_count = n, .recv_count = n, .send_type = t, \
               .recv_type = t, .op = op); \
        return PMPI_Reduce##LARGE(a, b, n, t, op, root, comm); \
    } \
    AP_SEEN int MPI_Reduce_scatter_block##LARGE(const void *a, void *b, count_of n, MPI_Datatype t, MPI_Op op, MPI_Comm comm) { \
        SERVED(.kind = AP_REDUCESCATTER, .root = -1, .send = a, .recv = b, .send_count = n, .recv_count = n, .send_type = t, \
               .recv_type = t, .op = op); \
        return PMPI_Reduce_scatter_block##LARGE(a, b, n, t, op, comm); \
    } \
    AP_SEEN int MPI_Reduce_scatter##LARGE(const void *a, void *b, const count_of n[], MPI_Datatype t, MPI_Op op, \
                                  MPI_Comm comm) { \
        SERVED(.kind = AP_REDUCESCATTER, .root = -1, .send = a, .recv = b, .gets = {.COUNT = n}, .send_type = t, .recv_type = t, .op = op); \
        return PMPI_Reduce_scatter##LARGE(a, b, n, t, op, comm); \
    } \
    AP_SEEN int MPI_Bcast##LARGE(void *a, count_of n, MPI_Datatype t, int root, MPI_Comm comm) { \
        SERVED(.kind = AP_BROADCAST, .root = root, .send = MPI_IN_PLACE, .recv = a, .send_count = n, .recv_count = n, \
               .send_type = t, .recv_type = t); \
        return PMPI_Bcast##LARGE(a, n, t, root, comm); \
    } \
    AP_SEEN int MPI_Allgather##LARGE(const void *a, count_of n, MPI_Datatype t, void *b, count_of m, MPI_Datatype u, \
                             MPI_Comm comm) { \
        SERVED(.kind = AP_ALLGATHER, .root = -1, .send = a, .recv = b, .send_count = n, .recv_count = m, .send_type = t, \
               .recv_type = u); \
        return PMPI_Allgather##LARGE(a, n, t, b, m, u, comm); \
    } \
    AP_SEEN int MPI_Alltoall##LARGE(const void *a, count_of n, MPI_Datatype t, void *b, count_of m, MPI_Datatype u, \
                            MPI_Comm comm) { \
        SERVED(.kind = AP_ALLTOALL, .root = -1, .send = a, .recv = b, .send_count = n, .recv_count = m, .send_type = t, \
               .recv_type = u); \
        return PMPI_Alltoall##LARGE(a, n, t, b, m, u, comm); \
    } \
    AP_SEEN int MPI_Gather##LARGE(const void *a, count_of n, MPI_Datatype t, void *b, count_of m, MPI_Datatype u, int root, \
                          MPI_Comm comm) { \
        SERVED(.kind = AP_GATHER, .root = root, .send = a, .recv = b, .send_count = n, .recv_count = m, .send_type = t, \
               .recv_type = u); \
        return PMPI_Gather##LARGE(a, n, t, b, m, u, root, comm); \
    } \
    AP_SEEN int MPI_Scatter##LARGE(const void *a, count_of n, MPI_Datatype t, void *b, count_of m, MPI_Datatype u, int root, \
                           MPI_Comm comm) { \
        SERVED(.kind = AP_SCATTER, .root = root, .send = a, .recv = b, .send_count = n, .recv_count = m, .send_type = t, \
               .recv_type = u); \
        return PMPI_Scatter##LARGE(a, n, t, b, m, u, root, comm); \
    } \
    AP_SEEN int MPI_Allgatherv##LARGE(const void *a, count_of n, MPI_Datatype t, void *b, const count_of m[], \
                                      const place_of at[], MPI_Datatype u, MPI_Comm comm) { \
        SERVED(.kind = AP_ALLGATHERV, .root = -1, .send = a, .recv = b, .send_count = n, .gets = {.COUNT = m, .AT = at}, \
               .send_type = t, .recv_type = u); \
        return PMPI_Allgatherv##LARGE(a, n, t, b, m, at, u, comm); \
    } \
    AP_SEEN int MPI_Alltoallv##LARGE(const void *a, const count_of n[], const place_of from[], MPI_Datatype t, void *b, \
                                     const count_of m[], const place_of at[], MPI_Datatype u, MPI_Comm comm) { \
        SERVED(.kind = AP_ALLTOALLV, .root = -1, .send = a, .recv = b, .sends = {.COUNT = n, .AT = from}, \
               .gets = {.COUNT = m, .AT = at}, .send_type = t, .recv_type = u); \
        return PMPI_Alltoallv##LARGE(a, n, from, t, b, m, at, u, comm); \
    } \
    AP_SEEN int MPI_Gatherv##LARGE(const void *a, count_of n, MPI_Datatype t, void *b, const count_of m[], const place_of at[], \
                                   MPI_Datatype u, int root, MPI_Comm comm) { \
        SERVED(.kind = AP_GATHERV, .root = root, .send = a, .recv = b, .send_count = n, .gets = {.COUNT = m, .AT = at}, \
               .send_type = t, .recv_type = u); \
        return PMPI_Gatherv##LARGE(a, n, t, b, m, at, u, root, comm); \
    } \
    AP_SEEN int MPI_Scatterv##LARGE(const void *a, const count_of n[], const place_of from[], MPI_Datatype t, void *b, \
                                    count_of m, MPI_Datatype u, int root, MPI_Comm comm) { \
        SERVED(.kind = AP_SCATTERV, .root = root, .send = a, .recv = b, .sends = {.COUNT = n, .AT = from}, .recv_count = m, \
               .send_type = t, .recv_type = u); \
        return PMPI_Scatterv##LARGE(a, n, from, t, b, m, u, root, comm); \
    } \
    AP_SEEN int MPI_Scan##LARGE(const void *a, void *b, count_of n, MPI_Datatype t, MPI_Op op, MPI_Comm comm) { \
        SERVED(.kind = AP_SCAN, .root = -1, .send = a, .recv = b, .send_count = n, .recv_count = n, .send_type = t, \
               .recv_type = t, .op = op); \
        return PMPI_Scan##LARGE(a, b, n, t, op, comm); \
    } \
    AP_SEEN int MPI_Exscan##LARGE(const void *a, void *b, count_of n, MPI_Datatype t, MPI_Op op, MPI_Comm comm) { \
        SERVED(.kind = AP_EXSCAN, .root = -1, .send = a, .recv = b, .send_count = n, .recv_count = n, .send_type = t, \
               .recv_type = t, .op = op); \
        return PMPI_Exscan##LARGE(a, b, n, t, op, comm); \
    }

CALLS(, int, int, count, at)
#if MPI_VERSION >= 4
CALLS(_c, MPI_Count, MPI_Aint, large_count, large_at)
#endif
