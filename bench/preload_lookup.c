/* What the preload library adds to a call that it leaves to MPI: PMPI functions are replaced by stubs that do nothing, so what
 * remains is the way to them. To be linked with -rdynamic and run under LD_PRELOAD with a table that leaves all to MPI; or with
 * the least that any library in LD_PRELOAD can be: this file compiled with -DPASS_ON -shared.
 *
 * Process 0 writes a line for each: collective, elements, seconds that a call takes longer than the stub alone when nothing
 * else runs between calls, and when other code and data have emptied the caches of the processor before each call. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifdef PASS_ON
int MPI_Bcast(void *a, int n, MPI_Datatype t, int root, MPI_Comm comm) { return PMPI_Bcast(a, n, t, root, comm); }

int MPI_Allreduce(const void *a, void *b, int n, MPI_Datatype t, MPI_Op op, MPI_Comm comm) {
    return PMPI_Allreduce(a, b, n, t, op, comm);
}

int MPI_Alltoall(const void *a, int n, MPI_Datatype t, void *b, int m, MPI_Datatype u, MPI_Comm comm) {
    return PMPI_Alltoall(a, n, t, b, m, u, comm);
}
#else

enum { CALLS = 20000, ROUNDS = 31, COLD_ROUNDS = 301, LARGEST = 65536 };
enum { OTHER_DATA = 64 << 20, OTHER_CODE = 1 << 20, LINE = 64 }; /* bytes; more than caches and page tables of a core hold */
enum { BROADCAST, ALLREDUCE, ALLTOALL, KINDS };
static const char *const names[KINDS] = {"broadcast", "allreduce", "alltoall"};

static int stubbed;
static char from[4 * LARGEST], to[4 * LARGEST];

#define STUB(NAME, PARAMETERS, ...) \
    int PMPI_##NAME PARAMETERS { \
        int(*real) PARAMETERS; \
        if (stubbed) return MPI_SUCCESS; \
        *(void **)&real = dlsym(RTLD_NEXT, "PMPI_" #NAME); \
        return real(__VA_ARGS__); \
    }

STUB(Bcast, (void *a, int n, MPI_Datatype t, int root, MPI_Comm comm), a, n, t, root, comm)
STUB(Allreduce, (const void *a, void *b, int n, MPI_Datatype t, MPI_Op op, MPI_Comm comm), a, b, n, t, op, comm)
STUB(Alltoall, (const void *a, int n, MPI_Datatype t, void *b, int m, MPI_Datatype u, MPI_Comm comm), a, n, t, b, m, u, comm)

#define BOTH(NAME, ...) (direct ? PMPI_##NAME(__VA_ARGS__) : MPI_##NAME(__VA_ARGS__))

static int call(int kind, int direct, int n) {
    if (kind == BROADCAST) return BOTH(Bcast, to, n, MPI_BYTE, 0, MPI_COMM_WORLD);
    if (kind == ALLTOALL) return BOTH(Alltoall, from, n, MPI_BYTE, to, n, MPI_BYTE, MPI_COMM_WORLD);
    return BOTH(Allreduce, from, to, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static int by_size(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static char *other_data;
static void (*other_code)(void);

/* Functions that return at once, each in a cache line of its own. */
static void make_other_code(void) {
#if defined(__x86_64__)
    static const uint32_t returns = 0xC3;
#elif defined(__aarch64__)
    static const uint32_t returns = 0xD65F03C0;
#endif
    char *code = mmap(NULL, OTHER_CODE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED) abort();
    for (int at = 0; at < OTHER_CODE; at += LINE) *(uint32_t *)(void *)(code + at) = returns;
    __builtin___clear_cache(code, code + OTHER_CODE);
    other_code = (void (*)(void))code;
}

static void empty_caches(void) {
    for (int at = 0; at < OTHER_DATA; at += LINE) other_data[at]++;
    for (int at = 0; at < OTHER_CODE; at += LINE) ((void (*)(void))((char *)other_code + at))();
}

static double cold_call(int kind, int direct, int n) {
    empty_caches();
    MPI_Wtime(); /* its own code and data come back before the call is timed */
    const double began = MPI_Wtime();
    call(kind, direct, n);
    return MPI_Wtime() - began;
}

int main(int count, char **arguments) {
    int rank;
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    other_data = malloc(OTHER_DATA);
    make_other_code();
    for (int kind = 0; kind < KINDS; kind++)
        for (int n = 1; n <= LARGEST; n *= 256) {
            double spent[2][ROUNDS];
            stubbed = 1;
            for (int round = 0; round < ROUNDS; round++)
                for (int direct = 0; direct < 2; direct++) {
                    const double began = MPI_Wtime();
                    for (int i = 0; i < CALLS; i++) call(kind, direct, n);
                    spent[direct][round] = (MPI_Wtime() - began) / CALLS;
                }
            double cold[2][COLD_ROUNDS];
            for (int round = 0; round < COLD_ROUNDS; round++)
                for (int direct = 0; direct < 2; direct++) cold[direct][round] = cold_call(kind, direct, n);
            stubbed = 0;
            for (int direct = 0; direct < 2; direct++) qsort(spent[direct], ROUNDS, sizeof(double), by_size);
            for (int direct = 0; direct < 2; direct++) qsort(cold[direct], COLD_ROUNDS, sizeof(double), by_size);
            if (!rank)
                printf("%s %d %.3g %.3g\n", names[kind], n, spent[0][ROUNDS / 2] - spent[1][ROUNDS / 2],
                       cold[0][COLD_ROUNDS / 2] - cold[1][COLD_ROUNDS / 2]);
        }
    MPI_Finalize();
    return 0;
}
#endif
