/* The MPI functions that this library exports when it is preloaded, for C and for Fortran: each call is served by a plan,
 * or passed on to the MPI library.
 *
 * Threading: as MPI: any thread, one collective at a time on a communicator. Ownership: buffers are the caller's; the only
 *   state is the addresses of Fortran's two constants (atomic).
 */
#include <dlfcn.h>

#include "preload.h"

/* Define a collective. A call is passed on at once if it is cached that no plan serves this function or these
 * arguments; the code for that is small and separate, in two cache lines. Else ap_serve decides. FUNCTION: its number
 * (preload.h). ROOT, COUNT, TYPE: the arguments by which a call is cached; root -1: none. Further arguments of the
 * macro: the other members of ap_call. In all definitions, `a` is the buffer to send, with `n` elements of type `t`,
 * and `b` the one to receive, with `m` of type `u`. `own`: this library's function, whose address ap_bypass replaces in
 * the program's tables; `cached->library`: PMPI's, in a cache line that is read anyway. */
#define COLLECTIVE(NAME, FUNCTION, ROOT, COUNT, TYPE, PARAMETERS, ARGUMENTS, ...) \
    extern __typeof__(MPI_##NAME) own_##NAME __attribute__((alias("MPI_" #NAME), visibility("hidden"))); \
    static __attribute__((noinline)) int decide_##NAME PARAMETERS { \
        const ap_call call = {.comm = comm, .function = FUNCTION, .own = (ap_function)own_##NAME, \
                              .library = (ap_function)PMPI_##NAME, .root = ROOT, __VA_ARGS__}; \
        double *stopwatch; \
        int code; \
        if (ap_serve(&call, &stopwatch, &code)) return code; \
        code = PMPI_##NAME ARGUMENTS; \
        ap_served_by_library(stopwatch); \
        return code; \
    } \
    AP_EXPORT __attribute__((hot, aligned(64))) int MPI_##NAME PARAMETERS { \
        const ap_fallback_call *const cached = ap_fallback_slot(FUNCTION, COUNT); \
        if (ap_is_fallback(cached, comm, ROOT, COUNT, TYPE)) return ((__typeof__(&PMPI_##NAME))cached->library)ARGUMENTS; \
        return decide_##NAME ARGUMENTS; \
    }

/* COUNT of functions whose counts are lists, or not significant at all processes: single calls of them are not cached, only
 * that no plan serves the function. */
#define EVERY_CALL 0

/* All collectives, expanded twice: for counts of type int, and for the large counts of MPI 4. LARGE: the end of their
 * names, _c for large counts. FIRST: the number of the first function. COUNT_FIELD, AT_FIELD: members of ap_counts for
 * their lists. */
#define FROM_TO(count_of) const void *a, count_of n, MPI_Datatype t, void *b, count_of m, MPI_Datatype u
#define COMBINED(count_of) const void *a, void *b, count_of n, MPI_Datatype t, MPI_Op op
#define CALLS(LARGE, FIRST, count_of, place_of, COUNT_FIELD, AT_FIELD) \
    COLLECTIVE(Allreduce##LARGE, FIRST + AP_ALLREDUCE, -1, n, t, (COMBINED(count_of), MPI_Comm comm), (a, b, n, t, op, comm), \
               .kind = AP_ALLREDUCE, .send = a, .recv = b, .send_count = n, .recv_count = n, .send_type = t, .recv_type = t, \
               .op = op) \
    COLLECTIVE(Reduce##LARGE, FIRST + AP_REDUCE, root, n, t, (COMBINED(count_of), int root, MPI_Comm comm), \
               (a, b, n, t, op, root, comm), .kind = AP_REDUCE, .send = a, .recv = b, .send_count = n, .recv_count = n, \
               .send_type = t, .recv_type = t, .op = op) \
    COLLECTIVE(Reduce_scatter_block##LARGE, FIRST + AP_REDUCESCATTER, -1, n, t, (COMBINED(count_of), MPI_Comm comm), \
               (a, b, n, t, op, comm), .kind = AP_REDUCESCATTER, .send = a, .recv = b, .send_count = n, .recv_count = n, \
               .send_type = t, .recv_type = t, .op = op) \
    COLLECTIVE(Reduce_scatter##LARGE, FIRST + AP_REDUCESCATTER_LISTED, -1, EVERY_CALL, t, \
               (const void *a, void *b, const count_of n[], MPI_Datatype t, MPI_Op op, MPI_Comm comm), (a, b, n, t, op, comm), \
               .kind = AP_REDUCESCATTER, .send = a, .recv = b, .counts = {.COUNT_FIELD = n}, .send_type = t, .recv_type = t, \
               .op = op) \
    COLLECTIVE(Bcast##LARGE, FIRST + AP_BROADCAST, root, n, t, (void *a, count_of n, MPI_Datatype t, int root, MPI_Comm comm), \
               (a, n, t, root, comm), .kind = AP_BROADCAST, .send = MPI_IN_PLACE, .recv = a, .send_count = n, .recv_count = n, \
               .send_type = t, .recv_type = t) \
    COLLECTIVE(Allgather##LARGE, FIRST + AP_ALLGATHER, -1, m, u, (FROM_TO(count_of), MPI_Comm comm), (a, n, t, b, m, u, comm), \
               .kind = AP_ALLGATHER, .send = a, .recv = b, .send_count = n, .recv_count = m, .send_type = t, .recv_type = u) \
    COLLECTIVE(Alltoall##LARGE, FIRST + AP_ALLTOALL, -1, m, u, (FROM_TO(count_of), MPI_Comm comm), (a, n, t, b, m, u, comm), \
               .kind = AP_ALLTOALL, .send = a, .recv = b, .send_count = n, .recv_count = m, .send_type = t, .recv_type = u) \
    COLLECTIVE(Gather##LARGE, FIRST + AP_GATHER, root, EVERY_CALL, u, (FROM_TO(count_of), int root, MPI_Comm comm), \
               (a, n, t, b, m, u, root, comm), .kind = AP_GATHER, .send = a, .recv = b, .send_count = n, .recv_count = m, \
               .send_type = t, .recv_type = u) \
    COLLECTIVE(Scatter##LARGE, FIRST + AP_SCATTER, root, EVERY_CALL, u, (FROM_TO(count_of), int root, MPI_Comm comm), \
               (a, n, t, b, m, u, root, comm), .kind = AP_SCATTER, .send = a, .recv = b, .send_count = n, .recv_count = m, \
               .send_type = t, .recv_type = u) \
    COLLECTIVE(Allgatherv##LARGE, FIRST + AP_ALLGATHER_LISTED, -1, EVERY_CALL, u, \
               (const void *a, count_of n, MPI_Datatype t, void *b, const count_of m[], const place_of at[], MPI_Datatype u, \
                MPI_Comm comm), \
               (a, n, t, b, m, at, u, comm), .kind = AP_ALLGATHER, .send = a, .recv = b, .send_count = n, \
               .counts = {.COUNT_FIELD = m, .AT_FIELD = at}, .send_type = t, .recv_type = u) \
    COLLECTIVE(Alltoallv##LARGE, FIRST + AP_ALLTOALLV, -1, EVERY_CALL, u, \
               (const void *a, const count_of n[], const place_of from[], MPI_Datatype t, void *b, const count_of m[], \
                const place_of at[], MPI_Datatype u, MPI_Comm comm), \
               (a, n, from, t, b, m, at, u, comm), .kind = AP_ALLTOALLV, .send = a, .recv = b, \
               .send_counts = {.COUNT_FIELD = n, .AT_FIELD = from}, .counts = {.COUNT_FIELD = m, .AT_FIELD = at}, \
               .send_type = t, .recv_type = u)

CALLS(, 0, int, int, count, at)
#if MPI_VERSION >= 4
CALLS(_c, AP_INT_FUNCTIONS, MPI_Count, MPI_Aint, large_count, large_at)
#endif

/* ---- calls that are always left to MPI, and reported ---- */

/* Counts a call that goes to the library, if there is to be a report. */
static void report_fallback(int kind, int reason, MPI_Comm comm) {
    if (!ap_preload.on || !ap_preload.set.report || comm == MPI_COMM_NULL) return;
    const ap_group *g = ap_group_of(comm);
    if (g && !g->rank) ap_report_fallback(kind, reason);
}

/* Each collective in its nonblocking form and, from MPI 4 on, the persistent one; both also with large counts. LOWER,
 * UPPER: its name with a small and with a capital letter. ARGUMENTS: its parameters before the communicator; their
 * names follow. */
#define COUNTS(n) const COUNT_TYPE n[]

#define WITHOUT_WAITING(LOWER, UPPER, KIND, ARGUMENTS, ...) \
    AP_EXPORT int MPI_I##LOWER(ARGUMENTS, MPI_Comm comm, MPI_Request *request) { \
        report_fallback(KIND, AP_NONBLOCKING, comm); \
        return PMPI_I##LOWER(__VA_ARGS__, comm, request); \
    }
#define WITHOUT_WAITING_C(LOWER, UPPER, KIND, ARGUMENTS, ...) \
    AP_EXPORT int MPI_I##LOWER##_c(ARGUMENTS, MPI_Comm comm, MPI_Request *request) { \
        report_fallback(KIND, AP_NONBLOCKING, comm); \
        return PMPI_I##LOWER##_c(__VA_ARGS__, comm, request); \
    }
#define PERSISTENT(LOWER, UPPER, KIND, ARGUMENTS, ...) \
    AP_EXPORT int MPI_##UPPER##_init(ARGUMENTS, MPI_Comm comm, MPI_Info info, MPI_Request *request) { \
        report_fallback(KIND, AP_PERSISTENT, comm); \
        return PMPI_##UPPER##_init(__VA_ARGS__, comm, info, request); \
    }
#define PERSISTENT_C(LOWER, UPPER, KIND, ARGUMENTS, ...) \
    AP_EXPORT int MPI_##UPPER##_init_c(ARGUMENTS, MPI_Comm comm, MPI_Info info, MPI_Request *request) { \
        report_fallback(KIND, AP_PERSISTENT, comm); \
        return PMPI_##UPPER##_init_c(__VA_ARGS__, comm, info, request); \
    }
#define TOGETHER(...) __VA_ARGS__ /* one argument of FORM, in spite of its commas */
#define ALL(FORM) \
    FORM(allreduce, Allreduce, AP_ALLREDUCE, TOGETHER(COMBINED(COUNT_TYPE)), a, b, n, t, op) \
    FORM(reduce, Reduce, AP_REDUCE, TOGETHER(COMBINED(COUNT_TYPE), int root), a, b, n, t, op, root) \
    FORM(reduce_scatter_block, Reduce_scatter_block, AP_REDUCESCATTER, TOGETHER(COMBINED(COUNT_TYPE)), a, b, n, t, op) \
    FORM(reduce_scatter, Reduce_scatter, AP_REDUCESCATTER, TOGETHER(const void *a, void *b, COUNTS(n), MPI_Datatype t, MPI_Op op), \
         a, b, n, t, op) \
    FORM(bcast, Bcast, AP_BROADCAST, TOGETHER(void *a, COUNT_TYPE n, MPI_Datatype t, int root), a, n, t, root) \
    FORM(allgather, Allgather, AP_ALLGATHER, TOGETHER(FROM_TO(COUNT_TYPE)), a, n, t, b, m, u) \
    FORM(alltoall, Alltoall, AP_ALLTOALL, TOGETHER(FROM_TO(COUNT_TYPE)), a, n, t, b, m, u) \
    FORM(gather, Gather, AP_GATHER, TOGETHER(FROM_TO(COUNT_TYPE), int root), a, n, t, b, m, u, root) \
    FORM(scatter, Scatter, AP_SCATTER, TOGETHER(FROM_TO(COUNT_TYPE), int root), a, n, t, b, m, u, root)

#define COUNT_TYPE int
ALL(WITHOUT_WAITING)
#if MPI_VERSION >= 4
ALL(PERSISTENT)
#undef COUNT_TYPE
#define COUNT_TYPE MPI_Count
ALL(WITHOUT_WAITING_C)
ALL(PERSISTENT_C)
#endif

/* ---- the names by which programs in Fortran call MPI ----
 *
 * Those of MPICH (mpif.h and the module mpi) call those for C by their public names, so these come here anyway. Open MPI's call
 * the hidden ones. So its names for Fortran are offered here, too: those of mpif.h and of the module mpi (mpi_allreduce_), and
 * those that the module mpi_f08 calls (ompi_allreduce_f). Handles are converted to C's, and then all is as for C.
 */
#ifdef OPEN_MPI
/* The address in C of a buffer of Fortran, where MPI_BOTTOM and MPI_IN_PLACE are the addresses of common blocks. */
static const void *of_c(const void *buffer) {
    static _Atomic(void *) bottom, in_place;
    void *const nowhere = (void *)&bottom; /* no program has a buffer there */
    if (!atomic_load(&in_place)) {
        void *const addresses[2] = {dlsym(RTLD_DEFAULT, "mpi_fortran_bottom_"), dlsym(RTLD_DEFAULT, "mpi_fortran_in_place_")};
        atomic_store(&bottom, addresses[0] ? addresses[0] : nowhere);
        atomic_store(&in_place, addresses[1] ? addresses[1] : nowhere);
    }
    if (buffer == atomic_load(&in_place)) return MPI_IN_PLACE;
    return buffer == atomic_load(&bottom) ? MPI_BOTTOM : buffer;
}

#define IN(buffer) of_c(buffer)
#define OUT(buffer) ((void *)of_c(buffer))
#define TYPE(type) MPI_Type_f2c(*(type))
#define OP(op) MPI_Op_f2c(*(op))
#define COMM(comm) MPI_Comm_f2c(*(comm))
typedef MPI_Fint fint; /* as long as int: asserted below, as lists of counts are passed on unchanged */

/* Define a function under both names; `error` is NULL if a program with mpi_f08 leaves it out. */
#define FORTRAN(name, arguments, call) \
    AP_EXPORT void mpi_##name##_ arguments { \
        const int code = call; \
        if (error) *error = code; \
    } \
    AP_EXPORT void ompi_##name##_f arguments __attribute__((alias("mpi_" #name "_")));

#define TO_ALL const void *a, void *b, fint *n, fint *t, fint *op, fint *comm, fint *error
#define FROM_TO_FORTRAN const void *a, fint *n, fint *t, void *b, fint *m, fint *u

_Static_assert(sizeof(fint) == sizeof(int), "lists of counts are passed on as they are");

FORTRAN(allreduce, (TO_ALL), MPI_Allreduce(IN(a), OUT(b), *n, TYPE(t), OP(op), COMM(comm)))
FORTRAN(reduce_scatter_block, (TO_ALL), MPI_Reduce_scatter_block(IN(a), OUT(b), *n, TYPE(t), OP(op), COMM(comm)))
FORTRAN(reduce_scatter, (TO_ALL), MPI_Reduce_scatter(IN(a), OUT(b), n, TYPE(t), OP(op), COMM(comm)))
FORTRAN(reduce, (const void *a, void *b, fint *n, fint *t, fint *op, fint *root, fint *comm, fint *error),
        MPI_Reduce(IN(a), OUT(b), *n, TYPE(t), OP(op), *root, COMM(comm)))
FORTRAN(bcast, (void *a, fint *n, fint *t, fint *root, fint *comm, fint *error),
        MPI_Bcast(OUT(a), *n, TYPE(t), *root, COMM(comm)))
FORTRAN(allgather, (FROM_TO_FORTRAN, fint *comm, fint *error),
        MPI_Allgather(IN(a), *n, TYPE(t), OUT(b), *m, TYPE(u), COMM(comm)))
FORTRAN(alltoall, (FROM_TO_FORTRAN, fint *comm, fint *error),
        MPI_Alltoall(IN(a), *n, TYPE(t), OUT(b), *m, TYPE(u), COMM(comm)))
FORTRAN(gather, (FROM_TO_FORTRAN, fint *root, fint *comm, fint *error),
        MPI_Gather(IN(a), *n, TYPE(t), OUT(b), *m, TYPE(u), *root, COMM(comm)))
FORTRAN(scatter, (FROM_TO_FORTRAN, fint *root, fint *comm, fint *error),
        MPI_Scatter(IN(a), *n, TYPE(t), OUT(b), *m, TYPE(u), *root, COMM(comm)))
FORTRAN(allgatherv, (const void *a, fint *n, fint *t, void *b, fint *m, fint *at, fint *u, fint *comm, fint *error),
        MPI_Allgatherv(IN(a), *n, TYPE(t), OUT(b), m, at, TYPE(u), COMM(comm)))
FORTRAN(alltoallv, (const void *a, fint *n, fint *from, fint *t, void *b, fint *m, fint *at, fint *u, fint *comm, fint *error),
        MPI_Alltoallv(IN(a), n, from, TYPE(t), OUT(b), m, at, TYPE(u), COMM(comm)))

static int fortran_init_thread(int required, fint *provided) {
    int level = 0;
    const int code = MPI_Init_thread(NULL, NULL, required, &level);
    *provided = level;
    return code;
}

FORTRAN(init, (fint *error), MPI_Init(NULL, NULL))
FORTRAN(init_thread, (fint *required, fint *provided, fint *error), fortran_init_thread(*required, provided))
FORTRAN(finalize, (fint *error), MPI_Finalize())
#endif
