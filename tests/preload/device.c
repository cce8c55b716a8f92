/* Compiled as a library: what of CUDA's driver is asked for, for memory of the host that plays that of a GPU. As a program:
 * calls with such buffers at all processes, at one, at none. Arguments: "late" and the library, to be loaded after MPI_Init. */
#ifdef LIBRARY
static char *begin, *end;
int asked;

void stand_in(char *memory, unsigned long bytes) { begin = memory, end = memory + bytes; }

int cuPointerGetAttribute(void *data, int attribute, unsigned long long pointer) {
    asked++;
    if (attribute != 2 || (char *)pointer < begin || (char *)pointer >= end) return 1;
    *(unsigned *)data = 2;
    return 0;
}
#else
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 5000 };

static int rank, size, wrong;

static void check(int good, const char *what, int i) {
    if (!good && wrong++ < 5) printf("wrong on %d: %s: %d\n", rank, what, i);
}

static void calls(int *a, int *b, const char *what) {
    for (int i = 0; i < N; i++) a[i] = rank + i;
    MPI_Allreduce(a, b, N, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < N; i++) check(b[i] == size * (size - 1) / 2 + size * i, what, i);
    MPI_Bcast(a, N, MPI_INT, size - 1, MPI_COMM_WORLD);
    for (int i = 0; i < N; i++) check(a[i] == size - 1 + i, what, i);
}

int main(int count, char **arguments) {
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank), MPI_Comm_size(MPI_COMM_WORLD, &size);
    int *gpu = malloc(2 * N * sizeof(int)), *host = malloc(2 * N * sizeof(int)), all;
    void *library = dlopen(count > 2 ? arguments[2] : "libcuda.so.1", RTLD_NOW | (count > 2 ? 0 : RTLD_NOLOAD));
    void (*stand_in)(char *, unsigned long) = library ? (void (*)(char *, unsigned long))dlsym(library, "stand_in") : NULL;
    if (stand_in) stand_in((char *)gpu, 2 * N * sizeof(int));
    check(!!stand_in, "the library is not there", 0);
    calls(host, host + N, "all on the host");
    calls(gpu, gpu + N, "all on GPUs");
    calls(rank ? host : gpu, host + N, "one from a GPU");
    calls(host, rank == size - 1 ? gpu : host + N, "one to a GPU");
    calls(host, host + N, "all on the host, again");
    MPI_Reduce(&wrong, &all, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (!rank) printf(all ? "%d wrong\n" : "right\n", all);
    MPI_Finalize();
    return wrong != 0;
}
#endif
