/* Calls that are left to MPI again and again: counts what reaches MPI, on communicators whose handles come back as others'. Of
 * MPI_COMM_WORLD and its copies the table leaves broadcasts to MPI, of halves it has plans. Prints "right" or what is wrong. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>

static int rank, reached, wrong;

int PMPI_Bcast(void *buffer, int count, MPI_Datatype type, int root, MPI_Comm comm) {
    int (*real)(void *, int, MPI_Datatype, int, MPI_Comm);
    *(void **)&real = dlsym(RTLD_NEXT, "PMPI_Bcast");
    reached++;
    return real(buffer, count, type, root, comm);
}

static void broadcast(MPI_Comm comm, int count, int root, MPI_Datatype type, int expected, const char *what) {
    int data[64], me;
    MPI_Comm_rank(comm, &me);
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < 64; i++) data[i] = me == root ? i + turn : -1;
        reached = 0;
        MPI_Bcast(data, count, type, root, comm);
        if (reached != expected && !wrong++) printf("wrong on %d: %s reached MPI %d times in turn %d\n", rank, what, reached, turn);
        for (int i = 0; i < count; i++)
            if (data[i] != i + turn && !wrong++) printf("wrong on %d: %s: %d is %d\n", rank, what, i, data[i]);
    }
}

int main(int argc, char **argv) {
    MPI_Comm copy, half;
    int all = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int turn = 0; turn < 20; turn++) {
        for (int root = 0; root < 2; root++) broadcast(MPI_COMM_WORLD, 50, root, MPI_INT, 1, "the world");
        MPI_Comm_dup(MPI_COMM_WORLD, &copy);
        broadcast(copy, 50, 0, MPI_INT, 1, "a copy");
        MPI_Comm_free(&copy);
        MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
        for (int root = 0; root < 2; root++) broadcast(half, 50, root, MPI_INT, 0, "a half");
        MPI_Comm_free(&half);
    }
    PMPI_Reduce(&wrong, &all, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (!rank) printf(all ? "%d wrong\n" : "right\n", all);
    MPI_Finalize();
    return wrong != 0;
}
