/* The names of MPI that this library offers when it is preloaded: each is served by a plan, or handed on. */
#include "preload.h"

#define SERVED(...) \
    const ap_call call = {.comm = comm, __VA_ARGS__}; \
    double *spent; \
    int code; \
    if (ap_serve(&call, &spent, &code)) return code
/* Calls whose size is known by the same arguments at all processes, and that were left to the library before. */
#define SHORT(KIND, ROOT, COUNT, TYPE, CALL) \
    if (ap_is_left(KIND, comm, ROOT, COUNT, TYPE)) return CALL
#define LEFT(CALL) \
    code = CALL; \
    if (spent) ap_trial_over(spent); \
    return code

/* Twice: for counts of type int, and for the large ones that MPI 4 has. */
#define CALLS(LARGE, count_of, place_of, COUNT, AT) \
    AP_SEEN int MPI_Allreduce##LARGE(const void *a, void *b, count_of n, MPI_Datatype t, MPI_Op op, MPI_Comm comm) { \
        SHORT(AP_ALLREDUCE, -1, n, t, PMPI_Allreduce##LARGE(a, b, n, t, op, comm)); \
        SERVED(.kind = AP_ALLREDUCE, .root = -1, .send = a, .recv = b, .send_count = n, .recv_count = n, .send_type = t, \
               .recv_type = t, .op = op); \
        LEFT(PMPI_Allreduce##LARGE(a, b, n, t, op, comm)); \
    } \
    AP_SEEN int MPI_Reduce##LARGE(const void *a, void *b, count_of n, MPI_Datatype t, MPI_Op op, int root, MPI_Comm comm) { \
        SHORT(AP_REDUCE, root, n, t, PMPI_Reduce##LARGE(a, b, n, t, op, root, comm)); \
        SERVED(.kind = AP_REDUCE, .root = root, .send = a, .recv = b, .send_count = n, .recv_count = n, .send_type = t, \
               .recv_type = t, .op = op); \
        LEFT(PMPI_Reduce##LARGE(a, b, n, t, op, root, comm)); \
    } \
    AP_SEEN int MPI_Reduce_scatter_block##LARGE(const void *a, void *b, count_of n, MPI_Datatype t, MPI_Op op, MPI_Comm comm) { \
        SHORT(AP_REDUCESCATTER, -1, n, t, PMPI_Reduce_scatter_block##LARGE(a, b, n, t, op, comm)); \
        SERVED(.kind = AP_REDUCESCATTER, .root = -1, .send = a, .recv = b, .send_count = n, .recv_count = n, .send_type = t, \
               .recv_type = t, .op = op); \
        LEFT(PMPI_Reduce_scatter_block##LARGE(a, b, n, t, op, comm)); \
    } \
    AP_SEEN int MPI_Reduce_scatter##LARGE(const void *a, void *b, const count_of n[], MPI_Datatype t, MPI_Op op, \
                                  MPI_Comm comm) { \
        SERVED(.kind = AP_REDUCESCATTER, .root = -1, .send = a, .recv = b, .gets = {.COUNT = n}, .send_type = t, .recv_type = t, .op = op); \
        LEFT(PMPI_Reduce_scatter##LARGE(a, b, n, t, op, comm)); \
    } \
    AP_SEEN int MPI_Bcast##LARGE(void *a, count_of n, MPI_Datatype t, int root, MPI_Comm comm) { \
        SHORT(AP_BROADCAST, root, n, t, PMPI_Bcast##LARGE(a, n, t, root, comm)); \
        SERVED(.kind = AP_BROADCAST, .root = root, .send = MPI_IN_PLACE, .recv = a, .send_count = n, .recv_count = n, \
               .send_type = t, .recv_type = t); \
        LEFT(PMPI_Bcast##LARGE(a, n, t, root, comm)); \
    } \
    AP_SEEN int MPI_Allgather##LARGE(const void *a, count_of n, MPI_Datatype t, void *b, count_of m, MPI_Datatype u, \
                             MPI_Comm comm) { \
        SHORT(AP_ALLGATHER, -1, m, u, PMPI_Allgather##LARGE(a, n, t, b, m, u, comm)); \
        SERVED(.kind = AP_ALLGATHER, .root = -1, .send = a, .recv = b, .send_count = n, .recv_count = m, .send_type = t, \
               .recv_type = u); \
        LEFT(PMPI_Allgather##LARGE(a, n, t, b, m, u, comm)); \
    } \
    AP_SEEN int MPI_Alltoall##LARGE(const void *a, count_of n, MPI_Datatype t, void *b, count_of m, MPI_Datatype u, \
                            MPI_Comm comm) { \
        SHORT(AP_ALLTOALL, -1, m, u, PMPI_Alltoall##LARGE(a, n, t, b, m, u, comm)); \
        SERVED(.kind = AP_ALLTOALL, .root = -1, .send = a, .recv = b, .send_count = n, .recv_count = m, .send_type = t, \
               .recv_type = u); \
        LEFT(PMPI_Alltoall##LARGE(a, n, t, b, m, u, comm)); \
    } \
    AP_SEEN int MPI_Gather##LARGE(const void *a, count_of n, MPI_Datatype t, void *b, count_of m, MPI_Datatype u, int root, \
                          MPI_Comm comm) { \
        SERVED(.kind = AP_GATHER, .root = root, .send = a, .recv = b, .send_count = n, .recv_count = m, .send_type = t, \
               .recv_type = u); \
        LEFT(PMPI_Gather##LARGE(a, n, t, b, m, u, root, comm)); \
    } \
    AP_SEEN int MPI_Scatter##LARGE(const void *a, count_of n, MPI_Datatype t, void *b, count_of m, MPI_Datatype u, int root, \
                           MPI_Comm comm) { \
        SERVED(.kind = AP_SCATTER, .root = root, .send = a, .recv = b, .send_count = n, .recv_count = m, .send_type = t, \
               .recv_type = u); \
        LEFT(PMPI_Scatter##LARGE(a, n, t, b, m, u, root, comm)); \
    } \
    AP_SEEN int MPI_Allgatherv##LARGE(const void *a, count_of n, MPI_Datatype t, void *b, const count_of m[], \
                                      const place_of at[], MPI_Datatype u, MPI_Comm comm) { \
        SERVED(.kind = AP_ALLGATHER, .root = -1, .send = a, .recv = b, .send_count = n, .gets = {.COUNT = m, .AT = at}, \
               .send_type = t, .recv_type = u); \
        LEFT(PMPI_Allgatherv##LARGE(a, n, t, b, m, at, u, comm)); \
    }

CALLS(, int, int, count, at)
#if MPI_VERSION >= 4
CALLS(_c, MPI_Count, MPI_Aint, large_count, large_at)
#endif

/* ---- what is left to MPI, and told of ---- */

static void left(int kind, int reason, MPI_Comm comm) {
    ap_group *g;
    if (!ap_preload.on || !ap_preload.set.report || comm == MPI_COMM_NULL) return;
    if ((g = ap_group_of(comm)) && !g->rank) ap_report_left(kind, reason);
}

/* Each call in the form that does not wait, and, where MPI has it, the persistent one; either also for large counts. */
#define PARTS const void *a, COUNT n, MPI_Datatype t, void *b, COUNT m, MPI_Datatype u
#define REDUCES const void *a, void *b, COUNT n, MPI_Datatype t, MPI_Op op
#define COUNTS(n) const COUNT n[]

#define WITHOUT_WAITING(SMALL, LARGE, KIND, ARGUMENTS, ...) \
    AP_SEEN int MPI_I##SMALL(ARGUMENTS, MPI_Comm comm, MPI_Request *request) { \
        left(KIND, AP_NONBLOCKING, comm); \
        return PMPI_I##SMALL(__VA_ARGS__, comm, request); \
    }
#define WITHOUT_WAITING_C(SMALL, LARGE, KIND, ARGUMENTS, ...) \
    AP_SEEN int MPI_I##SMALL##_c(ARGUMENTS, MPI_Comm comm, MPI_Request *request) { \
        left(KIND, AP_NONBLOCKING, comm); \
        return PMPI_I##SMALL##_c(__VA_ARGS__, comm, request); \
    }
#define PERSISTENT(SMALL, LARGE, KIND, ARGUMENTS, ...) \
    AP_SEEN int MPI_##LARGE##_init(ARGUMENTS, MPI_Comm comm, MPI_Info info, MPI_Request *request) { \
        left(KIND, AP_PERSISTENT, comm); \
        return PMPI_##LARGE##_init(__VA_ARGS__, comm, info, request); \
    }
#define PERSISTENT_C(SMALL, LARGE, KIND, ARGUMENTS, ...) \
    AP_SEEN int MPI_##LARGE##_init_c(ARGUMENTS, MPI_Comm comm, MPI_Info info, MPI_Request *request) { \
        left(KIND, AP_PERSISTENT, comm); \
        return PMPI_##LARGE##_init_c(__VA_ARGS__, comm, info, request); \
    }
#define TOGETHER(...) __VA_ARGS__
#define ALL(FORM) \
    FORM(allreduce, Allreduce, AP_ALLREDUCE, TOGETHER(REDUCES), a, b, n, t, op) \
    FORM(reduce, Reduce, AP_REDUCE, TOGETHER(REDUCES, int root), a, b, n, t, op, root) \
    FORM(reduce_scatter_block, Reduce_scatter_block, AP_REDUCESCATTER, TOGETHER(REDUCES), a, b, n, t, op) \
    FORM(reduce_scatter, Reduce_scatter, AP_REDUCESCATTER, TOGETHER(const void *a, void *b, COUNTS(n), MPI_Datatype t, MPI_Op op), \
         a, b, n, t, op) \
    FORM(bcast, Bcast, AP_BROADCAST, TOGETHER(void *a, COUNT n, MPI_Datatype t, int root), a, n, t, root) \
    FORM(allgather, Allgather, AP_ALLGATHER, TOGETHER(PARTS), a, n, t, b, m, u) \
    FORM(alltoall, Alltoall, AP_ALLTOALL, TOGETHER(PARTS), a, n, t, b, m, u) \
    FORM(gather, Gather, AP_GATHER, TOGETHER(PARTS, int root), a, n, t, b, m, u, root) \
    FORM(scatter, Scatter, AP_SCATTER, TOGETHER(PARTS, int root), a, n, t, b, m, u, root)

#define COUNT int
ALL(WITHOUT_WAITING)
#if MPI_VERSION >= 4
ALL(PERSISTENT)
#undef COUNT
#define COUNT MPI_Count
ALL(WITHOUT_WAITING_C)
ALL(PERSISTENT_C)
#endif
