/* Whose function a call of MPI_Bcast and one of MPI_Allreduce reach before and after the first calls of each: the table plans
 * the latter only. Prints "right" or what is wrong. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>

static int rank, wrong;

/* The file that holds the function which the entry of this program leads to. */
#define REACHED(NAME) reached(address_of_##NAME)
#define ADDRESS(NAME) \
    static __attribute__((noinline)) void *address_of_##NAME(void) { \
        void *address; \
        __asm__ volatile(LOAD(NAME) : "=r"(address)); \
        return address; \
    }
#if defined(__x86_64__)
#define LOAD(NAME) "movq " #NAME "@GOTPCREL(%%rip), %0"
#else
#define LOAD(NAME) "adrp %0, :got:" #NAME "\n\tldr %0, [%0, :got_lo12:" #NAME "]"
#endif
ADDRESS(MPI_Bcast)
ADDRESS(MPI_Allreduce)

static const char *reached(void *(*address_of)(void)) {
    Dl_info info;
    return dladdr(address_of(), &info) && info.dli_fname ? info.dli_fname : "nowhere";
}

static void expect(const char *what, const char *file, int is_ours) {
    if ((strstr(file, "libmpi") == NULL) != is_ours && !wrong++) printf("wrong: %s reaches %s\n", what, file);
}

int main(int argc, char **argv) {
    int all = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    expect("a broadcast, before the first", REACHED(MPI_Bcast), 1);
    for (int turn = 0; turn < 3; turn++) {
        int data = rank ? -1 : turn, sum = 0;
        MPI_Bcast(&data, 1, MPI_INT, 0, MPI_COMM_WORLD);
        if (data != turn && !wrong++) printf("wrong: a broadcast gave %d\n", data);
        MPI_Allreduce(&data, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        if (sum != 2 * turn && !wrong++) printf("wrong: a sum is %d\n", sum);
    }
    expect("a broadcast", REACHED(MPI_Bcast), 0);
    expect("an allreduce", REACHED(MPI_Allreduce), 1);
    PMPI_Reduce(&wrong, &all, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (!rank) printf(all ? "%d wrong\n" : "right\n", all);
    MPI_Finalize();
    return wrong != 0;
}
