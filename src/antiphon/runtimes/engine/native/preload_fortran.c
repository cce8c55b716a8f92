/* The names by which programs in Fortran call MPI.
 *
 * Those of MPICH (mpif.h and the module mpi) call those for C by their public names, so these come here anyway. Open MPI's call
 * the hidden ones. So its names for Fortran are offered here, too: those of mpif.h and of the module mpi
 * (mpi_allreduce_), and those that the module mpi_f08 calls (ompi_allreduce_f). Handles are turned into C's, and then
 * all is as for C.
 */
#include "preload.h"

#ifdef OPEN_MPI
#include <dlfcn.h>

/* MPI_BOTTOM and MPI_IN_PLACE are common blocks in Fortran: what their addresses mean, not what stands there. */
static const void *of_c(const void *buffer) {
    static _Atomic(void *) bottom, in_place;
    void *const nowhere = (void *)&bottom; /* no program has a buffer there */
    if (!atomic_load(&in_place)) {
        void *const found[2] = {dlsym(RTLD_DEFAULT, "mpi_fortran_bottom_"), dlsym(RTLD_DEFAULT, "mpi_fortran_in_place_")};
        atomic_store(&bottom, found[0] ? found[0] : nowhere);
        atomic_store(&in_place, found[1] ? found[1] : nowhere);
    }
    if (buffer == atomic_load(&in_place)) return MPI_IN_PLACE;
    return buffer == atomic_load(&bottom) ? MPI_BOTTOM : buffer;
}

#define IN(buffer) of_c(buffer)
#define OUT(buffer) ((void *)of_c(buffer))
#define TYPE(type) MPI_Type_f2c(*(type))
#define OP(op) MPI_Op_f2c(*(op))
#define COMM(comm) MPI_Comm_f2c(*(comm))
typedef MPI_Fint fint; /* in the length of a C int wherever it matters: see counts */

/* The same under both names; `error` is missing where a program with mpi_f08 does not ask for it. */
#define FORTRAN(name, arguments, call) \
    AP_SEEN void mpi_##name##_ arguments { \
        const int code = call; \
        if (error) *error = code; \
    } \
    AP_SEEN void ompi_##name##_f arguments __attribute__((alias("mpi_" #name "_")));

#define TO_ALL const void *a, void *b, fint *n, fint *t, fint *op, fint *comm, fint *error
#define IN_PARTS const void *a, fint *n, fint *t, void *b, fint *m, fint *u

_Static_assert(sizeof(fint) == sizeof(int), "lists of counts are handed on as they are");

FORTRAN(allreduce, (TO_ALL), MPI_Allreduce(IN(a), OUT(b), *n, TYPE(t), OP(op), COMM(comm)))
FORTRAN(reduce_scatter_block, (TO_ALL), MPI_Reduce_scatter_block(IN(a), OUT(b), *n, TYPE(t), OP(op), COMM(comm)))
FORTRAN(reduce_scatter, (TO_ALL), MPI_Reduce_scatter(IN(a), OUT(b), n, TYPE(t), OP(op), COMM(comm)))
FORTRAN(reduce, (const void *a, void *b, fint *n, fint *t, fint *op, fint *root, fint *comm, fint *error),
        MPI_Reduce(IN(a), OUT(b), *n, TYPE(t), OP(op), *root, COMM(comm)))
FORTRAN(bcast, (void *a, fint *n, fint *t, fint *root, fint *comm, fint *error),
        MPI_Bcast(OUT(a), *n, TYPE(t), *root, COMM(comm)))
FORTRAN(allgather, (IN_PARTS, fint *comm, fint *error),
        MPI_Allgather(IN(a), *n, TYPE(t), OUT(b), *m, TYPE(u), COMM(comm)))
FORTRAN(alltoall, (IN_PARTS, fint *comm, fint *error),
        MPI_Alltoall(IN(a), *n, TYPE(t), OUT(b), *m, TYPE(u), COMM(comm)))
FORTRAN(gather, (IN_PARTS, fint *root, fint *comm, fint *error),
        MPI_Gather(IN(a), *n, TYPE(t), OUT(b), *m, TYPE(u), *root, COMM(comm)))
FORTRAN(scatter, (IN_PARTS, fint *root, fint *comm, fint *error),
        MPI_Scatter(IN(a), *n, TYPE(t), OUT(b), *m, TYPE(u), *root, COMM(comm)))
FORTRAN(allgatherv, (const void *a, fint *n, fint *t, void *b, fint *m, fint *at, fint *u, fint *comm, fint *error),
        MPI_Allgatherv(IN(a), *n, TYPE(t), OUT(b), m, at, TYPE(u), COMM(comm)))

static int fortran_init_thread(int wanted, fint *given) {
    int found = 0;
    const int code = MPI_Init_thread(NULL, NULL, wanted, &found);
    *given = found;
    return code;
}

FORTRAN(init, (fint *error), MPI_Init(NULL, NULL))
FORTRAN(init_thread, (fint *wanted, fint *given, fint *error), fortran_init_thread(*wanted, given))
FORTRAN(finalize, (fint *error), MPI_Finalize())
#else
typedef int ap_no_fortran; /* a file must have something in it */
#endif
