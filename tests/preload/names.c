/* A program that has functions of the names that the library has for its own: neither calls the other's. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int called;

#define OURS(NAME) \
    int NAME(void); \
    int NAME(void) { return ++called; }

OURS(ap_run)
OURS(ap_prepare)
OURS(ap_make_ready)
OURS(ap_serve)
OURS(ap_book_open)
OURS(ap_open_bytes)
OURS(ap_wire_close)
OURS(ap_fold)
OURS(ap_fail)
OURS(ap_crc32)
OURS(ap_mpi_open)
OURS(ap_shared_send)
OURS(ap_report)
OURS(ap_lay_out)
OURS(ap_read_section)
OURS(fold)
OURS(move)
OURS(start)
OURS(finish)
OURS(damaged)
int ap_preload = 7, ap_fallback_calls = 7;

int main(int argc, char **argv) {
    enum { COUNT = 3000 };
    double *a = malloc(COUNT * sizeof *a), *b = malloc(COUNT * sizeof *b);
    int rank, size, good = 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int i = 0; i < COUNT; i++) a[i] = rank + i, b[i] = -1;
    MPI_Allreduce(a, b, COUNT, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < COUNT; i++) good &= b[i] == size * (size - 1) / 2.0 + (double)size * i;
    MPI_Bcast(a, COUNT, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    for (int i = 0; i < COUNT; i++) good &= a[i] == i;
    good &= called == 0 && ap_run() == 1 && fold() == 2 && ap_preload == 7 && ap_fallback_calls == 7;
    if (!rank) puts(good ? "right" : "wrong");
    MPI_Finalize();
    free(a), free(b);
    return !good;
}
